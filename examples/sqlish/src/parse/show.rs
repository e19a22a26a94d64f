//! Statements about the server: `SHOW`, `SET`, `FLUSH`, `KILL`.

use super::{Quoted, Scanner, Statement};
use crate::error::SqlError;

/// What a `SHOW` is restricted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern<'a>(Option<Quoted<'a>>);

impl Pattern<'_> {
    /// Whether a name is meant. `%` is any text, `_` any character, and a backslash takes the meaning of
    /// both.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match &self.0 {
            Some(pattern) => is_like(name.as_bytes(), &pattern.like()),
            None => true,
        }
    }
}

/// Without recursion: of several `%` only the last one can be worth another try.
fn is_like(text: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut in_pattern) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < text.len() {
        let same = |a: u8, b: u8| a.eq_ignore_ascii_case(&b);
        match pattern.get(in_pattern) {
            Some(b'%') => {
                retry = Some((at, in_pattern));
                in_pattern += 1;
                continue;
            }
            Some(b'\\')
                if pattern
                    .get(in_pattern + 1)
                    .is_some_and(|p| same(*p, text[at])) =>
            {
                at += 1;
                in_pattern += 2;
                continue;
            }
            Some(p) if *p != b'\\' && (*p == b'_' || same(*p, text[at])) => {
                at += 1;
                in_pattern += 1;
                continue;
            }
            _ => {}
        }
        let Some((from, percent)) = retry else {
            return false;
        };
        retry = Some((from + 1, percent));
        (at, in_pattern) = (from + 1, percent + 1);
    }
    pattern[in_pattern..].iter().all(|p| *p == b'%')
}

impl Quoted<'_> {
    /// As a pattern: `\%` and `\_` keep their backslash.
    fn like(self) -> Vec<u8> {
        let raw = self.0.as_bytes();
        let escapes = |pair: &[u8]| pair[0] == b'\\' && matches!(pair[1], b'%' | b'_');
        if raw.windows(2).any(escapes) {
            raw.to_vec()
        } else {
            self.unescaped().into_owned()
        }
    }
}

/// What a `SET` sets: it has been looked at, and is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignments<'a>(&'a str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Session,
    Global,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment<'a> {
    pub(crate) scope: Scope,
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
}

impl<'a> Assignments<'a> {
    pub(crate) fn each(&self) -> Vec<Assignment<'a>> {
        let mut all = Vec::new();
        // What has been read before can be read again.
        let _ = Scanner { rest: self.0 }.assignments(&mut |assignment| all.push(assignment));
        all
    }
}

impl<'a> Scanner<'a> {
    /// `[GLOBAL|SESSION] <variable> = <value>, ..`, or `NAMES ..`.
    #[inline(never)]
    pub(super) fn set(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        if self.take_keyword("NAMES") || self.take_keyword("CHARACTER") {
            self.skip_blanks();
            while !self.rest.is_empty() {
                self.token()?;
                self.skip_blanks();
            }
            return Ok(Statement::SetNames);
        }
        if self.take_keyword("TRANSACTION") {
            return Err(SqlError::NotSupported("SET TRANSACTION"));
        }
        let begin = self.rest;
        self.assignments(&mut |_| {})?;
        let text = &begin[..begin.len() - self.rest.len()];
        Ok(Statement::Set(Assignments(text)))
    }

