//! Sessions under a [`thread_group_pool`] server: one statement per call, under either scheduler.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use thread_group_pool::{
    CloseReason, Conn, ConnId, GroupStats, Handler, Next, OnCancel, Refusal, Woken,
};

use crate::admin::{self, Admin, Connection, Grid, Refused};
use crate::engine::Engine;
use crate::error::SqlError;
use crate::protocol::{self, Line, greeting, next_line, too_long, unterminated};
use crate::server_variables::{self, Flushed};
use crate::session::{Flow, Session};

/// Serves the tables of an [`Engine`] over any number of listeners.
#[derive(Clone, Debug)]
pub struct SqlishHandler {
    pub(crate) engine: Arc<Engine>,
    pub(crate) flushed: Arc<Flushed>,
}

impl SqlishHandler {
    /// A handler for sessions on `engine`.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            flushed: Arc::default(),
        }
    }
}

thread_local! {
    /// Where a reply is put together before it goes to the connection. The thread's, not the
    /// session's, so that an idle connection owns none.
    static REPLY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A reply buffer that has grown beyond this is not kept: with a thread for each connection there are
/// as many of them as there are connections.
const REPLY_KEPT: usize = 4 * 1024;

impl Handler for SqlishHandler {
    type Session = Session;

    fn open(&self, conn: &mut Conn) -> io::Result<Session> {
        let id = conn.id().get();
        let mut session = Session::new(&self.engine, id);
        stand(&mut session, conn)?;
        greeting(id, conn)?;
        Ok(session)
    }

    fn command(&self, session: &mut Session, conn: &mut Conn) -> io::Result<Next> {
        with_reply(|reply| one_statement(session, conn, &self.flushed, reply))
    }

    fn woken(&self, session: &mut Session, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        with_reply(|reply| {
            let flow = match why {
                Woken::Cancelled => session.interrupted(reply)?,
                _ => session.woken(reply)?,
            };
            stand(session, conn)?;
            conn.write_all(reply)?;
            Ok(next(flow, session))
        })
    }

    /// A subscriber.
    fn detached(&self, _session: &mut Session, conn: &mut Conn) -> io::Result<()> {
        self.engine.feed.follow(conn)
    }

    fn farewell(&self, _session: &mut Session, out: &mut Vec<u8>, why: &CloseReason) {
        let (code, message) = words_for_close(why);
        last_words(out, code, &message);
    }

    fn refuse(&self, out: &mut Vec<u8>, why: &Refusal) {
        let (code, message) = words_for_refusal(why);
        last_words(out, code, &message);
    }
}

/// MySQL's number and words for why a connection is closed.
pub(crate) fn words_for_close(why: &CloseReason) -> (u16, Cow<'static, str>) {
    let (code, message) = match why {
        CloseReason::Killed => (1927, "Connection was killed"),
        CloseReason::IdleTimeout => (
            4031,
            "The client was disconnected by the server because of inactivity",
        ),
        CloseReason::LoginTimeout => (1159, "Got timeout during the login"),
        CloseReason::ReadTimeout => (1159, "Got timeout reading communication packets"),
        CloseReason::InputTooLong => (1153, "Got a packet bigger than 'max_allowed_packet' bytes"),
        CloseReason::Draining => (1053, "Server shutdown in progress"),
        _ => return (1105, Cow::Owned(why.to_string())),
    };
    (code, Cow::Borrowed(message))
}

/// The same for why a client gets no session.
pub(crate) fn words_for_refusal(why: &Refusal) -> (u16, Cow<'static, str>) {
    let (code, message) = match why {
        Refusal::TooManyConnections { .. } | Refusal::TooManyLogins { .. } => {
            (1040, "Too many connections")
        }
        Refusal::TooManyFromAddress { .. } => (1203, "Too many connections from this address"),
        Refusal::Draining => (1053, "Server shutdown in progress"),
        Refusal::NoThread => (1135, "Can't create a new thread for the connection"),
        _ => return (1105, Cow::Owned(why.to_string())),
    };
    (code, Cow::Borrowed(message))
}

pub(crate) fn with_reply<R>(run: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut reply = REPLY.take();
    let result = run(&mut reply);
    reply.clear();
    if reply.capacity() <= REPLY_KEPT {
        REPLY.set(reply);
    }
    result
}

/// Tells the scheduler what has changed about a session.
#[inline]
pub(crate) fn stand(session: &mut Session, conn: &mut Conn) -> io::Result<()> {
    let Some(standing) = session.changed_standing() else {
        return Ok(());
    };
    if standing.logged_in {
        conn.logged_in()?;
    }
    conn.set_in_transaction(standing.in_transaction);
    conn.set_holding(standing.holding);
    conn.set_priority(standing.priority);
    Ok(())
}

pub(crate) fn next(flow: Flow, session: &Session) -> Next {
    match flow {
        Flow::Continue => Next::input(),
        Flow::Quit => Next::close(),
        Flow::Subscribe => Next::detach(),
        Flow::Park => match session.until() {
            Some(until) => Next::park().until(until),
            None => Next::park(),
        },
    }
}

/// Runs the statement at the front of the buffer, if there is a whole one.
fn one_statement(
    session: &mut Session,
    conn: &mut Conn,
    flushed: &Flushed,
    reply: &mut Vec<u8>,
) -> io::Result<Next> {
    let (consumed, flow) = match next_line(conn.buffered()) {
        Line::Complete { line, consumed } => {
            let admin = ServerAdmin { conn, flushed };
            (consumed, session.execute(line, reply, &admin)?)
        }
        Line::Incomplete if !conn.at_end() => return Ok(Next::input()),
        Line::Incomplete => {
            if !conn.buffered().is_empty() {
                unterminated(reply)?;
            }
            (conn.buffered().len(), Flow::Quit)
        }
        Line::TooLong => {
            too_long(reply)?;
            (conn.buffered().len(), Flow::Quit)
        }
    };
    conn.consume(consumed);
    if flow == Flow::Park {
        session.park(conn.resume());
    }
    stand(session, conn)?;
    conn.write_all(reply)?;
    Ok(next(flow, session))
}

fn last_words(out: &mut Vec<u8>, code: u16, message: &str) {
    // A Vec takes everything.
    let _ = protocol::error(out, &SqlError::Server { code, message });
}

/// What a statement sees of the server through its own connection.
pub(crate) struct ServerAdmin<'a> {
    pub(crate) conn: &'a Conn,
    pub(crate) flushed: &'a Flushed,
}

