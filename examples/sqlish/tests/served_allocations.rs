//! A hundred thousand commands allocate nothing once everybody is warm: not in a worker, nor in any other thread of
//! the server.
//!
//! Without the test harness, whose main thread allocates when it likes. This one and the server's are the only
//! threads, and the clients, which are all this one's, keep to buffers on the stack.

// The one way to count allocations is to be the allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sqlish::{Engine, EngineConfig, SqlishHandler};
use thread_group_pool::{
    Listen, LocalAddr, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to `System` unchanged; counting is an atomic addition.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's duties are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` through `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const COMMANDS: usize = 100_000;

/// A server that does not answer for this long is a bug.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is not a command's may allocate: the thread that has accepted the clients looks at its clock once more, a
/// stop of the whole machine has a thread created. So these commands are run so often, until none was.
const TRIES: usize = 20;

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

type Connect<'a> = &'a dyn Fn() -> Box<dyn Stream>;

/// One statement, and its whole reply.
fn send(client: &mut dyn Stream, statement: &[u8]) {
    client.write_all(statement).expect("the server is there");
}

fn receive(client: &mut dyn Stream) {
    let mut reply = [0; 512];
    let mut len = 0;
    while !reply[..len].ends_with(b"OK\n") {
        match client.read(&mut reply[len..]) {
            Ok(n) if n > 0 => len += n,
            other => panic!("a reply ends with {other:?}"),
        }
    }
}

fn commands_allocate_nothing(name: &str, connect: Connect<'_>, count: usize) {
    let mut clients: Vec<_> = (0..count).map(|_| connect()).collect();
    for client in &mut clients {
        let mut greeting = [0; 512];
        let n = client.read(&mut greeting).expect("a greeting");
        assert!(greeting[..n].ends_with(b"\n"), "{name}");
    }
    let statements: [&[u8]; 2] = [b"PING\n", b"SELECT c FROM sbtest1 WHERE id=17\n"];
    let mut run = |commands: usize| {
        for round in 0..commands.div_ceil(count) {
            for client in &mut clients {
                send(client, statements[round % 2]);
            }
            for client in &mut clients {
                receive(client);
            }
        }
    };
    run(10 * count);
    let mut seen = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let before = ALLOCATIONS.load(Relaxed);
        run(COMMANDS);
        seen.push(ALLOCATIONS.load(Relaxed) - before);
        if seen.last() == Some(&0) {
            println!("{name}, {count} clients: nothing allocated");
            return;
        }
    }
    panic!(
        "{name}, {count} clients: allocations in {COMMANDS} commands, again and again: {seen:?}"
    );
}

fn main() {
    // Both ends of all connections are here.
    let files = Rlimit {
        current: getrlimit(Resource::Nofile).maximum,
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, files).expect("up to the hard limit");
    let schedulers = [
        // One group: all share it. On a machine that is busy with other things some command always looks
        // stalled, and has a thread created; not for a second.
        Scheduler::Pool(
            PoolConfig::default()
                .groups(1)
                .handover(Duration::from_secs(1))
                .stall_limit(Duration::from_secs(1)),
        ),
        Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default()),
    ];
    for scheduler in schedulers {
        let name = match scheduler {
            Scheduler::Pool(_) => "pool",
            _ => "per-connection",
        };
        let engine = Engine::new(EngineConfig {
            rows: 1000,
            ..EngineConfig::default()
        });
        let handler = Arc::new(SqlishHandler::new(engine.expect("it needs no thread")));
        let path = std::env::temp_dir().join(format!("sqlish-{name}-{}", std::process::id()));
        let server = Server::builder()
            .scheduler(scheduler)
            .listen(Listen::unix(&path), Arc::clone(&handler))
            .listen(Listen::tcp("127.0.0.1:0"), handler)
            .build()
            .expect("the server starts");
        let tcp = server.local_addrs().iter().find_map(|at| match at {
            LocalAddr::Tcp(address) => Some(*address),
            _ => None,
        });
        let tcp = tcp.expect("it listens");
        let over_tcp = || -> Box<dyn Stream> {
            let client = TcpStream::connect(tcp).expect("it listens");
            client.set_nodelay(true).expect("it is TCP");
            client.set_read_timeout(Some(PATIENCE)).expect("not zero");
            Box::new(client)
        };
        let over_unix = || -> Box<dyn Stream> {
            let client = UnixStream::connect(&path).expect("it listens");
            client.set_read_timeout(Some(PATIENCE)).expect("not zero");
            Box::new(client)
        };
        for count in [1, 1024] {
            commands_allocate_nothing(&format!("{name}, unix"), &over_unix, count);
            commands_allocate_nothing(&format!("{name}, tcp"), &over_tcp, count);
        }
    }
}
