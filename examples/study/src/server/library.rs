//! The two servers of the library, with everything at its default but the number of groups.

use std::sync::Arc;

use sqlish::{Engine, SqlishHandler};
use thread_group_pool::{Listen, LocalAddr, PoolConfig, Server, ThreadPerConnectionConfig};

use super::{BACKLOG, Spec};
use crate::error::{Error, Result};
use crate::load::Endpoint;
use crate::plan::Scheduler;

/// Starts the server; it runs for as long as what is returned.
pub(super) fn start(spec: &Spec, engine: Arc<Engine>) -> Result<(Endpoint, Server)> {
    let scheduler = if spec.scheduler == Scheduler::Pool {
        thread_group_pool::Scheduler::Pool(PoolConfig::default().groups(spec.groups))
    } else {
        thread_group_pool::Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default())
    };
    let listen = match &spec.endpoint {
        Endpoint::Unix(path) => Listen::unix(path),
        Endpoint::Tcp(address) => Listen::tcp(address.to_string()),
    };
    let server = Server::builder()
        .scheduler(scheduler)
        .listen(
            listen.backlog(BACKLOG),
            Arc::new(SqlishHandler::new(engine)),
        )
        .build()
        .map_err(Error::usage)?;
    let endpoint = match server.local_addrs().first() {
        Some(LocalAddr::Tcp(address)) => Endpoint::Tcp(*address),
        Some(LocalAddr::Unix(path)) => Endpoint::Unix(path.clone()),
        _ => return Err(Error::run("the server listens nowhere")),
    };
    Ok((endpoint, server))
}
