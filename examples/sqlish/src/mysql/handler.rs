//! The protocol under a [`thread_group_pool`] server: one command per call, under either scheduler.

use std::io::{self, Write};
use std::sync::Arc;

use thread_group_pool::{CloseReason, Conn, Handler, Next, Refusal, Woken};

use super::connection::{Connection, Step};
use super::login::Users;
use super::reply::put_error;
use super::tls::MysqlTls;
use crate::error::SqlError;
use crate::handler::{
    ServerAdmin, SqlishHandler, next, stand, with_reply, words_for_close, words_for_refusal,
};
use crate::session::Flow;

/// Serves the tables of an [`SqlishHandler`] to clients of MySQL's protocol.
#[derive(Clone, Debug)]
pub struct MysqlHandler {
    /// What the two protocols have in common.
    shared: SqlishHandler,
    users: Arc<Users>,
    tls: Option<MysqlTls>,
}

impl MysqlHandler {
    /// A handler for sessions of these users on the engine of `handler`, for listeners of the same
    /// server.
    pub fn beside(handler: &SqlishHandler, users: Users) -> Self {
        let shared = handler.clone();
        let users = Arc::new(users);
        Self {
            shared,
            users,
            tls: None,
        }
    }

    /// The same, which goes on by TLS with clients that ask for it.
    pub fn offering(self, tls: MysqlTls) -> Self {
        let tls = Some(tls);
        Self { tls, ..self }
    }
}

impl Handler for MysqlHandler {
    type Session = Connection;

    fn open(&self, conn: &mut Conn) -> io::Result<Connection> {
        let max = conn.server().configuration().1.max_input;
        let users = Arc::clone(&self.users);
        let mut connection = Connection::new(&self.shared.engine, conn.id().get(), users, max)?;
        if self.tls.is_some() {
            connection.offer_tls();
        }
        with_reply(|reply| {
            connection.greet(reply);
            conn.write_all(reply)
        })?;
        Ok(connection)
    }

    fn command(&self, connection: &mut Connection, conn: &mut Conn) -> io::Result<Next> {
        with_reply(|reply| {
            let flushed = &self.shared.flushed;
            let admin = ServerAdmin { conn, flushed };
            let step = connection.step(conn.buffered(), reply, &admin)?;
            let (consumed, flow) = match step {
                Step::Taken { consumed, flow } => (consumed, flow),
                Step::Secure { consumed } => {
                    conn.consume(consumed);
                    // It is offered by those alone who have it.
                    if let Some(tls) = &self.tls {
                        tls.upgrade(conn)?;
                    }
                    return Ok(Next::input());
                }
                // Half a packet at the end is not executed.
                Step::Incomplete if conn.at_end() => return Ok(Next::close()),
                Step::Incomplete => return Ok(Next::input()),
            };
            conn.consume(consumed);
            if flow == Flow::Park {
                connection.park(conn.resume());
            }
            stand_and_send(connection, conn, reply, flow)
        })
    }

    fn woken(&self, connection: &mut Connection, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        with_reply(|reply| {
            let flow = match why {
                Woken::Cancelled => connection.interrupted(reply)?,
                _ => connection.woken(reply)?,
            };
            stand_and_send(connection, conn, reply, flow)
        })
    }

    fn farewell(&self, connection: &mut Connection, out: &mut Vec<u8>, why: &CloseReason) {
        let (code, message) = words_for_close(why);
        connection.farewell(out, code, &message);
    }

    fn refuse(&self, out: &mut Vec<u8>, why: &Refusal) {
        let (code, message) = words_for_refusal(why);
        let message = &*message;
        put_error(out, &mut 0, &SqlError::Server { code, message }, false);
    }
}

fn stand_and_send(
    connection: &mut Connection,
    conn: &mut Conn,
    reply: &mut Vec<u8>,
    flow: Flow,
) -> io::Result<Next> {
    if stand(&mut connection.session, conn).is_err() {
        // One session too many: in place of the `OK` of its login.
        reply.clear();
        let (code, message) = (1040, "Too many connections");
        connection.farewell_in_reply(reply, code, message);
        conn.write_all(reply)?;
        return Ok(Next::close());
    }
    conn.write_all(reply)?;
    Ok(next(flow, &connection.session))
}
