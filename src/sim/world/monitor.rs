//! The monitor's life, as in `src/group/monitor.rs`.

use super::{CREATE, Doing, LOCK, MONITOR, TICK, World, thread_of};
use crate::group::monitor::LINGER;
use crate::sim::policy::Asks;
use crate::sim::trace::{What, Who};
use crate::sim::{SpawnFailure, ns};

impl World<'_> {
    pub(super) fn step_monitor(&mut self) -> Option<u64> {
        match std::mem::replace(&mut self.threads[MONITOR].doing, Doing::Gone) {
            Doing::Ticking { read } => {
                self.monitor.ticks += 1;
                let tick = self.policy.tick(read);
                self.note(Who::Monitor, What::Tick { again: tick.again });
                for worker in tick.others {
                    self.perform(Who::Monitor, (Asks::Worker(worker), false));
                }
                match tick.asks {
                    Asks::Thread | Asks::Spare
                        if self.policy.book.threads() < self.scenario.pool.max_threads =>
                    {
                        let worker = self.policy.spawning(tick.due_to_stall, self.now);
                        self.note(Who::Monitor, What::Spawning { worker });
                        self.goes_on(MONITOR, Doing::Creating { worker }, CREATE)
                    }
                    Asks::Thread => {
                        self.note(Who::Monitor, What::Capped);
                        self.policy.capped(self.now);
                        self.ticked(true)
                    }
                    asks => {
                        self.perform(Who::Monitor, (asks, false));
                        self.ticked(tick.again)
                    }
                }
            }
            Doing::Creating { worker } => {
                self.create(worker);
                self.ticked(true)
            }
            Doing::Sleeping => {
                self.monitor.until = None;
                self.monitor.rung = false;
                self.monitor.asleep = false;
                let read = self.now;
                self.goes_on(MONITOR, Doing::Ticking { read }, TICK)
            }
            // It has been joined.
            _ => self.sleeps(MONITOR, Doing::Gone),
        }
    }

    fn create(&mut self, worker: usize) {
        self.monitor.spawns += 1;
        let fails = match self.scenario.faults.spawns {
            SpawnFailure::Never => false,
            SpawnFailure::PerMille(per_mille) => self.rng.chance(per_mille),
            SpawnFailure::Nth(nth) => self.monitor.spawns == nth,
        };
        if fails {
            self.note(Who::Monitor, What::SpawnFailed { worker });
            self.policy.spawn_failed(worker, self.now);
        } else {
            self.note(Who::Monitor, What::Spawned { worker });
            self.start_thread(thread_of(worker), Doing::Asking);
        }
    }

    /// A look is over; `again`: some more are wanted.
    fn ticked(&mut self, again: bool) -> Option<u64> {
        let tick = ns(self.scenario.pool.handover);
        if self.monitor.asleep {
            let time = if again {
                Some(tick)
            } else {
                let due = self.policy.next_deadline(self.now);
                due.map(|due| due.saturating_sub(self.now))
            };
            return self.monitor_sleeps(time);
        }
        self.monitor.quiet = if again { 0 } else { self.monitor.quiet + 1 };
        if self.monitor.quiet < LINGER {
            return self.monitor_sleeps(Some(tick));
        }
        // It says that it sleeps, and looks once more.
        self.monitor.asleep = true;
        let read = self.now;
        self.goes_on(MONITOR, Doing::Ticking { read }, TICK)
    }

    fn monitor_sleeps(&mut self, time: Option<u64>) -> Option<u64> {
        if self.monitor.rung {
            return self.goes_on(MONITOR, Doing::Sleeping, LOCK);
        }
        if let Some(time) = time {
            let mut late = 0;
            if self.rng.chance(self.scenario.faults.lost_ticks_per_mille) {
                self.note(Who::Monitor, What::TimerLost);
                late = ns(self.scenario.pool.handover) * (1 + self.rng.below(20));
            }
            self.monitor.until = Some(self.now.saturating_add(time));
            self.sleep_for(MONITOR, time.saturating_add(late));
        }
        let until = self.monitor.until;
        self.note(Who::Monitor, What::Sleep { until });
        self.sleeps(MONITOR, Doing::Sleeping)
    }
}
