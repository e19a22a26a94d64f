//! From a line to a [`Statement`], without allocating: every part borrows from the line.
//!
//! A statement is read word by word from the left by a [`Scanner`]; there is no list of tokens, so
//! the statements that a server sees a hundred thousand times a second cost a few comparisons.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::SqlError;

mod change;
mod query;
mod show;

pub(crate) use change::{Insert, NewRow};
pub(crate) use query::{Condition, Information, Item, Query, Scalar, Scalars, Wanted};
pub(crate) use show::{Assignment, Assignments, Pattern, Scope};

/// What the one database is called; sysbench's default.
pub(crate) const DATABASE: &str = "sbtest";

/// One parsed statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Statement<'a> {
    Ping,
    /// The one that is run most: see [`Query`] for all others.
    Select {
        column: Column,
        table: &'a str,
        id: i64,
    },
    Query(Query<'a>),
    /// A `SELECT` of a table of the server's own.
    Information(Information<'a>),
    /// A `SELECT` without a table: its list.
    Scalars(Scalars<'a>),
    UpdateC {
        table: &'a str,
        id: i64,
        value: Quoted<'a>,
    },
    IncrementK {
        table: &'a str,
        id: i64,
    },
    Delete {
        table: &'a str,
        id: i64,
    },
    Insert(Insert<'a>),
    CreateTable {
        table: &'a str,
        if_not_exists: bool,
        /// It has an index on `k`, by this name.
        index: Option<&'a str>,
    },
    DropTable {
        table: &'a str,
        if_exists: bool,
    },
    CreateIndex {
        name: &'a str,
        table: &'a str,
    },
    Begin,
    Commit,
    Rollback,
    Echo(&'a str),
    Login(&'a str),
    Answer(&'a str),
    Sleep(Duration),
    SleepUnseen(Duration),
    Benchmark {
        times: u64,
        text: Quoted<'a>,
    },
    GetLock {
        name: Quoted<'a>,
        /// `None` is for ever.
        timeout: Option<Duration>,
    },
    ReleaseLock(Quoted<'a>),
    ReleaseAllLocks,
    IsFreeLock(Quoted<'a>),
    IsUsedLock(Quoted<'a>),
    Set(Assignments<'a>),
    SetNames,
    Use(&'a str),
    ShowThreadPoolGroups,
    ShowThreadPoolStats,
    ShowThreadPoolQueues,
    ShowThreadPoolWaits,
    ShowProcesslist,
    ShowVariables(Pattern<'a>),
    ShowStatus(Pattern<'a>),
    ShowDatabases,
    ShowTables,
    ShowWarnings,
    FlushThreadPoolStats,
    FlushThreadPoolWaits,
    Kill {
        id: u64,
        /// The statement only.
        query: bool,
    },
    Quit,
    Subscribe,
}

impl<'a> Statement<'a> {
    /// The table whose rows it reads or changes.
    pub(crate) fn table(&self) -> Option<&'a str> {
        match self {
            Self::Select { table, .. }
            | Self::UpdateC { table, .. }
            | Self::IncrementK { table, .. }
            | Self::Delete { table, .. } => Some(table),
            Self::Query(query) => Some(query.table),
            Self::Insert(insert) => Some(insert.table),
            _ => None,
        }
    }

    /// Part of the text protocol, and nothing that a server of another one knows.
    pub(crate) fn is_of_the_text_protocol(&self) -> bool {
        matches!(
            self,
            Self::Ping
                | Self::Echo(_)
                | Self::Login(_)
                | Self::Answer(_)
                | Self::Subscribe
                | Self::Quit
        )
    }
}

/// A column of `sbtestN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Id,
    K,
    C,
    Pad,
}

/// A string literal as it stands between its quotes, escapes included, and which quotes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted<'a>(&'a str, u8);

impl<'a> Quoted<'a> {
    pub(crate) const EMPTY: Self = Self("", b'\'');

    /// The string that is meant: `''` is a quote, and a backslash escapes as in MySQL. Allocates only
    /// if there is something to unescape.
    pub(crate) fn unescaped(self) -> Cow<'a, [u8]> {
        let Self(raw, quote) = self;
        let mut rest = raw.as_bytes();
        if memchr::memchr2(quote, b'\\', rest).is_none() {
            return Cow::Borrowed(rest);
        }
        let mut out = Vec::with_capacity(rest.len());
        while let Some(at) = memchr::memchr2(quote, b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            // The scanner has seen a second byte behind every quote and backslash.
            let Some(&second) = rest.get(at + 1) else {
                break;
            };
            out.push(match (rest[at], second) {
                (b'\\', b'n') => b'\n',
                (b'\\', b't') => b'\t',
                (b'\\', b'r') => b'\r',
                (b'\\', b'0') => 0,
                (_, itself) => itself,
            });
            rest = &rest[at + 2..];
        }
        out.extend_from_slice(rest);
        Cow::Owned(out)
    }
}

/// Removes what may follow a statement: blanks, a carriage return, one semicolon.
#[inline]
pub(crate) fn trim(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    match line.strip_suffix(b";") {
        Some(line) => line.trim_ascii_end(),
        None => line,
    }
}

/// Parses a statement that has been [`trim`]med and is not empty.
#[inline]
pub(crate) fn parse(statement: &[u8]) -> Result<Statement<'_>, SqlError<'_>> {
    // The one statement that needs no check of its bytes: it is equal to four known ones.
    if statement.eq_ignore_ascii_case(b"PING") {
        return Ok(Statement::Ping);
    }
    let text = std::str::from_utf8(statement).map_err(|error| SqlError::InvalidUtf8 {
        at: error.valid_up_to(),
    })?;
    let mut scanner = Scanner { rest: text };
    let parsed = scanner.statement()?;
    scanner.end()?;
    Ok(parsed)
}

/// What is left to read of a statement.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn statement(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        let whole = self.rest;
        let word = self.word();
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword);
        if is("SELECT") {
            self.select()
        } else if is("UPDATE") {
            self.update()
        } else if is("BEGIN") {
            Ok(Statement::Begin)
        } else if is("COMMIT") {
            Ok(Statement::Commit)
        } else if is("ROLLBACK") {
            Ok(Statement::Rollback)
        } else if is("START") {
            self.keyword("TRANSACTION")?;
            Ok(Statement::Begin)
        } else if is("ECHO") {
            Ok(Statement::Echo(self.remainder()))
        } else if is("LOGIN") {
            self.argument().map(Statement::Login)
        } else if is("ANSWER") {
            self.argument().map(Statement::Answer)
        } else if is("DELETE") {
            self.delete()
        } else if is("INSERT") {
            self.insert()
        } else if is("SHOW") {
            self.show()
        } else if is("SET") {
            self.set()
        } else if is("USE") {
            self.name().map(Statement::Use)
        } else if is("CREATE") {
            self.create()
        } else if is("DROP") {
            self.drop()
        } else if is("FLUSH") {
            self.flush()
        } else if is("KILL") {
            self.kill()
        } else if is("QUIT") {
            Ok(Statement::Quit)
        } else if is("SUBSCRIBE") {
            Ok(Statement::Subscribe)
        } else {
            Err(SqlError::Syntax { near: whole })
        }
    }

    /// `SELECT <column> FROM <table> WHERE id = <id>`, or another one.
    fn select(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        let here = self.rest;
        let word = self.word();
        if let Ok(column) = column_of(word)
            && self.take_keyword("FROM")
        {
            let table = self.word();
            if !table.is_empty()
                && self.take_keyword("WHERE")
                && self.take_keyword("id")
                && self.take_symbol(b'=')
            {
                let id = self.number()?;
                if self.rest.is_empty() {
                    return Ok(Statement::Select { column, table, id });
                }
            }
        }
        self.rest = here;
        self.any_select()
    }

    /// A function that does something, by this name; `None` if there is none.
    #[inline(never)]
    fn function(&mut self, name: &str) -> Option<Result<Statement<'a>, SqlError<'a>>> {
        let is = |function: &str| name.eq_ignore_ascii_case(function);
        Some(if is("SLEEP") {
            self.sleep().map(Statement::Sleep)
        } else if is("SLEEP_UNSEEN") {
            self.sleep().map(Statement::SleepUnseen)
        } else if is("BENCHMARK") {
            self.benchmark()
        } else if is("GET_LOCK") {
            self.get_lock()
        } else if is("RELEASE_LOCK") {
            self.name_of_lock().map(Statement::ReleaseLock)
        } else if is("RELEASE_ALL_LOCKS") {
            self.empty_parentheses()
                .map(|()| Statement::ReleaseAllLocks)
        } else if is("IS_FREE_LOCK") {
            self.name_of_lock().map(Statement::IsFreeLock)
        } else if is("IS_USED_LOCK") {
            self.name_of_lock().map(Statement::IsUsedLock)
        } else {
            return None;
        })
    }

    fn empty_parentheses(&mut self) -> Result<(), SqlError<'a>> {
        self.symbol(b'(')?;
        self.symbol(b')')
    }

    /// `UPDATE <table> SET c = '<value>' WHERE id = <id>`, or with `SET k = k + 1`.
    fn update(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        let table = self.table()?;
        self.keyword("SET")?;
        let here = self.rest;
        let column = self.name()?;
        self.symbol(b'=')?;
        match column_of(column)? {
            Column::C => {
                let value = self.string()?;
                let id = self.where_id()?;
                Ok(Statement::UpdateC { table, id, value })
            }
            Column::K => {
                self.keyword("k")?;
                self.symbol(b'+')?;
                let here = self.rest;
                if self.integer()? != 1 {
                    return Err(SqlError::Syntax {
                        near: here.trim_ascii_start(),
                    });
                }
                let id = self.where_id()?;
                Ok(Statement::IncrementK { table, id })
            }
            Column::Id | Column::Pad => Err(SqlError::Syntax {
                near: here.trim_ascii_start(),
            }),
        }
    }

    fn where_id(&mut self) -> Result<i64, SqlError<'a>> {
        self.keyword("WHERE")?;
        self.keyword("id")?;
        self.symbol(b'=')?;
        self.number()
    }

    /// `(<seconds>)`, whole or with a fraction.
    fn sleep(&mut self) -> Result<Duration, SqlError<'a>> {
        self.symbol(b'(')?;
        self.skip_blanks();
        let here = self.rest;
        let digits = self.take_while(|byte| byte.is_ascii_digit() || byte == b'.');
        let seconds: f64 = digits
            .parse()
            .map_err(|_| SqlError::Syntax { near: here })?;
        self.symbol(b')')?;
        Duration::try_from_secs_f64(seconds).map_err(|_| SqlError::WrongArguments("sleep"))
    }

    /// `('<name>', <seconds>)`; seconds below 0 are for ever.
    fn get_lock(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.symbol(b'(')?;
        let name = self.string()?;
        self.symbol(b',')?;
        self.skip_blanks();
        let here = self.rest;
        let number = self.take_while(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
        let seconds: f64 = number
            .parse()
            .map_err(|_| SqlError::Syntax { near: here })?;
        self.symbol(b')')?;
        let timeout = if seconds < 0.0 {
            None
        } else {
            let timeout = Duration::try_from_secs_f64(seconds);
            Some(timeout.map_err(|_| SqlError::WrongArguments("get_lock"))?)
        };
        Ok(Statement::GetLock { name, timeout })
    }

    /// `('<name>')`.
    fn name_of_lock(&mut self) -> Result<Quoted<'a>, SqlError<'a>> {
        self.symbol(b'(')?;
        let name = self.string()?;
        self.symbol(b')')?;
        Ok(name)
    }

    /// `(<times>, MD5('<text>'))`.
    fn benchmark(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.symbol(b'(')?;
        let times = self.integer()?;
        self.symbol(b',')?;
        self.keyword("MD5")?;
        self.symbol(b'(')?;
        let text = self.string()?;
        self.symbol(b')')?;
        self.symbol(b')')?;
        Ok(Statement::Benchmark { times, text })
    }

    #[inline]
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
        if let Some(b'/' | b'-' | b'#') = self.rest.as_bytes().first() {
            self.skip_comments();
        }
    }

    /// `/* .. */`, and `-- ` and `#` to the end of the line.
    #[cold]
    fn skip_comments(&mut self) {
        loop {
            let end = if self.rest.starts_with("/*") {
                self.rest.find("*/").map(|end| end + 2)
            } else if self.rest.starts_with("-- ") || self.rest.starts_with('#') {
                let end = self.rest.find('\n');
                Some(end.unwrap_or(self.rest.len()))
            } else {
                return;
            };
            // A comment that does not end is what is not understood.
            let Some(end) = end else { return };
            self.rest = self.rest[end..].trim_ascii_start();
        }
    }

    /// Takes the longest prefix of bytes that belong. No character is cut in two: `belongs` must
    /// answer the same for all bytes that are not ASCII.
    #[inline]
    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a str {
        let bytes = self.rest.as_bytes();
        let end = bytes
            .iter()
            .position(|&byte| !belongs(byte))
            .unwrap_or(bytes.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// A run of letters, digits and underscores, possibly none.
    fn word(&mut self) -> &'a str {
        self.skip_blanks();
        self.take_while(|byte| is_word_byte(&byte))
    }

    /// A word that must be there, or anything in backquotes.
    fn name(&mut self) -> Result<&'a str, SqlError<'a>> {
        let word = self.word();
        if !word.is_empty() {
            return Ok(word);
        }
        let Some((name, rest)) = self
            .rest
            .strip_prefix('`')
            .and_then(|rest| rest.split_once('`'))
        else {
            return Err(self.syntax());
        };
        self.rest = rest;
        Ok(name)
    }

    /// A name of a table, which that of the database may precede.
    fn table(&mut self) -> Result<&'a str, SqlError<'a>> {
        let name = self.name()?;
        if !self.rest.starts_with('.') {
            return Ok(name);
        }
        self.symbol(b'.')?;
        if !name.eq_ignore_ascii_case(DATABASE) {
            return Err(SqlError::NoSuchDatabase(name));
        }
        self.name()
    }

    /// A word that must be this one.
    #[inline]
    fn keyword(&mut self, keyword: &str) -> Result<(), SqlError<'a>> {
        if self.take_keyword(keyword) {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    /// A word, if it is this one.
    #[inline]
    fn take_keyword(&mut self, keyword: &str) -> bool {
        self.skip_blanks();
        // Compared in place: finding out where the word ends first costs twice as much.
        match self.rest.split_at_checked(keyword.len()) {
            Some((word, rest))
                if word.eq_ignore_ascii_case(keyword)
                    && !rest.as_bytes().first().is_some_and(is_word_byte) =>
            {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn symbol(&mut self, symbol: u8) -> Result<(), SqlError<'a>> {
        if self.take_symbol(symbol) {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    /// A byte that is no letter, if it is this one.
    #[inline]
    fn take_symbol(&mut self, symbol: u8) -> bool {
        self.skip_blanks();
        let there = self.rest.as_bytes().first() == Some(&symbol);
        if there {
            self.rest = &self.rest[1..];
        }
        there
    }

    /// A number with a sign, which may stand in quotes; one that no column can hold is the next one
    /// that a variable can.
    #[inline]
    fn number(&mut self) -> Result<i64, SqlError<'a>> {
        self.skip_blanks();
        let here = self.rest;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        match digits.parse::<u64>() {
            Ok(number) => Ok(number.min(i64::MAX as u64) as i64),
            Err(_) => {
                self.rest = here;
                self.odd_number()
            }
        }
    }

    #[cold]
    fn odd_number(&mut self) -> Result<i64, SqlError<'a>> {
        let here = self.rest;
        let syntax = SqlError::Syntax { near: here };
        let quoted = self.rest.starts_with(['\'', '"']);
        let text = if quoted {
            self.string()?.0.trim_ascii()
        } else {
            self.take_while(|byte| byte.is_ascii_digit() || byte == b'-')
        };
        let (digits, sign) = match text.strip_prefix('-') {
            Some(digits) => (digits, -1),
            None => (text, 1),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(syntax);
        }
        let number: u64 = digits.parse().map_err(|_| syntax)?;
        Ok(sign * number.min(i64::MAX as u64) as i64)
    }

    fn integer(&mut self) -> Result<u64, SqlError<'a>> {
        self.skip_blanks();
        let here = self.rest;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        digits.parse().map_err(|_| SqlError::Syntax { near: here })
    }

    /// A string in single or double quotes; or a number, as text.
    fn string(&mut self) -> Result<Quoted<'a>, SqlError<'a>> {
        self.skip_blanks();
        let here = self.rest;
        let bytes = here.as_bytes();
        let quote = match bytes.first() {
            Some(quote @ (b'\'' | b'"')) => *quote,
            _ => return self.bare_number(),
        };
        let mut at = 1;
        while let Some(found) = memchr::memchr2(quote, b'\\', &bytes[at..]) {
            at += found;
            let pair = bytes[at] == b'\\' || bytes.get(at + 1) == Some(&quote);
            if !pair {
                let raw = &here[1..at];
                self.rest = &here[at + 1..];
                return Ok(Quoted(raw, quote));
            }
            // Past the end when a backslash is the last byte: the string is not closed.
            at = bytes.len().min(at + 2);
        }
        Err(SqlError::Syntax { near: here })
    }

    #[cold]
    fn bare_number(&mut self) -> Result<Quoted<'a>, SqlError<'a>> {
        let here = self.rest;
        let text = self.take_while(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
        if text.is_empty() {
            return Err(SqlError::Syntax { near: here });
        }
        Ok(Quoted(text, b'\''))
    }

    /// Everything up to the end, without the blank in front.
    fn remainder(&mut self) -> &'a str {
        let rest = self.rest.strip_prefix([' ', '\t']).unwrap_or(self.rest);
        self.rest = "";
        rest
    }

    /// Everything up to the end: one argument without blanks in it.
    fn argument(&mut self) -> Result<&'a str, SqlError<'a>> {
        self.skip_blanks();
        let argument = self.take_while(|byte| !byte.is_ascii_whitespace());
        if argument.is_empty() {
            Err(self.syntax())
        } else {
            Ok(argument)
        }
    }

    fn end(&mut self) -> Result<(), SqlError<'a>> {
        self.skip_blanks();
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    fn syntax(&self) -> SqlError<'a> {
        SqlError::Syntax { near: self.rest }
    }
}

fn is_word_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

fn column_of(name: &str) -> Result<Column, SqlError<'_>> {
    let is = |column: &str| name.eq_ignore_ascii_case(column);
    if is("c") {
        Ok(Column::C)
    } else if is("k") {
        Ok(Column::K)
    } else if is("id") {
        Ok(Column::Id)
    } else if is("pad") {
        Ok(Column::Pad)
    } else {
        Err(SqlError::UnknownColumn(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Statement<'_>, SqlError<'_>> {
        parse(trim(line.as_bytes()))
    }

    fn near(line: &str) -> &str {
        match parsed(line) {
            Err(SqlError::Syntax { near }) => near,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn case_blanks_semicolon_and_carriage_return_do_not_matter() {
        let expected = Ok(Statement::Select {
            column: Column::C,
            table: "sbtest1",
            id: 7,
        });
        for line in [
            "SELECT c FROM sbtest1 WHERE id=7",
            "select C from sbtest1 where ID = 7;",
            "  Select\tc   From sbtest1 WHERE id =7 ; \r",
        ] {
            assert_eq!(parsed(line), expected, "{line}");
        }
        for line in ["PING", "ping;", "\tPing ;\r"] {
            assert_eq!(parsed(line), Ok(Statement::Ping), "{line}");
        }
    }

    #[test]
    fn every_statement_is_understood() {
        let value = Quoted("x", b'\'');
        for (line, expected) in [
            (
                "UPDATE sbtest2 SET c='x' WHERE id=1",
                Statement::UpdateC {
                    table: "sbtest2",
                    id: 1,
                    value,
                },
            ),
            (
                "UPDATE sbtest1 SET k=k+1 WHERE id=3",
                Statement::IncrementK {
                    table: "sbtest1",
                    id: 3,
                },
            ),
            (
                "update sbtest1 set k = K + 1 where id = 3",
                Statement::IncrementK {
                    table: "sbtest1",
                    id: 3,
                },
            ),
            ("BEGIN", Statement::Begin),
            ("start transaction", Statement::Begin),
            ("COMMIT", Statement::Commit),
            ("ROLLBACK", Statement::Rollback),
            ("ECHO a  b", Statement::Echo("a  b")),
            ("ECHO", Statement::Echo("")),
            ("LOGIN ann", Statement::Login("ann")),
            ("ANSWER 00ff", Statement::Answer("00ff")),
            (
                "SELECT SLEEP(0.25)",
                Statement::Sleep(Duration::from_millis(250)),
            ),
            (
                "SELECT GET_LOCK('x', 1.5)",
                Statement::GetLock {
                    name: value,
                    timeout: Some(Duration::from_millis(1500)),
                },
            ),
            (
                "select get_lock ( 'x' , -1 )",
                Statement::GetLock {
                    name: value,
                    timeout: None,
                },
            ),
            ("SELECT RELEASE_LOCK('x')", Statement::ReleaseLock(value)),
            ("SELECT RELEASE_ALL_LOCKS()", Statement::ReleaseAllLocks),
            ("SELECT IS_FREE_LOCK('x')", Statement::IsFreeLock(value)),
            ("SELECT IS_USED_LOCK('x')", Statement::IsUsedLock(value)),
            ("SHOW THREAD_POOL QUEUES", Statement::ShowThreadPoolQueues),
            ("SHOW THREAD_POOL WAITS", Statement::ShowThreadPoolWaits),
            (
                "SELECT SLEEP ( 2 )",
                Statement::Sleep(Duration::from_secs(2)),
            ),
            (
                "select sleep_unseen(0.5)",
                Statement::SleepUnseen(Duration::from_millis(500)),
            ),
            (
                "SELECT BENCHMARK(1000, MD5('x'))",
                Statement::Benchmark {
                    times: 1000,
                    text: value,
                },
            ),
            ("SHOW THREAD_POOL GROUPS", Statement::ShowThreadPoolGroups),
            ("SHOW THREAD_POOL STATS", Statement::ShowThreadPoolStats),
            ("SHOW PROCESSLIST", Statement::ShowProcesslist),
            (
                "KILL 12",
                Statement::Kill {
                    id: 12,
                    query: false,
                },
            ),
            (
                "kill query 12",
                Statement::Kill {
                    id: 12,
                    query: true,
                },
            ),
            (
                "DELETE FROM `sbtest1` WHERE id='-5'",
                Statement::Delete {
                    table: "sbtest1",
                    id: -5,
                },
            ),
            (
                "/* a */ DROP TABLE IF EXISTS sbtest.t -- b",
                Statement::DropTable {
                    table: "t",
                    if_exists: true,
                },
            ),
            (
                "CREATE INDEX k_1 ON sbtest1(k)",
                Statement::CreateIndex {
                    name: "k_1",
                    table: "sbtest1",
                },
            ),
            ("SET NAMES utf8mb4 COLLATE utf8mb4_bin", Statement::SetNames),
            ("USE sbtest", Statement::Use("sbtest")),
            ("SHOW FULL PROCESSLIST", Statement::ShowProcesslist),
            ("FLUSH THREAD_POOL_STATS", Statement::FlushThreadPoolStats),
            ("QUIT", Statement::Quit),
            ("SUBSCRIBE", Statement::Subscribe),
        ] {
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn a_syntax_error_points_at_the_text_that_is_not_understood() {
        assert_eq!(near("TRUNCATE sbtest1"), "TRUNCATE sbtest1");
        assert_eq!(near("PING PONG"), "PING PONG");
        assert_eq!(near("BEGIN now"), "now");
        assert_eq!(near("SELECT c FRM sbtest1"), "c FRM sbtest1");
        assert_eq!(near("SELECT *, c FROM sbtest1"), ", c");
        assert_eq!(near("SELECT c FROM sbtest1 WHERE id=x"), "x");
        assert_eq!(near("SELECT c FROM sbtest1 WHERE id=1 OR 1=1"), "1=1");
        assert_eq!(
            near("SELECT c FROM sbtest1 WHERE id=99999999999999999999"),
            "99999999999999999999"
        );
        assert_eq!(near("UPDATE sbtest1 SET k=k+2 WHERE id=1"), "2 WHERE id=1");
        assert_eq!(
            near("UPDATE sbtest1 SET pad='x' WHERE id=1"),
            "pad='x' WHERE id=1"
        );
        assert_eq!(near("UPDATE sbtest1 SET c='x WHERE id=1"), "'x WHERE id=1");
        assert_eq!(near("UPDATE sbtest1 SET c='x\\"), "'x\\");
        assert_eq!(near("SELECT SLEEP(1.2.3)"), "1.2.3)");
        assert_eq!(near("SHOW ENGINES"), "ENGINES");
        assert_eq!(near("KILL"), "");
        assert_eq!(near("SELECT"), "");
        assert_eq!(near("LOGIN ann bob"), "bob");
        assert_eq!(near("é"), "é");
    }

    #[test]
    fn an_unknown_column_is_named() {
        assert_eq!(
            parsed("SELECT secret FROM sbtest1 WHERE id=1"),
            Err(SqlError::UnknownColumn("secret"))
        );
    }

    #[test]
    fn a_sleep_that_no_clock_can_measure_is_refused() {
        for function in ["SLEEP", "SLEEP_UNSEEN"] {
            let line = format!("SELECT {function}({})", "9".repeat(400));
            assert_eq!(parsed(&line), Err(SqlError::WrongArguments("sleep")));
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_told_with_their_place() {
        assert_eq!(parse(b"ECHO \xff"), Err(SqlError::InvalidUtf8 { at: 5 }));
    }

    #[test]
    fn strings_are_unescaped_as_in_mysql() {
        for (raw, meant) in [
            ("", ""),
            ("plain", "plain"),
            ("it''s", "it's"),
            (r"it\'s", "it's"),
            (r"a\tb\nc\\d\0", "a\tb\nc\\d\0"),
            (r"\%é\é", "%éé"),
            ("''", "'"),
        ] {
            let line = format!("UPDATE sbtest1 SET c='{raw}' WHERE id=1");
            let Ok(Statement::UpdateC { value, .. }) = parsed(&line) else {
                panic!("{line} is not understood");
            };
            assert_eq!(*value.unescaped(), *meant.as_bytes(), "{raw}");
        }
    }
}
