//! When statements are due, and what is made of their replies. It knows no clock and no socket:
//! every call is told what time it is.

use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::Result;
use crate::load::latencies;
use crate::plan::Light;
use crate::request::Random;
use crate::wires::nanos;

/// An open loop: the times at which statements are due, whatever has become of earlier ones.
///
/// Time is cut into slots of 1/rate. In each slot one statement is due, at a seeded random place in
/// it, and the clients take turns. So the rate is kept exactly, nothing beats in time with a tick
/// of the server, and there are none of the bursts of a Poisson process, which would queue behind
/// each other under any scheduler.
#[derive(Debug)]
struct Pace {
    seed: u64,
    starts: u64,
    slot: f64,
    /// The first statement whose client has not been called.
    cursor: u64,
    /// The next statement of each client. One that waits for a reply falls behind the cursor: its
    /// statements queue here, and keep their due times.
    next: Vec<u64>,
}

impl Pace {
    fn due(&self, statement: u64) -> u64 {
        let place = Random::nth(self.seed, statement) as f64 / 2f64.powi(64);
        self.starts + ((statement as f64 + place) * self.slot) as u64
    }

    /// Takes the next statement of `client` if it is due by `now`; when that was.
    fn take(&mut self, client: usize, now: u64) -> Option<u64> {
        let due = self.due(self.next[client]);
        (due <= now).then(|| {
            self.next[client] += self.next.len() as u64;
            due
        })
    }
}

/// The statements of clients that have a rate, or send when they are answered.
#[derive(Debug)]
pub(crate) struct Dues {
    /// `None` is a closed loop: a statement is due when the one before it has been answered.
    pace: Option<Pace>,
    /// When the statement was due that each client sent last.
    due: Vec<u64>,
    /// Of statements that are due in here the latency is recorded; replies that come in here are
    /// counted.
    window: Range<u64>,
    pub(crate) latencies: Histogram<u64>,
    pub(crate) completed: u64,
}

