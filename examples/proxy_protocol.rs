//! Behind a proxy: who the client is comes in a header of the PROXY protocol, version 2, before its first
//! word. Every line comes back; `who` is answered with the client's address.
//!
//! `cargo run --example proxy_protocol [ADDR]`; for haproxy, the server's line ends with `send-proxy-v2`.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use thread_group_pool::{Conn, Handler, Listen, Next, Peer, Server};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Whom a header names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// Its length, and the client; `None`: the proxy speaks for itself.
    Whole(usize, Option<Peer>),
    /// There is more to come.
    Part,
}

/// Reads the header that `bytes` begin with.
///
/// # Errors
/// They begin with something else.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Header> {
    let bad = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let seen = bytes.len().min(SIGNATURE.len());
    if bytes[..seen] != SIGNATURE[..seen] {
        return bad("no header of the PROXY protocol, version 2");
    }
    let Some(&[command, family, high, low]) = bytes.get(12..16) else {
        return Ok(Header::Part);
    };
    let end = 16 + usize::from(u16::from_be_bytes([high, low]));
    let Some(addresses) = bytes.get(16..end) else {
        return Ok(Header::Part);
    };
    let proxied = match command {
        0x20 => false, // LOCAL: a health check of the proxy's own
        0x21 => true,
        _ => return bad("another version of the PROXY protocol"),
    };
    let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
    let peer = match (proxied, family >> 4, addresses) {
        (false, ..) | (true, 0, _) => None,
        (true, 1, [a, b, c, d, ..]) if addresses.len() >= 12 => {
            let ip = IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d));
            Some(Peer::Tcp(SocketAddr::new(ip, port(8))))
        }
        (true, 2, _) if addresses.len() >= 36 => {
            let ip: [u8; 16] = std::array::from_fn(|i| addresses[i]);
            let ip = IpAddr::V6(Ipv6Addr::from(ip));
            Some(Peer::Tcp(SocketAddr::new(ip, port(32))))
        }
        (true, 3, _) => Some(Peer::Unix),
        _ => return bad("a family that there is not, or an address that is cut short"),
    };
    Ok(Header::Whole(end, peer))
}

#[derive(Debug)]
pub(crate) struct Proxied {
    /// From where a header is believed. Anybody could name anybody.
    pub(crate) trusts: fn(&Peer) -> bool,
}

impl Handler for Proxied {
    /// Whether the header has come.
    type Session = bool;

    fn open(&self, conn: &mut Conn) -> io::Result<bool> {
        if (self.trusts)(conn.peer()) {
            Ok(false)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    fn command(&self, introduced: &mut bool, conn: &mut Conn) -> io::Result<Next> {
        if !*introduced {
            let Header::Whole(length, peer) = parse(conn.buffered())? else {
                return Ok(Next::input());
            };
            conn.consume(length);
            if let Some(peer) = peer {
                conn.set_peer(peer)?;
            }
            conn.logged_in()?;
            *introduced = true;
            return Ok(Next::input());
        }
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = conn.buffered()[..end].to_vec();
        conn.consume(end + 1);
        if line == b"who" {
            let peer = conn.peer().clone();
            writeln!(conn, "{peer}")?;
        } else {
            conn.write_all(&line)?;
            conn.write_all(b"\n")?;
        }
        Ok(Next::input())
    }
}

#[allow(dead_code)] // where a test takes the rest
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:3311".into());
    let handler = Proxied {
        trusts: |peer| matches!(peer, Peer::Tcp(addr) if addr.ip().is_loopback()),
    };
    let server = Server::builder()
        .listen(Listen::tcp(addr), Arc::new(handler))
        .build()?;
    println!("listening on {}; Enter ends it", server.local_addrs()[0]);
    io::stdin().read_line(&mut String::new())?;
    println!("{}", server.drain(std::time::Duration::from_secs(5)));
    Ok(())
}
