//! Promises about who is at the other end: whom a proxy names, and whom the operating system does.

mod common;
#[path = "../examples/proxy_protocol.rs"]
mod proxy_protocol;

use std::sync::Arc;

use common::client::Client;
#[cfg(unix)]
use common::client::Socket;
use common::{AMPLE, Options, Setup, everywhere};
use proxy_protocol::{Header, Proxied, parse};
use thread_group_pool::{Conn, Handler, Limits, LocalAddr, Next, Peer, Server};

everywhere! {
    the_client_is_whom_the_proxy_names,
    a_header_may_arrive_byte_by_byte,
    who_has_no_header_is_closed,
    the_address_that_the_proxy_names_is_the_one_that_is_limited,
    a_proxy_that_is_not_trusted_names_nobody,
    #[cfg(unix)]
    the_process_at_the_other_end_of_a_unix_socket_is_known,
}

/// A header that names `ip` and a port.
fn header(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend(ip);
    header.extend([127, 0, 0, 1]);
    header.extend(port.to_be_bytes());
    header.extend(3311_u16.to_be_bytes());
    header
}

fn serve<H: Handler>(setup: Setup, limits: Limits, handler: H) -> (Server, LocalAddr) {
    let server = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .limits(limits)
        .listen(setup.listen(), Arc::new(handler))
        .build()
        .expect("the server starts");
    let at = server.local_addrs()[0].clone();
    (server, at)
}

fn behind_a_proxy(setup: Setup, limits: Limits) -> (Server, LocalAddr) {
    serve(setup, limits, Proxied { trusts: |_| true })
}

fn end(server: Server) {
    let handle = server.handle();
    let report = server.drain(AMPLE);
    assert!(report.clean(), "{report}");
    assert_eq!(handle.stats().lost_edges, 0);
}

fn the_client_is_whom_the_proxy_names(setup: Setup) {
    let (server, at) = behind_a_proxy(setup, Limits::default());
    let mut client = Client::connect_only(&at);
    let mut bytes = header([192, 0, 2, 7], 4711);
    bytes.extend(b"who\n"); // in the same segment
    client.send_bytes(&bytes);
    assert_eq!(client.line(), "192.0.2.7:4711");
    let shown = server.handle().connections();
    assert_eq!(shown[0].peer, "192.0.2.7:4711");
    end(server);
}

fn a_header_may_arrive_byte_by_byte(setup: Setup) {
    let (server, at) = behind_a_proxy(setup, Limits::default());
    let mut client = Client::connect_only(&at);
    for byte in header([192, 0, 2, 7], 4711) {
        client.send_bytes(&[byte]);
    }
    assert_eq!(client.ask("who"), "192.0.2.7:4711");
    assert_eq!(client.ask("echo"), "echo");
    end(server);
}

fn who_has_no_header_is_closed(setup: Setup) {
    let (server, at) = behind_a_proxy(setup, Limits::default());
    let mut client = Client::connect_only(&at);
    client.send("who");
    assert_eq!(client.rest(), "");
    end(server);
}

fn the_address_that_the_proxy_names_is_the_one_that_is_limited(setup: Setup) {
    let (server, at) = behind_a_proxy(setup, Limits::default().max_per_address(2));
    let connect = |last| {
        let mut client = Client::connect_only(&at);
        client.try_to_send(&header([192, 0, 2, last], 1));
        client.try_to_send(b"who\n");
        client
    };
    // All of them from the proxy, which would be one client too many.
    let mut clients: Vec<_> = [1, 1, 2, 2, 3]
        .into_iter()
        .map(|last| {
            let mut client = connect(last);
            assert_eq!(client.line(), format!("192.0.2.{last}:1"));
            client
        })
        .collect();
    assert_eq!(connect(1).rest(), "", "the third from there");
    assert_eq!(server.handle().stats().refused, 1);
    // One who goes makes room for another one from the same address.
    drop(clients.swap_remove(0));
    common::until("there is room again", || {
        server.handle().stats().connections == 4
    });
    assert_eq!(connect(1).line(), "192.0.2.1:1");
    end(server);
}

fn a_proxy_that_is_not_trusted_names_nobody(setup: Setup) {
    let (server, at) = serve(setup, Limits::default(), Proxied { trusts: |_| false });
    let mut client = Client::connect_only(&at);
    client.try_to_send(&header([192, 0, 2, 7], 4711));
    assert_eq!(client.rest(), "");
    end(server);
}

#[test]
fn headers_are_read_as_the_specification_says() {
    let v4 = header([192, 0, 2, 7], 4711);
    assert_eq!(
        parse(&v4).unwrap(),
        Header::Whole(28, Some(Peer::Tcp("192.0.2.7:4711".parse().unwrap())))
    );
    for cut in 0..v4.len() {
        assert_eq!(parse(&v4[..cut]).unwrap(), Header::Part);
    }
    let with = |command: u8, family: u8, addresses: &[u8]| {
        let mut header = v4[..12].to_vec();
        header.extend([command, family, 0, u8::try_from(addresses.len()).unwrap()]);
        header.extend(addresses);
        parse(&header)
    };
    let mut v6 = [0; 36];
    (v6[15], v6[33]) = (1, 80);
    assert_eq!(
        with(0x21, 0x21, &v6).unwrap(),
        Header::Whole(52, Some(Peer::Tcp("[::1]:80".parse().unwrap())))
    );
    // A health check, one that says nothing of its client, extensions behind the addresses.
    assert_eq!(with(0x20, 0, &[]).unwrap(), Header::Whole(16, None));
    assert_eq!(with(0x21, 0, b"xyz").unwrap(), Header::Whole(19, None));
    assert_eq!(
        with(0x21, 0x31, &[0; 216]).unwrap(),
        Header::Whole(232, Some(Peer::Unix))
    );
    assert!(matches!(
        with(0x21, 0x11, &[0; 30]),
        Ok(Header::Whole(46, Some(_)))
    ));
    for (command, family, length) in [(0x11, 0x11, 12), (0x21, 0x11, 11), (0x21, 0x41, 12)] {
        assert!(with(command, family, &vec![0; length]).is_err());
    }
}

/// Says who is at the other end, and leaves.
struct Vouched;

impl Handler for Vouched {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> std::io::Result<()> {
        use std::io::Write;
        conn.logged_in()?;
        let known = conn.peer_credentials();
        let text = known.map_or("unknown".to_owned(), |who| {
            format!("{} {} {}", who.pid, who.uid, who.gid)
        });
        writeln!(conn, "{text}")
    }

    fn command(&self, (): &mut (), _: &mut Conn) -> std::io::Result<Next> {
        Ok(Next::close())
    }
}

#[cfg(unix)]
fn the_process_at_the_other_end_of_a_unix_socket_is_known(setup: Setup) {
    let (server, at) = serve(setup, Limits::default(), Vouched);
    let mut client = Client::connect_only(&at);
    let we = format!(
        "{} {} {}",
        std::process::id(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    match client.socket() {
        Socket::Unix(_) if cfg!(target_os = "linux") => assert_eq!(client.line(), we),
        _ => assert_eq!(client.line(), "unknown"),
    }
    end(server);
}
