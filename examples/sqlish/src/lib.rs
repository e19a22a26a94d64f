//! A small SQL subset.

mod admin;
mod engine;
mod error;
mod login;
mod parse;
mod protocol;
mod session;
mod signal;
mod table;
mod wait;

pub use admin::{Admin, Connection, Grid, NoAdmin};
pub use engine::{Engine, EngineConfig};
pub use protocol::{LINE_MAX, Line, greeting, next_line, too_long, unterminated};
pub use session::{Canceller, Flow, Session};
