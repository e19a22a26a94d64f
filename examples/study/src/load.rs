//! The load generator: any number of clients on one thread, in a closed loop or by the clock.
//!
//! A closed-loop client sends a statement, waits for the reply, and sends the next. By the clock,
//! statements (or transactions) are due at a rate, whatever has become of earlier ones; latency
//! counts from when they were due, and what was due before the window closed is sent even then.
//!
//! What is counted, exactly:
//! * throughput: correct replies read while the window was open, over the time that it was open;
//! * latency: of every statement *sent* while the window was open, however late its reply, so that
//!   the slowest are not cut off by the end. It ends when the client gets round to the reply: a
//!   busy client reports too much, never too little, and its CPU share shows it;
//! * errors: `ERR` replies, replies that are malformed or have the wrong number of rows,
//!   connections that end, and clients whose reply is still missing when the time to drain is over.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::due::Dues;
use crate::error::{Error, Result};
use crate::os::wake_precisely;
use crate::plan::{KINDS, Light, Workload};
use crate::process::thread_cpu_time;
use crate::request::Requests;
use crate::stats::jain;
pub use crate::wires::{Endpoint, Errors};
use crate::wires::{State, Wires, nanos};

/// The longest latency that is told from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// A load to be put on a server.
#[derive(Debug, Clone)]
pub struct Load {
    /// Which server.
    pub endpoint: Endpoint,
    /// What to send.
    pub workload: Workload,
    /// The ids go from 1 to this.
    pub rows: u64,
    /// How many clients.
    pub clients: usize,
    /// Statements, or transactions, a second, of all clients together; `None` is a closed loop.
    pub rate: Option<u64>,
    /// In a closed loop, how long it takes until the last client has joined; the warm-up lasts at
    /// least as long.
    pub ramp: Duration,
    /// The same seed makes the same statements.
    pub seed: u64,
    /// How long all of them together may take to connect and be greeted.
    pub connect_within: Duration,
    /// How long the last replies may take after the load has ended. What is missing then is stuck.
    pub drain_within: Duration,
}

impl Load {
    /// A load with the usual patience: 20 seconds to connect, 10 to drain.
    pub fn new(endpoint: Endpoint, workload: Workload, rows: u64, clients: usize) -> Load {
        let (connect_within, drain_within) = (Duration::from_secs(20), Duration::from_secs(10));
        Load {
            endpoint,
            workload,
            rows,
            clients,
            rate: None,
            ramp: Duration::ZERO,
            seed: 0,
            connect_within,
            drain_within,
        }
    }
}

/// What one run of a load measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// How long the window was open.
    pub window: Duration,
    /// Correct replies in it.
    pub completed: u64,
    /// Latencies, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// What was completed in each second of the window, by [`KINDS`]; empty for workloads that have
    /// none.
    pub seconds: Vec<[u64; KINDS.len()]>,
    /// Of the commits among them, in nanoseconds; empty for workloads without transactions.
    pub commits: Histogram<u64>,
    /// From the first statement, warm-up included, to the last reply.
    pub errors: Errors,
    /// Row locks that were waited for in vain, likewise. The transaction begins again; that is no
    /// error.
    pub lock_timeouts: u64,
    /// CPU time of the load generator's thread while the window was open.
    pub client_cpu: Duration,
    /// Jain's fairness index over what each client completed in the window.
    pub jain: f64,
}

impl Measured {
    /// Correct replies a second.
    pub fn qps(&self) -> f64 {
        self.per_second(self.completed as f64)
    }

    /// The part of the window that the load generator was busy.
    pub fn client_busy(&self) -> f64 {
        self.per_second(self.client_cpu.as_secs_f64())
    }

    /// 0 for a window that closed as it opened, because no client was left.
    fn per_second(&self, amount: f64) -> f64 {
        let seconds = self.window.as_secs_f64();
        if seconds > 0.0 { amount / seconds } else { 0.0 }
    }
}

/// A moment of a run at which the caller may read a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The warm-up is over, the window opens.
    Opens,
    /// The load is on, and some 20 ms have passed since the last look.
    Passes,
    /// The window has closed; the last replies are still to come.
    Closes,
}

