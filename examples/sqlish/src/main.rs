//! The program: `sqlish serve` and `sqlish client`.

fn main() -> std::process::ExitCode {
    sqlish::main()
}
