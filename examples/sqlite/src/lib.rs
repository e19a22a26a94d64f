#![doc = include_str!("../README.md")]

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{CloseReason, Conn, ConnId, Handler, Next};

/// What a statement that finds the database locked waits for.
pub const BUSY: WaitKind = WaitKind::Other("sqlite busy");

/// For how long it does, before it fails.
const BUSY_STEPS: i32 = 1000;
const BUSY_STEP: Duration = Duration::from_millis(5);

/// So many instructions of SQLite's machine between two looks at whether to stop.
const PROGRESS: i32 = 1000;

/// Serves one database file.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
}

/// A client's connection to the database.
pub struct Session {
    db: Connection,
    /// The statement that runs is to end.
    stop: Arc<AtomicBool>,
}

impl Sqlite {
    /// A handler for the database at `path`, which is made if there is none.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn new(path: impl Into<PathBuf>) -> rusqlite::Result<Self> {
        let this = Self { path: path.into() };
        // Readers do not wait for writers then; it stays so.
        let db = this.connect(&Arc::default())?;
        db.pragma_update(None, "journal_mode", "wal")?;
        Ok(this)
    }

    /// A connection whose statements end when `stop` is set.
    fn connect(&self, stop: &Arc<AtomicBool>) -> rusqlite::Result<Connection> {
        let mut db = Connection::open(&self.path)?;
        let flag = Arc::clone(stop);
        db.busy_handler(Some(move |tries| busy(tries, &flag)))?;
        let flag = Arc::clone(stop);
        // Relaxed: as where it is set.
        db.progress_handler(PROGRESS, Some(move || flag.load(Relaxed)))?;
        db.pragma_update(None, "synchronous", "normal")?;
        Ok(db)
    }

    fn run(&self, session: &mut Session, conn: &mut Conn, line: &str) -> io::Result<()> {
        if let Some(whom) = line.strip_prefix("KILL ") {
            return kill(whom, conn);
        }
        let Session { db, stop } = session;
        // Relaxed: nobody else knows of this statement yet.
        stop.store(false, Relaxed);
        let interrupt = db.get_interrupt_handle();
        let flag = Arc::clone(stop);
        // Ends with the statement: the next one is never hit.
        let _scope = conn.on_cancel(move || {
            // Relaxed: whoever looks does so again and again.
            flag.store(true, Relaxed);
            interrupt.interrupt();
        });
        match execute(db, line, conn) {
            Ok(changed) => writeln!(conn, "OK\t{changed}"),
            Err(Failure::Io(error)) => Err(error),
            Err(Failure::Sql(error)) => {
                write!(conn, "ERR\t")?;
                escaped(conn, error.to_string().as_bytes())?;
                writeln!(conn)
            }
        }
    }
}

/// Called by SQLite when the database is locked by another connection; whether to try again.
fn busy(tries: i32, stop: &AtomicBool) -> bool {
    // Relaxed: as where it is set.
    let stopped = || stop.load(Relaxed);
    if tries >= BUSY_STEPS || stopped() {
        return false;
    }
    wait::during(BUSY, || thread::sleep(BUSY_STEP));
    !stopped()
}

enum Failure {
    Sql(rusqlite::Error),
    /// The client cannot be told.
    Io(io::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs one statement, and sends its rows as they come; how many rows it has changed.
fn execute(db: &Connection, line: &str, conn: &mut Conn) -> Result<u64, Failure> {
    let before = db.total_changes();
    let mut statement = db.prepare(line)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        conn.write_all(b"ROW")?;
        for column in 0..columns {
            conn.write_all(b"\t")?;
            match row.get_ref(column)? {
                ValueRef::Null => conn.write_all(b"NULL")?,
                ValueRef::Integer(n) => write!(conn, "{n}")?,
                ValueRef::Real(n) => write!(conn, "{n}")?,
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => escaped(conn, bytes)?,
            }
        }
        conn.write_all(b"\n")?;
    }
    Ok(db.total_changes() - before)
}

fn kill(whom: &str, conn: &mut Conn) -> io::Result<()> {
    let (query, id) = match whom.strip_prefix("QUERY ") {
        Some(id) => (true, id),
        None => (false, whom),
    };
    let found = id.trim().parse().ok().map(|id: u64| ConnId::from(id));
    let found = found.and_then(|id| conn.server().find(id));
    let Some(other) = found else {
        return conn.write_all(b"ERR\tno such connection\n");
    };
    if !query {
        other.kill();
    } else if let Some(command) = other.command() {
        // If it is over by now, the next one is not meant.
        other.kill_command(command);
    }
    conn.write_all(b"OK\t0\n")
}

fn escaped(out: &mut Conn, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.split_inclusive(|b| matches!(b, b'\t' | b'\n' | b'\\')) {
        let (plain, special) = match piece.split_last() {
            Some((b'\t', plain)) => (plain, "\\t"),
            Some((b'\n', plain)) => (plain, "\\n"),
            Some((b'\\', plain)) => (plain, "\\\\"),
            _ => (piece, ""),
        };
        out.write_all(plain)?;
        out.write_all(special.as_bytes())?;
    }
    Ok(())
}

impl Handler for Sqlite {
    type Session = Session;

    fn open(&self, conn: &mut Conn) -> io::Result<Session> {
        conn.logged_in()?;
        let stop = Arc::default();
        let db = self.connect(&stop).map_err(io::Error::other)?;
        writeln!(conn, "READY\t{}", conn.id())?;
        Ok(Session { db, stop })
    }

    fn command(&self, session: &mut Session, conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = str::from_utf8(&conn.buffered()[..end])
            .map(str::to_owned)
            .map_err(io::Error::other);
        conn.consume(end + 1);
        self.run(session, conn, &line?)?;
        // Whoever has written holds the one lock that there is.
        let open = !session.db.is_autocommit();
        conn.set_in_transaction(open);
        conn.set_holding(open);
        Ok(Next::input())
    }

    fn farewell(&self, _: &mut Session, out: &mut Vec<u8>, why: &CloseReason) {
        out.extend_from_slice(format!("ERR\t{why}\n").as_bytes());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}