    fn assignments(&mut self, found: &mut dyn FnMut(Assignment<'a>)) -> Result<(), SqlError<'a>> {
        loop {
            self.skip_blanks();
            let mut scope = Scope::Session;
            let name = if self.rest.starts_with("@@") {
                let (name, global) = self.variable()?;
                if global {
                    scope = Scope::Global;
                }
                name
            } else if self.rest.starts_with('@') {
                return Err(SqlError::NotSupported("user variables"));
            } else {
                if self.take_keyword("GLOBAL") {
                    scope = Scope::Global;
                } else if !self.take_keyword("SESSION") {
                    self.take_keyword("LOCAL");
                }
                self.name()?
            };
            self.take_symbol(b':');
            self.symbol(b'=')?;
            self.skip_blanks();
            let value = if self.rest.starts_with(['\'', '"']) {
                self.string()?.0
            } else {
                let here = self.rest;
                let value = self.take_while(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
                });
                if value.is_empty() {
                    return Err(SqlError::Syntax { near: here });
                }
                value
            };
            found(Assignment { scope, name, value });
            if !self.take_symbol(b',') {
                return Ok(());
            }
        }
    }

    #[inline(never)]
    pub(super) fn show(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        let here = self.rest;
        let mut word = self.word();
        if ["FULL", "GLOBAL", "SESSION"]
            .iter()
            .any(|modifier| word.eq_ignore_ascii_case(modifier))
        {
            word = self.word();
        }
        let is = |what: &str| word.eq_ignore_ascii_case(what);
        if is("PROCESSLIST") {
            return Ok(Statement::ShowProcesslist);
        } else if is("VARIABLES") {
            return self.pattern().map(Statement::ShowVariables);
        } else if is("STATUS") {
            return self.pattern().map(Statement::ShowStatus);
        } else if is("DATABASES") || is("SCHEMAS") {
            return Ok(Statement::ShowDatabases);
        } else if is("TABLES") {
            return Ok(Statement::ShowTables);
        } else if is("WARNINGS") || is("ERRORS") {
            return Ok(Statement::ShowWarnings);
        } else if is("THREAD_POOL") {
            let what = self.word();
            let is = |name: &str| what.eq_ignore_ascii_case(name);
            if is("GROUPS") {
                return Ok(Statement::ShowThreadPoolGroups);
            } else if is("STATS") {
                return Ok(Statement::ShowThreadPoolStats);
            } else if is("QUEUES") {
                return Ok(Statement::ShowThreadPoolQueues);
            } else if is("WAITS") {
                return Ok(Statement::ShowThreadPoolWaits);
            }
        }
        Err(SqlError::Syntax {
            near: here.trim_ascii_start(),
        })
    }

    /// `LIKE '<pattern>'` or `WHERE Variable_name = '<name>'`.
    fn pattern(&mut self) -> Result<Pattern<'a>, SqlError<'a>> {
        if self.take_keyword("LIKE") {
            return self.string().map(|pattern| Pattern(Some(pattern)));
        }
        if self.take_keyword("WHERE") {
            self.keyword("Variable_name")?;
            if !self.take_keyword("LIKE") {
                self.symbol(b'=')?;
            }
            return self.string().map(|name| Pattern(Some(name)));
        }
        Ok(Pattern(None))
    }

    pub(super) fn flush(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        if self.take_keyword("THREAD_POOL_WAITS") {
            return Ok(Statement::FlushThreadPoolWaits);
        }
        self.keyword("THREAD_POOL_STATS")?;
        Ok(Statement::FlushThreadPoolStats)
    }

    pub(super) fn kill(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        let query = self.take_keyword("QUERY");
        if !query {
            self.take_keyword("CONNECTION");
        }
        let id = self.integer()?;
        Ok(Statement::Kill { id, query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_mysql() {
        for (pattern, name, expected) in [
            ("thread_pool%", "thread_pool_size", true),
            ("Thread\\_pool%", "thread_pool_size", true),
            ("thread\\_pool%", "threadXpool_size", false),
            ("thread_pool%", "threadXpool_size", true),
            ("%size", "thread_pool_size", true),
            ("%pool%size", "thread_pool_size_pool_size", true),
            ("%pool%size", "thread_pool_sizes", false),
            ("", "x", false),
            ("%", "", true),
            ("x", "xx", false),
            ("_", "x", true),
        ] {
            let matched = Pattern(Some(Quoted(pattern, b'\''))).matches(name);
            assert_eq!(matched, expected, "{name} like {pattern}");
        }
        assert!(Pattern(None).matches("anything"));
    }
}
