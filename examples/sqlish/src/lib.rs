#![doc = include_str!("../README.md")]

mod admin;
mod board;
mod catalog;
mod cli;
mod client;
mod commit;
mod engine;
mod error;
mod feed;
mod handler;
mod login;
mod metrics;
mod mysql;
mod os;
mod parse;
mod ping;
mod protocol;
mod reply;
mod serve;
mod server_variables;
mod session;
mod signal;
mod table;
mod user_lock;

pub use admin::{Admin, Connection, Grid, NoAdmin};
pub use cli::main;
pub use engine::{CommitWait, Engine, EngineConfig};
pub use handler::SqlishHandler;
pub use mysql::{
    Connection as MysqlConnection, MysqlHandler, MysqlTls, Step as MysqlStep, Users as MysqlUsers,
};
pub use protocol::{LINE_MAX, Line, greeting, next_line, too_long, unterminated};
pub use session::{Canceller, Flow, Session, Standing};
