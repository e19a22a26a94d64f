//! The peer that a Rust server has at hand: tokio, a task for each connection, set up as
//! `#[tokio::main]` does it, with as many threads as the server has CPUs. The statements run on these
//! threads, or each on the blocking pool, which is what database servers on tokio do: a statement that
//! waits for a row must not hold a thread that others need. It uses nothing of the library.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use sqlish::{Engine, Flow, Session};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};

use super::answer;
use crate::load::Endpoint;

/// Where the buffer for statements begins; it grows with a longer one.
const INPUT: usize = 4 * 1024;

/// How long to leave the clients in the backlog when there are no descriptors for them.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts the acceptor; all of it lives as long as what is returned.
pub(super) fn start(
    socket: Socket,
    endpoint: &Endpoint,
    engine: Arc<Engine>,
    threads: usize,
    blocking: bool,
) -> io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?;
    let inside = runtime.enter();
    let listener = match endpoint {
        #[cfg(not(unix))]
        Endpoint::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        #[cfg(unix)]
        Endpoint::Unix(_) => {
            let listener = std::os::unix::net::UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            Listener::Unix(UnixListener::from_std(listener)?)
        }
        Endpoint::Tcp(_) => {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            Listener::Tcp(TcpListener::from_std(listener)?)
        }
    };
    drop(inside);
    runtime.spawn(accept(listener, engine, blocking));
    Ok(runtime)
}

enum Listener {
    #[cfg(unix)]
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// The next client gets its task.
    async fn accept(&self, engine: &Arc<Engine>, id: u64, blocking: bool) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(converse(stream, Conversation::new(engine, id), blocking));
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(converse(stream, Conversation::new(engine, id), blocking));
            }
        }
        Ok(())
    }
}

async fn accept(listener: Listener, engine: Arc<Engine>, blocking: bool) {
    for id in 1.. {
        if listener.accept(&engine, id, blocking).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What a statement needs, in one box: it travels to the blocking pool and back.
struct Conversation {
    session: Session,
    input: Vec<u8>,
    have: usize,
    out: Vec<u8>,
}

impl Conversation {
    fn new(engine: &Arc<Engine>, id: u64) -> Box<Self> {
        let mut out = Vec::with_capacity(1024);
        // A `Vec` takes everything.
        let _ = sqlish::greeting(id, &mut out);
        Box::new(Self {
            session: Session::new(engine, id),
            input: vec![0; INPUT],
            have: 0,
            out,
        })
    }

    /// Runs every whole statement.
    fn run(&mut self) -> io::Result<Flow> {
        let input = &self.input[..self.have];
        let (used, flow) = answer(&mut self.session, input, &mut self.out)?;
        if used < self.have {
            self.input.copy_within(used..self.have, 0);
        }
        self.have -= used;
        Ok(flow)
    }
}

/// One that ends with an error has ended; there is nobody to tell.
async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    mut it: Box<Conversation>,
    blocking: bool,
) -> io::Result<()> {
    loop {
        if !it.out.is_empty() {
            stream.write_all(&it.out).await?;
            it.out.clear();
        }
        if it.have == it.input.len() {
            it.input.resize(2 * it.have, 0);
        }
        let have = it.have;
        match stream.read(&mut it.input[have..]).await? {
            0 => return Ok(()),
            n => it.have += n,
        }
        let flow = if blocking {
            let run = move || {
                let flow = it.run();
                (it, flow)
            };
            let (back, flow) = tokio::task::spawn_blocking(run).await?;
            it = back;
            flow?
        } else {
            it.run()?
        };
        if let Flow::Quit = flow {
            return stream.write_all(&it.out).await;
        }
    }
}