impl fmt::Debug for ServerAdmin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerAdmin").field(&self.conn.id()).finish()
    }
}

impl Admin for ServerAdmin<'_> {
    fn thread_pool_groups(&self) -> Option<Grid> {
        self.groups(&admin::GROUPS, |group| {
            vec![
                group.group as u64,
                group.connections as u64,
                group.threads as u64,
                group.active as u64,
                group.standby as u64,
                group.queued as u64,
                u64::from(group.has_listener),
                u64::from(group.stalled),
                group.waiting as u64,
                group.long as u64,
                group.blocked as u64,
                group.holding as u64,
                group.over_cap as u64,
            ]
        })
    }

    fn thread_pool_stats(&self) -> Option<Grid> {
        const COUNTERS: [fn(&GroupStats) -> u64; 11] = [
            |group| group.creations,
            |group| group.creations_due_to_stall,
            |group| group.wakes,
            |group| group.wakes_due_to_stall,
            |group| group.throttles,
            |group| group.stalls,
            |group| group.polls_by_listener,
            |group| group.polls_by_worker,
            |group| group.dequeues_by_listener,
            |group| group.dequeues - group.dequeues_by_listener,
            |group| group.commands,
        ];
        self.groups(&admin::STATS, |group| {
            let since = |of| group_counter(of, group, self.flushed);
            let counters = COUNTERS.into_iter().map(since);
            std::iter::once(group.group as u64)
                .chain(counters)
                .collect()
        })
    }

    fn thread_pool_queues(&self) -> Option<Grid> {
        let server = self.conn.server();
        if server.stats().groups.is_empty() {
            return None;
        }
        let rows = server.queues().into_iter().map(|entry| {
            vec![
                entry.group.to_string(),
                entry.position.to_string(),
                entry.lane.to_owned(),
                entry
                    .id
                    .map_or_else(|| "NULL".to_owned(), |id| id.to_string()),
                entry.time.as_micros().to_string(),
            ]
        });
        Some(Grid {
            columns: &admin::QUEUES,
            rows: rows.collect(),
        })
    }

    fn thread_pool_waits(&self) -> Option<Grid> {
        let waits = self.conn.server().stats().waits;
        let rows = waits.iter().filter_map(|wait| {
            let (count, total) = self.flushed.waits_before(wait);
            let (count, total) = (wait.count - count, wait.total.saturating_sub(total));
            (count > 0).then(|| {
                vec![
                    wait.kind.to_string(),
                    count.to_string(),
                    total.as_micros().to_string(),
                ]
            })
        });
        Some(Grid {
            columns: &admin::WAITS,
            rows: rows.collect(),
        })
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        server_variables::variables(self.conn.server())
    }

    fn set_variable(&self, name: &str, value: &str) -> Result<(), Refused> {
        server_variables::set(self.conn.server(), name, value)
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        self.flushed.status(self.conn.server())
    }

    fn flush_thread_pool_stats(&self) -> Option<()> {
        self.flushed.flush_groups(self.conn.server().stats());
        Some(())
    }

    fn flush_thread_pool_waits(&self) -> Option<()> {
        self.flushed.flush_waits(self.conn.server().stats());
        Some(())
    }

    fn parks(&self) -> bool {
        true
    }

    fn detaches(&self) -> bool {
        true
    }

    fn connections(&self) -> Option<Vec<Connection>> {
        let seen = self.conn.server().snapshot();
        let connections = seen.connections.iter().map(|info| Connection {
            id: info.id.get(),
            peer: info.peer.clone(),
            state: info.state.to_string(),
            since: info.since,
            why: seen
                .explain(info.id)
                .map_or_else(String::new, |why| why.to_string()),
        });
        Some(connections.collect())
    }

    fn kill(&self, id: u64) -> Option<bool> {
        Some(self.conn.server().kill(ConnId::from(id)))
    }

    fn kill_query(&self, id: u64) -> Option<bool> {
        let conn = self.conn.server().find(ConnId::from(id));
        if let Some(conn) = &conn
            && let Some(command) = conn.command()
        {
            // If it has ended meanwhile, the next one is not meant.
            conn.kill_command(command);
        }
        Some(conn.is_some())
    }

    fn on_cancel(&self, call: Box<dyn FnOnce() + Send>) -> Option<OnCancel> {
        Some(self.conn.on_cancel(call))
    }

    fn cancelled(&self) -> bool {
        self.conn.is_cancelled()
    }
}

/// How far a counter of a group has come since it was flushed.
fn group_counter(of: fn(&GroupStats) -> u64, group: &GroupStats, flushed: &Flushed) -> u64 {
    of(group).saturating_sub(flushed.before(group.group, of))
}

impl ServerAdmin<'_> {
    /// A row for each group; none if the scheduler has no groups.
    fn groups(
        &self,
        columns: &'static [&'static str],
        row: impl Fn(&GroupStats) -> Vec<u64>,
    ) -> Option<Grid> {
        let groups = self.conn.server().stats().groups;
        let text = |values: Vec<u64>| values.iter().map(u64::to_string).collect();
        let rows: Vec<_> = groups.iter().map(|group| text(row(group))).collect();
        (!rows.is_empty()).then_some(Grid { columns, rows })
    }
}
