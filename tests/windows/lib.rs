//! The promises that are run on Windows, under Wine: files of `tests/`, under both schedulers, over TCP.
//!
//! Left out, beside everything over Unix sockets and what is ignored in its file with the reason:
//!
//! | promise or file | reason |
//! |---|---|
//! | `readiness`: `a_message_that_carries_descriptors_hides_nothing_behind_it` | there are no such messages |
//! | `detection`: what is found blocked | the state of a thread cannot be seen without unsafe code |
//! | `crowds`, `memory` | Wine looks at every poll for each event: thousands of clients take minutes |
//! | `listening` | Wine accepts too slowly for its floods; sqlish's `--unix` shows the error of `build` |
//! | `scarcity`, `nothing_is_left`, `group_lock` | `/proc`, limits of the process, Linux's affinity |
//! | the others | they are about what is the same everywhere, and each costs the build of a file |
#![cfg(all(test, windows))]
#![allow(clippy::duplicate_mod)] // each file has its own copy of what is common

#[path = "../commands.rs"]
mod commands;
#[path = "../detection.rs"]
mod detection;
#[path = "../drain.rs"]
mod drain;
#[path = "../hang_up.rs"]
mod hang_up;
#[path = "../kill.rs"]
mod kill;
#[path = "../limits.rs"]
mod limits;
#[path = "../panics.rs"]
mod panics;
#[path = "../parking.rs"]
mod parking;
#[path = "../readiness.rs"]
mod readiness;
#[path = "../scheduling.rs"]
mod scheduling;
