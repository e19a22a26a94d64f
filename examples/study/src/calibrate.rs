//! `study calibrate`: what this machine takes for the things that the simulator counts.
//!
//! Each figure is the median of several runs. What a pool adds to a command, and what a statement
//! computes, are told from whole servers: the bare event loop, and the pool, with sixteen clients.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thread_group_pool::sim::crowd::Costs;

use crate::cpu;
use crate::error::{Error, Result};
use crate::os;
use crate::plan::{Scheduler, Workload};
use crate::run::{self, Cell, Progress};
use crate::table::align;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// From one thread to another on the same CPU.
    pub switch: Duration,
    /// From waking a thread on an idle CPU until it runs, beyond that.
    pub wake: Duration,
    /// To create a thread and to have it run.
    pub create: Duration,
    /// What the pool adds to a command.
    pub dispatch: Duration,
    /// A point select in the event loop, its messages included.
    pub statement: Duration,
    /// What a thread for each connection adds to it, its switches included.
    pub threads: Duration,
    /// To take a lock that nobody has, and to give it back.
    pub hold: Duration,
    /// How much longer that takes for each thread that wants it too.
    pub contention: Duration,
}

/// How long a thread runs until another one has its turn: Linux's usual slice.
const SLICE: Duration = Duration::from_millis(3);

/// How often each small thing is measured, and how many times in a row.
const RUNS: usize = 9;
const TIMES: u32 = 2_000;

impl Calibration {
    /// As the simulator takes it.
    pub fn costs(&self) -> Costs {
        Costs {
            switch: self.switch,
            wake: self.wake,
            dispatch: self.dispatch,
            create: self.create,
            slice: SLICE,
        }
    }

    fn fields(&self) -> [(&'static str, &'static str, Duration); 8] {
        [
            ("switch", "to switch a CPU to another thread", self.switch),
            ("wake", "to wake one on another CPU, beyond that", self.wake),
            ("create", "to create a thread and have it run", self.create),
            ("dispatch", "what the pool adds to a command", self.dispatch),
            (
                "statement",
                "a point select in the event loop",
                self.statement,
            ),
            (
                "threads",
                "what a thread for each connection adds",
                self.threads,
            ),
            ("hold", "to take a free lock and give it back", self.hold),
            (
                "contention",
                "more for each thread that wants it too",
                self.contention,
            ),
        ]
    }

    /// `{"switch_ns": .., ..}`, which [`read`](Self::read) reads.
    pub fn json(&self) -> Value {
        let fields = self
            .fields()
            .map(|(name, _, time)| (format!("{name}_ns"), json!(time.as_nanos() as u64)));
        Value::Object(fields.into_iter().collect())
    }

    /// From what `study calibrate --json` has written.
    pub fn read(text: &str) -> Result<Calibration> {
        let json: Value = serde_json::from_str(text).map_err(Error::usage)?;
        let of = |name: &str| {
            let value = json["calibration"][format!("{name}_ns")].as_u64();
            let missing = || Error::usage(format!("the calibration has no {name}_ns"));
            value.map(Duration::from_nanos).ok_or_else(missing)
        };
        Ok(Calibration {
            switch: of("switch")?,
            wake: of("wake")?,
            create: of("create")?,
            dispatch: of("dispatch")?,
            statement: of("statement")?,
            threads: of("threads")?,
            hold: of("hold")?,
            contention: of("contention")?,
        })
    }

    /// For people.
    pub fn render(&self) -> String {
        let row = |(_, what, time): (&str, &str, Duration)| {
            vec![
                what.to_string(),
                format!("{:.2} us", time.as_nanos() as f64 / 1e3),
            ]
        };
        align(&self.fields().map(row))
    }
}

/// Measures all of it; the servers as `plan` says, which has point selects, the event loop, the pool and
/// threads. Its CPUs are those of small things too.
pub fn measure(plan: &run::Plan, progress: impl FnMut(Progress)) -> Result<Calibration> {
    let server = plan.split.server.clone();
    let one = vec![server.first().copied().unwrap_or(0)];
    let other = vec![plan.split.client.last().copied().unwrap_or(one[0])];
    let alone = of_runs(|| Ok(talk_to_oneself()))?;
    let together = of_runs(|| bounce(&one, &one))?.saturating_sub(alone);
    let apart = of_runs(|| bounce(&one, &other))?.saturating_sub(alone);
    let hold = of_runs(|| lock_among(1, &server))?;
    // With few CPUs seldom two are at the lock at once; it is what it is on this machine.
    let contended = of_runs(|| lock_among(9, &server))?;
    let create = of_runs(|| Ok(create()))?;
    let cells = run::run(plan, progress)?;
    let cost = |scheduler| cost_of(&cells, scheduler);
    let (floor, pool) = (cost(Scheduler::EventLoop)?, cost(Scheduler::Pool)?);
    Ok(Calibration {
        switch: together,
        wake: apart.saturating_sub(together),
        create,
        dispatch: pool.saturating_sub(floor),
        statement: floor,
        threads: cost(Scheduler::PerConnection)?.saturating_sub(floor),
        hold,
        contention: contended.saturating_sub(hold) / 8,
    })
}

