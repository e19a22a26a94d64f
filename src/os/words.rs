//! The words that every platform's layer says the same with: what a read brought, what is waited for.

use std::io;

/// The error of an address that stands for none.
pub(crate) fn unresolved(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            io::Error::new(error.kind(), "the address is to be host:port")
        }
        _ => error,
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// The read may have stopped short of what is there, at a message that carried descriptors
    /// (they are closed, unseen).
    pub(crate) cut: Cut,
}

/// Whether a read stopped at a message that carried descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    No,
    #[cfg_attr(windows, allow(dead_code))] // there the test kit's only
    Yes,
    /// A plain read of a Unix socket does not tell.
    #[cfg_attr(windows, allow(dead_code))]
    Unknown,
}

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    Input,
    Output,
    /// Whichever comes first.
    Either,
}

/// What a thread waits for beside a bell. That the peer has gone is always seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) input: bool,
    pub(crate) output: bool,
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) input: bool,
    pub(crate) output: bool,
    /// Both directions are closed, or the connection is broken.
    pub(crate) hung_up: bool,
}