/// How far [`Moment::Passes`] are apart. A look at `/proc` costs some 20 us of the client's CPU.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Connected, greeted clients. They can carry one load after the other.
pub struct Clients {
    wires: Wires,
    requests: Requests,
    drain_within: Duration,
    rate: Option<u64>,
    ramp: Duration,
    /// Clients that have sent something in this run, and when the first one did.
    joined: usize,
    joins_at: u64,
    seed: u64,
    /// When what is due, while a load with a rate is on.
    dues: Option<Dues>,
    tally: Tally,
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("clients", &self.wires.len())
            .finish_non_exhaustive()
    }
}

/// The counters of one run.
#[derive(Debug)]
struct Tally {
    /// Whether a reply is followed by the next statement.
    sending: bool,
    /// Whether replies count.
    open: bool,
    /// Latencies of statements sent from here on are recorded.
    opened_at: u64,
    /// ... and before this.
    closed_at: u64,
    completed: u64,
    /// Of each second of the window, by kind.
    seconds: Vec<[u64; KINDS.len()]>,
    latencies: Histogram<u64>,
    commits: Histogram<u64>,
}

/// An empty record of latencies, in nanoseconds.
pub(crate) fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, 3).map_err(Error::run)
}

impl Clients {
    /// Connects all of them, one after the other, and waits for every greeting.
    pub fn connect(load: &Load) -> Result<Clients> {
        let Load {
            endpoint,
            workload,
            rows,
            clients,
            rate,
            ramp,
            seed,
            connect_within,
            drain_within,
        } = load;
        Ok(Clients {
            wires: Wires::connect(
                endpoint,
                *clients,
                *connect_within,
                workload.rows_per_reply(),
            )?,
            requests: Requests::new(*workload, *rows, seed.wrapping_add(*clients as u64)),
            drain_within: *drain_within,
            rate: *rate,
            ramp: *ramp,
            joined: 0,
            joins_at: 0,
            seed: *seed,
            dues: None,
            tally: Tally::new(latencies()?, latencies()?),
        })
    }

    /// Puts the load on for `warmup`, then measures it for `measure`, then waits for the last
    /// replies. The caller looks at its meters from in here rather than from another thread: alone
    /// in its process, a thread makes cheaper system calls on its descriptors.
    pub fn run_for(
        &mut self,
        warmup: Duration,
        measure: Duration,
        mut look: impl FnMut(Moment),
    ) -> Result<Measured> {
        self.begin()?;
        let opens_at = self.wires.now() + nanos(warmup.max(self.ramp));
        self.carry_until(opens_at, &mut look)?;
        look(Moment::Opens);
        let cpu = thread_cpu_time();
        self.open_window(measure);
        self.carry_until(self.tally.opened_at + nanos(measure), &mut look)?;
        self.close_window();
        let client_cpu = thread_cpu_time().saturating_sub(cpu);
        look(Moment::Closes);
        self.drain()?;
        Ok(Measured {
            window: Duration::from_nanos(self.tally.closed_at - self.tally.opened_at),
            completed: self.tally.completed,
            latencies: match &self.dues {
                Some(dues) => dues.latencies.clone(),
                None => self.tally.latencies.clone(),
            },
            seconds: self.tally.seconds.clone(),
            commits: self.tally.commits.clone(),
            errors: self.wires.errors.clone(),
            lock_timeouts: self.wires.timeouts,
            client_cpu,
            jain: jain(self.wires.iter_mut().map(|wire| wire.completed)),
        })
    }

    fn carry_until(&mut self, end: u64, look: &mut impl FnMut(Moment)) -> Result<()> {
        let mut look_at = 0;
        let done = |clients: &Clients, now| {
            if now >= look_at {
                look(Moment::Passes);
                look_at = now + nanos(LOOK_EVERY);
            }
            now >= end || clients.is_over()
        };
        self.turn_until(done, end)
    }

