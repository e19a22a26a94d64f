//! The load: light clients by the clock or in a closed loop, and heavy clients that send back to
//! back, all of them on one thread.
//!
//! What is counted, exactly:
//! * light latency: of every statement that was *due* while the window was open, from when it was
//!   due. A client that still waits for a reply sends its next statement late, and that lateness
//!   counts; so does the load generator's own. In a closed loop a statement is due when it is sent;
//! * light throughput: correct replies read while the window was open, over its length;
//! * heavy throughput: correct replies to heavy statements. One that was under way as the window
//!   opened or closed counts by the part of its time that lies inside: a window holds only a few;
//! * errors: as in `study table`, and statements that were due and never sent.
//!
//! When the window has closed, what is still owed to light clients is waited for, and the heavy
//! clients go on until it has come: the end is no relief.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::due::Lights;
use crate::error::{Error, Result};
use crate::load::{Endpoint, Errors};
use crate::plan::{Light, Workload};
use crate::request::{Random, Requests};
use crate::wires::{State, Wires, nanos};

/// How far two looks at the server are apart. One costs some 20 us of the client's CPU.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long all clients together may take to connect.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(20);

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
    /// Measure from the start, rather than when each heavy client has got its first reply.
    pub cold: bool,
    /// How long it is measured.
    pub measure: Duration,
    /// How long the first heavy replies may take before it is measured without them, and how long
    /// the last replies may take.
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

/// A moment at which the caller may read a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It is measured from now on.
    Opens,
    /// Some 20 ms have passed.
    Passes,
    /// It is not measured any more.
    Closes,
}

struct Game<'a> {
    load: &'a Load,
    lights: Lights,
    requests: Requests,
    heavies: Vec<Heavy>,
    /// Whether the reply to a heavy client is followed by its next statement.
    heavy_goes_on: bool,
}

struct Heavy {
    random: Random,
    /// Whether what it waits for is the reply to a heavy statement.
    is_at_it: bool,
    /// Whether it has had one.
    has_begun: bool,
    /// Statements in the window, with fractions.
    share: f64,
}

/// Puts the load on and measures it.
pub fn run(load: &Load, mut look: impl FnMut(Moment)) -> Result<Measured> {
    // A sleep may end up to 50 us late by default, which every light statement would show. A kernel
    // that does not know the call keeps its habit.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let clients = load.light.clients() + load.heavy;
    let mut wires = Wires::connect(&load.endpoint, clients, CONNECT_WITHIN, ROWS_PER_REPLY)?;
    let now = wires.now();
    let mut game = Game {
        load,
        lights: Lights::new(load.light, load.seed, now)?,
        requests: Requests::new(Workload::PointSelect, load.rows, load.seed),
        heavies: (0..load.heavy as u64)
            .map(|number| Heavy {
                random: Random::new(Random::nth(load.seed, number)),
                is_at_it: false,
                has_begun: false,
                share: 0.0,
            })
            .collect(),
        heavy_goes_on: true,
    };
    if load.cold {
        game.lights.open_window(now, load.measure);
        look(Moment::Opens);
    }
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
        game.lights.open_window(wires.now(), load.measure);
        look(Moment::Opens);
    }
    let closes_at = game.lights.window().end;
    game.carry(&mut wires, closes_at, &mut look, |_, _| false)?;
    look(Moment::Closes);
    let patience = closes_at + nanos(load.patience);
    game.carry(&mut wires, patience, &mut look, |game, wires| {
        !game.owes_lights(wires)
    })?;
    game.heavy_goes_on = false;
    let patience = wires.now() + nanos(load.patience);
    game.carry(&mut wires, patience, &mut look, |game, wires| {
        wires.waiting() == 0 && !game.owes_lights(wires)
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
                    if correct {
                        self.answered(index, wires.sent_at(index), now);
                    }
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
        if !self.heavy_goes_on {
            return;
        }
        let heavy = &mut self.heavies[heavy];
        heavy.is_at_it = !heavy.has_begun || heavy.random.chance(self.load.mix);
        if heavy.is_at_it {
            wires.send(index, &self.load.statement, now);
        } else {
            wires.send(index, self.requests.next_line(), now);
        }
    }

    /// `index` has got a correct reply.
    fn answered(&mut self, index: usize, sent_at: u64, now: u64) {
        let Some(heavy) = index.checked_sub(self.lights.len()) else {
            return self.lights.answered(index, now);
        };
        let heavy = &mut self.heavies[heavy];
        if heavy.is_at_it {
            heavy.has_begun = true;
            heavy.share += share(self.lights.window(), sent_at..now);
        }
    }

    /// Whether each heavy client that is still there has got its first reply.
    fn all_have_begun(&self, wires: &Wires) -> bool {
        let gone = |heavy| wires.state(self.lights.len() + heavy) == State::Gone;
        let mut heavies = self.heavies.iter().enumerate();
        heavies.all(|(index, heavy)| heavy.has_begun || gone(index))
    }

    /// Whether a light client that is still there has something to send or to wait for.
    fn owes_lights(&self, wires: &Wires) -> bool {
        (0..self.lights.len()).any(|light| match wires.state(light) {
            State::Gone => false,
            state => self.lights.is_owed(light, state == State::Waiting),
        })
    }

    fn end(mut self, mut wires: Wires) -> Measured {
        let now = wires.now();
        let mut unsent = 0;
        for light in 0..self.lights.len() {
            let waiting = wires.state(light) == State::Waiting;
            unsent += self.lights.abandon(light, waiting, now);
        }
        wires.give_up(self.load.patience);
        wires.errors.stuck += unsent;
        let seconds = self.load.measure.as_secs_f64();
        Measured {
            qps: self.lights.completed as f64 / seconds,
            latencies: self.lights.latencies,
            heavy_qps: self
                .heavies
                .iter()
                .map(|heavy| heavy.share / seconds)
                .collect(),
            errors: wires.errors,
        }
    }
}

/// The part of `span` that lies in `window`.
fn share(window: &Range<u64>, span: Range<u64>) -> f64 {
    let inside = span
        .end
        .min(window.end)
        .saturating_sub(span.start.max(window.start));
    inside as f64 / (span.end - span.start).max(1) as f64
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_counts_by_the_part_of_it_that_lies_in_the_window() {
        let window = 100..200;
        for (span, part) in [
            (110..190, 1.0),
            (50..150, 0.5),
            (180..280, 0.2),
            (0..400, 0.25),
            (0..100, 0.0),
            (200..300, 0.0),
            (150..150, 0.0),
        ] {
            assert_eq!(share(&window, span.clone()), part, "{span:?}");
        }
        assert_eq!(share(&(u64::MAX..u64::MAX), 0..10), 0.0, "not yet open");
    }
}
