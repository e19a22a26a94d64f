//! The server and the client of `examples/sqlish`: `cargo run --example sqlish -- serve --help`.

fn main() -> std::process::ExitCode {
    sqlish::main()
}
