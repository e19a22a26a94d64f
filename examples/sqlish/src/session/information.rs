//! What the server tells of itself: `SHOW`, `INFORMATION_SCHEMA`, and statements that change it.

use std::io;

use super::{Failure, Flow, Session, Then, text};
use crate::admin::{self, Admin, Connection, Grid};
use crate::error::SqlError;
use crate::parse::{DATABASE, Information, Statement, Wanted};
use crate::reply::{Field, Kind, Names, Reply, Value};

impl Session {
    /// Every statement that is not about rows or locks.
    #[cold]
    pub(super) fn administer<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        parsed: Statement<'a>,
        statement: &'a [u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<Flow, Failure<'a>> {
        let or = |grid: Option<Grid>, what| grid.ok_or(SqlError::Unavailable(what));
        match parsed {
            Statement::ShowThreadPoolGroups => {
                write_grid(
                    &or(admin.thread_pool_groups(), "SHOW THREAD_POOL GROUPS")?,
                    reply,
                )?;
            }
            Statement::ShowThreadPoolStats => {
                write_grid(
                    &or(admin.thread_pool_stats(), "SHOW THREAD_POOL STATS")?,
                    reply,
                )?;
            }
            Statement::ShowThreadPoolQueues => {
                write_grid(
                    &or(admin.thread_pool_queues(), "SHOW THREAD_POOL QUEUES")?,
                    reply,
                )?;
            }
            Statement::ShowThreadPoolWaits => {
                write_grid(
                    &or(admin.thread_pool_waits(), "SHOW THREAD_POOL WAITS")?,
                    reply,
                )?;
            }
            Statement::ShowProcesslist => {
                let grid = self.processlist(R::MYSQL, statement, admin)?;
                write_grid(&grid, reply)?;
            }
            Statement::ShowVariables(pattern) => {
                let mut all = self.variables(admin);
                all.retain(|(name, _)| pattern.matches(name));
                pairs(all, reply)?;
            }
            Statement::ShowStatus(pattern) => {
                let mut all = admin.status();
                all.retain(|(name, _)| pattern.matches(name));
                pairs(all, reply)?;
            }
            Statement::ShowDatabases => {
                let names = ["information_schema", DATABASE];
                let rows = names.map(|name| vec![name.to_owned()]);
                write_grid(
                    &Grid {
                        columns: &["Database"],
                        rows: rows.into(),
                    },
                    reply,
                )?;
            }
            Statement::ShowTables => {
                let rows = self.catalog.names().map(|name| vec![name.to_owned()]);
                let rows = rows.collect();
                write_grid(
                    &Grid {
                        columns: &["Tables_in_sbtest"],
                        rows,
                    },
                    reply,
                )?;
            }
            Statement::ShowWarnings => {
                let columns = &["Level", "Code", "Message"];
                write_grid(
                    &Grid {
                        columns,
                        rows: Vec::new(),
                    },
                    reply,
                )?;
            }
            Statement::Scalars(scalars) => self.scalars(&scalars, reply, admin)?,
            Statement::Information(information) => {
                self.information(&information, statement, reply, admin)?;
            }
            Statement::Set(assignments) => {
                let autocommit = self.autocommit;
                self.assign_all(&assignments.each(), admin)?;
                if self.autocommit && !autocommit {
                    return self.commit(Then::Nothing, statement, reply, admin);
                }
            }
            Statement::Use(database) => check_database(database)?,
            Statement::FlushThreadPoolStats => flush(admin.flush_thread_pool_stats())?,
            Statement::FlushThreadPoolWaits => flush(admin.flush_thread_pool_waits())?,
            // `SET NAMES`: whatever it is, texts are bytes.
            _ => {}
        }
        self.row_count = -1;
        reply.done(self.done(None))?;
        Ok(Flow::Continue)
    }

