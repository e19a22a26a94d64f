//! What can go wrong, as one line for whoever started the tool.

use std::fmt;

/// Ends the tool. The message is the one line that is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// What was asked for cannot be done: bad arguments, a busy port, a CPU that is not there, a
    /// file that cannot be written. Ask differently.
    Usage(String),
    /// It could be asked and failed on the way: a server that died, clients that got no greeting.
    Run(String),
}

impl Error {
    /// A usage error, from anything that prints.
    pub fn usage(message: impl fmt::Display) -> Error {
        Error::Usage(message.to_string())
    }

    /// A failure during the run, from anything that prints.
    pub fn run(message: impl fmt::Display) -> Error {
        Error::Run(message.to_string())
    }

    /// 2 for a usage error, 1 for a failed run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Run(_) => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Usage(message) | Error::Run(message)) = self;
        // One line is promised, and messages from outside may hold several.
        f.write_str(message.trim().replace('\n', "; ").as_str())
    }
}

impl std::error::Error for Error {}

/// Shorthand of this package.
pub type Result<T> = std::result::Result<T, Error>;
