//! `study table` and `study latency`: measure, print, write. See `study --help`.

#[cfg(not(any(target_os = "linux", windows)))]
fn main() -> std::process::ExitCode {
    eprintln!("study: it needs Linux, or Windows");
    std::process::ExitCode::from(2)
}

#[cfg(any(target_os = "linux", windows))]
fn main() -> std::process::ExitCode {
    tool::main()
}

#[cfg(any(target_os = "linux", windows))]
mod tool {
    use std::io::{self, IsTerminal, Write};
    use std::path::Path;
    use std::process::ExitCode;
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressStyle};
    use study::args::{self, Asked, Command, Disk, HELP, Latency, Mysql, Simulate, Table};
    use study::cpu::{self, Split};
    use study::error::{Error, Result};
    use study::machine::Machine;
    use study::record::{self, Output};
    use study::run::{self, Progress};
    use study::{
        calibrate, disk, doctor, knee, latency, mixed, mysql, process, published, report, server,
        simulate, single, table,
    };

    pub(crate) fn main() -> ExitCode {
        if let Some(code) = server::main_if_asked().or_else(mysql::mariadb::main_if_asked) {
            return code;
        }
        match asked() {
            Ok(code) => code,
            Err(error) => {
                eprintln!("study: {error}");
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn asked() -> Result<ExitCode> {
        match args::parse(std::env::args_os().skip(1), &cpu::allowed()?, cpu::core_of)? {
            Command::Help => say(HELP).map(|()| ExitCode::SUCCESS),
            Command::Table(table) => {
                let published = published::all()?;
                throughput(&table, |plan, cells| table::render(plan, cells, &published))
            }
            Command::Single(table) => throughput(&table, single::render),
            Command::Mixed(table) => throughput(&table, mixed::render),
            Command::Disk(disk) => writes(&disk),
            Command::Latency(latency) => latencies(&latency),
            Command::Mysql(mysql) => by_mysql(&mysql),
            Command::Report(plan) => everything(&plan),
            Command::Simulate(asked) => virtual_machines(&asked),
            Command::Doctor(plan) => examine(&plan),
        }
    }

    fn everything(plan: &report::Plan) -> Result<ExitCode> {
        report::prepare(&plan.out)?;
        // The servers of `latency` run on some of the CPUs of the others.
        let split = plan
            .tables
            .first()
            .map_or(&plan.latency.split, |table| &table.split);
        let machine = prepare(plan.files_needed(), split)?;
        let data = report::measure(plan, watcher(plan.rounds_in_all()))?;
        let page = report::write(plan, &machine, &data)?;
        conclude(
            &machine,
            &format!("{}\n", page.display()),
            data.errors() > 0,
        )
    }

    fn examine(plan: &doctor::Plan) -> Result<ExitCode> {
        let findings = doctor::examine(plan);
        say(&if plan.json {
            doctor::json(&findings)
        } else {
            doctor::render(&findings)
        })?;
        Ok(if doctor::is_ill(&findings) {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }

    fn throughput(
        table: &Table,
        render: impl Fn(&run::Plan, &[run::Cell]) -> String,
    ) -> Result<ExitCode> {
        let Table {
            plan,
            knee,
            json,
            csv,
        } = table;
        if let Some(bound) = knee {
            return knees(plan, *bound, json.as_deref());
        }
        // Whatever can be refused is refused before the first second is spent.
        let json = json.as_deref().map(Output::open).transpose()?;
        let csv = csv.as_deref().map(Output::open).transpose()?;
        let machine = prepare(plan.files_needed(), &plan.split)?;
        let cells = run::run(plan, watcher(plan.rounds_in_all()))?;
        if let Some(json) = json {
            json.write(&record::json(&machine, &cells))?;
        }
        if let Some(csv) = csv {
            csv.write(&record::csv(&cells))?;
        }
        let table = render(plan, &cells);
        let errors = cells.iter().any(|cell| cell.errors.total() > 0);
        conclude(&machine, &table, errors)
    }

    fn knees(plan: &run::Plan, bound: Duration, json: Option<&Path>) -> Result<ExitCode> {
        let json = json.map(Output::open).transpose()?;
        let machine = prepare(plan.files_needed(), &plan.split)?;
        let found = knee::run(plan, bound, |message| eprintln!("{message}"))?;
        if let Some(json) = json {
            json.write(&record::knee_json(&machine, bound, &found))?;
        }
        conclude(&machine, &knee::render(plan, bound, &found), false)
    }

    fn writes(Disk { plan, json }: &Disk) -> Result<ExitCode> {
        let json = json.as_deref().map(Output::open).transpose()?;
        let machine = prepare(plan.table.files_needed(), &plan.table.split)?;
        let outcome = disk::run(plan, watcher(plan.rounds_in_all()))?;
        if let Some(json) = json {
            json.write(&record::disk_json(&machine, plan.sync, &outcome))?;
        }
        conclude(
            &machine,
            &disk::render(plan, &outcome),
            outcome.has_errors(),
        )
    }

    fn virtual_machines(asked: &Simulate) -> Result<ExitCode> {
        let Simulate {
            plan,
            calibration,
            simulate,
            json,
        } = asked;
        let json = json.as_deref().map(Output::open).transpose()?;
        let measured = &plan.calibration;
        let machine = prepare(plan.files_needed(), &measured.split)?;
        let calibration = match calibration {
            Some(calibration) => *calibration,
            None => calibrate::measure(measured, watcher(measured.rounds_in_all()))?,
        };
        if !simulate {
            if let Some(json) = json {
                json.write(&record::calibration_json(&machine, &calibration))?;
            }
            return conclude(&machine, &calibration.render(), false);
        }
        let rounds = plan.real.as_ref().map_or(0, run::Plan::rounds_in_all);
        let outcome = simulate::run(plan, calibration, watcher(rounds))?;
        if let Some(json) = json {
            json.write(&record::simulation_json(&machine, &outcome))?;
        }
        let errors = outcome.real.iter().any(|cell| cell.errors.total() > 0);
        conclude(&machine, &simulate::render(plan, &outcome), errors)
    }

    fn latencies(Latency { plan, json }: &Latency) -> Result<ExitCode> {
        let json = json.as_deref().map(Output::open).transpose()?;
        let machine = prepare(plan.files_needed(), &plan.split)?;
        let outcome = latency::run(plan, watcher(plan.rounds_in_all()))?;
        if let Some(json) = json {
            json.write(&record::latency_json(&machine, &outcome))?;
        }
        let table = latency::table::render(plan, &outcome);
        let errors = outcome.cells.iter().any(|cell| cell.errors.total() > 0);
        conclude(&machine, &table, errors)
    }

    fn by_mysql(Mysql { plan, json }: &Mysql) -> Result<ExitCode> {
        let (setting, files, rounds) = match plan {
            Asked::Throughput(plan) => (&plan.setting, plan.files_needed(), plan.rounds_in_all()),
            Asked::Heavy(plan) => (&plan.setting, plan.files_needed(), plan.rounds_in_all()),
        };
        let (sysbench, versions) = setting.check()?;
        let json = json.as_deref().map(Output::open).transpose()?;
        let machine = prepare(files, &setting.split)?;
        let watcher = watcher(rounds);
        let (record, table) = match plan {
            Asked::Throughput(plan) => {
                let cells = mysql::run(plan, &sysbench, watcher)?;
                (
                    record::mysql_json(&machine, &versions, &cells),
                    mysql::table::render(plan, &versions, &cells),
                )
            }
            Asked::Heavy(plan) => {
                let cells = mysql::heavy::run(plan, &sysbench, watcher)?;
                (
                    record::mysql_heavy_json(&machine, &versions, &cells),
                    mysql::table::render_heavy(plan, &versions, &cells),
                )
            }
        };
        if let Some(json) = json {
            json.write(&record)?;
        }
        conclude(&machine, &table, false)
    }

    /// Makes this process ready to be the load generator.
    fn prepare(files_needed: usize, split: &Split) -> Result<Machine> {
        process::raise_file_limit(files_needed)?;
        let machine = Machine::look(split);
        for warning in machine.warnings() {
            eprintln!("study: warning: {warning}");
        }
        cpu::pin(&split.client)?;
        Ok(machine)
    }

    fn conclude(machine: &Machine, table: &str, errors: bool) -> Result<ExitCode> {
        let facts = machine.lines().join("\n");
        say(&format!("{facts}\n\n{table}"))?;
        Ok(if errors {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }

    /// A bar on a terminal, a line for each round elsewhere; both on standard error, where they are
    /// in nobody's way.
    fn watcher(rounds: usize) -> impl FnMut(Progress) {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(rounds as u64);
            // A style that does not parse leaves the default one.
            if let Ok(style) =
                ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left  {msg}")
            {
                bar.set_style(style);
            }
            bar
        });
        move |round| {
            let Progress { done, of, message } = round;
            match &bar {
                None => eprintln!("{done}/{of} {message}"),
                Some(bar) if done == of => bar.finish_and_clear(),
                Some(bar) => {
                    bar.set_message(message);
                    bar.inc(1);
                }
            }
        }
    }

    /// `print!` panics when the reader of a pipe has left.
    fn say(text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        let said = stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush());
        said.map_err(|error| Error::run(format!("cannot print the result: {error}")))
    }
}
