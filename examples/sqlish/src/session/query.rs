//! `SELECT` from the tables.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::{Failure, Session};
use crate::admin::Admin;
use crate::error::SqlError;
use crate::parse::{Column, Condition, Item, Query, Statement, parse};
use crate::reply::{Field, Kind, Names, Reply, Value};
use crate::table::{C_MAX, PAD_MAX, Row, Table};

/// A column of a table, in a reply.
#[inline]
pub(super) fn field(column: Column, table: &str) -> Field<'_> {
    let (name, kind) = match column {
        Column::Id => ("id", Kind::Int),
        Column::K => ("k", Kind::Int),
        Column::C => ("c", Kind::Text(C_MAX as u32)),
        Column::Pad => ("pad", Kind::Text(PAD_MAX as u32)),
    };
    Field { name, kind, table }
}

#[inline]
pub(super) fn value(column: Column, id: i64, row: &Row) -> Value<'_> {
    match column {
        Column::Id => Value::Number(id),
        Column::K => Value::Number(i64::from(row.k)),
        Column::C => Value::Text(row.c()),
        Column::Pad => Value::Text(row.pad()),
    }
}

/// The columns of a reply to `query`.
fn fields<'a>(query: &Query<'a>) -> Vec<Field<'a>> {
    let names = query.names();
    let fields = query.items().iter().zip(names).map(|(item, name)| {
        let kind = match item {
            Item::Column(column) => {
                return Field {
                    name,
                    ..field(*column, query.table)
                };
            }
            Item::Count => Kind::Long,
            Item::Sum(_) => Kind::Decimal,
            Item::Min(_) | Item::Max(_) => Kind::Int,
        };
        Field {
            name,
            kind,
            table: "",
        }
    });
    fields.collect()
}

impl Session {
    /// The columns of the reply to a statement that is prepared; none, if they are known only when it is
    /// run.
    ///
    /// # Errors
    /// If it is no statement, or of a table that there is not.
    pub(crate) fn prepared_fields<'a>(
        &mut self,
        statement: &'a str,
    ) -> Result<Vec<Field<'a>>, SqlError<'a>> {
        if statement.is_empty() {
            return Err(SqlError::EmptyQuery);
        }
        let parsed = parse(statement.as_bytes())?;
        if parsed.is_of_the_text_protocol() {
            return Err(SqlError::Syntax { near: statement });
        }
        if let Some(table) = parsed.table() {
            self.engine.tables.refresh(&mut self.catalog);
            self.catalog.find(table)?;
        }
        Ok(match parsed {
            Statement::Select { column, table, .. } => vec![field(column, table)],
            Statement::Query(query) => fields(&query),
            _ => Vec::new(),
        })
    }

    pub(super) fn query<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        query: &Query<'a>,
        reply: &mut R,
        admin: &A,
    ) -> Result<(), Failure<'a>> {
        let slot = self.catalog.find(query.table)?;
        self.touch();
        let stop = || self.signal.is_cancelled() || admin.cancelled();
        let search = Search {
            table: self.catalog.table(slot),
            session: &self.signal,
            stop: &stop,
        };
        if let [Item::Column(_), ..] = query.items() {
            let rows = search.rows(query)?;
            reply.header(&fields(query), Names::Usual)?;
            let columns: Vec<Column> = query.items().iter().filter_map(column).collect();
            let mut values = Vec::with_capacity(columns.len());
            for (id, row) in rows.iter() {
                values.clear();
                values.extend(columns.iter().map(|column| value(*column, *id, row)));
                reply.row(&values)?;
            }
            return Ok(());
        }
        let mut totals = vec![Total::default(); query.items().len()];
        search.each(query.filter.conditions(), |id, row| {
            for (item, total) in query.items().iter().zip(&mut totals) {
                total.add(match item {
                    Item::Sum(Column::K) | Item::Min(Column::K) | Item::Max(Column::K) => {
                        i64::from(row.k)
                    }
                    _ => id,
                });
            }
            ControlFlow::Continue(())
        })?;
        let values = query
            .items()
            .iter()
            .zip(&totals)
            .map(|(item, total)| match item {
                Item::Count => Value::Number(total.count),
                _ if total.count == 0 => Value::Null,
                Item::Min(_) => Value::Number(total.min),
                Item::Max(_) => Value::Number(total.max),
                Item::Sum(_) | Item::Column(_) => Value::Number(total.sum),
            });
        reply.header(&fields(query), Names::Usual)?;
        if query.limit != Some(0) {
            reply.row(&values.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

fn column(item: &Item) -> Option<Column> {
    match item {
        Item::Column(column) => Some(*column),
        _ => None,
    }
}

/// What an aggregate is made of. Ids and `k`s have 32 bits, so sums of fewer than 2^31 rows fit.
#[derive(Clone, Copy, Debug)]
struct Total {
    count: i64,
    sum: i64,
    min: i64,
    max: i64,
}

impl Default for Total {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            min: i64::MAX,
            max: i64::MIN,
        }
    }
}

