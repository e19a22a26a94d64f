//! Every limit: its unit, its default with the reason, its range, and what it must agree with.
//!
//! Where MariaDB has the same knob, its name is a doc alias. [`PoolConfig::check`] and
//! [`Limits::check`] hold the relations between them; nothing else in the crate validates.

use std::thread;
use std::time::Duration;

use crate::error::BuildError;

/// How connections get threads. The handler is the same for all.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[doc(alias = "thread_handling")]
pub enum Scheduler {
    /// Thread groups: few threads for any number of connections.
    Pool(PoolConfig),
    /// A thread for each connection, kept in a cache between connections.
    ThreadPerConnection(ThreadPerConnectionConfig),
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::Pool(PoolConfig::default())
    }
}

/// The algorithm of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Ours: while there are threads, short commands do not wait for long ones to end.
    #[default]
    Conserving,
    /// MariaDB's, gaps included, to compare with; see [`PoolConfig::mariadb`].
    Mariadb,
}

/// Declares a config struct's consuming setters, one for each public field, and what two of them
/// differ in.
macro_rules! setters {
    ($($field:ident: $ty:ty),* $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
            pub fn $field(mut self, $field: $ty) -> Self {
                self.$field = $field;
                self
            }
        )*

        /// The names of the limits that differ.
        pub(crate) fn changes(&self, new: &Self) -> Vec<&'static str> {
            [$((stringify!($field), self.$field != new.$field)),*]
                .into_iter()
                .filter_map(|(name, differs)| differs.then_some(name))
                .collect()
        }
    };
}