    /// As MariaDB's, or as ours.
    fn processlist<A: Admin + ?Sized>(
        &self,
        mariadb: bool,
        statement: &[u8],
        admin: &A,
    ) -> Result<Grid, SqlError<'static>> {
        let unavailable = SqlError::Unavailable("SHOW PROCESSLIST");
        let connections = admin.connections().ok_or(unavailable)?;
        let list = || Grid {
            columns: if mariadb {
                &admin::PROCESSLIST
            } else {
                &[
                    "ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "INFO", "WHY",
                ]
            },
            rows: connections
                .iter()
                .map(|connection| self.process(mariadb, connection))
                .collect(),
        };
        Ok(self.signal.board.showing("listing", text(statement), list))
    }

    fn process(&self, mariadb: bool, connection: &Connection) -> Vec<String> {
        let null = || "NULL".to_owned();
        let shown = self.engine.shown(connection.id).unwrap_or_default();
        let user = if shown.user.is_empty() {
            null()
        } else {
            shown.user
        };
        let id = connection.id.to_string();
        let peer = connection.peer.clone();
        let state = shown.doing.map_or_else(null, str::to_owned);
        let info = shown.doing.map_or_else(null, |_| shown.statement);
        let since = connection.since;
        if !mariadb {
            let time = format!("{:.3}", since.as_secs_f64());
            return vec![
                id,
                user,
                peer,
                connection.state.clone(),
                time,
                state,
                info,
                connection.why.clone(),
            ];
        }
        let command = match connection.state.as_str() {
            "idle" => "Sleep",
            "new" => "Connect",
            _ => "Query",
        };
        let time = since.as_secs().to_string();
        let database = DATABASE.to_owned();
        let progress = "0.000".to_owned();
        vec![
            id,
            user,
            peer,
            database,
            command.to_owned(),
            time,
            state,
            info,
            progress,
            connection.why.clone(),
        ]
    }

    fn information<'a, R: Reply, A: Admin + ?Sized>(
        &self,
        information: &Information<'a>,
        statement: &[u8],
        reply: &mut R,
        admin: &A,
    ) -> Result<(), Failure<'a>> {
        let is = |name: &str| information.table.eq_ignore_ascii_case(name);
        let empty = |columns| Grid {
            columns,
            rows: Vec::new(),
        };
        // Without a pool they are empty, as in MariaDB.
        let grid = if is("THREAD_POOL_GROUPS") {
            let grid = admin.thread_pool_groups();
            grid.unwrap_or_else(|| empty(&admin::GROUPS))
        } else if is("THREAD_POOL_STATS") {
            let grid = admin.thread_pool_stats();
            grid.unwrap_or_else(|| empty(&admin::STATS))
        } else if is("THREAD_POOL_QUEUES") {
            let grid = admin.thread_pool_queues();
            by_number(grid.unwrap_or_else(|| empty(&admin::QUEUES)))
        } else if is("THREAD_POOL_WAITS") {
            let grid = admin.thread_pool_waits();
            in_mariadbs_words(grid.unwrap_or_else(|| empty(&admin::WAITS)))
        } else if is("PROCESSLIST") {
            self.processlist(true, statement, admin)?
        } else {
            return Err(SqlError::NoSuchInformation(information.table).into());
        };
        write_wanted(&grid, &information.wanted()?, reply)
    }
}

fn flush<'a>(flushed: Option<()>) -> Result<(), Failure<'a>> {
    Ok(flushed.ok_or(SqlError::Unavailable("FLUSH THREAD_POOL_STATS"))?)
}

/// The only ones that there are.
pub(crate) fn check_database(name: &str) -> Result<(), SqlError<'_>> {
    let known = [DATABASE, "information_schema"];
    if known.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        Ok(())
    } else {
        Err(SqlError::NoSuchDatabase(name))
    }
}

/// Waits under MariaDB's names: `RowLock` is `ROW_LOCK`.
fn in_mariadbs_words(mut grid: Grid) -> Grid {
    for row in &mut grid.rows {
        let mut name = String::new();
        for char in row[0].chars() {
            if char.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(char.to_ascii_uppercase());
        }
        row[0] = if name == "DISK_IO" {
            "DISKIO".to_owned()
        } else {
            name
        };
    }
    grid
}

/// Queues with MariaDB's two priorities, and ours as one more column.
fn by_number(mut grid: Grid) -> Grid {
    grid.columns = &admin::QUEUES_BY_NUMBER;
    for row in &mut grid.rows {
        let lane = &row[2];
        let number = u8::from(matches!(lane.as_str(), "low" | "long"));
        let lane = std::mem::replace(&mut row[2], number.to_string());
        row.push(lane);
    }
    grid
}

/// The names of the columns, then the rows.
fn write_grid<R: Reply>(grid: &Grid, reply: &mut R) -> io::Result<()> {
    let rows: Vec<&Vec<String>> = grid.rows.iter().collect();
    let columns: Vec<_> = grid.columns.iter().copied().enumerate().collect();
    write_rows(&columns, &rows, reply)
}

