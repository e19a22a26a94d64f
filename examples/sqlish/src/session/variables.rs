//! Variables, and `SELECT` without a table.

use std::time::Duration;

use thread_group_pool::Priority;

use super::{Failure, Session};
use crate::admin::{Admin, Refused};
use crate::error::SqlError;
use crate::parse::{Assignment, DATABASE, Scalar, Scalars, Scope};
use crate::reply::{Field, Kind, Names, Reply, Value};

/// What the server calls itself. Clients look at the number to find out what it can do.
pub(crate) const VERSION: &str = concat!("10.11.0-sqlish-", env!("CARGO_PKG_VERSION"));

/// Constant ones, which clients ask for when they connect.
const FIXED: [(&str, &str); 24] = [
    ("auto_increment_increment", "1"),
    ("auto_increment_offset", "1"),
    ("character_set_client", "utf8mb4"),
    ("character_set_connection", "utf8mb4"),
    ("character_set_database", "utf8mb4"),
    ("character_set_results", "utf8mb4"),
    ("character_set_server", "utf8mb4"),
    ("collation_connection", "utf8mb4_bin"),
    ("collation_database", "utf8mb4_bin"),
    ("collation_server", "utf8mb4_bin"),
    ("default_storage_engine", "sqlish"),
    ("init_connect", ""),
    ("license", "MIT OR Apache-2.0"),
    ("lower_case_table_names", "1"),
    ("net_buffer_length", "16384"),
    ("performance_schema", "OFF"),
    ("query_cache_size", "0"),
    ("query_cache_type", "OFF"),
    ("sql_mode", ""),
    ("system_time_zone", "UTC"),
    ("time_zone", "SYSTEM"),
    ("transaction_isolation", "READ-COMMITTED"),
    ("tx_isolation", "READ-COMMITTED"),
    ("version_comment", "sqlish, served by thread-group-pool"),
];

/// Of these, those that a client may set to whatever it wants, because nothing here depends on them.
const IGNORED: [&str; 7] = [
    "character_set_client",
    "character_set_connection",
    "character_set_results",
    "collation_connection",
    "sql_mode",
    "sql_auto_is_null",
    "time_zone",
];

/// How long a statement waits for a row; both are one here.
const PATIENCE: [&str; 2] = ["innodb_lock_wait_timeout", "lock_wait_timeout"];

/// A variable of all sessions, as it was.
enum Before {
    Patience(Duration),
    Server(&'static str, String),
}

const PRIORITY: &str = "thread_pool_priority";

impl Session {
    /// All that there are, by name.
    pub(super) fn variables<A: Admin + ?Sized>(&self, admin: &A) -> Vec<(&'static str, String)> {
        let mut all: Vec<_> = FIXED
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        let timeout = self.lock_wait_timeout.as_secs().to_string();
        let on_off = if self.autocommit { "ON" } else { "OFF" };
        all.extend([
            ("autocommit", on_off.to_owned()),
            (
                "have_ssl",
                if self.have_tls { "YES" } else { "DISABLED" }.to_owned(),
            ),
            (PATIENCE[0], timeout.clone()),
            (PATIENCE[1], timeout),
            (PRIORITY, name(self.priority).to_owned()),
            ("version", VERSION.to_owned()),
        ]);
        all.extend(admin.variables());
        all.sort_unstable();
        all
    }

    /// All of them or, if one cannot be, none.
    pub(super) fn assign_all<'a, A: Admin + ?Sized>(
        &mut self,
        assignments: &[Assignment<'a>],
        admin: &A,
    ) -> Result<(), SqlError<'a>> {
        let own = (self.priority, self.autocommit, self.lock_wait_timeout);
        let mut done = Vec::new();
        for assignment in assignments {
            let before = match assignment.scope {
                Scope::Global => self.global(assignment.name, admin),
                Scope::Session => None,
            };
            if let Err(error) = self.assign(*assignment, admin) {
                (self.priority, self.autocommit, self.lock_wait_timeout) = own;
                for before in done.into_iter().rev() {
                    self.put_back(before, admin);
                }
                return Err(error);
            }
            done.extend(before);
        }
        Ok(())
    }

    /// What a variable of all sessions is now, to be put back.
    fn global<A: Admin + ?Sized>(&self, name: &str, admin: &A) -> Option<Before> {
        if PATIENCE.iter().any(|one| name.eq_ignore_ascii_case(one)) {
            return Some(Before::Patience(self.engine.lock_wait_timeout()));
        }
        let mut all = admin.variables().into_iter();
        let found = all.find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map(|(name, value)| Before::Server(name, value))
    }

    fn put_back<A: Admin + ?Sized>(&self, before: Before, admin: &A) {
        match before {
            Before::Patience(timeout) => self.engine.set_lock_wait_timeout(timeout),
            // It has been that before.
            Before::Server(name, value) => _ = admin.set_variable(name, &value),
        }
    }