/// The thread pool's limits.
///
/// The defaults are meant to be left alone. What may need a value of yours, in the order in which it is
/// worth a thought: `groups`, if the process shares its CPUs with others; `max_threads`, if the system gives
/// fewer (a pool of lock waiters must fit into it); `stack_size`, if the handler recurses;
/// `stall_limit` and `oversubscribe` last, with [`ServerHandle::times`](crate::ServerHandle::times) before
/// you and after. How many connections there may be, how large a command, and how long who may be silent is
/// in [`Limits`].
///
/// ```
/// use std::time::Duration;
/// use thread_group_pool::PoolConfig;
/// let config = PoolConfig::default().groups(4).stall_limit(Duration::from_millis(20));
/// assert_eq!(config.oversubscribe, 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Number of thread groups, 1 to 1,024. Default: the CPUs that this process may use (affinity
    /// and cgroup quota counted), read once; as in MariaDB, because a group aims at one command on
    /// the CPU at a time.
    #[doc(alias = "thread_pool_size")]
    pub groups: usize,

    /// Threads of all groups together, never exceeded; at least 2 per group, so that a group whose
    /// one command blocks can still listen. Default 8,192, or 2 per group if that is more: only commands
    /// in a reported wait can pile up so many, each thread costs two or three of the 65,530 memory
    /// maps that Linux gives a process, and a cap that is small beside the number of lock waiters
    /// is a deadlock (MariaDB went 500, 1,000, 65,536).
    #[doc(alias = "thread_pool_max_threads")]
    pub max_threads: usize,

    /// How many commands beyond one may be on the CPU at a time in a group, 1 to 1,000; also how
    /// many that have run past `stall_limit`, or whose session's last command did, keep sessions waiting of
    /// which the same is known. (One of which nothing is known is let in as any other, and found out: of
    /// those any number may run.) Default 3, as in MariaDB: enough that a mixture keeps
    /// moving, few enough that the kernel's scheduler does not become the queue.
    #[doc(alias = "thread_pool_oversubscribe")]
    pub oversubscribe: usize,

    /// A command that has run this long gives its slot to others; 1 ms to 1 min. Default 10 ms.
    /// MariaDB's 500 ms is one tick for a whole group, and a point query behind a report then waits
    /// half a second; here it is measured for each command and costs nothing when it is short.
    #[doc(alias = "thread_pool_stall_limit")]
    pub stall_limit: Duration,

    /// How long a parked worker lives, 1 ms up. Default 60 s, as in MariaDB. The last worker of a
    /// group, which is its listener, stays.
    #[doc(alias = "thread_pool_idle_timeout")]
    pub idle_timeout: Duration,

    /// Age at which a queued command of a lower lane goes before those of higher ones. Default
    /// 1 s, as in MariaDB, 1 ms up; here it is looked at whenever a command is taken, not at ticks.
    #[doc(alias = "thread_pool_prio_kickup_timer")]
    pub kickup: Duration,

    /// How long a group may go without anybody in its poller, and how long a command runs until
    /// the group opens one more slot; 1 ms up to `stall_limit`. After many looks at which nothing was
    /// to be done it may be four times as long. Default 1 ms, the monitor's tick:
    /// shorter than what a client notices, longer than most commands, so that a short command never
    /// costs a wake-up.
    pub handover: Duration,

    /// The least time between two thread creations in a group that has a command on the CPU and
    /// 1 + `oversubscribe` threads or more, not counting those in a wait; twice that from twice as many
    /// threads on, four times from four times. Default 1 ms: MariaDB's table, which begins with 50 ms beside a
    /// stall limit of 500 ms, in proportion to ours. The gate lets no more start than are found to be long in
    /// the meantime; with 50 ms, sixteen sessions that began with a long command each were found out one after
    /// the other, and short commands behind them waited 230 ms. Not applied to those in a wait: they take no
    /// CPU, and may be waiting for just that thread; nor while nothing is on the CPU, for the same reason.
    /// [`Policy::Mariadb`] has a table of its own instead.
    pub creation_throttle: Duration,

    /// Pipelined commands that a connection may run in one turn before it goes to the tail of its
    /// lane. Default 64.
    pub turn_commands: u32,

    /// Time that a connection's pipelined commands may take in one turn, up to `stall_limit`.
    /// Default 1 ms.
    pub turn_time: Duration,

    /// The algorithm: ours, or MariaDB's. Default ours.
    pub policy: Policy,

    /// Under [`Policy::Mariadb`]: whether the listener only listens. Default off, as in MariaDB. Ours
    /// needs no such choice, for the role is handed on within `handover` of being left.
    #[doc(alias = "thread_pool_dedicated_listener")]
    pub dedicated_listener: bool,

    /// Pin the workers of group *n* to the *n*-th of the CPUs that the process may use. Default
    /// off: on a machine that is shared with others the kernel places threads better.
    pub pin_groups: bool,

    /// Stack of a worker in bytes, 64 KiB to 1 GiB. Default 2 MiB, Rust's own; memory is used only
    /// as far as it is touched.
    #[doc(alias = "thread_stack")]
    pub stack_size: usize,

    /// For studies: whether each turn ends in a system call that re-arms the connection's readiness, as it
    /// does in pools whose registrations are one-shot.
    #[cfg(feature = "one-shot")]
    #[doc(hidden)]
    pub one_shot: bool,
}

/// Bounds of `stack_size`: below, a formatted panic message does not fit; above, it is a slip.
const STACK_MIN: usize = 64 * 1024;
const STACK_MAX: usize = 1 << 30;

impl Default for PoolConfig {
    fn default() -> Self {
        let groups = thread::available_parallelism()
            .map_or(1, |n| n.get())
            .min(1024);
        Self {
            groups,
            max_threads: 8192.max(2 * groups),
            oversubscribe: 3,
            stall_limit: Duration::from_millis(10),
            idle_timeout: Duration::from_secs(60),
            kickup: Duration::from_secs(1),
            handover: Duration::from_millis(1),
            creation_throttle: Duration::from_millis(1),
            turn_commands: 64,
            turn_time: Duration::from_millis(1),
            policy: Policy::default(),
            dedicated_listener: false,
            pin_groups: false,
            stack_size: 2 * 1024 * 1024,
            #[cfg(feature = "one-shot")]
            one_shot: false,
        }
    }
}

