//! The locks, in one spelling for the real build and for loom.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Condvar, Mutex};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Condvar, Mutex};
