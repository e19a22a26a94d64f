//! Measures what a scheduler does to a database server: the same handler under thread groups and
//! under thread-per-connection, beside hand-written servers that know nothing of the library.
//!
//! The path of a measurement: [`args`] reads the command line, [`run`] starts one server process
//! for each scheduler ([`child`], which re-executes this program; [`server`] is what runs in
//! there), drives it with thousands of closed-loop clients from one thread ([`load`]), and
//! [`table`] and [`record`] show the result with the facts about the machine ([`machine`]) that one
//! needs to read it. [`latency`] does the same for point selects beside heavy statements, [`mysql`]
//! does both with the installed `sysbench` for a client, and [`doctor`] tells what on a machine spoils
//! such numbers.
//!
//! Server and client are separate processes on separate CPUs. The clients' own CPU use is part of
//! every result: a table whose client was saturated shows the client.
//!
//! On Linux epoll, affinity and `/proc` are the instruments. On Windows mio takes epoll's place, TCP is the
//! only transport, `event-loop` is missing, and what is asked of `/proc` is not known: memory, threads and
//! CPU time of the servers are 0, nobody is seen to disturb, and a server counts as at rest at once. Elsewhere
//! this library is empty.
#![cfg(any(target_os = "linux", windows))]

pub mod args;
pub mod calibrate;
pub mod child;
pub mod cpu;
pub mod disk;
pub mod doctor;
mod due;
pub mod error;
pub mod knee;
pub mod latency;
pub mod load;
pub mod machine;
pub mod mixed;
pub mod mysql;
pub mod options;
mod os;
pub mod plan;
pub mod process;
pub mod published;
pub mod record;
pub mod reply;
pub mod report;
pub mod request;
pub mod run;
mod script;
pub mod server;
pub mod simulate;
pub mod single;
pub mod stats;
pub mod table;
mod wires;