impl PoolConfig {
    /// MariaDB's defaults, and its algorithm as it is, to compare with and to study:
    /// [`Policy::Mariadb`]. It differs from [`default`](Self::default) in:
    ///
    /// * `stall_limit` 500 ms: the time between two looks at each group. A group in which nothing has moved
    ///   from one to the next gets one more thread, so a command may wait for one to two of them behind
    ///   a long one. Deadlines of connections are looked at as often. Below 500 ms nothing throttles
    ///   the creation of threads, as there.
    /// * `max_threads` 65,536.
    /// * `turn_commands` 1: it reads one command at a time, and goes to its poller for the next.
    ///
    /// `oversubscribe`, `idle_timeout` and `kickup` have the same defaults in both; the first only limits who
    /// may take queued work, and age is looked at once for each `stall_limit`. `handover` and `creation_throttle`
    /// mean nothing to it: nobody takes over from a listener that has left, and the throttle is a table
    /// with constants. `set_holding`, `Class::Long` and waits for a known holder are heard and have no
    /// effect. What cannot be the same is listed in the [design note](crate::design).
    ///
    /// ```
    /// use thread_group_pool::PoolConfig;
    /// let config = PoolConfig::mariadb().dedicated_listener(true);
    /// assert!(config.check().is_ok());
    /// ```
    pub fn mariadb() -> Self {
        Self {
            policy: Policy::Mariadb,
            stall_limit: Duration::from_millis(500),
            max_threads: 65_536,
            turn_commands: 1,
            ..Self::default()
        }
    }

    setters! {
        groups: usize,
        max_threads: usize,
        oversubscribe: usize,
        stall_limit: Duration,
        idle_timeout: Duration,
        kickup: Duration,
        handover: Duration,
        creation_throttle: Duration,
        turn_commands: u32,
        turn_time: Duration,
        policy: Policy,
        dedicated_listener: bool,
        pin_groups: bool,
        stack_size: usize,
    }

    /// Checks every range, and every relation between two limits.
    ///
    /// # Errors
    /// The first one that does not hold, with both values.
    pub fn check(&self) -> Result<(), BuildError> {
        in_range("groups", self.groups, 1, 1024)?;
        in_range("oversubscribe", self.oversubscribe, 1, 1000)?;
        in_range("turn_commands", self.turn_commands, 1, u32::MAX)?;
        in_range("stack_size", self.stack_size, STACK_MIN, STACK_MAX)?;
        let ms = Duration::from_millis(1);
        in_range("stall_limit", self.stall_limit, ms, Duration::from_secs(60))?;
        at_least("idle_timeout", self.idle_timeout, ms)?;
        at_least("kickup", self.kickup, ms)?;
        in_range("handover", self.handover, ms, Duration::from_secs(60))?;
        if self.max_threads < 2 * self.groups {
            return Err(BuildError::contradiction(
                ("max_threads", self.max_threads),
                ("groups", self.groups),
                "every group needs two threads, one to run a command and one to listen",
            ));
        }
        if self.handover > self.stall_limit {
            return Err(BuildError::contradiction(
                ("handover", Shown(self.handover)),
                ("stall_limit", Shown(self.stall_limit)),
                "a command cannot be long before the group has opened its next slot",
            ));
        }
        if self.turn_time > self.stall_limit {
            return Err(BuildError::contradiction(
                ("turn_time", Shown(self.turn_time)),
                ("stall_limit", Shown(self.stall_limit)),
                "a turn of many short commands would count as one long command",
            ));
        }
        Ok(())
    }
}

