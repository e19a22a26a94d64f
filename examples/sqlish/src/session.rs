//! One client's session: runs its statements, holds its transaction.

mod change;
mod information;
mod query;
mod variables;

pub(crate) use information::check_database;
pub(crate) use variables::VERSION;

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{ConnId, Priority, Resume};

use crate::admin::Admin;
use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::engine::{self, CommitWait, Engine, Place, deadline};
use crate::error::SqlError;
use crate::login::Challenge;
use crate::parse::{Column, Quoted, Statement, parse, trim};
use crate::reply::{Done, Field, Kind, Names, Reply, Status, TextReply, Value};
use crate::signal::{Signal, Woken};
use crate::table::{Outcome, Row, Table, Updated};
use crate::user_lock::Got;

/// A session of one client.
///
/// Dropping it rolls back what it has not committed and gives up its locks.
pub struct Session {
    engine: Arc<Engine>,
    id: u64,
    signal: Arc<Signal>,
    /// The tables, as of the last statement.
    catalog: Arc<Catalog>,
    login: Login,
    in_transaction: bool,
    /// Whether a statement outside a transaction is one of its own.
    autocommit: bool,
    lock_wait_timeout: Duration,
    /// The first id that the server chose for the last insert that left it to it, and for this statement.
    last_id: i64,
    statement_id: i64,
    /// How many rows the last statement changed; -1: it was of another kind.
    row_count: i64,
    /// Whether its client was offered TLS.
    have_tls: bool,
    /// The rows that this session has locked.
    held: Vec<Place>,
    /// How often it has got a named lock and not given it back.
    user_locks: u64,
    priority: Priority,
    /// Something of its [`Standing`] has changed since that was asked for.
    changed: bool,
    /// What a statement waits for whose reply has not been written.
    pending: Option<Pending>,
}

/// What a scheduler should know of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It may run statements.
    pub logged_in: bool,
    /// It has a transaction open.
    pub in_transaction: bool,
    /// It has row locks or named locks, for which others may wait, or will find that it has one when
    /// it runs again: whoever parks for a named lock may be given it at any moment.
    pub holding: bool,
    /// What `SET SESSION thread_pool_priority` asked for.
    pub priority: Priority,
}

#[derive(Debug)]
enum Pending {
    Commit(Then),
    /// Boxed, because a session that waits for none is to be small.
    UserLock(Box<WantedLock>),
}

/// A named lock that a session has queued for.
#[derive(Debug)]
struct WantedLock {
    name: String,
    /// `None` is never.
    deadline: Option<Instant>,
}

/// What follows a commit.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// The next transaction: it was a `BEGIN` that committed.
    Begin,
    /// So many rows were changed: it was a statement outside a transaction.
    Changed(u64),
}

