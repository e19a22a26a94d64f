//! Promises about single turns, each with the cause that the test gives it, and about the last turn of a pool: what
//! several threads would have to bring about together, one after the other.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Server;
use super::bed::Bed;
use super::events::Events;
use super::pool::Pool;
use super::registry::{ConnState, Registry};
use crate::command::Cause as Cancelled;
use crate::config::{IO_CHUNK, Limits, PoolConfig, Scheduler, ThreadPerConnectionConfig};
use crate::conn::{self, Conn, Resume};
use crate::handler::{CloseReason, Handler, Next, Woken};
use crate::os::bell::Bell;
use crate::os::clock::Clock;
use crate::os::socket::Socket;
use crate::port::Readiness;
use crate::sched::{End, Nanos, Told, Wake};
use crate::serve::{Budget, Cause, Connection, Place, Served};
use crate::sync::{Condvar, Mutex};

/// More than a socket takes whose other end reads nothing.
const MUCH: usize = 8 << 20;

/// Does what its client's lines say, and notes for what it was called.
#[derive(Default)]
struct Notes {
    called: Mutex<Vec<String>>,
    resume: Mutex<Option<Resume>>,
    closes: Mutex<Vec<CloseReason>>,
    gate: Gate,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    bell: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock() = true;
        self.bell.notify_all();
    }

    fn pass(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.bell.wait(&mut open);
        }
    }
}

impl Handler for Notes {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()
    }

    fn command(&self, (): &mut (), conn: &mut Conn) -> io::Result<Next> {
        let buffered = conn.buffered();
        let Some(end) = buffered.iter().position(|byte| *byte == b'\n') else {
            return Ok(Next::input());
        };
        let line = String::from_utf8_lossy(&buffered[..end]).into_owned();
        conn.consume(end + 1);
        self.called.lock().push(line.clone());
        let (word, size) = line.split_once(' ').unwrap_or((&line, "0"));
        let size = size.parse().expect("a length");
        conn.write_all(&vec![b'x'; size])?;
        Ok(match word {
            "again" => Next::again(),
            "park" => {
                *self.resume.lock() = Some(conn.resume());
                Next::park()
            }
            "stream" => Next::flush(),
            "detach" => Next::detach(),
            "wait" => {
                self.gate.pass();
                Next::input()
            }
            _ => Next::input(),
        })
    }

    fn woken(&self, (): &mut (), _: &mut Conn, why: Woken) -> io::Result<Next> {
        self.called.lock().push(format!("{why:?}"));
        Ok(match why {
            Woken::Flushed => Next::flush(),
            _ => Next::input(),
        })
    }

    fn detached(&self, (): &mut (), conn: &mut Conn) -> io::Result<()> {
        assert!(conn.handle().kill());
        Ok(())
    }

    fn close(&self, (): (), why: CloseReason) {
        self.closes.lock().push(why);
        // Who waits goes on when somebody else has been closed.
        self.gate.open();
    }
}

/// A connection in the hands of the test, and its client.
struct Hand {
    client: UnixStream,
    notes: Arc<Notes>,
    served: Served<Notes>,
    /// What its handle leads to.
    _server: Server,
    /// Where a resume goes.
    _bed: Arc<Bed>,
}

impl Hand {
    /// It has been opened, and has nothing to do.
    fn new(budget: Budget) -> Self {
        let mut hand = Self::unopened(budget, Arc::default());
        assert_eq!(hand.turn(Wake::default()), IDLE);
        hand
    }

    fn unopened(budget: Budget, notes: Arc<Notes>) -> Self {
        let scheduler = Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default());
        let server = Server::builder().scheduler(scheduler).build();
        let server = server.expect("a server without listeners");
        let bell = Arc::new(Bell::new().expect("a descriptor"));
        let events = Arc::new(Events::new(None));
        let registry = Arc::new(Registry::new(Clock::start(), bell, events));
        let (client, stream) = UnixStream::pair().expect("two descriptors");
        let limits = Arc::new(Limits::default().output_bound(2 * MUCH));
        let socket = Socket::accepted(stream.into());
        let shared = registry.admit(&limits, socket).expect("there is room");
        let bed = Bed::new();
        let place: std::sync::Weak<Bed> = Arc::downgrade(&bed);
        let place: std::sync::Weak<dyn conn::Place> = place;
        shared.place(place);
        shared.placed(0);
        let conn = Conn::new(shared, limits, server.handle(), registry, 0);
        Self {
            client,
            served: Served::new(Arc::clone(&notes), conn, budget),
            notes,
            _server: server,
            _bed: bed,
        }
    }

    fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).expect("it fits");
    }

    fn turn(&mut self, wake: Wake) -> End {
        let cause = Cause { wake, now: None };
        self.served.advance(Place::Thread, cause, &mut None).end
    }

    /// For what the handler has been called since the last look.
    fn called(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.called.lock())
    }

    fn closed(&self) -> Option<CloseReason> {
        self.notes.closes.lock().last().copied()
    }

    /// Parks it, with so much output that it has not all left.
    fn park(&mut self, output: usize) {
        self.send(&format!("park {output}\n"));
        assert!(matches!(self.turn(input()), End::Park { .. }));
        assert_eq!(self.called(), [format!("park {output}")]);
    }
}