/// Limits of thread-per-connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadPerConnectionConfig {
    /// Threads that are kept for the next connection when theirs has ended. Default 256, as in
    /// MariaDB: creating a thread costs 60 to 90 microseconds.
    #[doc(alias = "thread_cache_size")]
    pub thread_cache: usize,

    /// Threads in all, hence connections, but for those that have [detached](crate::Next::detach); a client beyond
    /// them is refused. At least [`thread_cache`](Self::thread_cache). Default 16,384: see [`PoolConfig::max_threads`] for what the operating system gives.
    pub max_threads: usize,

    /// How long a cached thread waits for its next connection. Default 5 min, as in MariaDB.
    pub idle_timeout: Duration,

    /// Stack of a thread in bytes, 64 KiB to 1 GiB. Default 256 KiB, about MariaDB's: stacks of 2 MiB
    /// each need a page of page table of their own, which costs 4 % of throughput at 4096
    /// connections. Raise it for handlers that recurse deeply.
    #[doc(alias = "thread_stack")]
    pub stack_size: usize,
}

impl Default for ThreadPerConnectionConfig {
    fn default() -> Self {
        Self {
            thread_cache: 256,
            max_threads: 16_384,
            idle_timeout: Duration::from_secs(300),
            stack_size: 256 * 1024,
        }
    }
}

impl ThreadPerConnectionConfig {
    setters! {
        thread_cache: usize,
        max_threads: usize,
        idle_timeout: Duration,
        stack_size: usize,
    }

    /// Checks every range, and every relation between two limits.
    ///
    /// # Errors
    /// The first one that does not hold, with both values.
    pub fn check(&self) -> Result<(), BuildError> {
        at_least("max_threads", self.max_threads, 1)?;
        in_range("stack_size", self.stack_size, STACK_MIN, STACK_MAX)?;
        at_least("idle_timeout", self.idle_timeout, Duration::from_millis(1))?;
        if self.thread_cache > self.max_threads {
            return Err(BuildError::contradiction(
                ("thread_cache", self.thread_cache),
                ("max_threads", self.max_threads),
                "more threads would be kept than may exist",
            ));
        }
        Ok(())
    }
}

/// What becomes of a command whose client leaves while it runs, waits or is parked: it has closed the
/// connection, or has said that it will send no more, which looks the same. Noticed for commands that
/// have taken 100 ms and more, a tenth of a second later; for shorter ones nobody looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HangUp {
    /// It goes on. The client may be one that has said all it had to say and waits for the answer, as
    /// `nc` does at the end of its input.
    #[default]
    Ignore,
    /// It is cancelled: [`Conn::cancelled`](crate::Conn::cancelled) is `HungUp`. The connection stays as it
    /// is, so a client that still reads gets what the handler answers.
    Flag,
    /// The connection is killed, with [`CloseReason::HungUp`](crate::CloseReason).
    Kill,
}

