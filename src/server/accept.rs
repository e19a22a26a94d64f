//! The accept thread: one for all listeners, a bounded amount of work for each connection.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::registry::Registry;
use crate::os::listener::{Acceptor, Door};
use crate::stream::Stream;

/// Connections taken from one listener before the next has its turn.
const BATCH: usize = 16;

/// How long a listener rests when the system has no descriptor or memory for a connection.
const REST: Duration = Duration::from_millis(50);

/// A listener, and what becomes of its connections.
pub(crate) struct Listening {
    pub(crate) acceptor: Acceptor,
    pub(crate) admit: Box<dyn Fn(Stream) + Send>,
}

/// Accepts until `stop` is set and the door woken. Closes the listeners at the end.
pub(crate) fn run(listening: Vec<Listening>, door: &Door, stop: &AtomicBool, registry: &Registry) {
    let mut resting: Vec<Option<Instant>> = vec![None; listening.len()];
    let mut first = 0;
    // Relaxed: the door's descriptor, read after it was written, is the edge.
    while !stop.load(Relaxed) {
        let now = Instant::now();
        for rest in &mut resting {
            rest.take_if(|until| *until <= now);
        }
        let awake: Vec<usize> = (0..listening.len())
            .filter(|i| resting[*i].is_none())
            .collect();
        let acceptors: Vec<&Acceptor> = awake.iter().map(|i| &listening[*i].acceptor).collect();
        let timeout = resting.iter().flatten().min().map(|at| *at - now);
        let ready = match door.wait(&acceptors, timeout) {
            Ok(ready) => ready,
            Err(_) => {
                // No memory for the call: all rest.
                registry.count_accept_error();
                std::thread::sleep(REST);
                continue;
            }
        };
        // Rotated, so that a flood on one listener does not starve those after it.
        first += 1;
        for turn in 0..awake.len() {
            let at = (first + turn) % awake.len();
            if ready[at] && !batch(&listening[awake[at]]) {
                registry.count_accept_error();
                resting[awake[at]] = Some(Instant::now() + REST);
            }
        }
    }
}

/// Takes a batch from a listener. False: it should rest.
fn batch(from: &Listening) -> bool {
    for _ in 0..BATCH {
        match from.acceptor.accept() {
            Ok(stream) => (from.admit)(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if passes(&error) => {}
            Err(_) => return false,
        }
    }
    true
}

/// An error of one connection, which had gone again before it was accepted, and not of the listener.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