impl Total {
    fn add(&mut self, value: i64) {
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }
}

/// A look at the rows of a table, for a session.
struct Search<'a> {
    table: &'a Table,
    session: &'a std::sync::Arc<crate::signal::Signal>,
    stop: &'a dyn Fn() -> bool,
}

impl Search<'_> {
    /// The rows that a query returns, in its order.
    fn rows(&self, query: &Query<'_>) -> Result<Vec<(i64, Row)>, SqlError<'static>> {
        let limit = query.limit.map_or(usize::MAX, |limit| limit as usize);
        let as_they_come = query.order.is_none() && !query.distinct;
        let mut rows: Vec<(i64, Row)> = Vec::with_capacity(128.min(limit));
        self.each(query.filter.conditions(), |id, row| {
            if as_they_come && rows.len() >= limit {
                return ControlFlow::Break(());
            }
            rows.push((id, *row));
            ControlFlow::Continue(())
        })?;
        if as_they_come {
            return Ok(rows);
        }
        // Places are sorted and not rows, which are large.
        let mut places: Vec<u32> = (0..rows.len() as u32).collect();
        let columns: Vec<Column> = query.items().iter().filter_map(column).collect();
        let by = |column: Column, a: u32, b: u32| {
            let ((id_a, a), (id_b, b)) = (&rows[a as usize], &rows[b as usize]);
            compare(value(column, *id_a, a), value(column, *id_b, b))
        };
        let all = |a: &u32, b: &u32| {
            let mut each = columns.iter().map(|column| by(*column, *a, *b));
            each.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        if query.distinct {
            places.sort_by(all);
            places.dedup_by(|a, b| all(a, b).is_eq());
        }
        if let Some((column, descending)) = query.order {
            places.sort_by(|a, b| {
                let order = by(column, *a, *b);
                if descending { order.reverse() } else { order }
            });
        }
        places.truncate(limit);
        Ok(places.iter().map(|place| rows[*place as usize]).collect())
    }

    /// Every row that meets one of the conditions; `None` is no condition.
    fn each(
        &self,
        conditions: Option<Vec<Condition>>,
        mut visit: impl FnMut(i64, &Row) -> ControlFlow<()>,
    ) -> Result<(), SqlError<'static>> {
        let all = [Condition {
            column: Column::Id,
            from: i64::MIN,
            to: i64::MAX,
        }];
        let conditions = conditions.as_deref().unwrap_or(&all);
        if conditions.iter().all(|c| c.column == Column::Id) {
            return self.ranges(conditions, visit);
        }
        let meets = |id: i64, row: &Row| {
            conditions.iter().any(|condition| {
                let value = match condition.column {
                    Column::Id => id,
                    _ => i64::from(row.k),
                };
                (condition.from..=condition.to).contains(&value)
            })
        };
        if conditions.iter().all(|c| c.column == Column::K) {
            let clamp = |k: i64| k.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            let ranges = conditions.iter().filter(|condition| {
                condition.from <= i64::from(i32::MAX) && condition.to >= i64::from(i32::MIN)
            });
            let ranges: Vec<_> = ranges.map(|c| (clamp(c.from), clamp(c.to))).collect();
            if let Some(ids) = self.table.with_k(&ranges) {
                for id in ids {
                    let row = self.table.read(id, self.session);
                    if let Some(row) = row.filter(|row| meets(id, row))
                        && visit(id, &row).is_break()
                    {
                        break;
                    }
                }
                return Ok(());
            }
        }
        self.ranges(&all, |id, row| {
            if meets(id, row) {
                visit(id, row)
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// Every row with an id in one of the ranges, once.
    fn ranges(
        &self,
        conditions: &[Condition],
        mut visit: impl FnMut(i64, &Row) -> ControlFlow<()>,
    ) -> Result<(), SqlError<'static>> {
        let mut ranges: Vec<_> = conditions.iter().map(|c| (c.from, c.to)).collect();
        ranges.sort_unstable();
        let mut next = i64::MIN;
        let mut over = false;
        for (from, to) in ranges {
            let from = from.max(next);
            if from > to {
                continue;
            }
            let enough = std::cell::Cell::new(over);
            let stop = || enough.get() || (self.stop)();
            let ended = self.table.range(from, to, self.session, &stop, |id, row| {
                if !over && visit(id, row).is_break() {
                    over = true;
                    enough.set(true);
                }
            });
            if over {
                return Ok(());
            }
            if !ended {
                return Err(SqlError::Interrupted);
            }
            next = to.saturating_add(1);
        }
        Ok(())
    }
}

fn compare(a: Value<'_>, b: Value<'_>) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.cmp(&b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        // A column holds one kind.
        _ => Ordering::Equal,
    }
}
