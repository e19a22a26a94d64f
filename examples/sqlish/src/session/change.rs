//! `INSERT`, and what makes and unmakes tables.

use std::sync::Arc;

use super::{Failure, Flow, Place, Session, Then};
use crate::admin::Admin;
use crate::error::SqlError;
use crate::parse::{Insert, NewRow, Statement};
use crate::reply::Reply;
use crate::signal::Signal;
use crate::table::{Row, Table};

impl Session {
    /// Inserts all rows or none; how many.
    pub(super) fn insert<'a, A: Admin + ?Sized>(
        &mut self,
        insert: &Insert<'a>,
        statement: &[u8],
        admin: &A,
    ) -> Result<u64, SqlError<'a>> {
        let table = self.catalog.find(insert.table)?;
        self.touch();
        self.statement_id = 0;
        let keep = self.keeps_locks() || !insert.single;
        // What to take back, if a later row fails in a transaction that goes on.
        let mut done = Vec::new();
        let mut count = 0;
        for row in insert.rows() {
            let inserted = row.and_then(|row| self.insert_row(table, &row, keep, statement, admin));
            match inserted {
                Ok(id) if self.in_transaction && !insert.single => done.push(id),
                Ok(_) => {}
                Err(error) => {
                    self.take_back(table, &done);
                    return Err(error);
                }
            }
            count += 1;
        }
        Ok(count)
    }

    fn insert_row<'a, A: Admin + ?Sized>(
        &mut self,
        table: usize,
        row: &NewRow<'a>,
        keep: bool,
        statement: &[u8],
        admin: &A,
    ) -> Result<i64, SqlError<'a>> {
        let new = Row::new(row.k, &row.c.unescaped(), &row.pad.unescaped())?;
        let id = match row.id {
            Some(id) if i32::try_from(id).is_ok() => id,
            Some(_) => return Err(SqlError::OutOfRange { column: "id" }),
            None => {
                let id = self.catalog.table(table).next_id()?;
                if self.statement_id == 0 {
                    self.statement_id = id;
                    self.last_id = id;
                }
                id
            }
        };
        let act = |table: &Table, session: &Arc<Signal>| table.insert(id, session, keep, &new);
        self.act(Place { table, id }, keep, act, statement, admin)?;
        Ok(id)
    }

    fn take_back(&mut self, table: usize, inserted: &[i64]) {
        // Rolled back, it has no lock any more that would make these its own.
        if !self.in_transaction {
            return;
        }
        for id in inserted {
            let delete = |row: &mut Row| {
                row.clear();
                Ok(())
            };
            // It was absent before, and this session has the lock: there is nothing that can fail.
            let _ = self
                .catalog
                .table(table)
                .change(*id, &self.signal, true, delete);
        }
    }

    /// Statements that make and unmake tables. They commit what is open, as in MySQL, whether they succeed
    /// or not.
    #[cold]
    pub(super) fn define<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        parsed: Statement<'a>,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        match self.make_or_unmake(&parsed) {
            Ok(()) => self.commit(Then::Nothing, statement, reply, admin),
            Err(error) => {
                self.commit_here(statement);
                Err(error.into())
            }
        }
    }

    fn make_or_unmake<'a>(&self, parsed: &Statement<'a>) -> Result<(), SqlError<'a>> {
        let tables = &self.engine.tables;
        match *parsed {
            Statement::CreateTable {
                table,
                if_not_exists,
                index,
            } => match tables.create(table) {
                Err(SqlError::TableExists(_)) if if_not_exists => Ok(()),
                created => {
                    created?;
                    index.map_or(Ok(()), |name| tables.index_k(name, table))
                }
            },
            Statement::DropTable { table, if_exists } => match tables.remove(table) {
                Err(SqlError::NoSuchTable(_)) if if_exists => Ok(()),
                dropped => dropped,
            },
            Statement::CreateIndex { name, table } => tables.index_k(name, table),
            _ => Ok(()),
        }
    }
}
