//! `SELECT`, but for the one that is run most.

use super::{Column, Quoted, Scanner, Statement, column_of};
use crate::error::SqlError;

/// `SELECT <list> FROM <table> [WHERE ..] [ORDER BY ..] [LIMIT ..]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Query<'a> {
    pub(crate) table: &'a str,
    /// The list as it was written, from which the columns of the reply have their names.
    list: &'a str,
    items: [Item; ITEMS_MAX],
    count: usize,
    pub(crate) distinct: bool,
    pub(crate) filter: Filter<'a>,
    /// And whether from the largest down.
    pub(crate) order: Option<(Column, bool)>,
    pub(crate) limit: Option<u64>,
}

const ITEMS_MAX: usize = 8;

/// One of what a [`Query`] returns. Either all of them are columns, or none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Column(Column),
    Count,
    Sum(Column),
    Min(Column),
    Max(Column),
}

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter<'a> {
    All,
    One(Condition),
    /// Several with `OR` between them: they have been looked at, and are read again.
    Any(&'a str),
}

/// `<column> BETWEEN <from> AND <to>`, for which all others can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) column: Column,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl<'a> Query<'a> {
    pub(crate) fn items(&self) -> &[Item] {
        &self.items[..self.count]
    }

    /// What the columns of the reply are called: by their alias, or as they were written.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        if self.list.trim_ascii() == "*" {
            return vec!["id", "k", "c", "pad"];
        }
        Scanner { rest: self.list }.names()
    }
}

impl Filter<'_> {
    /// All conditions, one of which must hold; `None`: all rows.
    pub(crate) fn conditions(&self) -> Option<Vec<Condition>> {
        match self {
            Self::All => None,
            Self::One(condition) => Some(vec![*condition]),
            Self::Any(text) => {
                let mut all = Vec::new();
                // What has been read before can be read again.
                let _ = Scanner { rest: text }.conditions(&mut |condition| all.push(condition));
                Some(all)
            }
        }
    }
}

/// A `SELECT` of one of the server's own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Information<'a> {
    pub(crate) table: &'a str,
    list: &'a str,
    tail: &'a str,
}