    fn assign<'a, A: Admin + ?Sized>(
        &mut self,
        assignment: Assignment<'a>,
        admin: &A,
    ) -> Result<(), SqlError<'a>> {
        let Assignment { scope, name, value } = assignment;
        let is = |variable: &str| name.eq_ignore_ascii_case(variable);
        let wrong = |variable| SqlError::WrongValue { variable, value };
        let patience = || match value.parse() {
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
            Err(_) => Err(wrong(PATIENCE[0])),
        };
        if scope == Scope::Global {
            if PATIENCE.into_iter().any(is) {
                self.engine.set_lock_wait_timeout(patience()?);
                return Ok(());
            }
            return match admin.set_variable(name, value) {
                Ok(()) => Ok(()),
                Err(Refused::Wrong(variable)) => Err(wrong(variable)),
                Err(Refused::Fixed) => Err(SqlError::ReadOnlyVariable(name)),
                Err(Refused::Unknown) if is(PRIORITY) || is("autocommit") => Err(
                    SqlError::NotSupported("SET GLOBAL of a variable of sessions"),
                ),
                Err(Refused::Unknown) => Err(SqlError::UnknownVariable(name)),
            };
        }
        if is(PRIORITY) {
            let is = |priority: &str| value.eq_ignore_ascii_case(priority);
            self.priority = if is("auto") {
                Priority::Auto
            } else if is("high") {
                Priority::High
            } else if is("low") {
                Priority::Low
            } else {
                return Err(wrong(PRIORITY));
            };
            self.changed = true;
        } else if is("autocommit") {
            self.autocommit = match value.to_ascii_lowercase().as_str() {
                "1" | "on" | "true" => true,
                "0" | "off" | "false" => false,
                _ => return Err(wrong("autocommit")),
            };
        } else if PATIENCE.into_iter().any(is) {
            self.lock_wait_timeout = patience()?;
        } else if is("transaction_isolation") || is("tx_isolation") {
            if !value.eq_ignore_ascii_case("READ-COMMITTED") {
                return Err(wrong("transaction_isolation"));
            }
        } else if !IGNORED.iter().any(|ignored| is(ignored)) {
            let servers = admin.variables();
            let fixed = FIXED
                .iter()
                .map(|(name, _)| *name)
                .chain(["have_ssl", "version"]);
            return Err(if servers.iter().any(|(name, _)| is(name)) {
                SqlError::GlobalVariable(name)
            } else if fixed.into_iter().any(is) {
                SqlError::ReadOnlyVariable(name)
            } else {
                SqlError::UnknownVariable(name)
            });
        }
        Ok(())
    }

    pub(super) fn scalars<'a, R: Reply, A: Admin + ?Sized>(
        &mut self,
        scalars: &Scalars<'a>,
        reply: &mut R,
        admin: &A,
    ) -> Result<(), Failure<'a>> {
        let each = scalars.each();
        let mut values: Vec<(Kind, Option<Vec<u8>>)> = Vec::new();
        for (_, scalar) in &each {
            values.push(self.scalar(*scalar, admin)?);
        }
        let fields = each
            .iter()
            .zip(&values)
            .map(|((name, _), (kind, _))| Field {
                name,
                kind: *kind,
                table: "",
            });
        reply.header(&fields.collect::<Vec<_>>(), Names::Usual)?;
        let values = values.iter().map(|(kind, value)| match (kind, value) {
            (_, None) => Value::Null,
            (Kind::Text(_) | Kind::Decimal, Some(text)) => Value::Text(text),
            (_, Some(text)) => {
                let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                number.map_or(Value::Text(text), Value::Number)
            }
        });
        reply.row(&values.collect::<Vec<_>>())?;
        Ok(())
    }

    fn scalar<'a, A: Admin + ?Sized>(
        &self,
        scalar: Scalar<'a>,
        admin: &A,
    ) -> Result<(Kind, Option<Vec<u8>>), SqlError<'a>> {
        let text = |text: String| {
            let length = text.chars().count() as u32;
            (Kind::Text(length), Some(text.into_bytes()))
        };
        let number = |number: i64| (Kind::Long, Some(number.to_string().into_bytes()));
        Ok(match scalar {
            Scalar::Number(n) => number(n),
            Scalar::Null => (Kind::Text(0), None),
            Scalar::Text(quoted) => {
                let bytes = quoted.unescaped().into_owned();
                (Kind::Text(bytes.len() as u32), Some(bytes))
            }
            Scalar::Variable { name, .. } if name.eq_ignore_ascii_case("autocommit") => {
                number(self.autocommit.into())
            }
            Scalar::Variable { name, global: true }
                if PATIENCE.iter().any(|one| name.eq_ignore_ascii_case(one)) =>
            {
                number(self.engine.lock_wait_timeout().as_secs() as i64)
            }
            Scalar::Variable { name, .. } => {
                let all = self.variables(admin);
                let found = all
                    .into_iter()
                    .find(|(known, _)| known.eq_ignore_ascii_case(name));
                let (_, value) = found.ok_or(SqlError::UnknownVariable(name))?;
                match value.parse() {
                    Ok(value) => number(value),
                    Err(_) => text(value),
                }
            }
            Scalar::Function(name) => match name.to_ascii_uppercase().as_str() {
                "CONNECTION_ID" => number(self.id as i64),
                "DATABASE" | "SCHEMA" => text(DATABASE.to_owned()),
                "LAST_INSERT_ID" => number(self.last_id),
                "ROW_COUNT" => number(self.row_count),
                "VERSION" => text(VERSION.to_owned()),
                "CURRENT_USER" => text(format!("{}@%", self.signal.board.user())),
                _ => text(format!("{}@localhost", self.signal.board.user())),
            },
        })
    }
}

fn name(priority: Priority) -> &'static str {
    match priority {
        Priority::Auto => "auto",
        Priority::High => "high",
        Priority::Low => "low",
    }
}
