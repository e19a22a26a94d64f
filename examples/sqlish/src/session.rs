//! One client's session: runs its statements, holds its transaction.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use md5::{Digest, Md5};
use thread_group_pool::wait::{self, WaitKind};

use crate::admin::{Admin, Grid};
use crate::engine::{Client, Engine, Place, deadline};
use crate::error::SqlError;
use crate::login::Challenge;
use crate::parse::{Column, Quoted, Statement, parse, trim};
use crate::protocol;
use crate::signal::{Signal, Woken};
use crate::table::{Outcome, Row, Updated};

/// A session of one client.
///
/// Dropping it rolls back what it has not committed and gives up its locks.
pub struct Session {
    engine: Arc<Engine>,
    id: u64,
    client: Arc<Client>,
    login: Login,
    in_transaction: bool,
    /// The rows that this session has locked.
    held: Vec<Place>,
}

#[derive(Debug)]
enum Login {
    Required,
    Challenged(Challenge),
    Done,
}

/// Whether the connection goes on after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// It does.
    Continue,
    /// Send what has been written, then close.
    Quit,
}

/// How many locks a session keeps room for after its transaction.
const HELD_KEPT: usize = 64;

/// Cancels what a session waits for or computes; see [`Session::canceller`].
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Signal>);

impl Canceller {
    /// Ends the session's current wait and all later ones, each with `ERR 1317`.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// Why a statement did not end with `OK`.
enum Failure<'a> {
    /// Tell the client and go on.
    Sql(SqlError<'a>),
    /// Tell the client and close.
    Fatal(SqlError<'a>),
    /// The client cannot be told.
    Io(io::Error),
}

impl<'a> From<SqlError<'a>> for Failure<'a> {
    fn from(error: SqlError<'a>) -> Self {
        Self::Sql(error)
    }
}

impl From<io::Error> for Failure<'_> {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Session {
    /// Begins a session; `id` is what `KILL` and `SHOW PROCESSLIST` call it.
    pub fn new(engine: &Arc<Engine>, id: u64) -> Self {
        let login = match engine.config.login_secret {
            Some(_) => Login::Required,
            None => Login::Done,
        };
        Self {
            client: engine.enter(id),
            engine: Arc::clone(engine),
            id,
            login,
            in_transaction: false,
            held: Vec::new(),
        }
    }

    /// Runs one statement: a line without its newline. Writes the whole reply to `out`.
    ///
    /// A blank line is no statement and has no reply.
    ///
    /// # Errors
    /// Only those of `out`; what is wrong with the statement is told to the client.
    #[inline]
    pub fn execute<W: Write, A: Admin + ?Sized>(
        &mut self,
        line: &[u8],
        out: &mut W,
        admin: &A,
    ) -> io::Result<Flow> {
        let statement = trim(line);
        if statement.is_empty() {
            return Ok(Flow::Continue);
        }
        let result = match parse(statement) {
            Ok(parsed) => self.run(parsed, statement, out, admin),
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(flow) => Ok(flow),
            Err(Failure::Sql(error)) => protocol::error(out, &error).map(|()| Flow::Continue),
            Err(Failure::Fatal(error)) => protocol::error(out, &error).map(|()| Flow::Quit),
            Err(Failure::Io(error)) => Err(error),
        }
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Whether others may have to wait for this session.
    pub fn holds_locks(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the client may run statements: it has logged in, or need not.
    pub fn is_logged_in(&self) -> bool {
        matches!(self.login, Login::Done)
    }

    /// A way to stop a statement of this session from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.client.signal))
    }

    fn run<'a, W: Write, A: Admin + ?Sized>(
        &mut self,
        parsed: Statement<'a>,
        statement: &'a [u8],
        out: &mut W,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        let needs_login = !matches!(
            parsed,
            Statement::Login(_) | Statement::Answer(_) | Statement::Quit
        );
        if needs_login && !self.is_logged_in() {
            return Err(SqlError::AccessDenied("LOGIN first").into());
        }
        match parsed {
            Statement::Ping => {}
            Statement::Select { column, table, id } => self.select(column, table, id, out)?,
            Statement::UpdateC { table, id, value } => {
                let value = value.unescaped();
                let change = |row: &mut Row| row.set_c(&value);
                let affected = self.update(table, id, change, statement, admin)?;
                protocol::ok_rows(out, affected)?;
                return Ok(Flow::Continue);
            }
            Statement::IncrementK { table, id } => {
                let affected = self.update(table, id, Row::increment_k, statement, admin)?;
                protocol::ok_rows(out, affected)?;
                return Ok(Flow::Continue);
            }
            Statement::Begin => self.begin(),
            Statement::Commit => self.end(Outcome::Commit),
            Statement::Rollback => self.end(Outcome::Rollback),
            Statement::Echo(text) => protocol::row_of_one(out, text.as_bytes())?,
            Statement::Login(user) => self.challenge(user, out)?,
            Statement::Answer(answer) => self.prove(answer)?,
            Statement::Sleep(duration) => {
                wait::during(WaitKind::Sleep, || self.sleep(duration, statement, admin))?;
                protocol::row_of_one(out, b"0")?;
            }
            Statement::SleepUnseen(duration) => {
                self.sleep(duration, statement, admin)?;
                protocol::row_of_one(out, b"0")?;
            }
            Statement::Benchmark { times, text } => {
                self.benchmark(times, text, statement, admin)?;
                protocol::row_of_one(out, b"0")?;
            }
            Statement::ShowThreadPoolGroups => {
                let unavailable = SqlError::Unavailable("SHOW THREAD_POOL GROUPS");
                grid(&admin.thread_pool_groups().ok_or(unavailable)?, out)?;
            }
            Statement::ShowThreadPoolStats => {
                let unavailable = SqlError::Unavailable("SHOW THREAD_POOL STATS");
                grid(&admin.thread_pool_stats().ok_or(unavailable)?, out)?;
            }
            Statement::ShowProcesslist => grid(&self.processlist(statement, admin)?, out)?,
            Statement::Kill(id) => self.kill(id, admin)?,
            Statement::Quit => {
                protocol::ok(out)?;
                return Ok(Flow::Quit);
            }
        }
        protocol::ok(out)?;
        Ok(Flow::Continue)
    }