/// What an [`Information`] asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted<'a> {
    /// The expression, and its name. Empty: all columns.
    pub(crate) columns: Vec<(&'a str, &'a str)>,
    /// All must hold.
    pub(crate) equal: Vec<(&'a str, String)>,
    pub(crate) order: Option<(&'a str, bool)>,
    pub(crate) limit: Option<u64>,
}

impl<'a> Information<'a> {
    pub(crate) fn wanted(&self) -> Result<Wanted<'a>, SqlError<'a>> {
        let mut wanted = Wanted::default();
        if self.list.trim_ascii() != "*" {
            let mut list = Scanner { rest: self.list };
            loop {
                list.skip_blanks();
                let begin = list.rest;
                list.name()?;
                if list.take_symbol(b'(') {
                    if !list.take_symbol(b'*') {
                        list.name()?;
                    }
                    list.symbol(b')')?;
                }
                let expression = before(begin, list.rest);
                let name = list.alias()?.unwrap_or(expression);
                wanted.columns.push((expression, name));
                if !list.take_symbol(b',') {
                    break;
                }
            }
            list.end()?;
        }
        let mut tail = Scanner { rest: self.tail };
        if tail.take_keyword("WHERE") {
            loop {
                let column = tail.name()?;
                tail.symbol(b'=')?;
                let value = tail.string()?.unescaped();
                let value = String::from_utf8_lossy(&value).into_owned();
                wanted.equal.push((column, value));
                if !tail.take_keyword("AND") {
                    break;
                }
            }
        }
        if tail.take_keyword("ORDER") {
            tail.keyword("BY")?;
            let column = tail.name()?;
            wanted.order = Some((column, tail.descending()));
        }
        wanted.limit = tail.limit()?;
        tail.end()?;
        Ok(wanted)
    }
}

/// The list of a `SELECT` without a table: it has been looked at, and is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalars<'a> {
    list: &'a str,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar<'a> {
    Number(i64),
    Text(Quoted<'a>),
    Null,
    /// `@@name`, of the server if `global`.
    Variable {
        name: &'a str,
        global: bool,
    },
    /// `name()`.
    Function(&'a str),
}

impl<'a> Scalars<'a> {
    /// Each with its name.
    pub(crate) fn each(&self) -> Vec<(&'a str, Scalar<'a>)> {
        let mut all = Vec::new();
        // What has been read before can be read again.
        let _ = Scanner { rest: self.list }.scalars(&mut |name, scalar| all.push((name, scalar)));
        all
    }
}

/// What of `begin` is gone in `rest`, which is its end.
fn before<'a>(begin: &'a str, rest: &str) -> &'a str {
    begin[..begin.len() - rest.len()].trim_ascii_end()
}

const FUNCTIONS: [&str; 10] = [
    "CONNECTION_ID",
    "CURRENT_USER",
    "DATABASE",
    "LAST_INSERT_ID",
    "ROW_COUNT",
    "SCHEMA",
    "SESSION_USER",
    "SYSTEM_USER",
    "USER",
    "VERSION",
];

impl<'a> Scanner<'a> {
    #[cold]
    pub(super) fn any_select(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.skip_blanks();
        let begin = self.rest;
        if begin.is_empty() {
            return Err(self.syntax());
        }
        let word = self.word();
        if self.rest.trim_ascii_start().starts_with('(')
            && let Some(function) = self.function(word)
        {
            return function;
        }
        self.rest = begin;
        if !self.skip_to_from()? {
            self.rest = begin;
            self.scalars(&mut |_, _| {})?;
            let list = before(begin, self.rest);
            // `LIMIT 1`, which some clients add, changes nothing; no rows, nobody asks for.
            self.limit()?;
            return Ok(Statement::Scalars(Scalars { list }));
        }
        let list = before(begin, self.rest);
        self.keyword("FROM")?;
        let mut table = self.name()?;
        let mut information = starts_with(table, "THREAD_POOL_");
        if self.rest.starts_with('.') {
            let database = std::mem::take(&mut table);
            self.symbol(b'.')?;
            table = self.name()?;
            information = database.eq_ignore_ascii_case("information_schema");
            if !information && !database.eq_ignore_ascii_case(super::DATABASE) {
                return Err(SqlError::NoSuchDatabase(database));
            }
        }
        if information {
            let tail = std::mem::take(&mut self.rest);
            let information = Information { table, list, tail };
            information.wanted()?;
            return Ok(Statement::Information(information));
        }
        self.query(table, list).map(Statement::Query)
    }

    fn query(&mut self, table: &'a str, list: &'a str) -> Result<Query<'a>, SqlError<'a>> {
        let mut query = Query {
            table,
            list,
            items: [Item::Count; ITEMS_MAX],
            count: 0,
            distinct: false,
            filter: Filter::All,
            order: None,
            limit: None,
        };
        let mut of = Scanner { rest: list };
        query.distinct = of.take_keyword("DISTINCT");
        query.list = of.rest;
        of.items(&mut query)?;
        if self.take_keyword("WHERE") {
            self.skip_blanks();
            let begin = self.rest;
            let (mut first, mut count) = (None, 0);
            self.conditions(&mut |condition| {
                first.get_or_insert(condition);
                count += 1;
            })?;
            query.filter = match first {
                Some(condition) if count == 1 => Filter::One(condition),
                _ => Filter::Any(before(begin, self.rest)),
            };
        }
        if self.take_keyword("ORDER") {
            self.keyword("BY")?;
            let column = column_of(self.name()?)?;
            query.order = Some((column, self.descending()));
        }
        query.limit = self.limit()?;
        Ok(query)
    }

    fn items(&mut self, query: &mut Query<'a>) -> Result<(), SqlError<'a>> {
        let all = [Column::Id, Column::K, Column::C, Column::Pad];
        if self.take_symbol(b'*') {
            for column in all {
                query.items[query.count] = Item::Column(column);
                query.count += 1;
            }
            return self.end();
        }
        loop {
            let here = self.rest;
            let item = self.item()?;
            self.alias()?;
            let is_column = |item: &Item| matches!(item, Item::Column(_));
            let first = query.items().first();
            if query.count == ITEMS_MAX || first.is_some_and(|i| is_column(i) != is_column(&item)) {
                return Err(SqlError::Syntax {
                    near: here.trim_ascii_start(),
                });
            }
            query.items[query.count] = item;
            query.count += 1;
            if !self.take_symbol(b',') {
                return self.end();
            }
        }
    }

    fn item(&mut self) -> Result<Item, SqlError<'a>> {
        let here = self.rest;
        let syntax = SqlError::Syntax {
            near: here.trim_ascii_start(),
        };
        let name = self.name()?;
        if !self.take_symbol(b'(') {
            return column_of(name).map(Item::Column);
        }
        let is = |function: &str| name.eq_ignore_ascii_case(function);
        let item = if is("COUNT") {
            if !self.take_symbol(b'*') && !self.take_keyword("1") {
                // None is ever NULL.
                column_of(self.name()?)?;
            }
            Item::Count
        } else {
            let column = column_of(self.name()?)?;
            match column {
                Column::Id | Column::K if is("SUM") => Item::Sum(column),
                Column::Id | Column::K if is("MIN") => Item::Min(column),
                Column::Id | Column::K if is("MAX") => Item::Max(column),
                _ => return Err(syntax),
            }
        };
        self.symbol(b')')?;
        Ok(item)
    }

    /// The names of a list that has been understood.
    fn names(&mut self) -> Vec<&'a str> {
        let mut names = Vec::new();
        loop {
            self.skip_blanks();
            let begin = self.rest;
            if self.item().is_err() {
                return names;
            }
            let written = before(begin, self.rest);
            let alias = self.alias().unwrap_or_default();
            names.push(alias.unwrap_or(written));
            if !self.take_symbol(b',') {
                return names;
            }
        }
    }

    /// `AS <name>`.
    fn alias(&mut self) -> Result<Option<&'a str>, SqlError<'a>> {
        if !self.take_keyword("AS") {
            return Ok(None);
        }
        self.skip_blanks();
        if self.rest.starts_with('\'') {
            return Ok(Some(self.string()?.0));
        }
        self.name().map(Some)
    }

    /// `<condition> [OR ..]`.
    fn conditions(&mut self, found: &mut dyn FnMut(Condition)) -> Result<(), SqlError<'a>> {
        loop {
            self.skip_blanks();
            let here = self.rest;
            let syntax = SqlError::Syntax { near: here };
            if here.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(syntax);
            }
            let column = column_of(self.name()?)?;
            if matches!(column, Column::C | Column::Pad) {
                return Err(syntax);
            }
            let mut between = |from, to| found(Condition { column, from, to });
            if self.take_symbol(b'=') {
                let value = self.number()?;
                between(value, value);
            } else if self.take_symbol(b'<') {
                let or_equal = self.take_symbol(b'=');
                let value = self.number()?;
                between(i64::MIN, value.saturating_sub(i64::from(!or_equal)));
            } else if self.take_symbol(b'>') {
                let or_equal = self.take_symbol(b'=');
                let value = self.number()?;
                between(value.saturating_add(i64::from(!or_equal)), i64::MAX);
            } else if self.take_keyword("IN") {
                self.symbol(b'(')?;
                loop {
                    let value = self.number()?;
                    between(value, value);
                    if !self.take_symbol(b',') {
                        break;
                    }
                }
                self.symbol(b')')?;
            } else {
                self.keyword("BETWEEN")?;
                let from = self.number()?;
                self.keyword("AND")?;
                between(from, self.number()?);
            }
            if !self.take_keyword("OR") {
                return Ok(());
            }
        }
    }

    fn descending(&mut self) -> bool {
        let descending = self.take_keyword("DESC");
        if !descending {
            self.take_keyword("ASC");
        }
        descending
    }

    /// `LIMIT <rows>`.
    fn limit(&mut self) -> Result<Option<u64>, SqlError<'a>> {
        if self.take_keyword("LIMIT") {
            self.number().map(|rows| Some(rows.max(0) as u64))
        } else {
            Ok(None)
        }
    }

    /// Goes to the `FROM` of a `SELECT`; false if there is none.
    fn skip_to_from(&mut self) -> Result<bool, SqlError<'a>> {
        loop {
            self.skip_blanks();
            if self.rest.is_empty() {
                return Ok(false);
            }
            let here = self.rest;
            if self.take_keyword("FROM") {
                self.rest = here;
                return Ok(true);
            }
            self.token()?;
        }
    }

    fn scalars(&mut self, found: &mut dyn FnMut(&'a str, Scalar<'a>)) -> Result<(), SqlError<'a>> {
        loop {
            self.skip_blanks();
            let begin = self.rest;
            let scalar = self.scalar()?;
            let written = before(begin, self.rest);
            let name = self.alias()?.unwrap_or(written);
            found(name, scalar);
            if !self.take_symbol(b',') {
                return Ok(());
            }
        }
    }

    fn scalar(&mut self) -> Result<Scalar<'a>, SqlError<'a>> {
        let here = self.rest;
        if self.rest.starts_with("@@") {
            let (name, global) = self.variable()?;
            return Ok(Scalar::Variable { name, global });
        }
        if self.rest.starts_with(['\'', '"']) {
            return self.string().map(Scalar::Text);
        }
        if self
            .rest
            .starts_with(|c: char| c.is_ascii_digit() || c == '-')
        {
            return self.number().map(Scalar::Number);
        }
        let name = self.word();
        if name.eq_ignore_ascii_case("NULL") {
            return Ok(Scalar::Null);
        }
        let known = FUNCTIONS.iter().any(|f| name.eq_ignore_ascii_case(f));
        if !known {
            return Err(SqlError::Syntax { near: here });
        }
        if !name.eq_ignore_ascii_case("CURRENT_USER") || self.rest.starts_with('(') {
            self.empty_parentheses()?;
        }
        Ok(Scalar::Function(name))
    }

    /// `@@[global.|session.]name`; the name, and whether it is the server's that is meant.
    pub(super) fn variable(&mut self) -> Result<(&'a str, bool), SqlError<'a>> {
        self.symbol(b'@')?;
        self.symbol(b'@')?;
        let name = self.name()?;
        if !self.rest.starts_with('.') {
            return Ok((name, false));
        }
        self.symbol(b'.')?;
        let global = name.eq_ignore_ascii_case("GLOBAL");
        if !global && !name.eq_ignore_ascii_case("SESSION") && !name.eq_ignore_ascii_case("LOCAL") {
            return Err(self.syntax());
        }
        Ok((self.name()?, global))
    }
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
