//! A client's conversation: the handshake, then one command after the other.

use std::fmt;
use std::io;
use std::sync::Arc;

use thread_group_pool::Resume;

use super::capability;
use super::login::{Answer, PLUGIN, Scramble, Users, asks_for_tls, new_scramble, put_greeting};
use super::packet::{Framed, next_packet, put_packet};
use super::prepared::Statements;
use super::reply::{MysqlReply, Style, put_error};
use super::wire::Reader;
use crate::admin::Admin;
use crate::engine::Engine;
use crate::error::SqlError;
use crate::parse::trim;
use crate::reply::{Done, Field, Kind};
use crate::session::{Flow, Session, VERSION, check_database};

/// A client of MySQL's protocol: takes the bytes that it has sent, appends those that it is to get.
pub struct Connection {
    pub(super) session: Session,
    id: u64,
    users: Arc<Users>,
    phase: Phase,
    scramble: Scramble,
    offers_tls: bool,
    style: Style,
    /// The longest command, headers included.
    max: usize,
    /// The number of the next packet of the handshake, or of the reply that is being written.
    pub(super) sequence: u8,
    statements: Statements,
    /// A prepared statement with its values; kept for the next one.
    text: Vec<u8>,
    kinds: Vec<Kind>,
}

#[derive(Debug)]
enum Phase {
    /// It has been greeted.
    Greeted,
    /// It has asked for TLS, and is to log in by it.
    Secured,
    /// It has been asked to log in in another way.
    Switched {
        user: String,
        database: Option<String>,
    },
    Commands,
}

/// What came of a look at the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no whole packet yet.
    Incomplete,
    /// The client asks for TLS, which it was offered: what follows is its handshake, and what that hides the
    /// rest of the conversation.
    Secure {
        /// How much of the buffer that was.
        consumed: usize,
    },
    /// A packet has been taken.
    Taken {
        /// How much of the buffer it was.
        consumed: usize,
        /// Whether the connection goes on.
        flow: Flow,
    },
}

/// Larger than any point select, small beside a connection's other memory.
const TEXT_KEPT: usize = 1024;

impl Connection {
    /// A connection that has not been greeted yet.
    ///
    /// # Errors
    /// If the operating system has no randomness to give.
    pub fn new(engine: &Arc<Engine>, id: u64, users: Arc<Users>, max: usize) -> io::Result<Self> {
        Ok(Self {
            session: Session::before_login(engine, id),
            id,
            users,
            phase: Phase::Greeted,
            scramble: new_scramble()?,
            offers_tls: false,
            style: Style::default(),
            max,
            sequence: 0,
            statements: Statements::default(),
            text: Vec::new(),
            kinds: Vec::new(),
        })
    }

    /// Offers TLS to the client, which need not take it.
    pub fn offer_tls(&mut self) {
        self.offers_tls = true;
        self.session.offers_tls();
    }

    /// Writes what the client gets before it has said anything.
    pub fn greet(&mut self, out: &mut Vec<u8>) {
        let tls = if self.offers_tls { capability::SSL } else { 0 };
        let offered = capability::OFFERED | tls;
        put_packet(out, &mut self.sequence, |out| {
            put_greeting(out, self.id, &self.scramble, VERSION, offered);
        });
    }

    /// Takes one packet off the front of what has been received, and writes the reply.
    ///
    /// # Errors
    /// None but those of memory: what is wrong is told to the client.
    pub fn step<A: Admin + ?Sized>(
        &mut self,
        buffered: &[u8],
        out: &mut Vec<u8>,
        admin: &A,
    ) -> io::Result<Step> {
        let commands = matches!(self.phase, Phase::Commands);
        let due = if commands { 0 } else { self.sequence };
        let (payload, consumed, next) = match next_packet(buffered, due, self.max) {
            Framed::Incomplete => return Ok(Step::Incomplete),
            Framed::Packet {
                payload,
                consumed,
                next,
            } => (payload, consumed, next),
            // Where the next packet begins is not known then, or not worth to be waited for.
            Framed::TooLong => return Ok(self.last(buffered, out, &SqlError::PacketTooLong)),
            Framed::OutOfOrder => return Ok(self.last(buffered, out, &SqlError::OutOfOrder)),
        };
        self.sequence = next;
        if matches!(self.phase, Phase::Greeted) && self.offers_tls && asks_for_tls(&payload) {
            self.phase = Phase::Secured;
            return Ok(Step::Secure { consumed });
        }
        let flow = match &self.phase {
            Phase::Commands => self.command(&payload, out, admin)?,
            by @ (Phase::Greeted | Phase::Secured) => {
                match Answer::read(&payload, matches!(by, Phase::Secured)) {
                    Some(answer) => self.answered(&answer, out),
                    None => {
                        put_error(out, &mut self.sequence, &SqlError::BadHandshake, false);
                        Flow::Quit
                    }
                }
            }
            Phase::Switched { user, database } => {
                let (user, database) = (user.clone(), database.clone());
                self.log_in(&user, &payload, database.as_deref(), out)
            }
        };
        Ok(Step::Taken { consumed, flow })
    }

