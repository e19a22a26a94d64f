//! The servers of the library: one handler, and its schedulers at their defaults but for the limits
//! that were set.

use std::sync::Arc;

use thread_group_pool::{
    Handler, Listen, LocalAddr, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig,
};

use super::BACKLOG;
use crate::error::{Error, Result};
use crate::load::Endpoint;
use crate::options::ServerOptions;

pub(super) fn pool(config: PoolConfig, options: &ServerOptions) -> Scheduler {
    Scheduler::Pool(options.pool(config))
}

pub(super) fn per_connection() -> Scheduler {
    Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default())
}

/// Starts the server; it runs for as long as what is returned.
pub(super) fn start(
    endpoint: &Endpoint,
    scheduler: Scheduler,
    handler: impl Handler,
) -> Result<(Endpoint, Server)> {
    let listen = match endpoint {
        Endpoint::Unix(path) => Listen::unix(path),
        Endpoint::Tcp(address) => Listen::tcp(address.to_string()),
    };
    let server = Server::builder()
        .scheduler(scheduler)
        .listen(listen.backlog(BACKLOG), Arc::new(handler))
        .build()
        .map_err(Error::usage)?;
    let endpoint = match server.local_addrs().first() {
        Some(LocalAddr::Tcp(address)) => Endpoint::Tcp(*address),
        #[cfg(unix)]
        Some(LocalAddr::Unix(path)) => Endpoint::Unix(path.clone()),
        _ => return Err(Error::run("the server listens nowhere")),
    };
    Ok((endpoint, server))
}