    /// Puts the load on until `count` statements have been answered and returns how long `count`
    /// took: the end is noticed between batches, so some more may have been answered, and their
    /// share of the time is taken off. An error of any client fails it: a time for less than what
    /// was asked is no time.
    pub fn run_count(&mut self, count: u64, within: Duration) -> Result<Duration> {
        self.begin()?;
        self.open_window(within);
        let gives_up_at = self.tally.opened_at + nanos(within);
        let done = |clients: &Clients, now| {
            clients.tally.completed >= count || now >= gives_up_at || clients.is_over()
        };
        self.turn_until(done, gives_up_at)?;
        self.close_window();
        self.drain()?;
        let Tally {
            completed,
            opened_at,
            closed_at,
            ..
        } = &self.tally;
        let errors = &self.wires.errors;
        match &errors.first {
            Some(first) => Err(Error::run(format!(
                "{} errors, the first: {first}",
                errors.total()
            ))),
            None if *completed < count => Err(Error::run(format!(
                "{completed} of {count} statements answered in {within:?}"
            ))),
            None => {
                let share = count as f64 / (*completed).max(1) as f64;
                Ok(Duration::from_nanos(closed_at - opened_at).mul_f64(share))
            }
        }
    }

    /// Whether nobody will send or be answered any more.
    fn is_over(&self) -> bool {
        match self.dues {
            Some(_) => self.wires.all_are_gone(),
            None => self.wires.waiting() == 0 && self.joined == self.wires.len(),
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.tally.reset();
        self.wires.errors = Errors::default();
        self.wires.timeouts = 0;
        let now = self.wires.now();
        if let Some(rate) = self.rate {
            wake_precisely();
            let clients = self.wires.len();
            self.dues = Some(Dues::new(Light::Open { clients, rate }, self.seed, now)?);
            return Ok(());
        }
        (self.joined, self.joins_at) = (0, now);
        self.join(now);
        Ok(())
    }

    /// Has those clients begin whose time has come; when the next one's does.
    fn join(&mut self, now: u64) -> u64 {
        let clients = self.wires.len();
        while self.joined < clients {
            let share = self.joined as f64 / clients as f64;
            let at = self.joins_at + nanos(self.ramp.mul_f64(share));
            if at > now {
                return at;
            }
            if self.wires.state(self.joined) == State::Idle {
                send_next(&mut self.wires, &mut self.requests, self.joined, now);
            }
            self.joined += 1;
        }
        u64::MAX
    }

    fn open_window(&mut self, measure: Duration) {
        for wire in self.wires.iter_mut() {
            wire.completed = 0;
        }
        self.tally.opened_at = self.wires.now();
        self.tally.open = true;
        if let Some(dues) = &mut self.dues {
            dues.open_window(self.tally.opened_at, measure);
        }
    }

    fn close_window(&mut self) {
        self.tally.closed_at = self.wires.now();
        self.tally.open = false;
        self.tally.sending = false;
    }

    /// Waits for the replies that are still owed; who gets none in time is stuck.
    fn drain(&mut self) -> Result<()> {
        let gives_up_at = self.wires.now() + nanos(self.drain_within);
        self.turn_until(
            |clients, now| now >= gives_up_at || !clients.is_owed(),
            gives_up_at,
        )?;
        let Some(dues) = &mut self.dues else {
            self.wires.give_up(self.drain_within);
            return Ok(());
        };
        // Each statement that was due, whether its client could send it or not.
        let now = self.wires.now();
        let mut unanswered = 0;
        for client in 0..self.wires.len() {
            let waiting = self.wires.state(client) == State::Waiting;
            unanswered += dues.abandon(client, waiting, now);
        }
        if unanswered > 0 {
            let within = self.drain_within;
            self.wires.errors.stuck += unanswered;
            self.wires.errors.first.get_or_insert_with(|| {
                format!("{unanswered} that were due got no reply within {within:?} of the end")
            });
        }
        Ok(())
    }

    /// Whether a reply that counts is still to come.
    fn is_owed(&self) -> bool {
        let Some(dues) = &self.dues else {
            return self.wires.waiting() > 0;
        };
        (0..self.wires.len()).any(|client| {
            let state = self.wires.state(client);
            state != State::Gone && dues.is_owed(client, state == State::Waiting)
        })
    }

    /// Handles what is due and what is answered until `done`, which is asked between batches.
    /// Sleeps no longer than until `wake_at`.
    fn turn_until(
        &mut self,
        mut done: impl FnMut(&Clients, u64) -> bool,
        wake_at: u64,
    ) -> Result<()> {
        loop {
            let now = self.wires.now();
            let mut wake_at = wake_at;
            if let Some(dues) = &mut self.dues {
                while let Some(client) = dues.call(now) {
                    let is_free = self.wires.state(client) == State::Idle;
                    if is_free && dues.is_owed(client, false) && dues.next(client, now) {
                        send_next(&mut self.wires, &mut self.requests, client, now);
                    }
                }
                wake_at = wake_at.min(dues.wakes_at());
            } else if self.tally.sending {
                wake_at = wake_at.min(self.join(now));
            }
            if done(self, now) {
                return Ok(());
            }
            let Clients {
                wires,
                requests,
                dues,
                tally,
                ..
            } = self;
            wires.turn(wake_at.saturating_sub(now), |wires, index, now, correct| {
                let wire = wires.get_mut(index);
                if correct && wire.script.is_committing() {
                    tally.note_commit(wire.sent_at, now);
                }
                let rolled_back = wire.script.is_rolling_back();
                if wire.script.answered(correct) {
                    if let Some(dues) = dues {
                        dues.answered(index, now);
                    }
                    let counts = tally.count(wire.script.began_at, now);
                    wire.completed += u64::from(counts);
                    if counts && requests.are_of_kinds() {
                        tally.count_second(wire.script.kind(), now);
                    }
                }
                // Who is in a transaction ends it: others may wait for its rows.
                let goes_on = !wire.script.has_ended()
                    || match dues {
                        // One that lost its lock is still due.
                        Some(_) if rolled_back => true,
                        Some(dues) => dues.is_owed(index, false) && dues.next(index, now),
                        None => tally.sending,
                    };
                if goes_on {
                    send_next(wires, requests, index, now);
                }
            })?;
        }
    }
}

/// Sends the next statement of a client.
fn send_next(wires: &mut Wires, requests: &mut Requests, index: usize, now: u64) {
    let wire = wires.get_mut(index);
    if wire.script.has_ended() {
        wire.script.began_at = now;
    }
    let (line, expected) = requests.next_of(&mut wire.script);
    wire.expected = expected;
    wires.send(index, line, now);
}

impl Tally {
    fn new(latencies: Histogram<u64>, commits: Histogram<u64>) -> Tally {
        let mut tally = Tally {
            sending: false,
            open: false,
            opened_at: 0,
            closed_at: 0,
            completed: 0,
            seconds: Vec::new(),
            latencies,
            commits,
        };
        tally.reset();
        tally
    }

    /// For a new run: sending, with a window that is still to open.
    fn reset(&mut self) {
        self.sending = true;
        self.open = false;
        self.opened_at = u64::MAX;
        self.closed_at = u64::MAX;
        self.completed = 0;
        self.seconds.clear();
        self.latencies.reset();
        self.commits.reset();
    }

    fn count_second(&mut self, kind: usize, now: u64) {
        let second = ((now - self.opened_at) / 1_000_000_000) as usize;
        if second >= self.seconds.len() {
            self.seconds.resize(second + 1, [0; KINDS.len()]);
        }
        self.seconds[second][kind] += 1;
    }

    /// Notes how long a commit took that has been answered well.
    fn note_commit(&mut self, sent_at: u64, now: u64) {
        if (self.opened_at..self.closed_at).contains(&sent_at) {
            self.commits.saturating_record(now - sent_at);
        }
    }

    /// Counts a correct reply; whether it came while the window was open.
    fn count(&mut self, sent_at: u64, now: u64) -> bool {
        if (self.opened_at..self.closed_at).contains(&sent_at) {
            self.latencies.saturating_record(now - sent_at);
        }
        self.completed += u64::from(self.open);
        self.open
    }
}
