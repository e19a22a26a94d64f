//! TLS, by rustls: every line comes back, through a transport of the embedder's own.
//!
//! `cargo run --example tls_echo [--per-connection] [ADDR [CERTIFICATE KEY]]`, and then
//! `openssl s_client -quiet -connect 127.0.0.1:3312`. Without files of yours (PEM) it uses a key that everybody
//! has.

mod transport;

use std::io::{self, Write};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thread_group_pool::{Conn, Handler, Listen, Next, Scheduler, Server};

pub(crate) use transport::Tls;

struct TlsEcho(Arc<ServerConfig>);

impl Handler for TlsEcho {
    /// Whether it has logged in.
    type Session = bool;

    fn open(&self, conn: &mut Conn) -> io::Result<bool> {
        conn.upgrade(|raw| Tls::new(&self.0, raw))?;
        Ok(false)
    }

    fn command(&self, logged_in: &mut bool, conn: &mut Conn) -> io::Result<Next> {
        // Not before: a client that is silent in its handshake is to be gone soon.
        if !*logged_in {
            conn.logged_in()?;
            *logged_in = true;
        }
        let (mut input, mut output) = conn.split();
        let Some(end) = input.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        output.write_all(&input.buffered()[..=end])?;
        input.consume(end + 1);
        Ok(Next::input())
    }
}

/// # Errors
/// They do not belong together.
pub(crate) fn config(
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)?;
    Ok(Arc::new(config))
}

#[allow(dead_code)] // where a test takes the rest
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let scheduler = match args.next_if_eq("--per-connection") {
        Some(_) => Scheduler::ThreadPerConnection(Default::default()),
        None => Scheduler::Pool(Default::default()),
    };
    let addr = args.next().unwrap_or("127.0.0.1:3312".into());
    let config = match (args.next(), args.next()) {
        (Some(cert), Some(key)) => config(
            CertificateDer::from_pem_file(cert)?,
            PrivateKeyDer::from_pem_file(key)?,
        )?,
        _ => everybodys()?,
    };
    let server = Server::builder()
        .scheduler(scheduler)
        .listen(Listen::tcp(addr), Arc::new(TlsEcho(config)))
        .build()?;
    println!("listening on {}; Enter ends it", server.local_addrs()[0]);
    io::stdin().read_line(&mut String::new())?;
    println!("{}", server.drain(std::time::Duration::from_secs(5)));
    Ok(())
}

/// For trying it out.
///
/// # Errors
/// None, as the text below is what it is.
pub(crate) fn everybodys() -> Result<Arc<ServerConfig>, Box<dyn std::error::Error>> {
    let cert = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes())?;
    Ok(config(cert, key)?)
}

/// For localhost, by itself.
pub(crate) const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBkjCCATigAwIBAgIUOwUgJJ0QNw4bZ6oT6OdF3SYA2tMwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDIyNDUyOVoYDzIxMjYxMTA2
MjI0NTI5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARWudp4aLy0LCtrcGCxtwaW+62KR+eRk9PWBtt/1s5X12X5SMBjrdwX
0Ib44PTBAO7YOXltviAxlKHOp/kEJvQ7o2YwZDAdBgNVHQ4EFgQUhahn7K9M80dL
8IMd4Yp4icwkpWowHwYDVR0jBBgwFoAUhahn7K9M80dL8IMd4Yp4icwkpWowFAYD
VR0RBA0wC4IJbG9jYWxob3N0MAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDSAAw
RQIgUXs/EkbMxnGgtgWxADjU/DsVZDFhBygGywbTukLguoQCIQCLlXcstalAug1v
0gBxu1I3fQYVo7ZsPiBh09w4j8KxeA==
-----END CERTIFICATE-----
";

const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgo7BagTkFAWpvFeV9
FsOrjmsK/0NFKzX8uJ7KZ5pAFaShRANCAARWudp4aLy0LCtrcGCxtwaW+62KR+eR
k9PWBtt/1s5X12X5SMBjrdwX0Ib44PTBAO7YOXltviAxlKHOp/kEJvQ7
-----END PRIVATE KEY-----
";