    /// Says why the connection closes. A client in the middle of nothing takes it for the reply to its
    /// next command.
    pub fn farewell(&self, out: &mut Vec<u8>, code: u16, message: &str) {
        let commands = matches!(self.phase, Phase::Commands);
        let mut sequence = if commands { 1 } else { self.sequence };
        // It has sent a packet, or is about to, and expects the number after that.
        if matches!(self.phase, Phase::Greeted | Phase::Secured) {
            sequence = sequence.wrapping_add(1);
        }
        let error = SqlError::Server { code, message };
        put_error(out, &mut sequence, &error, commands);
    }

    /// Says why the connection closes in place of the reply to its login.
    pub(super) fn farewell_in_reply(&mut self, out: &mut Vec<u8>, code: u16, message: &str) {
        let mut sequence = self.sequence.wrapping_sub(1);
        put_error(
            out,
            &mut sequence,
            &SqlError::Server { code, message },
            true,
        );
    }

    fn last(&mut self, buffered: &[u8], out: &mut Vec<u8>, error: &SqlError<'_>) -> Step {
        self.sequence = buffered[3].wrapping_add(1);
        put_error(out, &mut self.sequence, error, true);
        Step::Taken {
            consumed: buffered.len(),
            flow: Flow::Quit,
        }
    }

    fn answered(&mut self, answer: &Answer<'_>, out: &mut Vec<u8>) -> Flow {
        self.style.deprecate_eof = answer.capabilities & capability::DEPRECATE_EOF != 0;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (user, database) = (text(answer.user), answer.database.map(text));
        if answer
            .plugin
            .is_none_or(|plugin| plugin == PLUGIN.as_bytes())
        {
            return self.log_in(&user, answer.answer, database.as_deref(), out);
        }
        put_packet(out, &mut self.sequence, |out| {
            out.push(0xfe);
            out.extend_from_slice(PLUGIN.as_bytes());
            out.push(0);
            out.extend_from_slice(&self.scramble);
            out.push(0);
        });
        self.phase = Phase::Switched { user, database };
        Flow::Continue
    }

    fn log_in(
        &mut self,
        user: &str,
        answer: &[u8],
        database: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Flow {
        // Some say "no password" by a zero byte.
        let answer = if answer == [0] { &[] } else { answer };
        let admitted = self.users.admits(user, answer, &self.scramble);
        let known = database.map_or(Ok(()), check_database);
        let refused = match known {
            _ if !admitted => SqlError::WrongPassword {
                user: user.to_owned(),
                with_password: !answer.is_empty(),
            },
            Err(error) => error,
            Ok(()) => {
                self.phase = Phase::Commands;
                self.session.log_in(user);
                self.ok(out);
                return Flow::Continue;
            }
        };
        put_error(out, &mut self.sequence, &refused, true);
        Flow::Quit
    }

    fn reply<'a>(&'a mut self, out: &'a mut Vec<u8>) -> MysqlReply<'a> {
        MysqlReply {
            out,
            sequence: &mut self.sequence,
            style: self.style,
            kinds: &mut self.kinds,
        }
    }

    fn command<A: Admin + ?Sized>(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        admin: &A,
    ) -> io::Result<Flow> {
        let Some((command, argument)) = payload.split_first() else {
            return Ok(self.refuse(&SqlError::UnknownCommand, out));
        };
        match command {
            0x01 => return Ok(Flow::Quit),
            0x02 => {
                let name = String::from_utf8_lossy(argument);
                match check_database(&name) {
                    Ok(()) => self.ok(out),
                    Err(error) => return Ok(self.refuse(&error, out)),
                }
            }
            0x03 => return self.run(argument, false, out, admin),
            0x09 => {
                let text = statistics(admin);
                put_packet(out, &mut self.sequence, |out| {
                    out.extend_from_slice(text.as_bytes());
                });
            }
            0x0a => return self.run(b"SHOW PROCESSLIST", false, out, admin),
            0x0c => {
                let Some(id) = Reader::new(argument).u32() else {
                    return Ok(self.refuse(&SqlError::Malformed, out));
                };
                return self.run(format!("KILL {id}").as_bytes(), false, out, admin);
            }
            0x0e => self.ok(out),
            0x16 => return Ok(self.prepare(argument, out)),
            0x17 => return self.execute(argument, out, admin),
            // No reply to this one, whatever is wrong with it.
            0x18 => {
                let mut reader = Reader::new(argument);
                if let (Some(id), Some(parameter)) = (reader.u32(), reader.u16())
                    && let Some(prepared) = self.statements.get(id)
                {
                    prepared.append(parameter.into(), reader.remainder(), self.max);
                }
            }
            // Nor to this.
            0x19 => {
                if let Some(id) = Reader::new(argument).u32() {
                    self.statements.remove(id);
                }
            }
            0x1a => {
                let id = Reader::new(argument).u32();
                match id.and_then(|id| self.statements.get(id)) {
                    Some(prepared) => {
                        prepared.reset();
                        self.ok(out);
                    }
                    None => return Ok(self.refuse(&SqlError::NoSuchPrepared, out)),
                }
            }
            // Several statements at a time, on or off: one at a time in any case.
            0x1b => {
                let status = self.session.status();
                self.reply(out).eof(status);
            }
            0x1f => {
                self.session.reset();
                self.statements.clear();
                self.ok(out);
            }
            _ => return Ok(self.refuse(&SqlError::UnknownCommand, out)),
        }
        Ok(Flow::Continue)
    }

    fn ok(&mut self, out: &mut Vec<u8>) {
        let done = Done {
            status: self.session.status(),
            ..Done::default()
        };
        self.reply(out).ok(done);
    }

    fn refuse(&mut self, error: &SqlError<'_>, out: &mut Vec<u8>) -> Flow {
        put_error(out, &mut self.sequence, error, true);
        Flow::Continue
    }

    fn run<A: Admin + ?Sized>(
        &mut self,
        statement: &[u8],
        binary: bool,
        out: &mut Vec<u8>,
        admin: &A,
    ) -> io::Result<Flow> {
        self.style.binary = binary;
        let mut reply = MysqlReply {
            out,
            sequence: &mut self.sequence,
            style: self.style,
            kinds: &mut self.kinds,
        };
        self.session.statement(trim(statement), &mut reply, admin)
    }

    /// After [`Flow::Park`]; see [`Session::park`].
    pub fn park(&mut self, resume: Resume) {
        self.session.park(resume);
    }

    /// Ends the statement that parked, if it need not wait longer, and writes its reply.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn woken(&mut self, out: &mut Vec<u8>) -> io::Result<Flow> {
        let mut reply = MysqlReply {
            out,
            sequence: &mut self.sequence,
            style: self.style,
            kinds: &mut self.kinds,
        };
        self.session.go_on(&mut reply)
    }

