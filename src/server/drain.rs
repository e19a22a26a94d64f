//! The end of a server, in stages. See `src/guide/drain.md`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::admin::PartRef;
use super::threads::Left;
use super::{Runner, Server, ServerHandle};
use crate::conn::{ConnId, Shared};
use crate::event::EventKind;
use crate::handler::CloseReason;
use crate::sync::{Condvar, Mutex};

/// How long each stage of a server's end may take: the argument of [`Server::drain`] and
/// [`ServerHandle::shutdown`]. A plain `Duration` is the time for commands.
///
/// ```
/// use std::time::Duration;
/// use thread_group_pool::Drain;
/// let five = Duration::from_secs(5);
/// let patient = Drain::within(five).transactions(Duration::from_secs(30));
/// assert_eq!(Drain::from(five), Drain::within(five));
/// assert_eq!(patient.commands, five);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drain {
    /// For commands that run, queue, are parked, or of which a part has arrived.
    pub commands: Duration,

    /// For sessions that are in a transaction ([`Conn::set_in_transaction`](crate::Conn)) when that
    /// is over, beyond it. Until then they may send commands as before; when the transaction has ended
    /// they are closed. Default zero: a transaction is nothing special, and who is idle in one is closed
    /// as the other idle ones.
    pub transactions: Duration,

    /// For killed connections to end. Default 1 s.
    pub killed: Duration,

    /// For the threads to end, and as long again for the clients to read their last words. Default 1 s.
    pub threads: Duration,
}

impl Drain {
    /// Commands may take so long.
    pub const fn within(commands: Duration) -> Self {
        Self {
            commands,
            transactions: Duration::ZERO,
            killed: Duration::from_secs(1),
            threads: Duration::from_secs(1),
        }
    }

    /// Sets [`transactions`](#structfield.transactions).
    pub const fn transactions(mut self, time: Duration) -> Self {
        self.transactions = time;
        self
    }

    /// Sets [`killed`](#structfield.killed).
    pub const fn killed(mut self, time: Duration) -> Self {
        self.killed = time;
        self
    }

    /// Sets [`threads`](#structfield.threads).
    pub const fn threads(mut self, time: Duration) -> Self {
        self.threads = time;
        self
    }

    /// The shorter time of each.
    fn hastened(self, by: Self) -> Self {
        Self {
            commands: self.commands.min(by.commands),
            transactions: self.transactions.min(by.transactions),
            killed: self.killed.min(by.killed),
            threads: self.threads.min(by.threads),
        }
    }
}

impl From<Duration> for Drain {
    fn from(commands: Duration) -> Self {
        Self::within(commands)
    }
}

/// Whether somebody has asked for the end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    asked: Mutex<Option<Drain>>,
    bell: Condvar,
}

impl Ending {
    /// False: somebody has asked before. The shorter times count.
    fn ask(&self, how: Drain) -> bool {
        let mut asked = self.asked.lock();
        let before = *asked;
        *asked = Some(before.map_or(how, |before| before.hastened(how)));
        drop(asked);
        self.bell.notify_all();
        before.is_none()
    }

    fn wait(&self) {
        let mut asked = self.asked.lock();
        while asked.is_none() {
            self.bell.wait(&mut asked);
        }
    }

    fn how(&self) -> Drain {
        self.asked.lock().unwrap_or(Drain::within(Duration::ZERO))
    }
}

impl ServerHandle {
    /// Asks for the end of the server: whoever is in [`Server::wait`] carries it out. Does not wait for
    /// it and takes no lock of yours, so it may be called from anywhere: a signal's thread, a command.
    ///
    /// Asking again during the drain shortens it, to the shorter time of each stage. False: somebody
    /// had asked before.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use thread_group_pool::{Drain, Server};
    /// # fn signals() -> impl Iterator<Item = ()> { std::iter::empty() }
    /// # fn f(server: Server) {
    /// let handle = server.handle();
    /// std::thread::spawn(move || {
    ///     for _signal in signals() {
    ///         if !handle.shutdown(Duration::from_secs(60)) {
    ///             handle.shutdown(Duration::ZERO); // the second Ctrl-C
    ///         }
    ///     }
    /// });
    /// println!("{}", server.wait());
    /// # }
    /// ```
    pub fn shutdown(&self, how: impl Into<Drain>) -> bool {
        let first = self.0.ending.ask(how.into());
        self.0.registry.look_again();
        if let Some(part) = &self.0.admin {
            part.registry.look_again();
        }
        first
    }

    /// Whether somebody has asked for the end: a handler may refuse to begin what will take long.
    pub fn is_shutting_down(&self) -> bool {
        self.0.ending.asked.lock().is_some()
    }
}

impl Server {
    /// How long dropping a server waits for running commands.
    pub const DROP_DEADLINE: Duration = Duration::from_secs(5);

