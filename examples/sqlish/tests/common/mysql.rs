//! A client of MySQL's protocol that is driven by hand, packet by packet.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{PATIENCE, Site, Transport};

/// `LONG_PASSWORD`, `PROTOCOL_41`, `TRANSACTIONS`, `SECURE_CONNECTION`, `PLUGIN_AUTH`, `DEPRECATE_EOF`.
const CAPABILITIES: u32 = 1 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19 | 1 << 24;

trait Stream: Read + Write + Send {
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

pub(crate) struct Mysql {
    stream: Box<dyn Stream>,
}

impl Mysql {
    /// A client that has read nothing.
    pub(crate) fn call(site: &Site, transport: Transport) -> Self {
        Self::at(site.mysql_tcp(), site.mysql_path(), transport)
    }

    /// The same of a listener that offers TLS.
    pub(crate) fn call_for_tls(site: &Site, transport: Transport) -> Self {
        Self::at(site.tls_tcp(), site.tls_path(), transport)
    }

    fn at(tcp: SocketAddr, unix: &Path, transport: Transport) -> Self {
        let stream: Box<dyn Stream> = match transport {
            Transport::Tcp => {
                let stream = TcpStream::connect(tcp).expect("it accepts");
                stream.set_nodelay(true).expect("nodelay can be set");
                stream
                    .set_read_timeout(Some(PATIENCE))
                    .expect("a timeout can be set");
                Box::new(stream)
            }
            Transport::Unix => {
                let stream = UnixStream::connect(unix).expect("it accepts");
                stream
                    .set_read_timeout(Some(PATIENCE))
                    .expect("a timeout can be set");
                Box::new(stream)
            }
        };
        Self { stream }
    }

    /// A client that has logged in.
    pub(crate) fn connect(site: &Site, transport: Transport) -> Self {
        let mut client = Self::call(site, transport);
        client.packet();
        client.log_in();
        let (sequence, reply) = client.packet();
        assert_eq!((sequence, reply[0]), (2, 0), "{reply:?}");
        client
    }

    pub(crate) fn log_in(&mut self) {
        self.send(&packet(1, &login()));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // It may be refused by a server that has closed; what comes back tells.
        let _ = self.stream.write_all(bytes);
    }

    /// The next packet and its number.
    pub(crate) fn packet(&mut self) -> (u8, Vec<u8>) {
        self.try_packet().expect("the server answers")
    }

    /// `None`: the server has closed.
    pub(crate) fn try_packet(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).ok()?;
        let [a, b, c, sequence] = header;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, 0]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((sequence, payload))
    }

    /// Says that nothing more will come; the server may have closed already.
    pub(crate) fn end(&self) {
        self.stream.end();
    }

    /// Whether the server has closed, whatever it has said before.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn query(&mut self, statement: &str) {
        let command = [b"\x03", statement.as_bytes()].concat();
        self.send(&packet(0, &command));
    }

    /// The rows of a reply, values separated by blanks; or the code of its error.
    pub(crate) fn rows(&mut self) -> Result<Vec<String>, u16> {
        let (sequence, first) = self.packet();
        assert_eq!(sequence, 1);
        match first[0] {
            0 => return Ok(Vec::new()),
            0xff => return Err(code(&first)),
            columns => (0..columns).for_each(|_| drop(self.packet())),
        }
        let mut rows = Vec::new();
        loop {
            let (_, packet) = self.packet();
            match packet[0] {
                0xfe => return Ok(rows),
                0xff => return Err(code(&packet)),
                _ => rows.push(values(&packet)),
            }
        }
    }

    pub(crate) fn ask(&mut self, statement: &str) -> Result<Vec<String>, u16> {
        self.query(statement);
        self.rows()
    }

    /// Asks until a row contains `what`.
    pub(crate) fn ask_until(&mut self, statement: &str, what: &str) {
        while !self
            .ask(statement)
            .is_ok_and(|rows| rows.iter().any(|row| row.contains(what)))
        {
            std::thread::yield_now();
        }
    }
}

/// The code of an error.
pub(crate) fn code(error: &[u8]) -> u16 {
    assert_eq!(error[0], 0xff, "{error:?}");
    u16::from_le_bytes([error[1], error[2]])
}

fn values(row: &[u8]) -> String {
    let mut values = Vec::new();
    let mut at = 0;
    while at < row.len() {
        let length = match row[at] {
            0xfb => {
                values.push("NULL".to_owned());
                at += 1;
                continue;
            }
            0xfc => {
                at += 2;
                usize::from(u16::from_le_bytes([row[at - 1], row[at]]))
            }
            short => usize::from(short),
        };
        let value = &row[at + 1..at + 1 + length];
        values.push(String::from_utf8_lossy(value).into_owned());
        at += 1 + length;
    }
    values.join(" ")
}

pub(crate) fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
    [&[a, b, c, sequence], payload].concat()
}

/// An answer to the greeting, of a user without a password.
pub(crate) fn login() -> Vec<u8> {
    let mut answer = CAPABILITIES.to_le_bytes().to_vec();
    answer.extend_from_slice(&[0, 0, 0, 1, 45]);
    answer.extend_from_slice(&[0; 23]);
    answer.extend_from_slice(b"ann\0\0mysql_native_password\0");
    answer
}