impl Dues {
    pub(crate) fn new(light: Light, seed: u64, starts: u64) -> Result<Dues> {
        let clients = light.clients();
        let pace = |rate: u64| Pace {
            seed,
            starts,
            slot: 1e9 / rate as f64,
            cursor: 0,
            next: (0..clients as u64).collect(),
        };
        Ok(Dues {
            pace: match light {
                Light::Open { rate, .. } => Some(pace(rate)),
                Light::Closed { .. } => None,
            },
            due: vec![starts; clients],
            window: u64::MAX..u64::MAX,
            latencies: latencies()?,
            completed: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// From `now` on it counts, for as long as `measure`.
    pub(crate) fn open_window(&mut self, now: u64, measure: Duration) {
        self.window = now..now + nanos(measure);
    }

    pub(crate) fn window(&self) -> &Range<u64> {
        &self.window
    }

    /// When to look again at the latest.
    pub(crate) fn wakes_at(&self) -> u64 {
        let next = self.pace.as_ref().map(|pace| pace.due(pace.cursor));
        next.unwrap_or(u64::MAX)
    }

    /// A client that has something due since the last call, one after the other.
    pub(crate) fn call(&mut self, now: u64) -> Option<usize> {
        let pace = self.pace.as_mut()?;
        (pace.due(pace.cursor) <= now).then(|| {
            pace.cursor += 1;
            ((pace.cursor - 1) % pace.next.len() as u64) as usize
        })
    }

    /// Whether `client`, which is idle, has to send a statement now.
    pub(crate) fn next(&mut self, client: usize, now: u64) -> bool {
        let due = match &mut self.pace {
            Some(pace) => pace.take(client, now),
            None => Some(now),
        };
        self.due[client] = due.unwrap_or(self.due[client]);
        due.is_some()
    }

    /// `client` has got a correct reply.
    pub(crate) fn answered(&mut self, client: usize, now: u64) {
        self.record(self.due[client], now);
        self.completed += u64::from(self.window.contains(&now));
    }

    /// Whether something that was due before the window closed is unanswered, for `client`, which
    /// may be `waiting` for a reply.
    pub(crate) fn is_owed(&self, client: usize, waiting: bool) -> bool {
        self.is_unanswered(client, waiting, self.window.end)
    }

    /// Whether something that was due before `end` is. In a closed loop that is what has been sent.
    pub(crate) fn is_unanswered(&self, client: usize, waiting: bool, end: u64) -> bool {
        let queued = self.pace.as_ref().map(|pace| pace.due(pace.next[client]));
        let sent = waiting.then_some(self.due[client]);
        let mut unanswered = sent.into_iter().chain(queued);
        unanswered.any(|due| due < end)
    }

    /// How many statements that is. Each counts as having taken until `now`: it took at least that.
    pub(crate) fn abandon(&mut self, client: usize, mut waiting: bool, now: u64) -> u64 {
        let mut unanswered = 0;
        while self.is_owed(client, waiting) {
            if !waiting {
                self.next(client, now);
            }
            waiting = false;
            self.record(self.due[client], now);
            unanswered += 1;
        }
        unanswered
    }

    fn record(&mut self, due: u64, now: u64) {
        if self.window.contains(&due) {
            self.latencies.saturating_record(now - due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn open(clients: usize, rate: u64) -> Dues {
        let mut lights = Dues::new(Light::Open { clients, rate }, 7, 0).unwrap();
        lights.open_window(0, Duration::from_secs(1));
        lights
    }

    /// The due times of the next `n` statements, each sent as it is due and answered at once.
    fn due(lights: &mut Dues, n: usize) -> Vec<u64> {
        let mut all = Vec::new();
        for _ in 0..n {
            let now = lights.wakes_at();
            let client = lights.call(now).unwrap();
            assert!(lights.next(client, now));
            lights.answered(client, now);
            all.push(now);
        }
        all
    }

    /// What was recorded, to the precision of the histogram: in microseconds, ascending.
    fn recorded(lights: &Dues) -> Vec<u64> {
        let values = lights.latencies.iter_recorded();
        values
            .flat_map(|value| {
                let us = value.value_iterated_to() / 1_000;
                std::iter::repeat_n(us, value.count_at_value() as usize)
            })
            .collect()
    }

    #[test]
    fn one_statement_is_due_in_each_slot_and_clients_take_turns() {
        let mut lights = open(3, 1_000);
        let times = due(&mut lights, 100);
        for (slot, time) in (0u64..).zip(&times) {
            assert!(
                (slot * MS..(slot + 1) * MS).contains(time),
                "{slot}: {time}"
            );
        }
        let places: Vec<u64> = times.iter().map(|time| time % MS / (MS / 4)).collect();
        assert!((0..4).all(|quarter| places.contains(&quarter)), "jitter");
        assert_eq!(times, due(&mut open(3, 1_000), 100), "seeded");
        assert_eq!(times, due(&mut open(5, 1_000), 100), "for any clients");
        assert_eq!(lights.completed, 100);
    }

    #[test]
    fn nothing_is_due_early() {
        let mut lights = open(1, 1_000);
        let now = lights.wakes_at() - 1;
        assert_eq!(lights.call(now), None);
        assert!(!lights.next(0, now));
        assert_eq!(lights.call(now + 1), Some(0));
        assert!(lights.next(0, now + 1) && !lights.next(0, now + 1));
    }

    /// A closed loop would see one slow statement here and send the others later.
    #[test]
    fn what_queues_behind_a_slow_reply_counts_from_when_it_was_due() {
        let mut lights = open(1, 1_000);
        let times = due(&mut open(1, 1_000), 10);
        assert_eq!(lights.call(times[0]), Some(0));
        assert!(lights.next(0, times[0]));
        // The client is busy; the others are called for and have to wait.
        while lights.call(times[9]).is_some() {}
        let late = 20 * MS;
        lights.answered(0, late);
        for _ in 1..10 {
            assert!(lights.next(0, late));
            lights.answered(0, late);
        }
        let mut expected: Vec<u64> = times.iter().map(|due| (late - due) / 1_000).collect();
        expected.sort_unstable();
        let close = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= b / 500;
        let seen = recorded(&lights);
        assert!(
            seen.len() == 10 && seen.iter().zip(&expected).all(close),
            "{seen:?} {expected:?}"
        );
    }

    #[test]
    fn what_is_due_in_the_window_is_recorded_however_late_and_nothing_else_is() {
        let mut lights = Dues::new(
            Light::Open {
                clients: 1,
                rate: 1_000,
            },
            7,
            0,
        )
        .unwrap();
        due(&mut lights, 5);
        assert_eq!(
            (recorded(&lights).len(), lights.completed),
            (0, 0),
            "warm-up"
        );
        lights.open_window(5 * MS, Duration::from_millis(5));
        while lights.call(10 * MS).is_some() {}
        for _ in 0..5 {
            assert!(lights.is_owed(0, false) && lights.next(0, 50 * MS));
            lights.answered(0, 50 * MS);
        }
        assert!(!lights.is_owed(0, false));
        // The load goes on, and is no concern of the window any more.
        assert!(lights.next(0, 50 * MS) && !lights.is_owed(0, true));
        lights.answered(0, 50 * MS);
        // Late replies have a latency, and are no throughput.
        assert_eq!((recorded(&lights).len(), lights.completed), (5, 0));
    }

    #[test]
    fn what_is_never_answered_is_counted_and_has_waited_until_the_end() {
        let mut lights = open(2, 10);
        let first = lights.wakes_at();
        assert!(lights.call(first) == Some(0) && lights.next(0, first));
        let end = 3_000 * MS;
        assert!(lights.is_owed(0, true) && lights.is_owed(1, false));
        assert_eq!(
            (lights.abandon(0, true, end), lights.abandon(1, false, end)),
            (5, 5)
        );
        assert!(!lights.is_owed(0, false));
        let seen = recorded(&lights);
        assert!(
            seen.len() == 10 && seen.iter().all(|us| *us >= 2_000_000),
            "{seen:?}"
        );
    }

    #[test]
    fn a_closed_loop_counts_from_the_reply_before() {
        let mut lights = Dues::new(Light::Closed { clients: 1 }, 7, 0).unwrap();
        assert!(lights.next(0, 0));
        lights.open_window(10, Duration::from_millis(5));
        lights.answered(0, MS);
        assert!(lights.next(0, MS) && lights.is_owed(0, true) && !lights.is_owed(0, false));
        lights.answered(0, 3 * MS);
        assert_eq!(
            recorded(&lights),
            [2_000],
            "the first was sent before the window"
        );
        assert!(lights.next(0, 6 * MS) && !lights.is_owed(0, true));
        assert_eq!((lights.wakes_at(), lights.call(6 * MS)), (u64::MAX, None));
    }
}
