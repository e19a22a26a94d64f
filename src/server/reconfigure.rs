//! Other limits while the server runs.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::admin::{self, Side};
use super::watch::Looks;
use super::{Runner, ServerHandle};
use crate::config::{Limits, Scheduler};
use crate::error::BuildError;

/// What the server runs with now.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) scheduler: Scheduler,
    pub(super) limits: Arc<Limits>,
    pub(super) admin_limits: Arc<Limits>,
}

impl Settings {
    pub(super) fn new(scheduler: Scheduler, limits: Limits) -> Self {
        Self {
            scheduler,
            admin_limits: Arc::new(admin::limits(&limits)),
            limits: Arc::new(limits),
        }
    }

    /// For what the watch looks.
    pub(super) fn looks(&self) -> Looks {
        let silence = matches!(self.scheduler, Scheduler::ThreadPerConnection(_));
        Looks::new(&self.limits, silence)
    }

    pub(super) fn limits_of(&self, side: Side) -> Arc<Limits> {
        Arc::clone(match side {
            Side::Main => &self.limits,
            Side::Admin => &self.admin_limits,
        })
    }
}

/// A change that was made; see [`ServerHandle::reconfigure`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The limits that have other values now.
    pub changed: Vec<&'static str>,
}

/// A change that was refused, all of it: the server runs with what it ran with before.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejected {
    /// A limit out of range, or two that contradict each other.
    Invalid(BuildError),
    /// These cannot be changed while the server runs; start another one.
    Fixed(Vec<&'static str>),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Fixed(names) => write!(
                f,
                "{} cannot be changed while the server runs",
                names.join(", ")
            ),
        }
    }
}

impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Fixed(_) => None,
        }
    }
}

impl ServerHandle {
    /// What the server runs with now: the start of a change.
    pub fn configuration(&self) -> (Scheduler, Limits) {
        let settings = self.0.settings.lock();
        (settings.scheduler.clone(), Limits::clone(&settings.limits))
    }

    /// Changes limits while the server runs: all that differ, or none.
    ///
    /// Counts and times of the scheduler, and the idle, read and write time-outs of connections at rest,
    /// `command_timeout` and `hang_up` hold from the next look of the scheduler on. A smaller
    /// `max_threads` or `thread_cache` ends no command: threads leave as they come free. `max_connections`, `max_login_input`,
    /// `max_input`, `input_budget`, `output_bound`, `turn_commands`, `turn_time` and the time-outs of blocking reads and
    /// writes hold for connections that are opened from now on.
    ///
    /// # Errors
    /// [`Rejected::Invalid`] as [`build`](crate::ServerBuilder::build) would refuse it, and
    /// [`Rejected::Fixed`] for the kind of scheduler, the number of groups, the policy and its dedicated
    /// listener, the pinning and the stack size.
    ///
    /// ```no_run
    /// # use thread_group_pool::{Rejected, Scheduler, ServerHandle};
    /// # fn change(server: &ServerHandle) -> Result<(), Rejected> {
    /// let (mut scheduler, limits) = server.configuration();
    /// if let Scheduler::Pool(config) = &mut scheduler {
    ///     config.oversubscribe = 8;
    /// }
    /// assert_eq!(server.reconfigure(scheduler, limits)?.changed, ["oversubscribe"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reconfigure(&self, scheduler: Scheduler, limits: Limits) -> Result<Applied, Rejected> {
        limits.check().map_err(Rejected::Invalid)?;
        // Held over the change, so that two changes do not mix.
        let mut settings = self.0.settings.lock();
        let mut changed = match (&settings.scheduler, &scheduler) {
            (Scheduler::Pool(old), Scheduler::Pool(new)) => {
                new.check().map_err(Rejected::Invalid)?;
                old.changes(new)
            }
            (Scheduler::ThreadPerConnection(old), Scheduler::ThreadPerConnection(new)) => {
                new.check().map_err(Rejected::Invalid)?;
                old.changes(new)
            }
            _ => vec!["scheduler"],
        };
        let fixed: Vec<_> = changed
            .iter()
            .copied()
            .filter(|name| {
                matches!(
                    *name,
                    "scheduler"
                        | "groups"
                        | "policy"
                        | "dedicated_listener"
                        | "pin_groups"
                        | "stack_size"
                )
            })
            .collect();
        if !fixed.is_empty() {
            return Err(Rejected::Fixed(fixed));
        }
        changed.extend(settings.limits.changes(&limits));
        self.0
            .linger
            .set(limits.max_lingering, limits.linger_timeout);
        match (&self.0.runner, &scheduler) {
            (Runner::Pool(pool), Scheduler::Pool(config)) => pool.reconfigure(config, &limits),
            (Runner::Thread(threads), Scheduler::ThreadPerConnection(config)) => {
                threads.reconfigure(config.clone());
            }
            _ => {}
        }
        *settings = Settings::new(scheduler, limits);
        self.0.registry.watch().set(settings.looks());
        if let Some(part) = &self.0.admin {
            part.reconfigure(&settings.admin_limits);
        }
        Ok(Applied { changed })
    }
}
