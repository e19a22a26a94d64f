//! A transport of the library that speaks TLS, by rustls.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};
use thread_group_pool::{Raw, Transport};

/// What rustls makes of a socket that does not block.
#[derive(Debug)]
pub(crate) struct Tls {
    tls: ServerConnection,
    raw: Raw,
}

impl Tls {
    /// # Errors
    /// The configuration is of no use.
    pub(crate) fn new(config: &Arc<ServerConfig>, raw: Raw) -> io::Result<Self> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Ok(Self { tls, raw })
    }

    /// Takes in what has come.
    fn pull(&mut self) -> io::Result<()> {
        // At the end too: rustls says then whether it was announced.
        self.tls.read_tls(&mut self.raw)?;
        match self.tls.process_new_packets() {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

impl Transport for Tls {
    fn handshake(&mut self) -> io::Result<bool> {
        loop {
            self.flush()?;
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            if self.tls.read_tls(&mut self.raw)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = self.tls.process_new_packets() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.flush()
    }
}

impl Read for Tls {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.pull()?,
                // What was sent; 0 after a `close_notify`; `UnexpectedEof` without one.
                got => return got,
            }
        }
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not more than a few records at a time wait in here.
        self.flush()?;
        let n = self.tls.writer().write(bytes)?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.raw)?;
        }
        Ok(())
    }
}
