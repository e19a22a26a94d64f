//! One client's session: runs its statements, holds its transaction.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{ConnId, Priority, Resume};

use crate::admin::{Admin, Grid};
use crate::commit::Commit;
use crate::engine::{self, Client, CommitWait, Engine, Place, deadline};
use crate::error::SqlError;
use crate::login::Challenge;
use crate::parse::{Column, Quoted, Statement, parse, trim};
use crate::protocol;
use crate::signal::{Signal, Woken};
use crate::table::{Outcome, Row, Updated};
use crate::user_lock::Got;

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
    UserLock {
        name: String,
        /// `None` is never.
        deadline: Option<Instant>,
    },
}

/// What follows a commit.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// The next transaction: it was a `BEGIN` that committed.
    Begin,
    /// One row was updated: it was a statement outside a transaction.
    Updated,
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
    /// The statement waits, and its reply is still to be written: call [`Session::park`], let the
    /// session rest until it is resumed or [`Session::until`], and call [`Session::woken`]. Only under
    /// an [`Admin`] that [parks](Admin::parks).
    Park,
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
            user_locks: 0,
            priority: Priority::default(),
            changed: true,
            pending: None,
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
            return match line.trim_ascii() {
                [] => Ok(Flow::Continue),
                _ => protocol::error(out, &SqlError::EmptyQuery).map(|()| Flow::Continue),
            };
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

    /// After [`Flow::Park`]: what resumes the session when it need not wait longer. That may happen
    /// during this call.
    pub fn park(&mut self, resume: Resume) {
        match &self.pending {
            Some(Pending::Commit(_)) => self.submit(Some(resume)),
            Some(Pending::UserLock { name, .. }) => {
                self.engine
                    .user_locks
                    .park(name, &self.client.signal, resume);
            }
            // Nothing to wait for.
            None => drop(resume.resume()),
        }
    }

    /// When a parked session is to be woken at the latest.
    pub fn until(&self) -> Option<Instant> {
        match &self.pending {
            Some(Pending::UserLock { deadline, .. }) => *deadline,
            _ => None,
        }
    }

    /// Ends the statement that parked, if it need not wait longer, and writes its reply.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn woken<W: Write>(&mut self, out: &mut W) -> io::Result<Flow> {
        let Some(pending) = self.pending.take() else {
            return Ok(Flow::Continue);
        };
        match &pending {
            Pending::Commit(then) => {
                if !self.client.signal.take_flushed() {
                    self.pending = Some(pending);
                    return Ok(Flow::Park);
                }
                self.client.show_nothing();
                self.committed(*then, out)?;
            }
            Pending::UserLock { name, deadline } => {
                let (locks, signal) = (&self.engine.user_locks, &self.client.signal);
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
                self.client.show_nothing();
                self.got_user_lock(granted, out)?;
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
        if let Some(Pending::UserLock { name, .. }) = &self.pending {
            // Granted in the last moment: taken, because refusing would only delay those behind.
            if !self.engine.user_locks.settle(name, &self.client.signal) {
                self.pending = None;
                self.changed = true;
                self.client.show_nothing();
                protocol::error(out, &SqlError::Interrupted)?;
                return Ok(Flow::Continue);
            }
        }
        self.woken(out)
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
        matches!(self.pending, Some(Pending::UserLock { .. }))
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
            Statement::Ping => {
                if let Some(load) = &self.engine.ping_load {
                    load.carry();
                }
            }
            Statement::Select { column, table, id } => self.select(column, table, id, out)?,
            Statement::UpdateC { table, id, value } => {
                let value = value.unescaped();
                let change = |row: &mut Row| row.set_c(&value);
                let affected = self.update(table, id, change, statement, admin)?;
                return self.updated(affected, statement, out, admin);
            }
            Statement::IncrementK { table, id } => {
                let affected = self.update(table, id, Row::increment_k, statement, admin)?;
                return self.updated(affected, statement, out, admin);
            }
            // A transaction that is open is committed, as in MySQL.
            Statement::Begin => return self.commit(Then::Begin, statement, out, admin),
            Statement::Commit => return self.commit(Then::Nothing, statement, out, admin),
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
            Statement::GetLock { name, timeout } => {
                return self.get_lock(name, timeout, statement, out, admin);
            }
            Statement::ReleaseLock(name) => {
                let name = lock_name(name)?;
                let released = self.engine.user_locks.release(&name, &self.client.signal);
                if released == Some(true) {
                    self.user_locks -= 1;
                    self.changed = true;
                }
                number(out, released.map(u64::from))?;
            }
            Statement::ReleaseAllLocks => number(out, Some(self.release_user_locks()))?,
            Statement::IsFreeLock(name) => {
                let owner = self.engine.user_locks.owner(&lock_name(name)?);
                number(out, Some(owner.is_none().into()))?;
            }
            Statement::IsUsedLock(name) => {
                number(out, self.engine.user_locks.owner(&lock_name(name)?))?;
            }
            Statement::SetPriority(priority) => {
                self.priority = priority;
                self.changed = true;
            }
            Statement::ShowThreadPoolQueues => {
                let unavailable = SqlError::Unavailable("SHOW THREAD_POOL QUEUES");
                grid(&admin.thread_pool_queues().ok_or(unavailable)?, out)?;
            }
            Statement::ShowThreadPoolWaits => {
                let unavailable = SqlError::Unavailable("SHOW THREAD_POOL WAITS");
                grid(&admin.thread_pool_waits().ok_or(unavailable)?, out)?;
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
            Statement::Kill { id, query } => self.kill(id, query, admin)?,
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
        let grouped = self.engine.group_commit.is_some();
        let keep = self.in_transaction || grouped;
        match self
            .engine
            .table(place)
            .update(id, &self.client.signal, keep, &change)?
        {
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
                let result =
                    self.engine
                        .table(place)
                        .update(id, &self.client.signal, keep, &change);
                if !keep || (!self.in_transaction && result.is_err()) {
                    self.end(Outcome::Commit);
                }
                result.map(|_| 1)
            }
        }
    }

    fn hold(&mut self, place: Place) {
        self.held.push(place);
        self.changed = true;
    }

    /// Ends an `UPDATE`: outside of a transaction with its commit.
    fn updated<'a, W: Write, A: Admin + ?Sized>(
        &mut self,
        affected: u64,
        statement: &[u8],
        out: &mut W,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        // Without group commit it has kept no lock.
        if !self.in_transaction && !self.held.is_empty() {
            return self.commit(Then::Updated, statement, out, admin);
        }
        protocol::ok_rows(out, affected)?;
        Ok(Flow::Continue)
    }

    /// Commits, with a group if that is how it is done here and there is something to commit.
    fn commit<'a, W: Write, A: Admin + ?Sized>(
        &mut self,
        then: Then,
        statement: &[u8],
        out: &mut W,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        if self.held.is_empty() || self.engine.group_commit.is_none() {
            self.end(Outcome::Commit);
        } else if self.engine.config.commit_wait == CommitWait::Park && admin.parks() {
            self.client.show("committing", text(statement));
            self.pending = Some(Pending::Commit(then));
            return Ok(Flow::Park);
        } else {
            self.submit(None);
            let flushed = || self.client.signal.wait_flushed();
            self.client.showing("committing", text(statement), || {
                wait::during(WaitKind::GroupCommit, flushed);
            });
        }
        self.committed(then, out)?;
        Ok(Flow::Continue)
    }

    /// Hands the transaction over to the flusher, locks and all.
    fn submit(&mut self, resume: Option<Resume>) {
        let commit = Commit {
            session: Arc::clone(&self.client.signal),
            held: std::mem::take(&mut self.held),
            resume,
        };
        self.in_transaction = false;
        self.changed = true;
        if let Some(group) = &self.engine.group_commit {
            group.submit(commit);
        }
    }

    fn committed<W: Write>(&mut self, then: Then, out: &mut W) -> io::Result<()> {
        match then {
            Then::Updated => return protocol::ok_rows(out, 1),
            Then::Begin => {
                self.in_transaction = true;
                self.changed = true;
            }
            Then::Nothing => {}
        }
        protocol::ok(out)
    }

    #[inline(never)]
    fn get_lock<'a, W: Write, A: Admin + ?Sized>(
        &mut self,
        name: Quoted<'_>,
        timeout: Option<Duration>,
        statement: &[u8],
        out: &mut W,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        const DOING: &str = "waiting for a named lock";
        let name = lock_name(name)?;
        let wait = timeout != Some(Duration::ZERO);
        let granted = match self.engine.user_locks.get(&name, &self.client.signal, wait) {
            Got::Lock => true,
            Got::Busy => false,
            Got::Circle => return Err(SqlError::UserLockDeadlock.into()),
            Got::Queued { .. } if admin.parks() => {
                self.client.show(DOING, text(statement));
                let deadline = timeout.and_then(deadline);
                self.pending = Some(Pending::UserLock { name, deadline });
                self.changed = true;
                return Ok(Flow::Park);
            }
            Got::Queued { holder } => {
                let (locks, signal) = (&self.engine.user_locks, &self.client.signal);
                let deadline = timeout.and_then(deadline);
                let granted = || locks.is_granted(&name, signal);
                let _told = signal.told(admin);
                let woken = self.client.showing(DOING, text(statement), || {
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
        self.got_user_lock(granted, out)?;
        Ok(Flow::Continue)
    }

    /// Answers a `GET_LOCK`.
    fn got_user_lock<W: Write>(&mut self, granted: bool, out: &mut W) -> io::Result<()> {
        self.user_locks += u64::from(granted);
        self.changed = true;
        number(out, Some(granted.into()))?;
        protocol::ok(out)
    }

    fn release_user_locks(&mut self) -> u64 {
        self.user_locks = 0;
        self.changed = true;
        self.engine.user_locks.release_all(&self.client.signal)
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
        let granted = || table.is_granted(place.id, signal);
        let _told = signal.told(admin);
        let over = || signal.wait_until(granted, deadline, &|| admin.cancelled());
        let woken = self
            .client
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
        let held = self.held.drain(..);
        engine::release(self.engine.tables(), held, &self.client.signal, outcome);
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
        let _told = self.client.signal.told(admin);
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
                connection.state,
                format!("{:.3}", connection.since.as_secs_f64()),
                shown.doing.map_or_else(null, str::to_owned),
                shown.doing.map_or_else(null, |_| shown.statement),
                connection.why,
            ]
        };
        Ok(self.client.showing("listing", text(statement), || Grid {
            columns: &[
                "ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "INFO", "WHY",
            ],
            rows: connections.into_iter().map(row).collect(),
        }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A commit that has been handed over will be done; there is nothing left to roll back then.
        self.end(Outcome::Rollback);
        if let Some(Pending::UserLock { name, .. }) = &self.pending
            && self.engine.user_locks.settle(name, &self.client.signal)
        {
            self.user_locks += 1;
        }
        if self.user_locks > 0 {
            self.release_user_locks();
        }
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

/// A row of one number, or `NULL`.
fn number<W: Write>(out: &mut W, number: Option<u64>) -> io::Result<()> {
    match number {
        Some(number) => writeln!(out, "ROW\t{number}"),
        None => protocol::row_of_one(out, b"NULL"),
    }
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
