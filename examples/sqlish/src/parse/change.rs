//! Statements that change tables: `INSERT`, `DELETE`, and those that make and unmake tables.

use super::{Column, Quoted, Scanner, Statement, column_of};
use crate::error::SqlError;
use crate::table::{C_MAX, PAD_MAX};

/// `INSERT INTO <table> [(<columns>)] VALUES (<values>), ..`. The values have been looked at once, and are
/// read again when they are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insert<'a> {
    pub(crate) table: &'a str,
    columns: [Column; 4],
    given: usize,
    values: &'a str,
    /// There is one row.
    pub(crate) single: bool,
}

/// A row that is to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRow<'a> {
    /// `None`: the next one.
    pub(crate) id: Option<i64>,
    pub(crate) k: i64,
    pub(crate) c: Quoted<'a>,
    pub(crate) pad: Quoted<'a>,
}

impl<'a> Insert<'a> {
    pub(crate) fn rows(&self) -> Rows<'a> {
        Rows {
            scanner: Scanner { rest: self.values },
            columns: self.columns,
            given: self.given,
            row: 0,
            last: false,
        }
    }
}

/// Reads the values of an `INSERT`.
pub(crate) struct Rows<'a> {
    scanner: Scanner<'a>,
    columns: [Column; 4],
    given: usize,
    row: usize,
    last: bool,
}

impl<'a> Rows<'a> {
    fn row(&mut self) -> Result<NewRow<'a>, SqlError<'a>> {
        self.row += 1;
        let row = self.row;
        let mut new = NewRow {
            id: None,
            k: 0,
            c: Quoted::EMPTY,
            pad: Quoted::EMPTY,
        };
        let scanner = &mut self.scanner;
        scanner.symbol(b'(')?;
        for (at, column) in self.columns[..self.given].iter().enumerate() {
            if at > 0 && !scanner.take_symbol(b',') {
                return Err(match scanner.rest.as_bytes().first() {
                    Some(b')') => SqlError::ValueCount { row },
                    _ => scanner.syntax(),
                });
            }
            let default = scanner.take_keyword("DEFAULT");
            match column {
                _ if default => {}
                Column::Id if scanner.take_keyword("NULL") => {}
                // As in MySQL: 0 asks for the next one too.
                Column::Id => new.id = Some(scanner.number()?).filter(|id| *id != 0),
                Column::K => new.k = scanner.number()?,
                Column::C => new.c = scanner.string()?,
                Column::Pad => new.pad = scanner.string()?,
            }
        }
        if !scanner.take_symbol(b')') {
            return Err(match scanner.rest.as_bytes().first() {
                Some(b',') => SqlError::ValueCount { row },
                _ => scanner.syntax(),
            });
        }
        self.last = !scanner.take_symbol(b',');
        Ok(new)
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<NewRow<'a>, SqlError<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.last {
            return None;
        }
        let row = self.row();
        self.last |= row.is_err();
        Some(row)
    }
}

const OTHER_COLUMNS: SqlError<'static> =
    SqlError::NotSupported("a table of other columns than id, k, c and pad");

impl<'a> Scanner<'a> {
    /// `DELETE FROM <table> WHERE id = <id>`.
    pub(super) fn delete(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.keyword("FROM")?;
        let table = self.table()?;
        let id = self.where_id()?;
        Ok(Statement::Delete { table, id })
    }

    pub(super) fn insert(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.take_keyword("INTO");
        let table = self.table()?;
        let mut columns = [Column::Id, Column::K, Column::C, Column::Pad];
        let mut given = columns.len();
        if self.take_symbol(b'(') {
            given = 0;
            loop {
                let here = self.rest;
                let column = column_of(self.name()?)?;
                if columns[..given].contains(&column) {
                    return Err(SqlError::Syntax {
                        near: here.trim_ascii_start(),
                    });
                }
                columns[given] = column;
                given += 1;
                if !self.take_symbol(b',') {
                    break;
                }
            }
            self.symbol(b')')?;
        }
        if !self.take_keyword("VALUE") {
            self.keyword("VALUES")?;
        }
        let mut insert = Insert {
            table,
            columns,
            given,
            values: self.rest,
            single: true,
        };
        let mut rows = insert.rows();
        let mut count = 0;
        for row in &mut rows {
            row?;
            count += 1;
        }
        insert.single = count == 1;
        self.rest = rows.scanner.rest;
        Ok(Statement::Insert(insert))
    }