    /// Serves until somebody calls [`ServerHandle::shutdown`], then ends the server as
    /// [`drain`](Server::drain) does.
    pub fn wait(mut self) -> DrainReport {
        self.handle.0.ending.wait();
        self.end()
    }

    /// Ends the server in stages, and says who was left at each.
    ///
    /// 1. It stops accepting.
    /// 2. Idle connections are closed; what they had sent is answered before. Each other one is closed when
    ///    it comes to be idle. If there is a time for transactions, that means outside one.
    /// 3. When the time for [`commands`](Drain::commands) is over, those that are left are killed, but
    ///    for sessions in a transaction; these when [`transactions`](Drain::transactions) is over too.
    /// 4. Who has not ended in the time for the [`killed`](Drain::killed) is abandoned, and named.
    /// 5. Every thread is joined that ends in the time for [`threads`](Drain::threads); the others are
    ///    abandoned, and named.
    ///
    /// No handler can delay this call beyond the sum of these: whatever calls one is done on threads that
    /// are waited for no longer than that. The destructor of a thread-local can, in a thread that has
    /// ended otherwise.
    pub fn drain(mut self, how: impl Into<Drain>) -> DrainReport {
        self.handle.shutdown(how);
        self.end()
    }

    pub(super) fn end(&mut self) -> DrainReport {
        let begun = Instant::now();
        let core = Arc::clone(&self.handle.0);
        self.ended = true;
        let how = || core.ending.how();
        // Before the listeners close: who waits in a backlog is told.
        core.main().begin();
        let accepting = self.accepting.take();
        if let Some(accepting) = &accepting {
            accepting.close(after(begun, how().threads));
        }
        core.main().tell("accepting stopped");
        let mut report = DrainReport::default();
        core.main().end(begun, &how, &mut report);
        // Those who look after the server could do so to the end.
        if let Some(part) = &core.admin {
            let begun = Instant::now();
            part.as_ref().begin();
            if let Some(accepting) = self.admin_accepting.take() {
                accepting.close(after(begun, how().threads));
                let left = accepting.end(after(begun, how().threads));
                report.abandon(left);
            }
            let brief = || Drain {
                commands: how().killed,
                transactions: Duration::ZERO,
                ..how()
            };
            part.as_ref().end(begun, &brief, &mut report);
        }
        // It has watched over the logins.
        if let Some(accepting) = accepting {
            report.abandon(accepting.end(after(Instant::now(), how().threads)));
        }
        // The clients' affair, which takes them a moment.
        core.linger.end(after(Instant::now(), how().threads));
        core.main().tell("ended");
        report.abandon(core.registry.events().end());
        report.elapsed = begun.elapsed();
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `drain` there is nothing left.
        if !self.ended {
            self.handle.shutdown(Self::DROP_DEADLINE);
            self.end();
        }
    }
}

/// Not beyond what a clock can say.
fn after(begun: Instant, time: Duration) -> Instant {
    begun + time.min(Duration::from_secs(u64::from(u32::MAX)))
}