#[derive(Debug)]
enum Login {
    Required,
    Challenged(Box<Challenge>),
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
    /// The statement waits, and its reply is still to be written: call [`Session::park`], let the
    /// session rest until it is resumed or [`Session::until`], and call [`Session::woken`]. Only under
    /// an [`Admin`] that [parks](Admin::parks).
    Park,
    /// It has become a subscriber, and is sent commits from now on instead of running statements. Only
    /// under an [`Admin`] that [detaches](Admin::detaches).
    Subscribe,
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
            signal: engine.enter(id),
            engine: Arc::clone(engine),
            id,
            catalog: engine.tables.now(),
            login,
            in_transaction: false,
            autocommit: true,
            lock_wait_timeout: engine.lock_wait_timeout(),
            last_id: 0,
            statement_id: 0,
            row_count: -1,
            have_tls: false,
            held: Vec::new(),
            user_locks: 0,
            priority: Priority::default(),
            changed: true,
            pending: None,
        }
    }

    /// Begins a session of a client that logs in by [`log_in`](Self::log_in).
    pub(crate) fn before_login(engine: &Arc<Engine>, id: u64) -> Self {
        let mut session = Self::new(engine, id);
        session.login = Login::Required;
        session
    }

    /// The client has shown, in the way of its protocol, who it is.
    pub(crate) fn log_in(&mut self, user: &str) {
        self.signal.board.set_user(user);
        self.login = Login::Done;
        self.changed = true;
    }

    /// Its client is offered TLS.
    pub(crate) fn offers_tls(&mut self) {
        self.have_tls = true;
    }

    /// As at the beginning, but for who it is: what is not committed is rolled back, all locks are given
    /// up.
    pub(crate) fn reset(&mut self) {
        self.end(Outcome::Rollback);
        if self.user_locks > 0 {
            self.release_user_locks();
        }
        self.autocommit = true;
        self.lock_wait_timeout = self.engine.lock_wait_timeout();
        self.priority = Priority::default();
        self.last_id = 0;
        self.row_count = -1;
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
        if statement.is_empty() && line.trim_ascii().is_empty() {
            return Ok(Flow::Continue);
        }
        self.statement(statement, &mut TextReply(out), admin)
    }

    /// Runs a statement that has been [`trim`]med.
    #[inline]
    pub(crate) fn statement<R: Reply, A: Admin + ?Sized>(
        &mut self,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> io::Result<Flow> {
        if statement.is_empty() {
            let error = reply.error(&SqlError::EmptyQuery);
            return error.map(|()| Flow::Continue);
        }
        let result = match parse(statement) {
            Ok(parsed) => self.run(parsed, statement, reply, admin),
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(flow) => Ok(flow),
            Err(failure) => self.failed(failure, reply),
        }
    }

    #[cold]
    fn failed<R: Reply>(&mut self, failure: Failure<'_>, reply: &mut R) -> io::Result<Flow> {
        // A statement outside a transaction that has failed has done nothing.
        if !self.in_transaction && self.holds_locks() {
            self.end(Outcome::Rollback);
        }
        match failure {
            Failure::Sql(error) => reply.error(&error).map(|()| Flow::Continue),
            Failure::Fatal(error) => reply.error(&error).map(|()| Flow::Quit),
            Failure::Io(error) => Err(error),
        }
    }

    /// After [`Flow::Park`]: what resumes the session when it need not wait longer. That may happen
    /// during this call.
    pub fn park(&mut self, resume: Resume) {
        match &self.pending {
            Some(Pending::Commit(_)) => self.submit(Some(resume)),
            Some(Pending::UserLock(wanted)) => {
                self.engine
                    .user_locks
                    .park(&wanted.name, &self.signal, resume);
            }
            // Nothing to wait for.
            None => drop(resume.resume()),
        }
    }

    /// When a parked session is to be woken at the latest.
    pub fn until(&self) -> Option<Instant> {
        match &self.pending {
            Some(Pending::UserLock(wanted)) => wanted.deadline,
            _ => None,
        }
    }

    /// Ends the statement that parked, if it need not wait longer, and writes its reply.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn woken<W: Write>(&mut self, out: &mut W) -> io::Result<Flow> {
        self.go_on(&mut TextReply(out))
    }

    /// As [`woken`](Self::woken).
    pub(crate) fn go_on<R: Reply>(&mut self, reply: &mut R) -> io::Result<Flow> {
        let Some(pending) = self.pending.take() else {
            return Ok(Flow::Continue);
        };
        match &pending {
            Pending::Commit(then) => {
                if !self.signal.take_flushed() {
                    self.pending = Some(pending);
                    return Ok(Flow::Park);
                }
                self.signal.board.show_nothing();
                self.committed(*then, reply)?;
            }
            Pending::UserLock(wanted) => {
                let WantedLock { name, deadline } = &**wanted;
                let (locks, signal) = (&self.engine.user_locks, &self.signal);
                let over = deadline.is_some_and(|deadline| deadline <= Instant::now());
                let granted = if over {
                    locks.settle(name, signal)
                } else {
                    locks.is_granted(name, signal)
                };
                if !over && !granted {
                    self.pending = Some(pending);
                    return Ok(Flow::Park);
                }
                self.signal.board.show_nothing();
                self.got_user_lock(granted, reply)?;
            }
        }
        Ok(Flow::Continue)
    }

    /// Ends the statement that parked, because it has been killed or takes too long, if that can be:
    /// a commit cannot be taken back.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn interrupted<W: Write>(&mut self, out: &mut W) -> io::Result<Flow> {
        self.stop(&mut TextReply(out))
    }

    /// As [`interrupted`](Self::interrupted).
    pub(crate) fn stop<R: Reply>(&mut self, reply: &mut R) -> io::Result<Flow> {
        if let Some(Pending::UserLock(wanted)) = &self.pending {
            // Granted in the last moment: taken, because refusing would only delay those behind.
            let (locks, signal) = (&self.engine.user_locks, &self.signal);
            if !locks.settle(&wanted.name, signal) {
                self.pending = None;
                self.changed = true;
                self.signal.board.show_nothing();
                reply.error(&SqlError::Interrupted)?;
                return Ok(Flow::Continue);
            }
        }
        self.go_on(reply)
    }

    /// What the scheduler should know from now on, if that has changed since the last time.
    #[inline]
    pub fn changed_standing(&mut self) -> Option<Standing> {
        std::mem::take(&mut self.changed).then(|| Standing {
            logged_in: self.is_logged_in(),
            in_transaction: self.in_transaction,
            holding: self.holds_locks() || self.user_locks > 0 || self.awaits_user_lock(),
            priority: self.priority,
        })
    }

    /// Whether it may have got a named lock that it has not been told of: it was given it while it
    /// was parked.
    fn awaits_user_lock(&self) -> bool {
        matches!(self.pending, Some(Pending::UserLock(_)))
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Whether others may have to wait for a row that this session has locked.
    pub fn holds_locks(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the client may run statements: it has logged in, or need not.
    pub fn is_logged_in(&self) -> bool {
        matches!(self.login, Login::Done)
    }

    /// A way to stop a statement of this session from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.signal))
    }

    fn run<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        parsed: Statement<'a>,
        statement: &'a [u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        if R::MYSQL && parsed.is_of_the_text_protocol() {
            let near = text(statement);
            return Err(SqlError::Syntax { near }.into());
        }
        let needs_login = !matches!(
            parsed,
            Statement::Login(_) | Statement::Answer(_) | Statement::Quit
        );
        if needs_login && !self.is_logged_in() {
            return Err(SqlError::AccessDenied("LOGIN first").into());
        }
        self.engine.tables.refresh(&mut self.catalog);
        match parsed {
            Statement::Ping => {
                if let Some(load) = &self.engine.ping_load {
                    load.carry();
                }
            }
            Statement::Select { column, table, id } => self.select(column, table, id, reply)?,
            Statement::Query(query) => self.query(&query, reply, admin)?,
            Statement::UpdateC { table, id, value } => {
                let value = value.unescaped();
                let change = |row: &mut Row| row.set_c(&value);
                let affected = self.update(table, id, change, statement, admin)?;
                return self.changed_rows(affected, statement, reply, admin);
            }
            Statement::IncrementK { table, id } => {
                let affected = self.update(table, id, Row::increment_k, statement, admin)?;
                return self.changed_rows(affected, statement, reply, admin);
            }
            Statement::Delete { table, id } => {
                let delete = |row: &mut Row| {
                    row.clear();
                    Ok(())
                };
                let affected = self.update(table, id, delete, statement, admin)?;
                return self.changed_rows(affected, statement, reply, admin);
            }
            Statement::Insert(insert) => {
                let affected = self.insert(&insert, statement, admin)?;
                return self.changed_rows(affected, statement, reply, admin);
            }
            Statement::CreateTable { .. }
            | Statement::DropTable { .. }
            | Statement::CreateIndex { .. } => {
                return self.define(parsed, statement, reply, admin);
            }
            // A transaction that is open is committed, as in MySQL.
            Statement::Begin => return self.commit(Then::Begin, statement, reply, admin),
            Statement::Commit => return self.commit(Then::Nothing, statement, reply, admin),
            Statement::Rollback => self.end(Outcome::Rollback),
            Statement::Echo(echo) => reply.row(&[Value::Text(echo.as_bytes())])?,
            Statement::Login(user) => self.challenge(user, reply)?,
            Statement::Answer(answer) => self.prove(answer)?,
            Statement::Sleep(duration) => {
                wait::during(WaitKind::Sleep, || self.sleep(duration, statement, admin))?;
                number(reply, statement, Some(0))?;
            }
            Statement::SleepUnseen(duration) => {
                self.sleep(duration, statement, admin)?;
                number(reply, statement, Some(0))?;
            }
            Statement::Benchmark { times, text } => {
                self.benchmark(times, text, statement, admin)?;
                number(reply, statement, Some(0))?;
            }
            Statement::GetLock { name, timeout } => {
                return self.get_lock(name, timeout, statement, reply, admin);
            }
            Statement::ReleaseLock(name) => {
                let name = lock_name(name)?;
                let released = self.engine.user_locks.release(&name, &self.signal);
                if released == Some(true) {
                    self.user_locks -= 1;
                    self.changed = true;
                }
                number(reply, statement, released.map(u64::from))?;
            }
            Statement::ReleaseAllLocks => {
                let released = self.release_user_locks();
                number(reply, statement, Some(released))?;
            }
            Statement::IsFreeLock(name) => {
                let owner = self.engine.user_locks.owner(&lock_name(name)?);
                number(reply, statement, Some(owner.is_none().into()))?;
            }
            Statement::IsUsedLock(name) => {
                let owner = self.engine.user_locks.owner(&lock_name(name)?);
                number(reply, statement, owner)?;
            }
            Statement::Kill { id, query } => self.kill(id, query, admin)?,
            Statement::Subscribe => return self.subscribe(admin),
            Statement::Quit => {
                reply.done(self.done(None))?;
                return Ok(Flow::Quit);
            }
            other => return self.administer(other, statement, reply, admin),
        }
        self.row_count = -1;
        reply.done(self.done(None))?;
        Ok(Flow::Continue)
    }

    /// The end of a reply, for a client that is told how the session stands.
    fn done(&self, affected: Option<u64>) -> Done {
        Done {
            affected,
            last_id: 0,
            status: self.status(),
        }
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            in_transaction: self.in_transaction,
            autocommit: self.autocommit,
        }
    }

    /// Without autocommit, whoever looks at a table is in a transaction.
    #[inline]
    fn touch(&mut self) {
        if !self.autocommit && !self.in_transaction {
            self.in_transaction = true;
            self.changed = true;
        }
    }

    fn select<'a, R: Reply>(
        &mut self,
        column: Column,
        table: &'a str,
        id: i64,
        reply: &mut R,
    ) -> Result<(), Failure<'a>> {
        let slot = self.catalog.find(table)?;
        self.touch();
        let row = self.catalog.table(slot).read(id, &self.signal);
        reply.header(&[query::field(column, table)], Names::Usual)?;
        if let Some(row) = row {
            reply.row(&[query::value(column, id, &row)])?;
        }
        Ok(())
    }

    /// Changes one row, waiting for its lock if it must; how many rows there were to change.
    fn update<'a, A: Admin + ?Sized>(
        &mut self,
        table: &'a str,
        id: i64,
        change: impl Fn(&mut Row) -> Result<(), SqlError<'static>>,
        statement: &[u8],
        admin: &A,
    ) -> Result<u64, SqlError<'a>> {
        let place = Place {
            table: self.catalog.find(table)?,
            id,
        };
        self.touch();
        self.statement_id = 0;
        let keep = self.keeps_locks();
        let act = |table: &Table, session: &Arc<Signal>| table.change(id, session, keep, &change);
        self.act(place, keep, act, statement, admin)
    }

    /// Changes one row by `act`; with `keep`, it stays locked.
    #[inline]
    fn act<A: Admin + ?Sized>(
        &mut self,
        place: Place,
        keep: bool,
        act: impl Fn(&Table, &Arc<Signal>) -> Result<Updated, SqlError<'static>>,
        statement: &[u8],
        admin: &A,
    ) -> Result<u64, SqlError<'static>> {
        match act(self.catalog.table(place.table), &self.signal)? {
            Updated::Absent => Ok(0),
            Updated::Done { newly_locked } => {
                if newly_locked {
                    self.hold(place);
                }
                Ok(1)
            }
            Updated::Queued { holder } => {
                self.wait_for(place, holder, statement, admin)?;
                self.hold(place);
                let result = act(self.catalog.table(place.table), &self.signal);
                if !keep {
                    let failed = result.is_err();
                    self.end(if failed {
                        Outcome::Rollback
                    } else {
                        Outcome::Commit
                    });
                }
                // It may have been deleted while this session waited.
                result.map(|updated| u64::from(updated != Updated::Absent))
            }
        }
    }

    /// Whether a row that is changed stays locked to the end of the statement at least: to the commit, to
    /// the flush, or until those who follow have been told.
    fn keeps_locks(&self) -> bool {
        let engine = &self.engine;
        self.in_transaction || engine.group_commit.is_some() || engine.feed.is_followed()
    }

    fn hold(&mut self, place: Place) {
        self.held.push(place);
        self.changed = true;
    }

    /// Ends a statement that changes rows: outside of a transaction with its commit.
    fn changed_rows<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        affected: u64,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        if !self.in_transaction && !self.held.is_empty() {
            return self.commit(Then::Changed(affected), statement, reply, admin);
        }
        self.report_change(affected, reply)?;
        Ok(Flow::Continue)
    }

    fn report_change<R: Reply>(&mut self, affected: u64, reply: &mut R) -> io::Result<()> {
        self.row_count = affected as i64;
        reply.done(Done {
            last_id: self.statement_id,
            ..self.done(Some(affected))
        })
    }

    /// Commits, with a group if that is how it is done here and there is something to commit.
    fn commit<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        then: Then,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        let parks = self.engine.config.commit_wait == CommitWait::Park && admin.parks();
        if parks && self.is_flushed_with_others() {
            self.signal.board.show("committing", text(statement));
            self.pending = Some(Pending::Commit(then));
            return Ok(Flow::Park);
        }
        self.commit_here(statement);
        self.committed(then, reply)?;
        Ok(Flow::Continue)
    }

    /// Whether there is something to commit, and a group of commits is flushed together.
    fn is_flushed_with_others(&self) -> bool {
        !self.held.is_empty() && self.engine.group_commit.is_some()
    }

    /// Commits, and blocks until that is done.
    fn commit_here(&mut self, statement: &[u8]) {
        if !self.is_flushed_with_others() {
            return self.end(Outcome::Commit);
        }
        self.submit(None);
        let flushed = || self.signal.wait_flushed();
        self.signal
            .board
            .showing("committing", text(statement), || {
                wait::during(WaitKind::GroupCommit, flushed);
            });
    }

    /// Hands the transaction over to the flusher, locks and all.
    fn submit(&mut self, resume: Option<Resume>) {
        let commit = Commit {
            session: Arc::clone(&self.signal),
            held: std::mem::take(&mut self.held),
            resume,
        };
        self.in_transaction = false;
        self.changed = true;
        if let Some(group) = &self.engine.group_commit {
            group.submit(commit);
        }
    }

    fn committed<R: Reply>(&mut self, then: Then, reply: &mut R) -> io::Result<()> {
        match then {
            Then::Changed(affected) => return self.report_change(affected, reply),
            Then::Begin => {
                self.in_transaction = true;
                self.changed = true;
            }
            Then::Nothing => {}
        }
        self.row_count = 0;
        reply.done(self.done(None))
    }

    #[inline(never)]
    fn get_lock<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        name: Quoted<'_>,
        timeout: Option<Duration>,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        const DOING: &str = "waiting for a named lock";
        let name = lock_name(name)?;
        let wait = timeout != Some(Duration::ZERO);
        let granted = match self.engine.user_locks.get(&name, &self.signal, wait) {
            Got::Lock => true,
            Got::Busy => false,
            Got::Circle => return Err(SqlError::UserLockDeadlock.into()),
            Got::Queued { .. } if admin.parks() => {
                self.signal.board.show(DOING, text(statement));
                let deadline = timeout.and_then(deadline);
                let wanted = WantedLock { name, deadline };
                self.pending = Some(Pending::UserLock(Box::new(wanted)));
                self.changed = true;
                return Ok(Flow::Park);
            }
            Got::Queued { holder } => {
                let (locks, signal) = (&self.engine.user_locks, &self.signal);
                let deadline = timeout.and_then(deadline);
                let granted = || locks.is_granted(&name, signal);
                let _told = signal.told(admin);
                let woken = self.signal.board.showing(DOING, text(statement), || {
                    wait::during_for(WaitKind::UserLock, ConnId::from(holder), || {
                        signal.wait_until(granted, deadline, &|| admin.cancelled())
                    })
                });
                let granted = locks.settle(&name, signal);
                if !granted && woken == Woken::Cancelled {
                    return Err(SqlError::Interrupted.into());
                }
                granted
            }
        };
        self.got_user_lock(granted, reply)?;
        Ok(Flow::Continue)
    }

    /// Answers a `GET_LOCK`.
    fn got_user_lock<R: Reply>(&mut self, granted: bool, reply: &mut R) -> io::Result<()> {
        self.user_locks += u64::from(granted);
        self.changed = true;
        number(reply, b"GET_LOCK", Some(granted.into()))?;
        reply.done(self.done(None))
    }

    fn release_user_locks(&mut self) -> u64 {
        self.user_locks = 0;
        self.changed = true;
        self.engine.user_locks.release_all(&self.signal)
    }

    /// Waits, queued, until the lock of the row at `place` is this session's.
    #[cold]
    fn wait_for<A: Admin + ?Sized>(
        &mut self,
        place: Place,
        holder: u64,
        statement: &[u8],
        admin: &A,
    ) -> Result<(), SqlError<'static>> {
        let signal = &self.signal;
        let table = self.catalog.table(place.table);
        // Who holds nothing keeps nobody waiting, and is in no circle.
        if self.holds_locks() && self.engine.closes_a_circle(signal, place) {
            if table.settle(place.id, signal) {
                return Ok(());
            }
            self.end(Outcome::Rollback);
            return Err(SqlError::Deadlock);
        }
        let deadline = deadline(self.lock_wait_timeout);
        let granted = || table.is_granted(place.id, signal);
        let _told = signal.told(admin);
        let over = || signal.wait_until(granted, deadline, &|| admin.cancelled());
        let woken = self
            .signal
            .board
            .showing("waiting for a row lock", text(statement), || {
                wait::during_for(WaitKind::RowLock, ConnId::from(holder), over)
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

    /// Ends the transaction, if there is one, and gives up all locks.
    fn end(&mut self, outcome: Outcome) {
        self.in_transaction = false;
        self.changed = true;
        if outcome == Outcome::Commit {
            let feed = &self.engine.feed;
            feed.publish(self.id, &self.held, &self.catalog);
        }
        let held = self.held.drain(..);
        engine::release(&self.catalog, held, &self.signal, outcome);
        self.held.shrink_to(HELD_KEPT);
    }

    #[inline(never)]
    fn subscribe<'a, A: Admin + ?Sized>(&mut self, admin: &A) -> Result<Flow, Failure<'a>> {
        if !admin.detaches() {
            return Err(SqlError::Unavailable("SUBSCRIBE").into());
        }
        // It runs no statement any more that could give them up.
        self.end(Outcome::Rollback);
        self.release_user_locks();
        Ok(Flow::Subscribe)
    }

    #[inline(never)]
    fn challenge<'a, R: Reply>(&mut self, user: &str, reply: &mut R) -> Result<(), Failure<'a>> {
        if self.engine.config.login_secret.is_none() {
            self.signal.board.set_user(user);
            return Ok(());
        }
        let challenge = Challenge::new(user)?;
        let nonce = challenge.nonce.as_bytes();
        reply.row(&[Value::Text(b"challenge"), Value::Text(nonce)])?;
        self.login = Login::Challenged(Box::new(challenge));
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
                self.signal.board.set_user(&challenge.user);
                self.login = Login::Done;
                self.changed = true;
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
        let _told = self.signal.told(admin);
        let over = || loop {
            match self.signal.wait(deadline, &|| admin.cancelled()) {
                Woken::TimedOut => return Ok(()),
                Woken::Cancelled => return Err(SqlError::Interrupted),
                Woken::Rung => {}
            }
        };
        self.signal.board.showing("sleeping", text(statement), over)
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
        let cancelled = || self.signal.is_cancelled() || admin.cancelled();
        self.signal.board.showing("computing", text(statement), || {
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
    fn kill<A: Admin + ?Sized>(
        &self,
        id: u64,
        query: bool,
        admin: &A,
    ) -> Result<(), SqlError<'static>> {
        if query {
            return match admin.kill_query(id) {
                None => Err(SqlError::Unavailable("KILL QUERY")),
                Some(false) => Err(SqlError::NoSuchThread(id)),
                Some(true) => Ok(()),
            };
        }
        if !admin.kill(id).ok_or(SqlError::Unavailable("KILL"))? {
            return Err(SqlError::NoSuchThread(id));
        }
        // The server closes the connection; this ends what its statement waits for.
        self.engine.cancel(id);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A commit that has been handed over will be done; there is nothing left to roll back then.
        self.end(Outcome::Rollback);
        if let Some(Pending::UserLock(wanted)) = &self.pending
            && self.engine.user_locks.settle(&wanted.name, &self.signal)
        {
            self.user_locks += 1;
        }
        if self.user_locks > 0 {
            self.release_user_locks();
        }
        self.engine.leave(self.id, &self.signal);
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

/// A row of one number, or `NULL`, named as the statement that asked for it.
fn number<R: Reply>(reply: &mut R, statement: &[u8], number: Option<u64>) -> io::Result<()> {
    let name = text(statement);
    let (word, rest) = name.split_at(name.len().min("SELECT ".len()));
    let field = Field {
        name: if word.eq_ignore_ascii_case("SELECT ") {
            rest.trim_ascii()
        } else {
            name
        },
        kind: Kind::Long,
        table: "",
    };
    reply.header(&[field], Names::Usual)?;
    let number = number.map_or(Value::Null, |number| Value::Number(number as i64));
    reply.row(&[number])
}

/// The longest name of a lock, in characters; MySQL's.
const LOCK_NAME_MAX: usize = 64;

/// What a lock is called, in whatever case it was written.
fn lock_name(name: Quoted<'_>) -> Result<String, SqlError<'static>> {
    let name = String::from_utf8_lossy(&name.unescaped()).to_lowercase();
    match name.chars().count() {
        1..=LOCK_NAME_MAX => Ok(name),
        _ => Err(SqlError::WrongLockName(name)),
    }
}

/// A statement that has been parsed, so that it is known to be UTF-8.
fn text(statement: &[u8]) -> &str {
    str::from_utf8(statement).unwrap_or_default()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod sql_tests;