const IDLE: End = End::Idle { in_command: false };

fn input() -> Wake {
    Wake {
        ready: Readiness::READABLE,
        ..Wake::default()
    }
}

fn close(why: CloseReason) -> Wake {
    Wake {
        close: Some(why),
        ..Wake::default()
    }
}

fn told(mut wake: Wake, told: Told) -> Wake {
    wake.tell(told);
    wake
}

fn due(wake: Wake) -> Wake {
    told(wake, Told::DUE)
}

fn poked(wake: Wake) -> Wake {
    told(wake, Told::POKED)
}

#[test]
fn whatever_else_has_come_cancels_the_time() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.turn(due(Wake::default()));
    assert_eq!(hand.called(), ["Due"]);
    hand.turn(due(poked(Wake::default())));
    assert_eq!(hand.called(), ["Poked"]);
    hand.send("line\n");
    hand.turn(due(input()));
    assert_eq!(hand.called(), ["line"]);
    // Input is nothing that a park waits for.
    hand.park(0);
    hand.send("behind\n");
    hand.turn(due(input()));
    assert_eq!(hand.called(), ["Due", "behind"]);
}

#[test]
fn who_runs_again_lets_the_others_go_first() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send("again\nline\n");
    assert_eq!(hand.turn(input()), End::Again);
    assert_eq!(hand.called(), ["again"]);
    assert_eq!(hand.turn(Wake::default()), IDLE);
    assert_eq!(hand.called(), ["Again", "line"]);
}

#[test]
fn no_more_replies_are_made_for_who_does_not_take_those_that_wait() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send(&format!("big {MUCH}\nline\n"));
    assert!(matches!(hand.turn(input()), End::Flush { .. }));
    assert_eq!(hand.called(), [format!("big {MUCH}")]);
    // Few of them are no reason to wait, nor is a client that takes what there is.
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send(&format!(
        "some {}\nline\nmore {IO_CHUNK}\nlast\n",
        IO_CHUNK - 1
    ));
    assert_eq!(hand.turn(input()), IDLE);
    assert_eq!(hand.called().len(), 4);
}

#[test]
fn a_turn_ends_when_its_time_is_over() {
    let budget = |time| Budget {
        commands: u32::MAX,
        time,
    };
    // The clock is started by the second command.
    let mut hand = Hand::new(budget(Nanos(0)));
    hand.send("one\ntwo\nthree\n");
    assert_eq!(hand.turn(input()), End::Again);
    assert_eq!(hand.called(), ["one", "two"]);
    assert_eq!(hand.turn(Wake::default()), IDLE);
    assert_eq!(hand.called(), ["three"]);
    let mut hand = Hand::new(budget(Nanos::from_duration(Duration::from_secs(3600))));
    hand.send("one\ntwo\nthree\n");
    assert_eq!(hand.turn(input()), IDLE);
    assert_eq!(hand.called().len(), 3);
}

#[test]
fn in_a_drain_a_client_is_served_once_more_and_no_more() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send("early\n");
    assert_eq!(hand.turn(close(CloseReason::Draining)), IDLE);
    assert_eq!(hand.called(), ["early"]);
    hand.send("late\n");
    assert_eq!(hand.turn(close(CloseReason::Draining)), End::Closed);
    assert!(hand.called().is_empty());
    assert_eq!(hand.closed(), Some(CloseReason::Draining));
}

#[test]
fn who_is_told_that_no_more_is_read_still_gets_the_reply_to_what_had_come() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    // As much as one read takes, so that another one follows.
    let size = format!(" {MUCH}\n");
    hand.send(&format!("{}{size}", "x".repeat(IO_CHUNK - size.len())));
    hand.served.conn().shared().end_input(CloseReason::Draining);
    assert!(matches!(hand.turn(input()), End::Flush { .. }));
    assert_eq!(hand.closed(), None);
    let mut client = hand.client.try_clone().expect("a descriptor");
    let read = std::thread::spawn(move || io::copy(&mut client, &mut io::sink()));
    while !matches!(hand.turn(Wake::default()), End::Closed) {
        std::thread::yield_now();
    }
    assert_eq!(hand.closed(), Some(CloseReason::Draining));
    drop(hand);
    let got = read.join().expect("no panic").expect("no error");
    assert_eq!(got, MUCH as u64);
}