/// Limits of a connection, the same under every scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Sessions at a time: connections that have logged in. One more is refused when it calls
    /// [`Conn::logged_in`](crate::Conn::logged_in), and not before, so that a request to cancel, or an
    /// administrator, can come on a new connection when all are taken. Default 100,000. MariaDB's 151
    /// dates from a thread for each; here an idle connection costs under 2 KiB, and the limit that is
    /// met first is that of open files.
    pub max_connections: usize,

    /// Connections at a time that have not logged in; one more is refused as it is accepted. They count
    /// apart from `max_connections`, so that strangers cannot use up the sessions. Default 8,192: a
    /// storm of clients that reconnect fits, who never logs in is gone after `login_timeout`, and it is
    /// half the threads of thread-per-connection, each of which a stranger takes one of there.
    #[doc(alias = "back_log")]
    pub max_logins: usize,

    /// How long a client may take to log in, however busy it is meanwhile, 1 ms up. Default 10 s, as in
    /// MariaDB. To within a tenth of a second or an eighth of it, whichever is less. Who had to wait for
    /// its `open` has at most twice the time, and time in which the whole process stood still does not
    /// count.
    #[doc(alias = "connect_timeout")]
    pub login_timeout: Duration,

    /// Bytes of a command of a client that has not logged in, at least 16 KiB. Default 64 KiB: more than
    /// any login needs, and strangers cannot fill the memory with halves of commands. `max_input` holds for
    /// them as well.
    #[doc(alias = "max_input_before_login")]
    pub max_login_input: usize,

    /// Connections at a time from one address, logged in or not; one more is refused. Default: no limit,
    /// for a proxy in front of the server looks like one client. Clients of Unix sockets have none.
    #[doc(alias = "max_user_connections")]
    pub max_per_address: usize,

    /// Connections at a time through the [admin listeners](crate::ServerBuilder::admin), which count
    /// nowhere else; and threads for them. Default 10.
    #[doc(alias = "extra_max_connections")]
    pub max_admin_connections: usize,

    /// How long a client may be silent between two commands. Default 8 h, as in MariaDB. The clock
    /// stops when input arrives: a client that is only queued is never closed as idle.
    #[doc(alias = "wait_timeout")]
    pub idle_timeout: Duration,

    /// The same within a transaction ([`Conn::set_in_transaction`](crate::Conn::set_in_transaction)), if
    /// that is shorter: a client that has gone to lunch keeps others from the rows that it has locked.
    /// Default none, as in MariaDB. The reason for the close is
    /// [`CloseReason::IdleInTransaction`](crate::CloseReason).
    #[doc(alias = "idle_transaction_timeout")]
    pub idle_in_transaction_timeout: Duration,

    /// How long a command may take in all, from the call that begins it: in steps, waits, parks and
    /// flushes, but not in a queue before it begins. One that takes longer is cancelled
    /// ([`Conn::cancelled`](crate::Conn::cancelled) is `TimedOut`), which is for it to notice; its
    /// connection stays. Noticed an eighth of this late at most, or 5 ms. One that has detached may take as
    /// long as it likes. Default none, as in MariaDB.
    #[doc(alias = "max_statement_time")]
    #[doc(alias = "max_execution_time")]
    pub command_timeout: Duration,

    /// What becomes of a command whose client leaves while it runs. Default
    /// [`Ignore`](HangUp::Ignore).
    pub hang_up: HangUp,

    /// How long a client may be silent in the middle of a command. Default 30 s, as in MariaDB.
    #[doc(alias = "net_read_timeout")]
    pub read_timeout: Duration,

    /// How long a client may take for each 64 KiB of a reply that is on its way, or for what is left
    /// of it. Default 60 s, as in MariaDB.
    #[doc(alias = "net_write_timeout")]
    pub write_timeout: Duration,

    /// Bytes of one command, at least 16 KiB; a longer one closes the connection. Default 16 MiB,
    /// as in MariaDB.
    ///
    /// As much again is taken of commands that come while a reply waits for its client: one that sends
    /// all its commands before it reads the first reply gets all of them, if the commands are not more
    /// than this. Behind so much nothing more is read, and a client that takes nothing of its replies
    /// for a second then is closed, with [`PipelineTooLong`](crate::CloseReason::PipelineTooLong).
    #[doc(alias = "max_allowed_packet")]
    pub max_input: usize,

    /// Memory for the half commands of all connections together, at least `max_input`. When they come to more,
    /// the largest of them is closed, with [`CloseReason::InputBudget`](crate::CloseReason): those who send
    /// much and slowly take nothing from those who send little. Default 1 GiB, which is 64 of the largest
    /// commands, or 16,384 clients that have not logged in with all that they may send. What a transport holds
    /// of its input counts if it [says](crate::Transport::input_bytes) how much that is. What admins send is not
    /// counted with it.
    pub input_budget: usize,

    /// Bytes of reply that wait in memory for a slow reader; beyond that the handler's writes
    /// block, as a reported wait that holds its thread. At least 16 KiB. Default 1 MiB.
    pub output_bound: usize,

    /// How long the socket of a closed connection stays for its client to read the last words and
    /// to close as well; a client that is still sending would lose them otherwise. Default 1 s.
    pub linger_timeout: Duration,

    /// How many sockets stay at a time, with a descriptor each, beyond `max_connections`. One more is
    /// closed at once, and counted. Default 1024.
    pub max_lingering: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 100_000,
            max_logins: 8_192,
            login_timeout: Duration::from_secs(10),
            max_login_input: 64 * 1024,
            max_per_address: usize::MAX,
            max_admin_connections: 10,
            idle_timeout: Duration::from_secs(8 * 3600),
            idle_in_transaction_timeout: Duration::MAX,
            command_timeout: Duration::MAX,
            hang_up: HangUp::default(),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            max_input: 16 * 1024 * 1024,
            input_budget: 1024 * 1024 * 1024,
            output_bound: 1024 * 1024,
            linger_timeout: Duration::from_secs(1),
            max_lingering: 1024,
        }
    }
}

