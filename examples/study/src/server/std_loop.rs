//! Thread per connection as one writes it by hand on `std`: accept, spawn, and in the thread a
//! blocking read, the statements, one write. It uses nothing of the library, and it is what the
//! library's own thread-per-connection scheduler is held against, so it is made as good as the
//! shape allows: one read and one write a turn, buffers that are kept, small stacks, no Nagle.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use sqlish::{Engine, Flow, Session};

use super::answer;
use crate::load::Endpoint;

/// A statement needs a few KiB; an unoptimised build some more. Untouched pages cost nothing.
const STACK: usize = 256 * 1024;

/// Where the buffer for statements begins; it grows with a longer one.
const INPUT: usize = 4 * 1024;

/// How long to leave the clients in the backlog when there are no descriptors or threads for them.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts the acceptor; its threads live as long as the process.
pub(super) fn start(socket: Socket, endpoint: &Endpoint, engine: Arc<Engine>) -> io::Result<()> {
    let acceptor = thread::Builder::new().name("accept".into());
    match endpoint {
        #[cfg(not(unix))]
        Endpoint::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        #[cfg(unix)]
        Endpoint::Unix(_) => {
            let listener = UnixListener::from(socket);
            acceptor.spawn(move || accept(|| Ok(listener.accept()?.0), &engine))?;
        }
        Endpoint::Tcp(_) => {
            let listener = TcpListener::from(socket);
            acceptor.spawn(move || accept(|| without_delay(listener.accept()?.0), &engine))?;
        }
    }
    Ok(())
}

fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn accept<S: Read + Write + Send + 'static>(
    next: impl Fn() -> io::Result<S>,
    engine: &Arc<Engine>,
) {
    for id in 1.. {
        let Ok(stream) = next() else {
            thread::sleep(PAUSE);
            continue;
        };
        let engine = Arc::clone(engine);
        // A connection that ends with an error has ended; there is nobody to tell. One that gets no
        // thread is closed by the failed spawn, and the client counts it.
        let conversation = move || drop(converse(stream, &engine, id));
        if thread::Builder::new()
            .stack_size(STACK)
            .spawn(conversation)
            .is_err()
        {
            thread::sleep(PAUSE);
        }
    }
}

fn converse(mut stream: impl Read + Write, engine: &Arc<Engine>, id: u64) -> io::Result<()> {
    let mut session = Session::new(engine, id);
    let mut input = vec![0; INPUT];
    let mut have = 0;
    let mut out = Vec::with_capacity(1024);
    sqlish::greeting(id, &mut out)?;
    loop {
        if !out.is_empty() {
            stream.write_all(&out)?;
            out.clear();
        }
        if have == input.len() {
            input.resize(2 * have, 0);
        }
        let n = match stream.read(&mut input[have..]) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        have += n;
        let (used, flow) = answer(&mut session, &input[..have], &mut out)?;
        if let Flow::Quit = flow {
            return stream.write_all(&out);
        }
        if used < have {
            input.copy_within(used..have, 0);
        }
        have -= used;
    }
}
