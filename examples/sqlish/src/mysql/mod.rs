//! MySQL's protocol, as far as sysbench and MariaDB's own clients need it.
//!
//! Nothing but [`handler`] and [`tls`] knows connections: the rest takes the bytes that have come and appends those
//! that are to go, so that it runs in a test, or under a fuzzer, as under a server.
//!
//! * [`wire`]: numbers and strings; [`packet`]: cutting packets off a buffer, and making them.
//! * [`login`]: the greeting, the client's answer to it, and whether that is right.
//! * [`reply`]: what statements answer, in rows of text or of binary values.
//! * [`prepared`]: prepared statements and their parameters.
//! * [`tls`]: what a client gets that asks for it before it logs in.
//! * [`connection`]: a client's conversation, one command at a time.

mod connection;
mod handler;
mod login;
mod packet;
mod prepared;
mod reply;
mod tls;
mod wire;

pub use connection::{Connection, Step};
pub use handler::MysqlHandler;
pub use login::Users;
pub use tls::MysqlTls;

#[cfg(test)]
mod tests;

/// What the server and the client can do: the bits of the handshake.
mod capability {
    pub(super) const LONG_PASSWORD: u32 = 1;
    pub(super) const FOUND_ROWS: u32 = 1 << 1;
    pub(super) const LONG_FLAG: u32 = 1 << 2;
    pub(super) const CONNECT_WITH_DB: u32 = 1 << 3;
    pub(super) const IGNORE_SPACE: u32 = 1 << 8;
    pub(super) const PROTOCOL_41: u32 = 1 << 9;
    pub(super) const INTERACTIVE: u32 = 1 << 10;
    pub(super) const SSL: u32 = 1 << 11;
    pub(super) const TRANSACTIONS: u32 = 1 << 13;
    pub(super) const SECURE_CONNECTION: u32 = 1 << 15;
    pub(super) const PLUGIN_AUTH: u32 = 1 << 19;
    pub(super) const CONNECT_ATTRS: u32 = 1 << 20;
    pub(super) const PLUGIN_AUTH_LENENC: u32 = 1 << 21;
    pub(super) const DEPRECATE_EOF: u32 = 1 << 24;

    /// Those of the server. `LONG_PASSWORD` is MySQL's mark: a server without it is taken for one that
    /// speaks MariaDB's extensions.
    pub(super) const OFFERED: u32 = LONG_PASSWORD
        | FOUND_ROWS
        | LONG_FLAG
        | CONNECT_WITH_DB
        | IGNORE_SPACE
        | PROTOCOL_41
        | INTERACTIVE
        | TRANSACTIONS
        | SECURE_CONNECTION
        | PLUGIN_AUTH
        | CONNECT_ATTRS
        | PLUGIN_AUTH_LENENC
        | DEPRECATE_EOF;
}