    /// Ends the statement that parked, because it has been killed or takes too long, if that can be.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn interrupted(&mut self, out: &mut Vec<u8>) -> io::Result<Flow> {
        let mut reply = MysqlReply {
            out,
            sequence: &mut self.sequence,
            style: self.style,
            kinds: &mut self.kinds,
        };
        self.session.stop(&mut reply)
    }

    fn prepare(&mut self, text: &[u8], out: &mut Vec<u8>) -> Flow {
        let text = match str::from_utf8(trim(text)) {
            Ok(text) => text,
            Err(error) => {
                let at = error.valid_up_to();
                return self.refuse(&SqlError::InvalidUtf8 { at }, out);
            }
        };
        let (id, prepared) = match self.statements.add(text) {
            Ok(added) => added,
            Err(error) => return self.refuse(&error, out),
        };
        let (example, parameters) = (prepared.example(), prepared.parameters());
        let fields = match self.session.prepared_fields(&example) {
            Ok(_) if parameters > usize::from(u16::MAX) => Err(SqlError::TooManyPrepared),
            fields => fields,
        };
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                self.statements.remove(id);
                return self.refuse(&error, out);
            }
        };
        let status = self.session.status();
        let mut reply = self.reply(out);
        put_packet(reply.out, reply.sequence, |out| {
            out.push(0);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&(fields.len() as u16).to_le_bytes());
            out.extend_from_slice(&(parameters as u16).to_le_bytes());
            out.extend_from_slice(&[0; 3]);
        });
        if parameters > 0 {
            let mark = Field {
                name: "?",
                kind: Kind::Text(0),
                table: "",
            };
            reply.columns(&vec![mark; parameters], status);
        }
        if !fields.is_empty() {
            reply.columns(&fields, status);
        }
        Flow::Continue
    }

    fn execute<A: Admin + ?Sized>(
        &mut self,
        argument: &[u8],
        out: &mut Vec<u8>,
        admin: &A,
    ) -> io::Result<Flow> {
        let mut reader = Reader::new(argument);
        // The id, flags that ask for a cursor, which nobody must give, and a count that is always 1.
        let head = (reader.u32(), reader.u8(), reader.u32());
        let (Some(id), Some(_), Some(_)) = head else {
            return Ok(self.refuse(&SqlError::Malformed, out));
        };
        let Some(prepared) = self.statements.get(id) else {
            return Ok(self.refuse(&SqlError::NoSuchPrepared, out));
        };
        let mut text = std::mem::take(&mut self.text);
        let flow = match prepared.bind(reader, &mut text) {
            Ok(()) => self.run(&text, true, out, admin),
            Err(error) => Ok(self.refuse(&error, out)),
        };
        if text.capacity() <= TEXT_KEPT {
            self.text = text;
        }
        flow
    }
}

/// What `COM_STATISTICS` tells, in the words of `mariadb-admin status`.
fn statistics<A: Admin + ?Sized>(admin: &A) -> String {
    let status = admin.status();
    let value = |name: &str| {
        let found = status.iter().find(|(known, _)| *known == name);
        found.map_or("0", |(_, value)| value)
    };
    format!(
        "Uptime: {}  Threads: {}  Questions: {}  Slow queries: 0  Opens: 0  Flush tables: 0  \
         Open tables: 0  Queries per second avg: 0.000",
        value("Uptime"),
        value("Threads_connected"),
        value("Questions"),
    )
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("session", &self.session)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}