fn pairs<R: Reply>(pairs: Vec<(&'static str, String)>, reply: &mut R) -> io::Result<()> {
    let rows = pairs
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value]);
    let rows = rows.collect();
    let columns = &["Variable_name", "Value"];
    write_grid(&Grid { columns, rows }, reply)
}

fn write_rows<R: Reply>(
    columns: &[(usize, &str)],
    rows: &[&Vec<String>],
    reply: &mut R,
) -> io::Result<()> {
    let is_number = |place: usize| {
        let mut values = rows.iter().map(|row| row[place].as_str());
        !rows.is_empty() && values.all(|value| value == "NULL" || value.parse::<i64>().is_ok())
    };
    let fields: Vec<_> = columns
        .iter()
        .map(|(place, name)| Field {
            name,
            kind: if is_number(*place) {
                Kind::Long
            } else {
                Kind::Text(192)
            },
            table: "",
        })
        .collect();
    reply.header(&fields, Names::Shown)?;
    for row in rows {
        let values: Vec<_> = columns
            .iter()
            .zip(&fields)
            .map(|((place, _), field)| match row[*place].as_str() {
                "NULL" => Value::Null,
                value if field.kind == Kind::Long => {
                    Value::Number(value.parse().unwrap_or_default())
                }
                value => Value::Text(value.as_bytes()),
            })
            .collect();
        reply.row(&values)?;
    }
    Ok(())
}

/// The part of a grid that a `SELECT` wants.
fn write_wanted<'a, R: Reply>(
    grid: &Grid,
    wanted: &Wanted<'a>,
    reply: &mut R,
) -> Result<(), Failure<'a>> {
    let place = |name: &'a str| {
        let mut columns = grid.columns.iter();
        columns
            .position(|column| column.eq_ignore_ascii_case(name))
            .ok_or(SqlError::UnknownColumn(name))
    };
    let mut rows: Vec<&Vec<String>> = grid.rows.iter().collect();
    for (column, value) in &wanted.equal {
        let place = place(column)?;
        rows.retain(|row| row[place].eq_ignore_ascii_case(value));
    }
    if let Some((column, descending)) = wanted.order {
        let place = place(column)?;
        rows.sort_by(|a, b| {
            let (a, b) = (&a[place], &b[place]);
            let order = match (a.parse::<i64>(), b.parse::<i64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                _ => a.cmp(b),
            };
            if descending { order.reverse() } else { order }
        });
    }
    let is_aggregate = |(expression, _): &(&str, &str)| expression.contains('(');
    if !wanted.columns.is_empty() && wanted.columns.iter().all(is_aggregate) {
        let mut values = Vec::new();
        for (expression, _) in &wanted.columns {
            values.push(total(expression, &rows, &place)?);
        }
        let columns: Vec<_> = wanted
            .columns
            .iter()
            .map(|(_, name)| *name)
            .enumerate()
            .collect();
        write_rows(&columns, &[&values], reply)?;
        return Ok(());
    }
    rows.truncate(wanted.limit.map_or(usize::MAX, |limit| limit as usize));
    let mut columns: Vec<(usize, &str)> = Vec::new();
    if wanted.columns.is_empty() {
        columns.extend(grid.columns.iter().copied().enumerate());
    }
    for (expression, name) in &wanted.columns {
        columns.push((place(expression)?, name));
    }
    Ok(write_rows(&columns, &rows, reply)?)
}

/// `COUNT(..)`, `SUM(..)` or `MAX(..)` of a grid's column.
fn total<'a>(
    expression: &'a str,
    rows: &[&Vec<String>],
    place: &dyn Fn(&'a str) -> Result<usize, SqlError<'a>>,
) -> Result<String, SqlError<'a>> {
    let syntax = SqlError::Syntax { near: expression };
    let (function, argument) = expression.split_once('(').ok_or(syntax.clone())?;
    let argument = argument.trim_end_matches(')').trim_ascii();
    let is = |name: &str| function.trim_ascii().eq_ignore_ascii_case(name);
    if is("COUNT") {
        return Ok(rows.len().to_string());
    }
    let place = place(argument)?;
    let numbers = rows.iter().filter_map(|row| row[place].parse::<i64>().ok());
    let total = if is("SUM") {
        numbers.reduce(|a, b| a + b)
    } else if is("MAX") {
        numbers.max()
    } else if is("MIN") {
        numbers.min()
    } else {
        return Err(syntax);
    };
    Ok(total.map_or_else(|| "NULL".to_owned(), |total| total.to_string()))
}
