//! `sqlish serve --metrics ADDR`: what there is to see of the server, as Prometheus reads it.
//!
//! Text format 0.0.4 over plain HTTP/1.0, on one thread of its own that serves one client after the
//! other and gives none more than a second. It takes no part in the server: it works when every thread
//! of that is busy.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::{GroupStats, Histogram, ServerHandle, Snapshot};

/// How long a client may take over its request, and over the reply.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longer requests are not read.
const REQUEST_MAX: usize = 8 * 1024;

/// Serves the metrics of `server` to whoever comes to `listener`, for as long as the process lives.
///
/// # Errors
/// If no thread is to be had.
pub(crate) fn serve(listener: TcpListener, server: ServerHandle) -> io::Result<()> {
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            for client in listener.incoming() {
                let answered = client.and_then(|client| answer(client, &server));
                // The client's fault, or descriptors are short: neither is to keep this thread busy.
                if answered.is_err() {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        })?;
    Ok(())
}

fn answer(mut client: TcpStream, server: &ServerHandle) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut client)?;
    let path = request.split_whitespace().nth(1);
    let (status, body) = match (request.starts_with("GET "), path) {
        (true, Some("/metrics" | "/")) => ("200 OK", text(&server.snapshot())),
        (true, _) => ("404 Not Found", "try /metrics\n".to_owned()),
        (false, _) => ("405 Method Not Allowed", "GET only\n".to_owned()),
    };
    write!(
        client,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The request's head.
fn read_request(client: &mut TcpStream) -> io::Result<String> {
    let begun = Instant::now();
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// Puts families of metrics into the text format.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // A String takes everything.
        let _ = writeln!(self.0, "# HELP tgp_{name} {help}\n# TYPE tgp_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = write!(self.0, "tgp_{name}");
        for (n, (label, value)) in labels.iter().enumerate() {
            let before = if n == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{value}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn each<L: Display, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        self.family(name, kind, help);
        for (of, value) in values {
            self.sample(name, &[(label, &of)], value);
        }
    }

    /// A histogram in seconds, with a bucket for each power of two from a microsecond to half a minute.
    fn histogram(&mut self, name: &str, labels: &[(&str, &dyn Display)], times: &Histogram) {
        const LARGEST: Duration = Duration::from_secs(40);
        let mut below = 0;
        let bucket = format!("{name}_bucket");
        for (n, (end, count)) in times.sizes().enumerate() {
            below += count;
            if n % 2 == 0 && end < LARGEST {
                let le = end.as_secs_f64();
                let labels: Vec<(&str, &dyn Display)> =
                    labels.iter().copied().chain([("le", &le as _)]).collect();
                self.sample(&bucket, &labels, below);
            }
        }
        let labels_and_inf: Vec<(&str, &dyn Display)> = labels
            .iter()
            .copied()
            .chain([("le", &"+Inf" as _)])
            .collect();
        self.sample(&bucket, &labels_and_inf, below);
        self.sample(&format!("{name}_sum"), labels, times.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, below);
    }
}

/// A family of counters or gauges of groups: name, type, help, and how to read it.
type OfGroup = (
    &'static str,
    &'static str,
    &'static str,
    fn(&GroupStats) -> f64,
);

#[allow(clippy::cast_precision_loss)] // a scrape is a double anyway
const GROUPS: [OfGroup; 17] = [
    (
        "group_connections",
        "gauge",
        "Connections that belong to the group.",
        |g| g.connections as f64,
    ),
    (
        "group_queued",
        "gauge",
        "Connections in the lanes of the group.",
        |g| g.queued as f64,
    ),
    (
        "group_holding",
        "gauge",
        "Connections that others may be waiting for.",
        |g| g.holding as f64,
    ),
    ("group_over_cap", "gauge", "Threads beyond the cap.", |g| {
        g.over_cap as f64
    }),
    (
        "group_stalled",
        "gauge",
        "1 if commands wait and every slot is taken.",
        |g| f64::from(u8::from(g.stalled)),
    ),
    (
        "group_thread_creations_total",
        "counter",
        "Threads created.",
        |g| g.creations as f64,
    ),
    (
        "group_thread_creations_due_to_stall_total",
        "counter",
        "Threads created because a command took long.",
        |g| g.creations_due_to_stall as f64,
    ),
    (
        "group_thread_creation_failures_total",
        "counter",
        "Threads that the operating system refused.",
        |g| g.creation_failures as f64,
    ),
    (
        "group_throttles_total",
        "counter",
        "Thread creations put off by the throttle or the cap.",
        |g| g.throttles as f64,
    ),
    (
        "group_stalls_total",
        "counter",
        "Commands that ran past the stall limit.",
        |g| g.stalls as f64,
    ),
    (
        "group_long_commands_total",
        "counter",
        "Commands that have ended and were long.",
        |g| g.long_commands as f64,
    ),
    (
        "group_detected_total",
        "counter",
        "Commands found blocked that had not reported a wait.",
        |g| g.detected as f64,
    ),
    (
        "group_wakes_total",
        "counter",
        "Parked threads woken.",
        |g| g.wakes as f64,
    ),
    (
        "group_handovers_total",
        "counter",
        "Times that the poller went to another thread.",
        |g| g.handovers as f64,
    ),
    (
        "group_polls_total",
        "counter",
        "Looks at the poller, blocking or not.",
        |g| (g.polls_by_listener + g.polls_by_worker) as f64,
    ),
    (
        "group_dequeues_total",
        "counter",
        "Connections taken from the lanes.",
        |g| g.dequeues as f64,
    ),
    (
        "group_commands_total",
        "counter",
        "Calls of the handler.",
        |g| g.commands as f64,
    ),
];

/// The states of a group's threads.
type OfThreads = (&'static str, fn(&GroupStats) -> usize);
const THREADS: [OfThreads; 5] = [
    ("active", |g| g.active),
    ("standby", |g| g.standby),
    ("waiting", |g| g.waiting),
    ("long", |g| g.long),
    ("blocked", |g| g.blocked),
];

/// The page.
pub(crate) fn text(seen: &Snapshot) -> String {
    let mut page = Page(String::new());
    let stats = &seen.stats;
    page.one(
        "connections",
        "gauge",
        "Connections now.",
        stats.connections,
    );
    page.one(
        "connections_opened_total",
        "counter",
        "Connections that got a session or tried to.",
        stats.opened,
    );
    page.each(
        (
            "connections_closed_total",
            "counter",
            "Connections that have ended, by reason.",
        ),
        "reason",
        stats.closes.iter().copied(),
    );
    page.one(
        "connections_refused_total",
        "counter",
        "Clients that were refused.",
        stats.refused,
    );
    let mut states = BTreeMap::new();
    for conn in &seen.connections {
        *states.entry(conn.state.name()).or_insert(0) += 1;
    }
    page.each(
        (
            "connection_states",
            "gauge",
            "Connections now, by what they do.",
        ),
        "state",
        states,
    );
    let buffers: usize = seen.connections.iter().map(|conn| conn.buffer_bytes).sum();
    page.one(
        "buffer_bytes",
        "gauge",
        "Bytes of the connections' own buffers.",
        buffers,
    );
    let sessions: usize = seen.connections.iter().map(|conn| conn.session_bytes).sum();
    page.one(
        "session_bytes",
        "gauge",
        "Bytes that the sessions say they take.",
        sessions,
    );
    page.one(
        "commands_total",
        "counter",
        "Calls of the handler.",
        stats.commands,
    );
    page.one(
        "panics_total",
        "counter",
        "Callbacks that panicked.",
        stats.panics,
    );
    page.one(
        "lost_edges_total",
        "counter",
        "Input that no readiness event had announced.",
        stats.lost_edges,
    );
    page.one(
        "accept_errors_total",
        "counter",
        "Errors of accept after which the listener rested.",
        stats.accept_errors,
    );
    page.one(
        "threads",
        "gauge",
        "Threads that run connections, now.",
        stats.threads,
    );
    page.one(
        "threads_peak",
        "gauge",
        "The most threads there have been.",
        stats.threads_peak,
    );
    page.one(
        "threads_created_total",
        "counter",
        "Threads that have been created to run connections.",
        stats.threads_created,
    );
    page.one(
        "thread_creation_failures_total",
        "counter",
        "Threads that the operating system refused.",
        stats.spawn_failures,
    );
    groups(&mut page, &stats.groups);
    times(&mut page, seen);
    page.0
}

fn groups(page: &mut Page, groups: &[GroupStats]) {
    if groups.is_empty() {
        return;
    }
    for (name, kind, help, value) in GROUPS {
        let values = groups.iter().map(|g| (g.group, value(g)));
        page.each((name, kind, help), "group", values);
    }
    page.family(
        "group_threads",
        "gauge",
        "Threads of the group, by state; those on the way and in the poller are in none.",
    );
    for group in groups {
        for (state, count) in THREADS {
            let labels: [(&str, &dyn Display); 2] = [("group", &group.group), ("state", &state)];
            page.sample("group_threads", &labels, count(group));
        }
    }
}

fn times(page: &mut Page, seen: &Snapshot) {
    let times = &seen.times;
    page.family(
        "command_seconds",
        "histogram",
        "How long commands took, waits included.",
    );
    page.histogram("command_seconds", &[], &times.commands);
    page.family(
        "start_seconds",
        "histogram",
        "How long threads took to run that had been called or created.",
    );
    page.histogram("start_seconds", &[], &times.started);
    page.family(
        "queue_seconds",
        "histogram",
        "How long connections were queued, by lane.",
    );
    for (lane, times) in &times.queued {
        page.histogram("queue_seconds", &[("lane", lane)], times);
    }
    page.family(
        "wait_seconds",
        "histogram",
        "How long commands waited, by what they said for.",
    );
    for (kind, times) in &times.waits {
        page.histogram("wait_seconds", &[("kind", kind)], times);
    }
    page.family(
        "waits_total",
        "counter",
        "Waits that have begun, by kind; Detected ones were not reported.",
    );
    for wait in &seen.stats.waits {
        page.sample("waits_total", &[("kind", &wait.kind)], wait.count);
    }
}