#[test]
fn blocking_code_that_meets_the_end_of_input_between_two_commands_has_been_left_by_its_client() {
    struct Blocking(Mutex<Option<CloseReason>>);
    impl Handler for Blocking {
        type Session = ();
        fn open(&self, conn: &mut Conn) -> io::Result<()> {
            conn.logged_in()
        }
        fn command(&self, (): &mut (), conn: &mut Conn) -> io::Result<Next> {
            let mut frame = [0; 2];
            conn.read_exact(&mut frame)?;
            Ok(Next::input())
        }
        fn close(&self, (): (), why: CloseReason) {
            *self.0.lock() = Some(why);
        }
    }
    let threads = Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default());
    for scheduler in [threads, Scheduler::default()] {
        for (sent, why) in [
            (&b"abcd"[..], CloseReason::ClientClosed),
            (b"abc", CloseReason::Handler(io::ErrorKind::UnexpectedEof)),
        ] {
            let handler = Arc::new(Blocking(Mutex::default()));
            let server = Server::builder().scheduler(scheduler.clone()).build();
            let server = server.expect("a server without listeners");
            let (mut client, stream) = UnixStream::pair().expect("two descriptors");
            let attached = server.handle().attach(stream, Arc::clone(&handler));
            attached.expect("there is room");
            client.write_all(sent).expect("it fits");
            client
                .shutdown(std::net::Shutdown::Write)
                .expect("it is open");
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).expect("an end");
            assert!(server.drain(Duration::from_secs(60)).clean());
            assert_eq!(*handler.0.lock(), Some(why));
        }
    }
}

#[test]
fn who_streams_to_a_client_that_reads_fast_is_told_of_a_kill_before_all_has_been_sent() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send("stream\nline\n");
    assert_eq!(hand.turn(input()), End::Again);
    assert_eq!(hand.turn(Wake::default()), End::Again);
    assert_eq!(hand.called(), ["stream", "Flushed"]);
    let shared = hand.served.conn().shared();
    let number = shared.command().current().expect("it runs");
    assert!(shared.cancel_command(number, Cancelled::Killed));
    assert_eq!(hand.turn(told(Wake::default(), Told::INTERRUPTED)), IDLE);
    assert_eq!(hand.called(), ["Cancelled", "line"]);
}

#[test]
fn a_command_that_goes_on_for_long_is_charged_for_the_input_that_it_has_not_read_yet() {
    const ROUNDS: usize = 64;
    const MESSAGE: usize = 400_000;
    /// Sends messages, and waits for a byte after each, which may come while it is on its way.
    struct Feeds(Mutex<Option<CloseReason>>);
    impl Handler for Feeds {
        type Session = ();
        fn open(&self, conn: &mut Conn) -> io::Result<()> {
            conn.logged_in()
        }
        fn command(&self, (): &mut (), conn: &mut Conn) -> io::Result<Next> {
            conn.read_exact(&mut [0])?;
            for _ in 0..ROUNDS {
                conn.write_all(&[0; MESSAGE])?;
                conn.flush()?;
                conn.read_exact(&mut [0])?;
            }
            Ok(Next::close())
        }
        fn close(&self, (): (), why: CloseReason) {
            *self.0.lock() = Some(why);
        }
    }
    let threads = Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default());
    for scheduler in [threads, Scheduler::default()] {
        let handler = Arc::new(Feeds(Mutex::default()));
        let limits = Limits::default().input_budget(ROUNDS / 2 * IO_CHUNK);
        let limits = limits.max_input(IO_CHUNK).max_login_input(IO_CHUNK);
        let server = Server::builder()
            .scheduler(scheduler)
            .limits(limits)
            .build();
        let server = server.expect("a server without listeners");
        let (mut client, stream) = UnixStream::pair().expect("two descriptors");
        let attached = server.handle().attach(stream, Arc::clone(&handler));
        attached.expect("there is room");
        client.write_all(b"!").expect("it fits");
        let mut message = vec![0; MESSAGE];
        for _ in 0..ROUNDS {
            let (begin, rest) = message.split_at_mut(1000);
            client.read_exact(begin).expect("a message");
            let held = server.handle().stats().input_bytes;
            client.write_all(b"!").expect("it fits");
            // Read ahead, while the rest of the message waits for room.
            let begun = Instant::now();
            while server.handle().stats().input_bytes == held {
                assert!(begun.elapsed() < Duration::from_secs(60), "it is not read");
                std::thread::yield_now();
            }
            client.read_exact(rest).expect("the rest of it");
        }
        assert_eq!(client.read(&mut message).expect("an end"), 0);
        assert!(server.drain(Duration::from_secs(60)).clean());
        assert_eq!(*handler.0.lock(), Some(CloseReason::HandlerClosed));
    }
}

