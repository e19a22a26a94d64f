//! `sqlish serve`: builds the server from the options, runs it until a signal, drains it.

use std::error::Error;
use std::io::{self, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

use thread_group_pool::event::Level;
use thread_group_pool::{Listen, Server};

use crate::cli::ServeOptions;
use crate::engine::Engine;
use crate::handler::SqlishHandler;
use crate::metrics;
use crate::mysql::MysqlHandler;
use crate::os;

/// Serves until SIGTERM or SIGINT, on Windows Ctrl-C or Ctrl-Break. 0 if everybody could finish, 1 if the drain cut somebody off.
///
/// # Errors
/// If the server cannot start.
pub(crate) fn run(options: Box<ServeOptions>) -> Result<ExitCode, Box<dyn Error>> {
    let addresses = [&options.tcp, &options.admin_tcp, &options.mysql_tcp];
    let paths = [&options.unix, &options.admin_unix, &options.mysql_unix];
    if addresses.iter().all(|tcp| tcp.is_empty()) && paths.iter().all(|unix| unix.is_empty()) {
        return Err("nothing to listen on: give --tcp ADDR or --unix PATH".into());
    }
    let scheduler = options.scheduler()?;
    let metrics = match &options.metrics {
        Some(address) => Some(
            TcpListener::bind(address)
                .map_err(|error| format!("cannot serve metrics on {address}: {error}"))?,
        ),
        None => None,
    };
    let users = options.mysql_users()?;
    let tls = options.mysql_tls()?;
    os::raise_file_limit();
    // Before the first line of output: whoever has read that may send a signal.
    let stop = os::stop_signal()?;

    let engine = Engine::new(options.engine())
        .map_err(|error| format!("cannot start the thread that flushes commits: {error}"))?;
    let handler = Arc::new(SqlishHandler::new(engine));
    let mysql = MysqlHandler::beside(&handler, users);
    let mysql = Arc::new(match tls {
        Some(tls) => mysql.offering(tls),
        None => mysql,
    });
    let mut builder = Server::builder()
        .on_event(|event| {
            if event.level() > Level::Info {
                eprintln!("sqlish serve: {event}");
            }
        })
        .scheduler(scheduler)
        .limits(options.limits());
    for (which, (tcp, unix)) in addresses.into_iter().zip(paths).enumerate() {
        let tcp = tcp.iter().map(Listen::tcp);
        let unix = unix.iter().map(Listen::unix);
        for listen in tcp.chain(unix) {
            let listen = match options.backlog {
                Some(backlog) => listen.backlog(backlog),
                None => listen,
            };
            builder = match which {
                0 => builder.listen(listen, Arc::clone(&handler)),
                1 => builder.admin(listen, Arc::clone(&handler)),
                _ => builder.listen(listen, Arc::clone(&mysql)),
            };
        }
    }
    let server = builder.build()?;
    for listener in server.handle().listeners() {
        let what = if listener.admin { "admin" } else { "listening" };
        println!("{what} on {}", listener.at);
    }
    if let Some(listener) = metrics {
        let address = listener.local_addr()?;
        metrics::serve(listener, server.handle())?;
        println!("metrics on http://{address}/metrics");
    }
    io::stdout().flush()?;

    stop.recv()?;
    let report = server.drain(options.drain_timeout);
    // Whoever read it may have gone; that is no failure of the drain.
    let _ = writeln!(io::stdout(), "{report}");
    Ok(if report.clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}
