//! How many statements a second does each scheduler serve, as the number of clients grows?
//!
//! `cargo bench --bench scaling` takes about a minute and asks of two workloads and the library's own
//! schedulers, over a Unix socket. `SCALING=full cargo bench --bench scaling` asks of every workload,
//! every scheduler that the study has in this build, both transports and all numbers of clients, in
//! three quarters of an hour; a filter takes a part of it, as `ping` or `tcp/pool`.
//!
//! It drives servers in processes of their own, on CPUs of their own, by the load generator of
//! `examples/study`, whose `study table` measures the same more thoroughly: interleaved rounds,
//! latencies, and how busy the client was. This one has criterion's statistics and its memory of the
//! last run.
//!
//! One iteration is one statement of each client, on average: the load runs until clients x
//! iterations statements have been answered. So the rate in elements is statements a second, and
//! 4096 clients are busy even in one iteration.

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("scaling: the load generator measures with epoll and /proc, so it needs Linux");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::env::VarError;
    use std::process::ExitCode;
    use std::time::Duration;

    use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
    use study::child::{Order, Server};
    use study::cpu::Split;
    use study::error::{Error, Result};
    use study::load::{Clients, Load};
    use study::options::ServerOptions;
    use study::plan::{Protocol, Scheduler, Transport, Workload};
    use study::{cpu, process, server};

    /// What is asked for.
    struct Plan {
        workloads: Vec<Workload>,
        schedulers: Vec<Scheduler>,
        transports: Vec<Transport>,
        clients: Vec<usize>,
    }

    impl Plan {
        fn quick() -> Plan {
            Plan {
                workloads: vec![Workload::PointSelect, Workload::UpdateNokey],
                schedulers: vec![Scheduler::Pool, Scheduler::PerConnection],
                transports: vec![Transport::Unix],
                clients: vec![16, 64, 256, 1024, 4096],
            }
        }

        fn full() -> Plan {
            Plan {
                workloads: Workload::ALL.to_vec(),
                schedulers: Scheduler::built(),
                transports: Transport::ALL.to_vec(),
                clients: (4..=12).map(|power| 1 << power).collect(),
            }
        }

        fn asked() -> Result<Plan> {
            match std::env::var("SCALING").as_deref() {
                Err(VarError::NotPresent) => Ok(Plan::quick()),
                Ok("full") => Ok(Plan::full()),
                other => Err(Error::usage(format!(
                    "SCALING is 'full' or not set, not {other:?}"
                ))),
            }
        }
    }

    /// A tenth of the table's default: a debug build, as in `--test`, has to fill it four times.
    const ROWS: u64 = 100_000;

    /// More than any sample takes; a server that hangs ends the benchmark.
    const SAMPLE_WITHIN: Duration = Duration::from_secs(60);

    pub(crate) fn main() -> ExitCode {
        // The servers are this program, started again.
        if let Some(code) = server::main_if_asked() {
            return code;
        }
        let mut criterion = Criterion::default().configure_from_args();
        let result = scaling(&mut criterion);
        criterion.final_summary();
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => leave(&error),
        }
    }

    /// Criterion has no way to stop in the middle of a benchmark but this one. The servers notice.
    fn leave(error: &Error) -> ! {
        eprintln!("scaling: {error}");
        std::process::exit(error.exit_code().into())
    }

    fn scaling(criterion: &mut Criterion) -> Result<()> {
        let plan = Plan::asked()?;
        process::raise_file_limit(plan.clients.iter().max().unwrap_or(&0) + 64)?;
        let split = cpu::split(&cpu::allowed()?, cpu::core_of);
        cpu::pin(&split.client)?;
        for &workload in &plan.workloads {
            for &transport in &plan.transports {
                cells(criterion, &plan, &split, workload, transport)?;
            }
        }
        Ok(())
    }

    /// Every scheduler with every number of clients.
    fn cells(
        criterion: &mut Criterion,
        plan: &Plan,
        split: &Split,
        workload: Workload,
        transport: Transport,
    ) -> Result<()> {
        let mut group = criterion.benchmark_group(format!("{workload}/{transport}"));
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(10)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(2));
        // Started when first needed, so that a filter starts no more than it names. One that
        // has no clients sleeps.
        let serving = plan.schedulers.iter().filter(|one| one.serves(workload));
        let mut servers: Vec<_> = serving.map(|one| (*one, None)).collect();
        for &clients in &plan.clients {
            group.throughput(Throughput::Elements(clients as u64));
            for (scheduler, server) in &mut servers {
                let order = Order {
                    scheduler: *scheduler,
                    protocol: Protocol::Text,
                    transport,
                    port: 0,
                    rows: ROWS,
                    options: ServerOptions::of_groups(split.server.len()),
                    disk: None,
                    cpus: split.server.clone(),
                };
                let mut bench = Bench {
                    order,
                    workload,
                    clients,
                    server,
                    connected: None,
                };
                group.bench_function(BenchmarkId::new(scheduler.name(), clients), |bencher| {
                    bencher.iter_custom(|iterations| {
                        bench
                            .sample(iterations)
                            .unwrap_or_else(|error| leave(&error))
                    });
                });
                bench.finish()?;
            }
        }
        group.finish();
        Ok(())
    }

    /// One server under one number of clients.
    struct Bench<'a> {
        order: Order,
        workload: Workload,
        clients: usize,
        server: &'a mut Option<Server>,
        connected: Option<Clients>,
    }

    impl Bench<'_> {
        fn sample(&mut self, iterations: u64) -> Result<Duration> {
            if self.connected.is_none() {
                let server = match &mut *self.server {
                    Some(server) => server,
                    none => none.insert(Server::start(&self.order)?),
                };
                let endpoint = server.endpoint().clone();
                let load = Load::new(endpoint, self.workload, self.order.rows, self.clients);
                self.connected = Some(Clients::connect(&load)?);
            }
            match &mut self.connected {
                Some(clients) => clients.run_count(iterations * self.clients as u64, SAMPLE_WITHIN),
                None => Ok(Duration::ZERO),
            }
        }

        /// Lets the server come to rest before the next one is measured.
        fn finish(self) -> Result<()> {
            drop(self.connected);
            self.server.as_mut().map_or(Ok(()), Server::settle)
        }
    }
}
