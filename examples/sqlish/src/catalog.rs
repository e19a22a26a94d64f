//! Which tables there are, by name.
//!
//! A [`Catalog`] never changes: whoever creates or drops a table makes another one. A session keeps the
//! one that it saw last, and looks at a number before each statement to see whether there is a newer one,
//! so that finding a table costs no lock. A table keeps its slot as long as somebody has a row of it
//! locked, dropped or not: row locks are known by slot and id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::SqlError;
use crate::table::Table;

/// The tables at one moment.
#[derive(Clone, Default)]
pub(crate) struct Catalog {
    version: u64,
    slots: Vec<Arc<Table>>,
    /// In which slot `sbtestN` is, at `N - 1`: what benchmarks ask for by the million.
    sbtest: Vec<Option<usize>>,
    /// All tables, in lower case.
    names: BTreeMap<String, Named>,
}

#[derive(Clone)]
struct Named {
    slot: usize,
    /// The name of its index on `k`.
    index: Option<String>,
}

/// The catalog, and what replaces it.
#[derive(Default)]
pub(crate) struct Tables {
    now: Mutex<Arc<Catalog>>,
    /// That of `now`: stored with Release after it, loaded with Acquire, so that whoever sees the number
    /// sees that catalog too.
    version: AtomicU64,
}

/// The longest name of a table; MySQL's.
const NAME_MAX: usize = 64;

impl Catalog {
    /// Finds a table by name.
    #[inline]
    pub(crate) fn find<'a>(&self, name: &'a str) -> Result<usize, SqlError<'a>> {
        let slot = match number(name) {
            Some(number) => self.sbtest.get(number - 1).copied().flatten(),
            None => self.other(name),
        };
        slot.ok_or(SqlError::NoSuchTable(name))
    }

    #[cold]
    fn other(&self, name: &str) -> Option<usize> {
        let named = self.names.get(&name.to_ascii_lowercase())?;
        Some(named.slot)
    }

    pub(crate) fn table(&self, slot: usize) -> &Arc<Table> {
        &self.slots[slot]
    }

    /// The name of the table in a slot; `None`: it has been dropped.
    pub(crate) fn name_of(&self, slot: usize) -> Option<&str> {
        let mut named = self.names.iter();
        named
            .find(|(_, named)| named.slot == slot)
            .map(|(name, _)| name.as_str())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }
}

/// The `N` of `sbtestN`.
#[inline]
fn number(name: &str) -> Option<usize> {
    let (prefix, number) = name.split_at_checked("sbtest".len())?;
    if !prefix.eq_ignore_ascii_case("sbtest") || number.starts_with(['0', '+']) {
        return None;
    }
    // Each has a place in a list.
    number.parse().ok().filter(|number| *number <= 100_000)
}

impl Tables {
    /// `sbtest1` to `sbtestN`, each with so many rows.
    pub(crate) fn generate(tables: usize, rows: u64) -> Self {
        let new = Self::default();
        for table in 1..=tables {
            new.change(|catalog| {
                catalog.add(&format!("sbtest{table}"), Table::generate(table, rows));
            });
        }
        new
    }

    pub(crate) fn now(&self) -> Arc<Catalog> {
        Arc::clone(&self.now.lock())
    }

    /// Replaces a catalog that is not the newest.
    #[inline]
    pub(crate) fn refresh(&self, catalog: &mut Arc<Catalog>) {
        // Acquire: of the release in `change`.
        if self.version.load(Ordering::Acquire) != catalog.version {
            *catalog = self.now();
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Catalog) -> R) -> R {
        let mut now = self.now.lock();
        let mut catalog = Catalog::clone(&now);
        let result = change(&mut catalog);
        catalog.version += 1;
        let version = catalog.version;
        *now = Arc::new(catalog);
        // Release: for the acquire in `refresh`.
        self.version.store(version, Ordering::Release);
        result
    }

    /// # Errors
    /// If there is one by this name, or the name is too long.
    pub(crate) fn create<'a>(&self, name: &'a str) -> Result<(), SqlError<'a>> {
        if name.len() > NAME_MAX {
            return Err(SqlError::NotSupported("a name of more than 64 bytes"));
        }
        self.change(|catalog| {
            if catalog.names.contains_key(&name.to_ascii_lowercase()) {
                return Err(SqlError::TableExists(name));
            }
            catalog.add(name, Table::new());
            Ok(())
        })
    }

    /// Drops a table, without waiting for transactions that have changed it: their changes go with it.
    ///
    /// # Errors
    /// If there is none by this name.
    pub(crate) fn remove<'a>(&self, name: &'a str) -> Result<(), SqlError<'a>> {
        self.change(|catalog| {
            let lower = name.to_ascii_lowercase();
            let named = catalog.names.remove(&lower);
            let slot = named.ok_or(SqlError::NoSuchTable(name))?.slot;
            if let Some(number) = number(name) {
                catalog.sbtest[number - 1] = None;
            }
            catalog.table(slot).drop_rows();
            Ok(())
        })
    }

    /// Makes an index on `k`.
    ///
    /// # Errors
    /// If there is no such table, or if it has an index by this name. A second index by another name is
    /// none: one is enough.
    pub(crate) fn index_k<'a>(&self, name: &'a str, table: &'a str) -> Result<(), SqlError<'a>> {
        self.change(|catalog| {
            let slot = catalog.find(table)?;
            let Some(named) = catalog.names.get_mut(&table.to_ascii_lowercase()) else {
                return Err(SqlError::NoSuchTable(table));
            };
            match &named.index {
                Some(index) if index.eq_ignore_ascii_case(name) => {
                    return Err(SqlError::IndexExists(name));
                }
                Some(_) => {}
                None => {
                    named.index = Some(name.to_owned());
                    catalog.table(slot).index_k();
                }
            }
            Ok(())
        })
    }
}

impl Catalog {
    fn add(&mut self, name: &str, table: Table) {
        let table = Arc::new(table);
        let free = |table: &Arc<Table>| table.is_dropped() && !table.has_locks();
        let slot = match self.slots.iter().position(free) {
            Some(slot) => {
                self.slots[slot] = table;
                slot
            }
            None => {
                self.slots.push(table);
                self.slots.len() - 1
            }
        };
        if let Some(number) = number(name) {
            if self.sbtest.len() < number {
                self.sbtest.resize(number, None);
            }
            self.sbtest[number - 1] = Some(slot);
        }
        let index = None;
        self.names
            .insert(name.to_ascii_lowercase(), Named { slot, index });
    }
}