/// How much of a reply that is waiting must leave within `write_timeout`, if so much is left.
pub(crate) const STRIDE: u64 = 64 * 1024;

/// A client that takes nothing of its replies for so long, while `max_input` bytes of what it has sent
/// meanwhile wait behind them, is closed: it would wait for ever, or the server would.
pub(crate) const CRAMMED: Duration = Duration::from_secs(1);

/// The least `max_input` and `output_bound`, and the size of a read.
pub(crate) const IO_CHUNK: usize = 16 * 1024;

/// How long a Unix client is silent until its socket is read once more. A message that carries
/// descriptors ends a read early, and a plain read does not tell; asking each time (`recvmsg`) costs
/// every command 0.3 us, a tenth of it, while this costs a client that thinks for longer one more turn.
/// Whoever was found out is asked each time.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Limits {
    setters! {
        max_connections: usize,
        max_logins: usize,
        login_timeout: Duration,
        max_login_input: usize,
        max_per_address: usize,
        max_admin_connections: usize,
        idle_timeout: Duration,
        idle_in_transaction_timeout: Duration,
        command_timeout: Duration,
        hang_up: HangUp,
        read_timeout: Duration,
        write_timeout: Duration,
        max_input: usize,
        input_budget: usize,
        output_bound: usize,
        linger_timeout: Duration,
        max_lingering: usize,
    }

    /// Checks every range, and every relation between two limits.
    ///
    /// # Errors
    /// The first one that does not hold, with both values.
    pub fn check(&self) -> Result<(), BuildError> {
        let ms = Duration::from_millis(1);
        let bytes = isize::MAX as usize;
        at_least("max_connections", self.max_connections, 1)?;
        at_least("max_logins", self.max_logins, 1)?;
        at_least("login_timeout", self.login_timeout, ms)?;
        in_range("max_login_input", self.max_login_input, IO_CHUNK, bytes)?;
        at_least("max_per_address", self.max_per_address, 1)?;
        in_range("max_admin_connections", self.max_admin_connections, 1, 4096)?;
        at_least("idle_timeout", self.idle_timeout, ms)?;
        at_least(
            "idle_in_transaction_timeout",
            self.idle_in_transaction_timeout,
            ms,
        )?;
        at_least("command_timeout", self.command_timeout, ms)?;
        at_least("read_timeout", self.read_timeout, ms)?;
        at_least("write_timeout", self.write_timeout, ms)?;
        in_range("max_input", self.max_input, IO_CHUNK, bytes)?;
        in_range("output_bound", self.output_bound, IO_CHUNK, bytes)?;
        if self.input_budget < self.max_input {
            return Err(BuildError::contradiction(
                ("input_budget", self.input_budget),
                ("max_input", self.max_input),
                "a single command would be more than all may be together",
            ));
        }
        let minute = Duration::from_secs(60);
        in_range(
            "linger_timeout",
            self.linger_timeout,
            Duration::ZERO,
            minute,
        )?;
        at_least("max_lingering", self.max_lingering, 0)?;
        if self.read_timeout > self.idle_timeout {
            return Err(BuildError::contradiction(
                ("read_timeout", Shown(self.read_timeout)),
                ("idle_timeout", Shown(self.idle_timeout)),
                "a client in the middle of a command would be given longer than one that owes nothing",
            ));
        }
        Ok(())
    }
}

