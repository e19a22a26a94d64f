//! Replays one run of the simulator and prints its trace and report. Ends with 1 if a promise was
//! not kept.
//!
//! `cargo run --example simulate --features sim -- --seed N [--scenario NAME]`

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use thread_group_pool::sim::{self, NAMES, scenario};

fn main() -> ExitCode {
    let Some((name, seed)) = arguments() else {
        eprintln!("simulate --seed N [--scenario NAME], NAME one of {NAMES:?}");
        return ExitCode::from(2);
    };
    let Some(scenario) = scenario(&name, seed) else {
        eprintln!("there is no scenario `{name}`; there are {NAMES:?}");
        return ExitCode::from(2);
    };
    let report = sim::run(&scenario, seed);
    let mut out = BufWriter::new(io::stdout().lock());
    let written = report
        .trace
        .iter()
        .try_for_each(|entry| writeln!(out, "{entry}"))
        .and_then(|()| write!(out, "{scenario:#?}\n{report}"))
        .and_then(|()| out.flush());
    // Whoever reads the trace may have seen enough.
    ExitCode::from(u8::from(written.is_err() || !report.violations.is_empty()))
}

fn arguments() -> Option<(String, u64)> {
    let (mut name, mut seed) = ("swarm".to_owned(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--scenario" => name = args.next()?,
            "--seed" => seed = Some(args.next()?.parse().ok()?),
            _ => return None,
        }
    }
    Some((name, seed?))
}
