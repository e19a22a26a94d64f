//! The watch: one thread, for either scheduler, that looks at all connections now and then, for what
//! only time or a client that has left can tell.
//!
//! It is the one owner of how long a command may take, and of clients that leave while theirs runs;
//! under thread-per-connection of silent clients too (the pool's monitor sweeps those of its own). A
//! connection does nothing for that: the watch sees the number of its command, notes when it has seen
//! it first, and takes it from there. So a command costs nothing, and times are late by a look.
//!
//! It is a thread of its own, and not the pool's monitor, because it calls what handlers have given to
//! [`Conn::on_cancel`](crate::Conn::on_cancel): where such a callback blocks, against its contract,
//! nobody waits for it but other time-outs.
//!
//! While nobody is connected, or there is nothing to look for, it sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::registry::{ConnState, Registry};
use super::threads::{Left, Threads};
use crate::command::Cause;
use crate::config::{HangUp, Limits};
use crate::conn::Shared;
use crate::error::BuildError;
use crate::handler::CloseReason;
use crate::os::socket;
use crate::sync::{Condvar, Mutex};

const STACK: usize = 256 * 1024;

/// How old a command is when its client is looked at first. No system call for shorter ones.
const OLD: Duration = Duration::from_millis(100);

/// The time between two looks: an eighth of the shortest time-out, within these bounds.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Where the watch sleeps, and what it looks for.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    bed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    looks: Looks,
    rung: bool,
    stopping: bool,
}

/// For what it looks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    command: Option<Duration>,
    hang_up: HangUp,
    silence: Option<Silence>,
}

/// How long clients may be silent: thread-per-connection's.
#[derive(Clone, Copy, Debug)]
struct Silence {
    idle: Duration,
    in_transaction: Duration,
    read: Duration,
}

impl Looks {
    /// `silence`: of silent clients too.
    pub(crate) fn new(limits: &Limits, silence: bool) -> Self {
        Self {
            command: Some(limits.command_timeout).filter(|time| *time != Duration::MAX),
            hang_up: limits.hang_up,
            silence: silence.then_some(Silence {
                idle: limits.idle_timeout,
                in_transaction: limits.idle_in_transaction_timeout,
                read: limits.read_timeout,
            }),
        }
    }

    /// The time between two looks; `None`: there is nothing to look for.
    fn period(&self) -> Option<Duration> {
        let hang_up = (self.hang_up != HangUp::Ignore).then_some(OLD * 4);
        let silence = self
            .silence
            .map(|times| times.idle.min(times.in_transaction).min(times.read));
        let shortest = [self.command, hang_up, silence]
            .into_iter()
            .flatten()
            .min()?;
        Some((shortest / 8).clamp(SHORTEST, LONGEST))
    }
}

impl Watch {
    /// Somebody has come.
    pub(crate) fn ring(&self) {
        self.state.lock().rung = true;
        self.bed.notify_one();
    }

    pub(crate) fn set(&self, looks: Looks) {
        let mut state = self.state.lock();
        state.looks = looks;
        state.rung = true;
        drop(state);
        self.bed.notify_one();
    }

    /// A test has moved the clock, or is about to: looks now, on the calling thread.
    #[cfg(feature = "test-util")]
    pub(crate) fn look_now(&self, registry: &Registry) {
        let looks = self.state.lock().looks;
        look(registry, looks, &mut Vec::new());
    }

    fn stop(&self) {
        self.state.lock().stopping = true;
        self.bed.notify_one();
    }

    /// Sleeps until the next look is due. `None`: it is to end.
    fn sleep(&self, nobody: bool) -> Option<Looks> {
        let mut state = self.state.lock();
        if !state.stopping && !state.rung {
            match state.looks.period().filter(|_| !nobody) {
                Some(period) => self.bed.wait_for(&mut state, period),
                None => self.bed.wait(&mut state),
            }
        }
        state.rung = false;
        (!state.stopping).then_some(state.looks)
    }
}

/// The running watch; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    registry: Arc<Registry>,
    thread: Arc<Threads>,
}