#[test]
fn who_is_to_be_served_is_not_silent() {
    // Something is queued for its handler, ...
    let mut hand = Hand::new(Budget::UNBOUNDED);
    assert_eq!(hand.turn(poked(close(CloseReason::IdleTimeout))), IDLE);
    assert_eq!(hand.called(), ["Poked"]);
    // ... is in the buffer already, ...
    let one = Budget {
        commands: 1,
        ..Budget::UNBOUNDED
    };
    let mut hand = Hand::new(one);
    hand.send("one\ntwo\n");
    assert_eq!(hand.turn(input()), End::Again);
    assert_eq!(hand.turn(close(CloseReason::IdleTimeout)), IDLE);
    assert_eq!(hand.called(), ["one", "two"]);
    // ... or waits to leave.
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send(&format!("big {MUCH}\n"));
    assert!(matches!(hand.turn(input()), End::Flush { .. }));
    let end = hand.turn(close(CloseReason::Draining));
    assert!(matches!(end, End::Flush { .. }), "{end:?}");
    // And who is not, is.
    let mut hand = Hand::new(Budget::UNBOUNDED);
    assert_eq!(hand.turn(close(CloseReason::IdleTimeout)), End::Closed);
    assert_eq!(hand.closed(), Some(CloseReason::IdleTimeout));
}

#[test]
fn who_is_resumed_does_not_wait_for_a_client_that_does_not_read() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.park(MUCH);
    let resumed = told(Wake::default(), Told::RESUMED);
    assert!(matches!(hand.turn(resumed), End::Flush { .. }));
    assert_eq!(hand.called(), ["Resumed"]);
}

#[test]
fn a_resume_counts_though_a_poke_has_ended_its_park() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.park(0);
    let resume = hand.notes.resume.lock().take().expect("it has parked");
    assert!(resume.resume());
    assert_eq!(hand.turn(poked(Wake::default())), IDLE);
    assert_eq!(hand.called(), ["Poked", "Resumed"]);
    // One that has not been used does not count any more, and nobody is told.
    hand.park(0);
    assert_eq!(hand.turn(poked(Wake::default())), IDLE);
    assert_eq!(hand.called(), ["Poked"]);
    let resume = hand.notes.resume.lock().take().expect("it has parked");
    assert!(!resume.resume());
}

#[test]
fn who_is_killed_while_detached_was_killed_whatever_its_handler_says() {
    let mut hand = Hand::new(Budget::UNBOUNDED);
    hand.send("detach\n");
    assert_eq!(hand.turn(input()), End::Closed);
    assert!(hand.served.is_detached());
    hand.served.run_detached();
    assert_eq!(hand.closed(), Some(CloseReason::Killed));
    let mut end = Vec::new();
    assert_eq!(hand.client.read_to_end(&mut end).expect("its end"), 0);
}

/// It runs while the pool is sent home, and is alive when its turn is over.
#[test]
fn who_comes_back_from_the_last_turn_of_its_pool_is_closed() {
    let config = PoolConfig::default()
        .groups(1)
        .handover(Duration::from_secs(60))
        .stall_limit(Duration::from_secs(60));
    let bell = Arc::new(Bell::new().expect("a descriptor"));
    let clock = Clock::start();
    let registry = Registry::new(clock.clone(), bell, Arc::new(Events::new(None)));
    let pool = Pool::start(&config, &Limits::default(), &Arc::new(registry), &clock);
    let pool = pool.expect("it starts");
    let notes = Arc::new(Notes::default());
    let attach = || {
        let hand = Hand::unopened(Budget::UNBOUNDED, Arc::clone(&notes));
        let Hand {
            client,
            mut served,
            _server: server,
            ..
        } = hand;
        let shared = Arc::downgrade(served.conn().shared());
        let attached = pool.attach(&shared.upgrade().expect("it lives"), Box::new(served));
        assert!(attached.is_ok());
        (client, server, shared)
    };
    let until = |holds: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    };
    let idle = attach();
    until(&|| {
        idle.2
            .upgrade()
            .is_some_and(|shared| shared.state() == ConnState::Idle)
    });
    let mut busy = attach();
    busy.0.write_all(b"wait\n").expect("it fits");
    until(&|| *notes.called.lock() == ["wait"]);
    let far = Instant::now() + Duration::from_secs(60);
    assert_eq!(pool.stop(far), []);
    // The one that is idle is closed first, and then the other one goes on.
    assert_eq!(pool.join(far), []);
    assert_eq!(*notes.closes.lock(), [CloseReason::Killed; 2]);
    for (mut client, ..) in [idle, busy] {
        let mut end = Vec::new();
        assert_eq!(client.read_to_end(&mut end).expect("its end"), 0);
    }
}
