//! The load: light clients by the clock or in a closed loop, and heavy clients that send back to
//! back, all of them on one thread.
//!
//! What is counted, exactly:
//! * light latency: of every statement that was *due* while the window was open, from when it was
//!   due. A client that still waits for a reply sends its next statement late, and that lateness
//!   counts; so does the load generator's own. In a closed loop a statement is due when it is sent;
//! * light throughput: correct replies read while the window was open, over its length;
//! * heavy throughput: correct replies to heavy statements, over the time from when the window
//!   opened until each heavy client has had a reply after it closed. The window alone may be shorter
//!   than one statement of each;
//! * errors: as in `study table`; of clients that get no reply any more, each light statement that
//!   was due before the window closed is one.
//!
//! The whole load stays on until the last reply that counts has come: the end is no relief.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::due::Dues;
use crate::error::{Error, Result};
use crate::load::{Endpoint, Errors, LOOK_EVERY, Moment};
use crate::os::wake_precisely;
use crate::plan::{Light, Workload};
use crate::request::{Random, Requests};
use crate::wires::{State, Wires, nanos};

/// How long all clients together may take to connect.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// A light client that has been owed a reply for so long is behind, and how long all may take to make up for
/// what the heavy ones' first statements cost them. That is what `cold` measures; without it they would go
/// on sending what was due then, late, while the window is open.
const BEHIND: Duration = Duration::from_millis(50);
const CATCH_UP_WITHIN: Duration = Duration::from_secs(2);

/// Every statement here is answered by one row.
pub(super) const ROWS_PER_REPLY: u32 = 1;

/// A load to be put on a server.
#[derive(Debug, Clone)]
pub struct Load {
    /// Which server.
    pub endpoint: Endpoint,
    /// The ids go from 1 to this.
    pub rows: u64,
    /// The light clients.
    pub light: Light,
    /// How many heavy clients.
    pub heavy: usize,
    /// What they send, with its newline.
    pub statement: Vec<u8>,
    /// How likely that is; else they send a point select. Their first statement is a heavy one.
    pub mix: f64,
    /// How long at least the load is on before it is measured.
    pub warmup: Duration,
    /// Measure from the start, rather than when each heavy client has got its first reply and the light
    /// ones have caught up.
    pub cold: bool,
    /// How long it is measured.
    pub measure: Duration,
    /// How long the first heavy replies may take before it is measured without them, and the last
    /// replies before they are given up.
    pub patience: Duration,
    /// The same seed makes the same statements at the same times.
    pub seed: u64,
}

/// What one run of a load measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Correct light replies a second.
    pub qps: f64,
    /// Light latencies, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Heavy statements a second, of each heavy client.
    pub heavy_qps: Vec<f64>,
    /// From the first statement to the last reply.
    pub errors: Errors,
}

struct Game<'a> {
    load: &'a Load,
    lights: Dues,
    requests: Requests,
    heavies: Vec<Heavy>,
}

struct Heavy {
    random: Random,
    /// Whether what it waits for is the reply to a heavy statement.
    is_at_it: bool,
    /// Whether it has had one; its first statement is a heavy one.
    has_begun: bool,
    /// Heavy replies since the window opened.
    completed: u64,
    /// When it had its last reply, heavy or not.
    heard_at: u64,
}

/// Puts the load on and measures it.
pub fn run(load: &Load, mut look: impl FnMut(Moment)) -> Result<Measured> {
    wake_precisely();
    let clients = load.light.clients() + load.heavy;
    let mut wires = Wires::connect(&load.endpoint, clients, CONNECT_WITHIN, ROWS_PER_REPLY)?;
    let now = wires.now();
    let mut game = Game {
        load,
        lights: Dues::new(load.light, load.seed, now)?,
        requests: Requests::new(Workload::PointSelect, load.rows, load.seed),
        heavies: (0..load.heavy as u64)
            .map(|number| Heavy {
                random: Random::new(Random::nth(load.seed, number)),
                is_at_it: false,
                has_begun: false,
                completed: 0,
                heard_at: 0,
            })
            .collect(),
    };
    if load.cold {
        game.lights.open_window(now, load.measure);
        look(Moment::Opens);
    }
    // From the end: the heavy ones first.
    for index in (0..clients).rev() {
        game.next(&mut wires, index, now);
    }
    if !load.cold {
        game.carry(&mut wires, now + nanos(load.warmup), &mut look, |_, _| {
            false
        })?;
        let patience = wires.now() + nanos(load.patience);
        game.carry(&mut wires, patience, &mut look, |game, wires| {
            game.all_have_begun(wires)
        })?;
        let patience = wires.now() + nanos(CATCH_UP_WITHIN);
        game.carry(&mut wires, patience, &mut look, |game, wires| {
            !game.is_behind(wires)
        })?;
        game.lights.open_window(wires.now(), load.measure);
        look(Moment::Opens);
    }
    let closes_at = game.lights.window().end;
    game.carry(&mut wires, closes_at, &mut look, |_, _| false)?;
    look(Moment::Closes);
    let patience = closes_at + nanos(load.patience);
    game.carry(&mut wires, patience, &mut look, |game, wires| {
        (0..clients).all(|index| !game.is_owed(wires, index))
    })?;
    Ok(game.end(wires))
}

