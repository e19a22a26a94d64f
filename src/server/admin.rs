//! What the admin listeners have for themselves: a count, threads, an end. Thread-per-connection, because
//! that needs nothing of a pool that is stuck.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registry::Registry;
use super::thread_per_connection::ThreadPerConnection;
use super::watch::{Looks, Watching};
use super::{Core, Runner, ServerHandle};
use crate::config::{Limits, ThreadPerConnectionConfig};
use crate::error::BuildError;

/// Through which kind of listener a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Main,
    Admin,
}

/// The admin side of a server.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) registry: Arc<Registry>,
    runner: Runner,
    watching: Watching,
}

/// A side of a server, of either kind.
#[derive(Debug)]
pub(super) struct PartRef<'a> {
    pub(super) registry: &'a Arc<Registry>,
    pub(super) runner: &'a Runner,
    pub(super) watching: &'a Watching,
}

impl ServerHandle {
    pub(super) fn part(&self, side: Side) -> PartRef<'_> {
        match &self.0.admin {
            Some(part) if side == Side::Admin => part.as_ref(),
            _ => self.0.main(),
        }
    }
}

impl Core {
    pub(super) fn main(&self) -> PartRef<'_> {
        PartRef {
            registry: &self.registry,
            runner: &self.runner,
            watching: &self.watching,
        }
    }
}

/// What limits the connections of the admin listeners.
pub(super) fn limits(limits: &Limits) -> Limits {
    Limits {
        max_connections: limits.max_admin_connections,
        max_logins: limits.max_admin_connections,
        max_per_address: usize::MAX,
        ..limits.clone()
    }
}

fn config(limits: &Limits) -> ThreadPerConnectionConfig {
    ThreadPerConnectionConfig {
        // Somebody who logs in must not keep out those who have.
        max_threads: limits.max_connections + limits.max_logins,
        // One at least is there from the start: the system may have none left when it is needed.
        thread_cache: 1,
        idle_timeout: Duration::from_secs(u64::from(u32::MAX)),
        ..ThreadPerConnectionConfig::default()
    }
}

impl Part {
    pub(super) fn admin(limits: &Limits, registry: &Arc<Registry>) -> Result<Self, BuildError> {
        let watching = Watching::start("tgp-adm-watch", registry, Looks::new(limits, true))?;
        let threads =
            ThreadPerConnection::new(config(limits), Arc::clone(registry), "tgp-adm-conn");
        let part = Self {
            watching,
            registry: Arc::clone(registry),
            runner: Runner::Thread(Arc::clone(&threads)),
        };
        match threads.keep_one_ready() {
            Ok(()) => Ok(part),
            Err(source) => Err(BuildError::Resources {
                what: "a thread",
                source,
            }),
        }
    }

    pub(super) fn reconfigure(&self, limits: &Limits) {
        if let Runner::Thread(threads) = &self.runner {
            threads.reconfigure(config(limits));
            self.registry.watch().set(Looks::new(limits, true));
        }
    }

    pub(super) fn as_ref(&self) -> PartRef<'_> {
        PartRef {
            registry: &self.registry,
            runner: &self.runner,
            watching: &self.watching,
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After a drain nobody is left. Without one the server could not be built.
        if let Runner::Thread(threads) = &self.runner {
            threads.stop();
            threads.join(Instant::now() + Duration::from_secs(1));
        }
    }
}