fn cost_of(cells: &[Cell], scheduler: Scheduler) -> Result<Duration> {
    let mut cells = cells.iter();
    let cell =
        cells.find(|cell| cell.scheduler == scheduler && cell.workload == Workload::PointSelect);
    let qps = cell.map_or(0.0, |cell| cell.qps.max);
    if qps > 0.0 {
        Ok(Duration::from_secs_f64(1.0 / qps))
    } else {
        Err(Error::run(format!("{scheduler} has answered nothing")))
    }
}

/// The median.
fn of_runs(mut measure: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    let mut all = (0..RUNS).map(|_| measure()).collect::<Result<Vec<_>>>()?;
    all.sort_unstable();
    Ok(all[RUNS / 2])
}

fn each(began: Instant) -> Duration {
    began.elapsed() / TIMES
}

/// A byte into a socket and out of it, on one thread.
fn talk_to_oneself() -> Duration {
    let Ok((mut a, mut b)) = os::pair() else {
        return Duration::ZERO;
    };
    let began = Instant::now();
    for _ in 0..TIMES {
        let _ = a.write_all(b"x").and_then(|()| b.read_exact(&mut [0]));
    }
    each(began)
}

/// The same, to another thread and back: half of that.
fn bounce(here: &[usize], there: &[usize]) -> Result<Duration> {
    let (mut a, mut b) = os::pair().map_err(Error::run)?;
    let (here, there) = (here.to_vec(), there.to_vec());
    let echo = thread::spawn(move || {
        // A pin that fails is told by the other thread's.
        let _ = cpu::pin(&there);
        let mut byte = [0];
        while b
            .read_exact(&mut byte)
            .and_then(|()| b.write_all(&byte))
            .is_ok()
        {}
    });
    let time = thread::spawn(move || {
        cpu::pin(&here)?;
        let began = Instant::now();
        for _ in 0..TIMES {
            a.write_all(b"x")
                .and_then(|()| a.read_exact(&mut [0]))
                .map_err(Error::run)?;
        }
        Ok(each(began) / 2)
    });
    let time = time.join().map_err(|_| Error::run("a thread panicked"))?;
    echo.join().map_err(|_| Error::run("a thread panicked"))?;
    time
}

/// A lock among `threads`: for how long the CPUs are busy with one use of it.
fn lock_among(threads: u32, cpus: &[usize]) -> Result<Duration> {
    let lock = Arc::new(Mutex::new(0u64));
    let began = Instant::now();
    let all: Vec<_> = (0..threads)
        .map(|_| {
            let (lock, cpus) = (Arc::clone(&lock), cpus.to_vec());
            thread::spawn(move || {
                let _ = cpu::pin(&cpus);
                for _ in 0..100 * TIMES / threads {
                    if let Ok(mut count) = lock.lock() {
                        *count += 1;
                    }
                }
            })
        })
        .collect();
    for thread in all {
        thread.join().map_err(|_| Error::run("a thread panicked"))?;
    }
    Ok(each(began) / 100)
}

fn create() -> Duration {
    const THREADS: u32 = 50;
    let began = Instant::now();
    for _ in 0..THREADS {
        let _ = thread::spawn(|| {}).join();
    }
    began.elapsed() / THREADS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_what_is_read() {
        let us = Duration::from_micros;
        let calibration = Calibration {
            switch: us(2),
            wake: us(3),
            create: us(40),
            dispatch: Duration::from_nanos(350),
            statement: us(4),
            threads: us(5),
            hold: Duration::from_nanos(20),
            contention: Duration::from_nanos(1),
        };
        let text = json!({ "calibration": calibration.json() }).to_string();
        assert_eq!(Calibration::read(&text), Ok(calibration));
        assert!(calibration.render().contains("0.35 us"));
        let error = Calibration::read("{}").unwrap_err();
        assert_eq!(error.to_string(), "the calibration has no switch_ns");
    }

    #[test]
    fn small_things_take_some_time() {
        let cpus = cpu::allowed().unwrap();
        let one = &cpus[..1];
        assert!(talk_to_oneself() > Duration::ZERO);
        assert!(bounce(one, one).unwrap() > Duration::ZERO);
        assert!(lock_among(2, &cpus).unwrap() > Duration::ZERO);
        assert!(create() > Duration::ZERO);
    }
}