    fn select<'a, W: Write>(
        &self,
        column: Column,
        table: &'a str,
        id: u64,
        out: &mut W,
    ) -> Result<(), Failure<'a>> {
        let place = self.engine.place(table, id)?;
        if let Some(row) = self.engine.table(place).read(id, &self.client.signal) {
            match column {
                Column::C => protocol::row_of_one(out, row.c())?,
                Column::Pad => protocol::row_of_one(out, row.pad())?,
                Column::K => writeln!(out, "ROW\t{}", row.k)?,
                Column::Id => writeln!(out, "ROW\t{id}")?,
            }
        }
        Ok(())
    }

    /// Changes one row, waiting for its lock if it must; how many rows there were to change.
    fn update<'a, A: Admin + ?Sized>(
        &mut self,
        table: &'a str,
        id: u64,
        change: impl Fn(&mut Row) -> Result<(), SqlError<'static>>,
        statement: &[u8],
        admin: &A,
    ) -> Result<u64, SqlError<'a>> {
        let place = self.engine.place(table, id)?;
        let keep = self.in_transaction;
        match self
            .engine
            .table(place)
            .update(id, &self.client.signal, keep, &change)?
        {
            Updated::Absent => Ok(0),
            Updated::Done { newly_locked } => {
                if newly_locked {
                    self.held.push(place);
                }
                Ok(1)
            }
            Updated::Queued => {
                self.wait_for(place, statement, admin)?;
                self.held.push(place);
                let result =
                    self.engine
                        .table(place)
                        .update(id, &self.client.signal, keep, &change);
                if !keep {
                    self.end(Outcome::Commit);
                }
                result.map(|_| 1)
            }
        }
    }

    /// Waits, queued, until the lock of the row at `place` is this session's.
    #[cold]
    fn wait_for<A: Admin + ?Sized>(
        &mut self,
        place: Place,
        statement: &[u8],
        admin: &A,
    ) -> Result<(), SqlError<'static>> {
        let signal = &self.client.signal;
        let table = self.engine.table(place);
        // Who holds nothing keeps nobody waiting, and is in no circle.
        if self.holds_locks() && self.engine.closes_a_circle(signal, place) {
            if table.settle(place.id, signal) {
                return Ok(());
            }
            self.end(Outcome::Rollback);
            return Err(SqlError::Deadlock);
        }
        let deadline = deadline(self.engine.config.lock_wait_timeout);
        let over = || loop {
            match signal.wait(deadline, &|| admin.cancelled()) {
                Woken::Rung if table.is_granted(place.id, signal) => return Woken::Rung,
                // A ring from an earlier wait that had ended when it came.
                Woken::Rung => {}
                given_up => return given_up,
            }
        };
        let woken = self
            .client
            .showing("waiting for a row lock", text(statement), || {
                wait::during(WaitKind::RowLock, over)
            });
        signal.set_waiting_for(None);
        let error = match woken {
            Woken::Rung => return Ok(()),
            Woken::TimedOut => SqlError::LockWaitTimeout,
            Woken::Cancelled => SqlError::Interrupted,
        };
        // Granted in the last moment: taken, because refusing would only delay those behind.
        if table.settle(place.id, signal) {
            Ok(())
        } else {
            Err(error)
        }
    }

    /// Begins a transaction; one that is open is committed, as in MySQL.
    fn begin(&mut self) {
        self.end(Outcome::Commit);
        self.in_transaction = true;
    }

    /// Ends the transaction, if there is one, and gives up all locks.
    fn end(&mut self, outcome: Outcome) {
        self.in_transaction = false;
        for place in self.held.drain(..) {
            let table = self.engine.table(place);
            if let Some(next) = table.release(place.id, &self.client.signal, outcome) {
                next.ring();
            }
        }
        self.held.shrink_to(HELD_KEPT);
    }

    #[inline(never)]
    fn challenge<'a, W: Write>(&mut self, user: &str, out: &mut W) -> Result<(), Failure<'a>> {
        if self.engine.config.login_secret.is_none() {
            self.client.set_user(user);
            return Ok(());
        }
        let challenge = Challenge::new(user)?;
        protocol::row(out, ["challenge", &challenge.nonce])?;
        self.login = Login::Challenged(challenge);
        Ok(())
    }

    #[inline(never)]
    fn prove<'a>(&mut self, answer: &str) -> Result<(), Failure<'a>> {
        let Some(secret) = &self.engine.config.login_secret else {
            return Err(SqlError::AccessDenied("there is no challenge to answer").into());
        };
        // Taken out: one challenge is good for one answer.
        match std::mem::replace(&mut self.login, Login::Required) {
            Login::Challenged(challenge) if challenge.is_answered_by(answer, secret) => {
                self.client.set_user(&challenge.user);
                self.login = Login::Done;
                Ok(())
            }
            Login::Challenged(_) => Err(Failure::Fatal(SqlError::AccessDenied("wrong answer"))),
            before => {
                self.login = before;
                Err(SqlError::AccessDenied("there is no challenge to answer").into())
            }
        }
    }

    /// Sleeps, and leaves it to the caller whether the scheduler is told.
    #[inline(never)]
    fn sleep<A: Admin + ?Sized>(
        &self,
        duration: Duration,
        statement: &[u8],
        admin: &A,
    ) -> Result<(), SqlError<'static>> {
        let deadline = deadline(duration);
        let over = || loop {
            match self.client.signal.wait(deadline, &|| admin.cancelled()) {
                Woken::TimedOut => return Ok(()),
                Woken::Cancelled => return Err(SqlError::Interrupted),
                Woken::Rung => {}
            }
        };
        self.client.showing("sleeping", text(statement), over)
    }

    /// Burns CPU, on purpose without a word to the scheduler, which is to find out by itself.
    #[inline(never)]
    fn benchmark<A: Admin + ?Sized>(
        &self,
        times: u64,
        quoted: Quoted<'_>,
        statement: &[u8],
        admin: &A,
    ) -> Result<(), SqlError<'static>> {
        let input = quoted.unescaped();
        // About 64 KiB of input, some 0.1 ms, between two looks at whether to stop.
        let between_looks = (64 * 1024 / (input.len() as u64 + 64)).max(1);
        let cancelled = || self.client.signal.is_cancelled() || admin.cancelled();
        self.client.showing("computing", text(statement), || {
            for round in 0..times {
                if round % between_looks == 0 && cancelled() {
                    return Err(SqlError::Interrupted);
                }
                std::hint::black_box(Md5::digest(std::hint::black_box(&*input)));
            }
            Ok(())
        })
    }

    #[inline(never)]
    fn kill<A: Admin + ?Sized>(&self, id: u64, admin: &A) -> Result<(), SqlError<'static>> {
        if !admin.kill(id).ok_or(SqlError::Unavailable("KILL"))? {
            return Err(SqlError::NoSuchThread(id));
        }
        // The server closes the connection; this ends what its statement waits for.
        self.engine.cancel(id);
        Ok(())
    }

    #[inline(never)]
    fn processlist<A: Admin + ?Sized>(
        &self,
        statement: &[u8],
        admin: &A,
    ) -> Result<Grid, SqlError<'static>> {
        let unavailable = SqlError::Unavailable("SHOW PROCESSLIST");
        let connections = admin.connections().ok_or(unavailable)?;
        let null = || "NULL".to_owned();
        let row = |connection: crate::admin::Connection| {
            let shown = self.engine.shown(connection.id).unwrap_or_default();
            vec![
                connection.id.to_string(),
                if shown.user.is_empty() {
                    null()
                } else {
                    shown.user
                },
                connection.peer,
                connection.state.to_owned(),
                format!("{:.3}", connection.since.as_secs_f64()),
                shown.doing.map_or_else(null, str::to_owned),
                shown.doing.map_or_else(null, |_| shown.statement),
            ]
        };
        Ok(self.client.showing("listing", text(statement), || Grid {
            columns: &["ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "INFO"],
            rows: connections.into_iter().map(row).collect(),
        }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end(Outcome::Rollback);
        self.engine.leave(self.id, &self.client);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("in_transaction", &self.in_transaction)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

/// The names of the columns, then the rows.
fn grid<W: Write>(grid: &Grid, out: &mut W) -> io::Result<()> {
    protocol::row(out, grid.columns)?;
    for row in &grid.rows {
        protocol::row(out, row)?;
    }
    Ok(())
}

/// A statement that has been parsed, so that it is known to be UTF-8.
fn text(statement: &[u8]) -> &str {
    str::from_utf8(statement).unwrap_or_default()
}

#[cfg(test)]
mod tests;
