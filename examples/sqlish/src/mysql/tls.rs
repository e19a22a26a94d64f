//! TLS for clients that ask for it, as MySQL's do: in plaintext, between the greeting and the login.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use thread_group_pool::Conn;

// The library's example of a transport: a server of one's own would copy it.
#[path = "../../../tls_echo/transport.rs"]
mod transport;

/// A certificate, its key, and how they are used.
#[derive(Clone)]
pub struct MysqlTls(Arc<ServerConfig>);

impl MysqlTls {
    /// Those of two files in PEM; the certificate's may go on with those that it was signed by.
    ///
    /// # Errors
    /// One cannot be read, or they do not belong together. The words name the file.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, Box<dyn Error>> {
        let in_file =
            |file: &Path, error: &dyn fmt::Display| format!("{}: {error}", file.display());
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| in_file(certificate, &error))?;
        if chain.is_empty() {
            return Err(in_file(certificate, &"there is no certificate in it").into());
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| in_file(key, &error))?;
        Ok(Self::new(chain, secret).map_err(|error| in_file(certificate, &error))?)
    }

    /// A certificate for `localhost` that nobody else has signed, and a key that nobody else has: made now, and
    /// gone with the process. Who listens in learns nothing, but no client can tell the server from another.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn self_signed() -> Result<Self, Box<dyn Error>> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self::new(vec![made.cert.into()], key.into())?)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Self(Arc::new(config)))
    }

    /// Goes on by TLS. The client has not waited for an answer: what is buffered is its handshake.
    pub(super) fn upgrade(&self, conn: &mut Conn) -> io::Result<()> {
        conn.upgrade_with_buffered(|raw| transport::Tls::new(&self.0, raw))
    }
}

impl fmt::Debug for MysqlTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlTls").finish_non_exhaustive()
    }
}