    pub(super) fn create(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        if self.take_keyword("INDEX") {
            let name = self.name()?;
            self.keyword("ON")?;
            let table = self.table()?;
            self.on_k()?;
            return Ok(Statement::CreateIndex { name, table });
        }
        self.keyword("TABLE")?;
        let if_not_exists = self.take_keyword("IF");
        if if_not_exists {
            self.keyword("NOT")?;
            self.keyword("EXISTS")?;
        }
        let table = self.table()?;
        let index = self.columns()?;
        // The options, such as the engine.
        self.skip_blanks();
        while !self.rest.is_empty() {
            self.token()?;
            self.skip_blanks();
        }
        Ok(Statement::CreateTable {
            table,
            if_not_exists,
            index,
        })
    }

    /// The definition of the one shape of table that there is; the name of its index, if it has one.
    fn columns(&mut self) -> Result<Option<&'a str>, SqlError<'a>> {
        let expected = [
            (Column::Id, None),
            (Column::K, None),
            (Column::C, Some(C_MAX)),
            (Column::Pad, Some(PAD_MAX)),
        ];
        let (mut seen, mut primary, mut index) = (0, false, None);
        self.symbol(b'(')?;
        loop {
            if self.take_keyword("PRIMARY") {
                self.keyword("KEY")?;
                self.symbol(b'(')?;
                self.keyword("id")?;
                self.symbol(b')')?;
                primary = true;
            } else if self.take_keyword("KEY") || self.take_keyword("INDEX") {
                index = Some(self.name()?);
                self.on_k()?;
            } else {
                let column = column_of(self.name()?).map_err(|_| OTHER_COLUMNS)?;
                let kind = self.name()?;
                let is = |name: &str| kind.eq_ignore_ascii_case(name);
                let (named, length) = *expected.get(seen).ok_or(OTHER_COLUMNS)?;
                let right = match length {
                    None => is("INT") || is("INTEGER"),
                    Some(_) => is("CHAR") || is("VARCHAR"),
                };
                if named != column || !right {
                    return Err(OTHER_COLUMNS);
                }
                if self.take_symbol(b'(') {
                    let given = self.integer()?;
                    self.symbol(b')')?;
                    if length.is_some_and(|length| given > length as u64) {
                        return Err(OTHER_COLUMNS);
                    }
                }
                seen += 1;
                // `NOT NULL` and the like; both keys may be said here.
                self.skip_blanks();
                while !self.rest.starts_with([',', ')']) && !self.rest.is_empty() {
                    primary |= self.take_keyword("PRIMARY");
                    self.token()?;
                    self.skip_blanks();
                }
            }
            if !self.take_symbol(b',') {
                break;
            }
        }
        self.symbol(b')')?;
        if seen != expected.len() {
            return Err(OTHER_COLUMNS);
        }
        if !primary {
            return Err(SqlError::NotSupported("a table without PRIMARY KEY (id)"));
        }
        Ok(index)
    }

    /// `(k)`.
    fn on_k(&mut self) -> Result<(), SqlError<'a>> {
        self.symbol(b'(')?;
        if column_of(self.name()?)? != Column::K {
            return Err(SqlError::NotSupported("an index on another column than k"));
        }
        self.symbol(b')')
    }

    /// A word, a string, or a single symbol.
    pub(super) fn token(&mut self) -> Result<(), SqlError<'a>> {
        self.skip_blanks();
        match self.rest.chars().next() {
            None => return Err(self.syntax()),
            Some('\'' | '"') => drop(self.string()?),
            Some('`') => drop(self.name()?),
            Some(char) => {
                if self.word().is_empty() {
                    self.rest = &self.rest[char.len_utf8()..];
                }
            }
        }
        Ok(())
    }

    pub(super) fn drop(&mut self) -> Result<Statement<'a>, SqlError<'a>> {
        self.keyword("TABLE")?;
        let if_exists = self.take_keyword("IF");
        if if_exists {
            self.keyword("EXISTS")?;
        }
        let table = self.table()?;
        Ok(Statement::DropTable { table, if_exists })
    }
}