impl Watching {
    pub(crate) fn start(
        name: &str,
        registry: &Arc<Registry>,
        looks: Looks,
    ) -> Result<Self, BuildError> {
        registry.watch().set(looks);
        let this = Self {
            registry: Arc::clone(registry),
            // Apart from those that run connections, and that are counted.
            thread: Arc::default(),
        };
        let registry = Arc::clone(registry);
        this.thread
            .spawn(name.into(), STACK, move || run(&registry))
            .map_err(|source| BuildError::Resources {
                what: "a thread",
                source,
            })?;
        Ok(this)
    }

    /// Has it end.
    pub(crate) fn stop(&self) {
        self.registry.watch().stop();
    }

    /// After [`stop`](Self::stop): waits until it has ended, for a moment at least. Returns the threads that
    /// are left then: one, if it is in a callback that blocks.
    pub(crate) fn join(&self, deadline: Instant) -> Vec<Left> {
        const MOMENT: Duration = Duration::from_millis(100);
        self.thread.join_all(deadline.max(Instant::now() + MOMENT))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop();
        // After a drain it has ended already; a server that could not be built leaves nothing behind.
        self.join(Instant::now());
    }
}

fn run(registry: &Registry) {
    let mut piece = Vec::new();
    while let Some(looks) = registry.watch().sleep(registry.len() == 0) {
        look(registry, looks, &mut piece);
    }
}

/// One look at everybody, a piece at a time: the memory of that is used again at the next look.
fn look(registry: &Registry, looks: Looks, piece: &mut Vec<Arc<Shared>>) {
    let now = registry.now();
    let mut old = Vec::new();
    let (mut last, mut more) = (None, true);
    while more {
        more = registry.add_piece(&mut last, piece);
        for shared in piece.drain(..) {
            old.extend(look_at(&shared, looks, now).map(|number| (shared, number)));
        }
    }
    // One call for all of them.
    let gone = socket::hung_up(old.iter().map(|(shared, _)| shared.socket()));
    for ((shared, number), gone) in old.iter().zip(gone) {
        if gone && shared.may_hang_up() {
            match looks.hang_up {
                HangUp::Kill if shared.command().current() == Some(*number) => {
                    shared.cancel(CloseReason::HungUp);
                }
                HangUp::Flag => _ = shared.cancel_command(*number, Cause::HungUp),
                HangUp::Kill | HangUp::Ignore => {}
            }
        }
    }
}

/// Looks at one connection. Returns the number of its command if its client is to be looked at too.
fn look_at(shared: &Shared, looks: Looks, now: u64) -> Option<u64> {
    if let Some(silence) = looks.silence {
        look_for_silence(shared, silence, now);
    }
    let (number, age) = age_of_command(shared, now)?;
    if let Some(time) = looks.command
        && age >= time
        && shared.state() != ConnState::Detached
    {
        shared.cancel_command(number, Cause::TimedOut);
    }
    (looks.hang_up != HangUp::Ignore && age >= OLD && shared.may_hang_up()).then_some(number)
}

/// The command that a connection is at, and for how long it has been seen there.
fn age_of_command(shared: &Shared, now: u64) -> Option<(u64, Duration)> {
    let (number, notes) = (shared.command().current()?, shared.watched());
    // Relaxed: our own notes.
    if notes.command.swap(number, Relaxed) != number {
        notes.began.store(now, Relaxed);
    }
    let began = notes.began.load(Relaxed);
    Some((number, Duration::from_nanos(now.saturating_sub(began))))
}

fn look_for_silence(shared: &Shared, silence: Silence, now: u64) {
    let notes = shared.watched();
    let calls = shared.heard();
    // Relaxed: our own notes, and a statistic. One that is read too early is read again at the next look.
    let known = notes.silent_since.load(Relaxed) > 0;
    if notes.calls.swap(calls, Relaxed) != calls || !known {
        // It has come, or has been heard, since the last look: that is when its silence may have begun.
        notes.silent_since.store(now, Relaxed);
        shared.since.store(now, Relaxed);
        return;
    }
    // Relaxed: as above.
    let since = notes.silent_since.load(Relaxed);
    let silent = Duration::from_nanos(now.saturating_sub(since));
    match shared.state() {
        ConnState::Idle if shared.is_in_transaction() && silent >= silence.in_transaction => {
            shared.end_input(CloseReason::IdleInTransaction);
        }
        ConnState::Idle if silent >= silence.idle => shared.end_input(CloseReason::IdleTimeout),
        ConnState::Reading if silent >= silence.read => shared.end_input(CloseReason::ReadTimeout),
        _ => {}
    }
}