impl PartRef<'_> {
    /// From now on nobody is let in, handlers see it, and whoever ends is counted.
    fn begin(&self) {
        let mut idle = self.registry.all();
        idle.retain(|shared| self.registry.is_idle(shared));
        self.registry.tally().begin(idle.iter().map(Arc::as_ref));
        self.registry.begin_drain();
    }

    /// Ends its connections and threads in stages, and reports.
    fn end(&self, begun: Instant, how: &dyn Fn() -> Drain, report: &mut DrainReport) {
        // Who asks again may shorten it, and not have them closed as idle.
        let spare = !how().transactions.is_zero();
        if !self.finish(spare, || after(begun, how().commands)) {
            self.tell("time is over, killing");
            self.kill(|shared| !(spare && shared.is_in_transaction()));
            let since = Instant::now();
            if spare && !self.finish(spare, || after(since, how().transactions)) {
                self.tell("time for transactions is over, killing");
                self.kill(|_| true);
            }
            let since = Instant::now();
            self.finish(spare, || after(since, how().killed));
        }
        let by = after(Instant::now(), how().threads);
        self.watching.stop();
        let mut threads;
        let mut running = HashMap::new();
        match self.runner {
            Runner::Pool(pool) => {
                threads = pool.stop(by);
                threads.extend(pool.join(by));
                running = pool.running(&self.registry.all());
            }
            Runner::Thread(runner) => {
                runner.stop();
                threads = runner.join(by);
            }
        }
        threads.extend(self.watching.join(by));
        for left in &mut threads {
            left.serves = left.serves.or_else(|| running.get(&left.name).copied());
        }
        let (counts, all) = self.registry.tally().counts(|| self.registry.all());
        report.idle += counts.idle;
        report.finished += counts.finished;
        report.left += counts.left;
        report.killed.extend(counts.killed);
        report.abandoned.extend(all.iter().map(|s| s.id()));
        for left in threads {
            let now = self.registry.now();
            let serves = left.serves.and_then(|id| self.registry.find(id));
            report.abandoned_threads.push(AbandonedThread {
                name: left.name,
                connection: left.serves,
                running: serves.map(|shared| shared.running_for(now)),
            });
        }
    }

    fn tell(&self, stage: &'static str) {
        let left = self.registry.len();
        self.registry.tell(EventKind::Drain { stage, left });
    }

    /// Lets every connection come to its end. False: the time was over first.
    fn finish(&self, spare: bool, by: impl Fn() -> Instant) -> bool {
        match self.runner {
            Runner::Pool(pool) => {
                pool.drain(spare);
                self.registry.wait_empty(by)
            }
            Runner::Thread(threads) => loop {
                threads.drain(spare);
                let soon = Instant::now() + Duration::from_millis(5);
                if self.registry.wait_empty(|| soon.min(by())) {
                    return true;
                }
                if Instant::now() >= by() {
                    return false;
                }
            },
        }
    }

    /// Kills them, on a thread of its own: a callback that is to end a command may block.
    fn kill(&self, whom: impl Fn(&Shared) -> bool) {
        // Nobody is kept for longer than a look: that would keep his socket.
        let mut all = self.registry.all();
        all.retain(|shared| whom(shared));
        if all.is_empty() {
            return;
        }
        for shared in &all {
            self.registry.tally().condemn(shared.id());
        }
        let condemned: Vec<_> = all.iter().map(Arc::downgrade).collect();
        drop(all);
        let kill = move || {
            for shared in condemned.iter().filter_map(Weak::upgrade) {
                shared.cancel(CloseReason::Killed);
            }
        };
        let threads = self.runner.threads();
        if threads
            .spawn("tgp-kill".into(), KILL_STACK, kill.clone())
            .is_err()
        {
            kill();
        }
    }
}

const KILL_STACK: usize = 256 * 1024;

/// What became of the connections and threads of a server that was drained.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrainReport {
    /// Connections that were idle, and were closed.
    pub idle: usize,
    /// Connections that finished a command, or a transaction, and were closed then.
    pub finished: usize,
    /// Connections that ended for another reason: the client left, the handler closed, a time-out.
    pub left: usize,
    /// Connections that were killed because a time was over.
    pub killed: Vec<ConnId>,
    /// Connections whose handler did not return even then.
    pub abandoned: Vec<ConnId>,
    /// Threads that had not ended: those of abandoned connections, which go on until the handler
    /// returns.
    pub abandoned_threads: Vec<AbandonedThread>,
    /// How long it took.
    pub elapsed: Duration,
}

/// A thread that had not ended when its time was over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbandonedThread {
    /// Its name: "tgp-g0-w3" is worker 3 of group 0, "tgp-conn" has a connection of its own,
    /// "tgp-detached" one that has detached.
    pub name: String,
    /// Whose handler it is in, if it is.
    pub connection: Option<ConnId>,
    /// For how long that has been running its command; under thread-per-connection to within a second.
    pub running: Option<Duration>,
}

impl DrainReport {
    /// Threads that serve nobody are left.
    fn abandon(&mut self, left: Vec<Left>) {
        let abandoned = left.into_iter().map(|left| AbandonedThread {
            name: left.name,
            connection: None,
            running: None,
        });
        self.abandoned_threads.extend(abandoned);
    }

    /// Whether nobody had to be killed and every thread was joined.
    pub fn clean(&self) -> bool {
        self.killed.is_empty() && self.abandoned.is_empty() && self.abandoned_threads.is_empty()
    }

    /// All connections that there were.
    pub fn connections(&self) -> usize {
        self.idle + self.finished + self.left + self.killed.len() + self.abandoned.len()
    }
}

/// A report names so many threads when it is printed.
const SHOWN: usize = 5;

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "drained in {:?}: {} idle, {} finished, {} left by themselves, {} killed, {} abandoned",
            self.elapsed,
            self.idle,
            self.finished,
            self.left,
            self.killed.len(),
            self.abandoned.len(),
        )?;
        for thread in self.abandoned_threads.iter().take(SHOWN) {
            write!(f, "; {thread}")?;
        }
        match self.abandoned_threads.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more threads"),
        }
    }
}

impl fmt::Display for AbandonedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} has not ended", self.name)?;
        if let Some(id) = self.connection {
            write!(f, ", it has served connection {id}")?;
        }
        if let Some(running) = self.running {
            write!(f, " for {running:?}")?;
        }
        Ok(())
    }
}
