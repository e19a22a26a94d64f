//! What the server shows of itself in MariaDB's words, and which of it can be changed while it runs.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thread_group_pool::{GroupStats, Limits, Rejected, Scheduler, ServerHandle, Stats, WaitStats};

use crate::admin::Refused;

/// From when on counters are shown: since the start, or since they were flushed last.
#[derive(Debug)]
pub(crate) struct Flushed {
    since: Instant,
    groups: Mutex<Vec<GroupStats>>,
    waits: Mutex<Vec<WaitStats>>,
}

impl Default for Flushed {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            groups: Mutex::default(),
            waits: Mutex::default(),
        }
    }
}

impl Flushed {
    pub(crate) fn flush_groups(&self, stats: Stats) {
        *self.groups.lock() = stats.groups;
    }

    pub(crate) fn flush_waits(&self, stats: Stats) {
        *self.waits.lock() = stats.waits;
    }

    /// What a group's counter, which `of` finds, was when they were flushed.
    pub(crate) fn before(&self, group: usize, of: impl Fn(&GroupStats) -> u64) -> u64 {
        self.groups.lock().get(group).map_or(0, of)
    }

    /// How many waits of a kind there were when they were flushed, and for how long.
    pub(crate) fn waits_before(&self, now: &WaitStats) -> (u64, Duration) {
        let waits = self.waits.lock();
        let before = waits.iter().find(|wait| wait.kind == now.kind);
        before.map_or((0, Duration::ZERO), |wait| (wait.count, wait.total))
    }

    /// The rows of `SHOW STATUS`.
    pub(crate) fn status(&self, server: &ServerHandle) -> Vec<(&'static str, String)> {
        let stats = server.stats();
        let sum = |of: fn(&GroupStats) -> usize| stats.groups.iter().map(of).sum::<usize>();
        let in_pool = !stats.groups.is_empty();
        let threads = if in_pool {
            sum(|group| group.threads)
        } else {
            0
        };
        let active = sum(|group| group.active);
        let lost = stats.closes.iter().filter(|(why, _)| {
            // Who left by itself, or was asked to.
            !matches!(*why, "client_closed" | "handler_closed" | "draining")
        });
        let running = if in_pool { active } else { stats.connections };
        let all: [(&'static str, u64); 11] = [
            ("Aborted_clients", lost.map(|(_, count)| count).sum()),
            ("Connection_errors_max_connections", stats.refused),
            ("Connections", stats.opened),
            ("Questions", stats.commands),
            (
                "Threadpool_idle_threads",
                threads.saturating_sub(active) as u64,
            ),
            ("Threadpool_threads", threads as u64),
            ("Threads_cached", 0),
            ("Threads_connected", stats.connections as u64),
            ("Threads_created", stats.threads_created),
            ("Threads_running", running as u64),
            ("Uptime", self.since.elapsed().as_secs()),
        ];
        all.map(|(name, value)| (name, value.to_string())).into()
    }
}

/// The rows of `SHOW VARIABLES` that are the server's.
pub(crate) fn variables(server: &ServerHandle) -> Vec<(&'static str, String)> {
    let (scheduler, limits) = server.configuration();
    let seconds = |time: Duration| time.as_secs().to_string();
    let milliseconds = |time: Duration| time.as_millis().to_string();
    let on_off = |on| if on { "ON" } else { "OFF" }.to_owned();
    let mut all = match &scheduler {
        Scheduler::Pool(pool) => vec![
            ("thread_handling", "pool-of-threads".to_owned()),
            (
                "thread_pool_dedicated_listener",
                on_off(pool.dedicated_listener),
            ),
            ("thread_pool_exact_stats", on_off(true)),
            ("thread_pool_idle_timeout", seconds(pool.idle_timeout)),
            ("thread_pool_max_threads", pool.max_threads.to_string()),
            ("thread_pool_oversubscribe", pool.oversubscribe.to_string()),
            ("thread_pool_prio_kickup_timer", milliseconds(pool.kickup)),
            ("thread_pool_size", pool.groups.to_string()),
            ("thread_pool_stall_limit", milliseconds(pool.stall_limit)),
            ("thread_stack", pool.stack_size.to_string()),
        ],
        Scheduler::ThreadPerConnection(threads) => vec![
            ("thread_handling", "one-thread-per-connection".to_owned()),
            ("thread_cache_size", threads.thread_cache.to_string()),
            ("thread_stack", threads.stack_size.to_string()),
        ],
        _ => Vec::new(),
    };
    all.extend([
        ("connect_timeout", seconds(limits.login_timeout)),
        (
            "extra_max_connections",
            limits.max_admin_connections.to_string(),
        ),
        ("interactive_timeout", seconds(limits.idle_timeout)),
        ("max_allowed_packet", limits.max_input.to_string()),
        ("max_connections", limits.max_connections.to_string()),
        ("net_read_timeout", seconds(limits.read_timeout)),
        ("net_write_timeout", seconds(limits.write_timeout)),
        ("wait_timeout", seconds(limits.idle_timeout)),
    ]);
    all
}

/// Sets one of them, for all connections.
pub(crate) fn set(server: &ServerHandle, name: &str, value: &str) -> Result<(), Refused> {
    let (mut scheduler, mut limits) = server.configuration();
    let all = variables(server);
    let found = all
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    let name = found.ok_or(Refused::Unknown)?.0;
    let number: Result<u64, _> = value.parse().map_err(|_| Refused::Wrong(name));
    if !change_limit(&mut limits, name, &number)? {
        match &mut scheduler {
            Scheduler::Pool(pool) => match name {
                "thread_pool_idle_timeout" => pool.idle_timeout = Duration::from_secs(number?),
                "thread_pool_max_threads" => pool.max_threads = number? as usize,
                "thread_pool_oversubscribe" => pool.oversubscribe = number? as usize,
                "thread_pool_prio_kickup_timer" => pool.kickup = Duration::from_millis(number?),
                "thread_pool_stall_limit" => pool.stall_limit = Duration::from_millis(number?),
                _ => return Err(Refused::Fixed),
            },
            Scheduler::ThreadPerConnection(threads) => match name {
                "thread_cache_size" => threads.thread_cache = number? as usize,
                _ => return Err(Refused::Fixed),
            },
            _ => return Err(Refused::Fixed),
        }
    }
    match server.reconfigure(scheduler, limits) {
        Ok(_) => Ok(()),
        Err(Rejected::Fixed(_)) => Err(Refused::Fixed),
        Err(_) => Err(Refused::Wrong(name)),
    }
}

/// Whether it is one of the limits of connections.
fn change_limit(
    limits: &mut Limits,
    name: &str,
    number: &Result<u64, Refused>,
) -> Result<bool, Refused> {
    let seconds = || number.map(Duration::from_secs);
    match name {
        "connect_timeout" => limits.login_timeout = seconds()?,
        "extra_max_connections" => limits.max_admin_connections = (*number)? as usize,
        "interactive_timeout" | "wait_timeout" => limits.idle_timeout = seconds()?,
        "max_allowed_packet" => limits.max_input = (*number)? as usize,
        "max_connections" => limits.max_connections = (*number)? as usize,
        "net_read_timeout" => limits.read_timeout = seconds()?,
        "net_write_timeout" => limits.write_timeout = seconds()?,
        _ => return Ok(false),
    }
    Ok(true)
}