/// A duration as its `Debug` form, where an error message wants `Display`.
struct Shown(Duration);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

fn at_least<T: PartialOrd + std::fmt::Debug>(
    name: &'static str,
    value: T,
    low: T,
) -> Result<(), BuildError> {
    if value >= low {
        return Ok(());
    }
    Err(BuildError::OutOfRange {
        name,
        value: format!("{value:?}"),
        range: format!("at least {low:?}"),
    })
}

fn in_range<T: PartialOrd + std::fmt::Debug>(
    name: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), BuildError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(BuildError::OutOfRange {
        name,
        value: format!("{value:?}"),
        range: format!("{low:?} to {high:?}"),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        PoolConfig::default().check().unwrap();
        PoolConfig::mariadb().check().unwrap();
        ThreadPerConnectionConfig::default().check().unwrap();
        Limits::default().check().unwrap();
    }

    #[test]
    fn a_contradiction_names_both_values() {
        let cases = [
            PoolConfig::default().groups(8).max_threads(15).check(),
            PoolConfig::default()
                .handover(Duration::from_millis(77))
                .check(),
            PoolConfig::default()
                .turn_time(Duration::from_millis(77))
                .check(),
            ThreadPerConnectionConfig::default().max_threads(15).check(),
            Limits::default()
                .read_timeout(Duration::from_secs(77_777))
                .check(),
            Limits::default().input_budget(77_777).check(),
        ];
        let both = [
            ("15", "8"),
            ("77ms", "10ms"),
            ("77ms", "10ms"),
            ("256", "15"),
            ("77777s", "28800s"),
            ("77777", "16777216"),
        ];
        for (case, (one, other)) in cases.into_iter().zip(both) {
            let text = case.unwrap_err().to_string();
            assert!(text.contains(one) && text.contains(other), "{text}");
        }
    }

    #[test]
    fn every_range_has_an_edge_that_is_refused() {
        let ms0 = Duration::ZERO;
        let pool = [
            PoolConfig::default().groups(0),
            PoolConfig::default().groups(1025).max_threads(4096),
            PoolConfig::default().oversubscribe(0),
            PoolConfig::default().oversubscribe(1001),
            PoolConfig::default().turn_commands(0),
            PoolConfig::default().stack_size(1),
            PoolConfig::default().stall_limit(ms0),
            PoolConfig::default().idle_timeout(ms0),
            PoolConfig::default().handover(ms0),
        ];
        for config in pool {
            assert!(
                matches!(config.check(), Err(BuildError::OutOfRange { .. })),
                "{config:?}"
            );
        }
        let limits = [
            Limits::default().max_connections(0),
            Limits::default().max_logins(0),
            Limits::default().login_timeout(ms0),
            Limits::default().max_login_input(1),
            Limits::default().max_per_address(0),
            Limits::default().max_admin_connections(0),
            Limits::default().max_admin_connections(4097),
            Limits::default().idle_timeout(ms0),
            Limits::default().idle_in_transaction_timeout(ms0),
            Limits::default().command_timeout(ms0),
            Limits::default().read_timeout(ms0),
            Limits::default().write_timeout(ms0),
            Limits::default().max_input(1),
            Limits::default().output_bound(1),
            Limits::default().linger_timeout(Duration::from_secs(61)),
        ];
        for config in limits {
            assert!(
                matches!(config.check(), Err(BuildError::OutOfRange { .. })),
                "{config:?}"
            );
        }
    }
}
