//! The test kit's hold on a server: time that the test moves, for everybody who waits by the server's
//! clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Runner, ServerBuilder, ServerHandle};
use crate::conn::{ConnId, Shared};
use crate::os::socket::{self, Socket};
use crate::os::test_door::{OfTest, TestDoor};
use crate::stats::Activity;
use crate::wait::WaitKind;

/// For how long a command is waited for that runs, and says nothing of waiting, before time is moved
/// all the same.
const RUNS: Duration = Duration::from_secs(2);

/// The most that counts of one step of that: more is a machine that stood still.
const STEP: Duration = Duration::from_millis(20);

impl ServerBuilder {
    pub(crate) fn test_door(mut self, door: Arc<TestDoor>) -> Self {
        self.test_door = Some(door);
        self
    }
}

impl ServerHandle {
    /// A connection's socket, as the test wants it.
    pub(super) fn of_test(&self, socket: Socket) -> Socket {
        match &self.0.test_door {
            Some(door) => Socket::OfTest(Box::new(OfTest::new(socket, Arc::clone(door)))),
            None => socket,
        }
    }

    /// Moves the server's clock, once what has been sent has been taken and nothing runs. Whose time is
    /// over then is woken or closed, and what that has it do has been done as well when this returns;
    /// but for who has left the scheduler.
    pub(crate) fn pass(&self, time: Duration) {
        let Some(door) = &self.0.test_door else {
            return;
        };
        let registry = &self.0.registry;
        self.until_at_rest(door);
        // What it has not seen begin does not last for it.
        registry.watch().look_now(registry);
        door.clock.pass(time);
        let login_timeout = self.0.settings.lock().limits.login_timeout;
        registry.pass_login_time(time, login_timeout);
        registry.watch().look_now(registry);
        match &self.0.runner {
            Runner::Pool(pool) => pool.tick_now(),
            Runner::Thread(_) => {
                for (place, token) in registry.all().iter().filter_map(|s| s.scheduled()) {
                    place.interrupt(token);
                }
            }
        }
        self.until_at_rest(door);
    }

    /// Waits until what clients have sent has been taken, and nothing runs.
    pub(crate) fn settle(&self) {
        if let Some(door) = &self.0.test_door {
            self.until_at_rest(door);
        }
    }

    /// Waits until nobody has anything to do but to wait.
    fn until_at_rest(&self, door: &TestDoor) {
        let mut waited = Duration::ZERO;
        while waited < RUNS && !self.is_at_rest(door) {
            let begun = Instant::now();
            thread::sleep(Duration::from_micros(200));
            waited += begun.elapsed().min(STEP);
        }
    }

    fn is_at_rest(&self, door: &TestDoor) -> bool {
        let all = self.0.registry.all();
        // What is on its way to them is looked at before they are: it may have been taken in between, and
        // not the other way round.
        let gone = socket::hung_up(all.iter().map(|shared| shared.socket()));
        let owed = all
            .iter()
            .zip(gone)
            .map(|(shared, gone)| (shared.id(), gone || shared.socket().has_input()));
        let owed: HashMap<ConnId, bool> = owed.collect();
        let all: HashMap<ConnId, Arc<Shared>> = all.into_iter().map(|s| (s.id(), s)).collect();
        let in_pool = matches!(self.0.runner, Runner::Pool(_));
        let mut blocked = 0;
        for info in self.connections() {
            // It has come, or gone, meanwhile.
            let (Some(shared), Some(owed)) = (all.get(&info.id), owed.get(&info.id)) else {
                return false;
            };
            match info.state {
                Activity::Idle | Activity::Reading => {
                    if *owed || !(in_pool || is_waiting(shared)) {
                        return false;
                    }
                }
                Activity::Parked => {
                    if !(in_pool || lies(shared)) {
                        return false;
                    }
                }
                Activity::Waiting(WaitKind::Net) => blocked += 1,
                Activity::Waiting(_) | Activity::Detached => {}
                Activity::Flushing if in_pool => {}
                Activity::Flushing => blocked += 1,
                _ => return false,
            }
        }
        // Each of these has read the clock.
        door.waiting().is_some_and(|waiting| blocked <= waiting)
    }
}

/// Whether a connection's own thread lies in its bed, and has heard all that it was called for.
fn lies(shared: &Shared) -> bool {
    let place = shared.scheduled();
    place.is_some_and(|(place, _)| place.has_heard() == Some(true))
}

/// Whether a connection's own thread waits for input, in its bed or out of it.
fn is_waiting(shared: &Shared) -> bool {
    !shared.socket().is_away() || lies(shared)
}