impl Game<'_> {
    /// Handles what is due and what is answered until `end`, or until `done`, which is asked between
    /// batches.
    fn carry(
        &mut self,
        wires: &mut Wires,
        end: u64,
        look: &mut impl FnMut(Moment),
        done: impl Fn(&Self, &Wires) -> bool,
    ) -> Result<()> {
        let mut look_at = 0;
        loop {
            let now = wires.now();
            while let Some(client) = self.lights.call(now) {
                self.next(wires, client, now);
            }
            if now >= look_at {
                look(Moment::Passes);
                look_at = now + nanos(LOOK_EVERY);
            }
            if now >= end || done(self, wires) {
                return Ok(());
            }
            let wakes_at = end.min(look_at).min(self.lights.wakes_at());
            wires.turn(
                wakes_at.saturating_sub(now),
                |wires, index, now, correct| {
                    self.answered(index, now, correct);
                    self.next(wires, index, now);
                },
            )?;
        }
    }

    /// Sends the next statement of `index`, if it is idle and has one.
    fn next(&mut self, wires: &mut Wires, index: usize, now: u64) {
        if wires.state(index) != State::Idle {
            return;
        }
        let Some(heavy) = index.checked_sub(self.lights.len()) else {
            if self.lights.next(index, now) {
                wires.send(index, self.requests.next_line(), now);
            }
            return;
        };
        let heavy = &mut self.heavies[heavy];
        heavy.is_at_it = !heavy.has_begun || heavy.random.chance(self.load.mix);
        if heavy.is_at_it {
            wires.send(index, &self.load.statement, now);
        } else {
            wires.send(index, self.requests.next_line(), now);
        }
    }

    /// `index` has got a reply.
    fn answered(&mut self, index: usize, now: u64, correct: bool) {
        let Some(heavy) = index.checked_sub(self.lights.len()) else {
            if correct {
                self.lights.answered(index, now);
            }
            return;
        };
        let heavy = &mut self.heavies[heavy];
        heavy.heard_at = now;
        heavy.has_begun = true;
        let counts = correct && heavy.is_at_it && self.lights.window().start <= now;
        heavy.completed += u64::from(counts);
    }

    /// Whether each heavy client that is still there has got its first reply.
    fn all_have_begun(&self, wires: &Wires) -> bool {
        let gone = |heavy| wires.state(self.lights.len() + heavy) == State::Gone;
        let mut heavies = self.heavies.iter().enumerate();
        heavies.all(|(index, heavy)| heavy.has_begun || gone(index))
    }

    /// Whether a light client is still owed what was due before the heavy ones had begun.
    fn is_behind(&self, wires: &Wires) -> bool {
        let by = wires.now().saturating_sub(nanos(BEHIND));
        (0..self.lights.len()).any(|index| match wires.state(index) {
            State::Gone => false,
            state => (self.lights).is_unanswered(index, state == State::Waiting, by),
        })
    }

    /// Whether `index` is still there, and a reply that counts is still to come.
    fn is_owed(&self, wires: &Wires, index: usize) -> bool {
        let state = wires.state(index);
        state != State::Gone
            && match index.checked_sub(self.lights.len()) {
                None => self.lights.is_owed(index, state == State::Waiting),
                Some(heavy) => self.heavies[heavy].heard_at < self.lights.window().end,
            }
    }

    fn end(mut self, mut wires: Wires) -> Measured {
        let now = wires.now();
        let silent = self.lights.len()..wires.len();
        let mut unanswered = silent.filter(|heavy| self.is_owed(&wires, *heavy)).count() as u64;
        for light in 0..self.lights.len() {
            let waiting = wires.state(light) == State::Waiting;
            unanswered += self.lights.abandon(light, waiting, now);
        }
        if unanswered > 0 {
            wires.errors.stuck += unanswered;
            wires.errors.first.get_or_insert_with(|| {
                format!(
                    "{unanswered} statements got no reply within {:?} of the end",
                    self.load.patience
                )
            });
        }
        let since = Duration::from_nanos(now - self.lights.window().start).as_secs_f64();
        Measured {
            qps: self.lights.completed as f64 / self.load.measure.as_secs_f64(),
            latencies: self.lights.latencies,
            heavy_qps: self
                .heavies
                .iter()
                .map(|heavy| heavy.completed as f64 / since)
                .collect(),
            errors: wires.errors,
        }
    }
}

/// Has the only client of a server send `statement` and waits for the reply.
pub(super) fn ask(wires: &mut Wires, statement: &[u8], within: Duration) -> Result<()> {
    let sent_at = wires.now();
    let mut done = false;
    wires.send(0, statement, sent_at);
    while wires.state(0) == State::Waiting && wires.now() < sent_at + nanos(within) {
        wires.turn(nanos(within), |_, _, _, correct| done = correct)?;
    }
    wires.give_up(within);
    if done {
        return Ok(());
    }
    let first = wires.errors.first.as_deref().unwrap_or("no reply");
    Err(Error::run(format!(
        "cannot calibrate heavy statements: {first}"
    )))
}
