//! The load generator against servers that misbehave in one way each: whatever a server does, the
//! load ends, and what it did is counted under its name.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use study::latency;
use study::load::{Clients, Endpoint, Load, Measured, Moment};
use study::plan::{Light, Workload};

/// A window that is long enough for a few statements. Nothing is asserted about how many.
const SHORT: Duration = Duration::from_millis(30);

/// Long enough that only a hang would need it.
const LONG: Duration = Duration::from_secs(30);

/// A listening socket in a folder that goes away with it.
struct Place {
    folder: PathBuf,
    listener: Option<UnixListener>,
}

impl Place {
    fn new(backlog: i32) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "study-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(
            &socket,
            &SocketAddrUnix::new(folder.join("socket")).unwrap(),
        )
        .unwrap();
        listen(&socket, backlog).unwrap();
        Place {
            folder,
            listener: Some(socket.into()),
        }
    }

    /// Holds each conversation in a thread of its own.
    fn serve(mut self, converse: impl Fn(UnixStream) + Send + Sync + 'static) -> Place {
        let listener = self.listener.take().unwrap();
        let converse = Arc::new(converse);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let converse = Arc::clone(&converse);
                thread::spawn(move || converse(stream.unwrap()));
            }
        });
        self
    }

    fn load(&self, workload: Workload, clients: usize) -> Load {
        let endpoint = Endpoint::Unix(self.folder.join("socket"));
        Load {
            connect_within: LONG,
            drain_within: LONG,
            ..Load::new(endpoint, workload, 10, clients)
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Greets, then answers each statement by calling `answer` with its number, from 1; `false` hangs
/// up.
fn scripted(answer: impl Fn(&mut UnixStream, u32) -> bool) -> impl Fn(UnixStream) {
    move |mut stream| {
        if stream.write_all(b"READY\t1\ttest\n").is_err() {
            return;
        }
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for (n, line) in (1..).zip(lines) {
            if line.is_err() || !answer(&mut stream, n) {
                return;
            }
        }
    }
}

fn run(load: &Load) -> Measured {
    let mut clients = Clients::connect(load).unwrap();
    clients.run_for(Duration::ZERO, SHORT, |_| {}).unwrap()
}

/// Runs `clients` pings against a server that answers by `answer`.
fn ping(
    clients: usize,
    answer: impl Fn(&mut UnixStream, u32) -> bool + Send + Sync + 'static,
) -> Measured {
    run(&Place::new(128)
        .serve(scripted(answer))
        .load(Workload::Ping, clients))
}

#[test]
fn an_honest_server_is_measured_without_errors() {
    let place = Place::new(128).serve(scripted(|stream, _| stream.write_all(b"OK\n").is_ok()));
    let mut clients = Clients::connect(&place.load(Workload::Ping, 8)).unwrap();
    let mut moments = Vec::new();
    // More than one load, on the same connections.
    for _ in 0..2 {
        let measured = clients
            .run_for(SHORT, SHORT, |moment| moments.push(moment))
            .unwrap();
        assert_eq!(measured.errors.total(), 0, "{:?}", measured.errors);
        assert!(measured.completed > 0 && measured.qps() > 0.0 && !measured.latencies.is_empty());
        assert!(measured.jain > 0.0 && measured.jain <= 1.0);
    }
    moments.retain(|moment| *moment != Moment::Passes);
    assert_eq!(
        moments,
        [Moment::Opens, Moment::Closes, Moment::Opens, Moment::Closes]
    );
    assert!(clients.run_count(100, LONG).unwrap() > Duration::ZERO);
}

#[test]
fn a_reply_in_single_bytes_is_a_reply() {
    let place = Place::new(128).serve(scripted(|stream, _| {
        b"ROW\ta\\tb\nOK\t1\n"
            .iter()
            .all(|byte| stream.write_all(&[*byte]).is_ok())
    }));
    let mut clients = Clients::connect(&place.load(Workload::PointSelect, 3)).unwrap();
    clients.run_count(20, LONG).unwrap();
}

#[test]
fn a_backlog_of_one_takes_all_clients_in_the_end() {
    let place = Place::new(1).serve(scripted(|stream, _| stream.write_all(b"OK\n").is_ok()));
    let measured = run(&place.load(Workload::Ping, 200));
    assert_eq!(measured.errors.total(), 0, "{:?}", measured.errors);
}

#[test]
fn err_replies_are_counted_and_the_client_goes_on() {
    let measured = ping(2, |stream, n| {
        let reply: &[u8] = if n == 1 {
            b"ERR\t1064\tno such statement\n"
        } else {
            b"OK\n"
        };
        stream.write_all(reply).is_ok()
    });
    assert_eq!((measured.errors.refused, measured.errors.total()), (2, 2));
    assert!(measured.errors.first.unwrap().contains("no such statement"));
}

#[test]
fn a_reply_with_the_wrong_number_of_rows_is_no_success() {
    let place = Place::new(128).serve(scripted(|stream, n| {
        let reply: &[u8] = if n == 1 {
            b"OK\t0\n"
        } else {
            b"ROW\tx\nOK\t1\n"
        };
        stream.write_all(reply).is_ok()
    }));
    let measured = run(&place.load(Workload::PointSelect, 3));
    assert_eq!((measured.errors.malformed, measured.errors.total()), (3, 3));
}

#[test]
fn what_is_no_reply_or_one_too_many_is_malformed() {
    for reply in ["HELLO\n", "OK\nOK\n", "\n", "OK\nO"] {
        let measured = ping(2, move |stream, _| {
            stream.write_all(reply.as_bytes()).is_ok()
        });
        assert_eq!(
            (measured.errors.malformed, measured.errors.total()),
            (2, 2),
            "{reply:?}"
        );
    }
}

#[test]
fn a_server_that_hangs_up_is_noticed_even_when_the_end_comes_with_the_last_bytes() {
    let reply_and_leave = ping(4, |stream, n| stream.write_all(b"OK\n").is_ok() && n < 3);
    assert_eq!(
        (reply_and_leave.errors.lost, reply_and_leave.errors.total()),
        (4, 4)
    );
    let leave_in_a_reply = ping(4, |stream, n| {
        let reply: &[u8] = if n < 3 { b"OK\n" } else { b"RO" };
        stream.write_all(reply).is_ok() && n < 3
    });
    assert_eq!(
        (
            leave_in_a_reply.errors.lost,
            leave_in_a_reply.errors.total()
        ),
        (4, 4)
    );
}

#[test]
fn a_server_that_falls_silent_leaves_stuck_clients_and_the_load_still_ends() {
    for half in ["", "ROW\t1\nO"] {
        let place = Place::new(128).serve(scripted(move |stream, _| {
            stream.write_all(half.as_bytes()).is_ok()
        }));
        let load = Load {
            drain_within: SHORT,
            ..place.load(Workload::Ping, 5)
        };
        let mut clients = Clients::connect(&load).unwrap();
        let measured = clients.run_for(Duration::ZERO, SHORT, |_| {}).unwrap();
        assert_eq!(
            (measured.errors.stuck, measured.errors.total()),
            (5, 5),
            "{half:?}"
        );
        // They are out: a second load has nobody to wait for.
        let again = clients.run_for(LONG, LONG, |_| {}).unwrap();
        assert_eq!((again.completed, again.errors.total()), (0, 0));
    }
}

#[test]
fn a_count_that_is_not_reached_is_an_error() {
    let place = Place::new(128).serve(scripted(|stream, n| {
        stream.write_all(b"OK\n").is_ok() && n < 3
    }));
    let mut clients = Clients::connect(&place.load(Workload::Ping, 2)).unwrap();
    let error = clients.run_count(1_000, LONG).unwrap_err().to_string();
    assert!(error.contains("2 errors"), "{error}");
}

#[test]
fn a_server_that_refuses_or_does_not_greet_is_named_with_what_it_said() {
    let refusing = Place::new(128).serve(|mut stream| {
        let _ = stream.write_all(b"ERR\t1040\tToo many connections\n");
    });
    let error = Clients::connect(&refusing.load(Workload::Ping, 3))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("client 1 of 3") && error.contains("Too many connections"),
        "{error}"
    );

    let closing = Place::new(128).serve(drop);
    let error = Clients::connect(&closing.load(Workload::Ping, 3))
        .unwrap_err()
        .to_string();
    assert!(error.contains("client 1 of 3"), "{error}");

    let silent = Place::new(128).serve(|mut stream| {
        let _ = stream.read(&mut [0]);
    });
    let load = Load {
        connect_within: SHORT,
        ..silent.load(Workload::Ping, 3)
    };
    let error = Clients::connect(&load).unwrap_err().to_string();
    assert!(
        error.contains("client 1 of 3") && error.contains("no greeting"),
        "{error}"
    );
}

#[test]
fn a_full_backlog_that_nobody_empties_ends_at_the_deadline() {
    let place = Place::new(0);
    let load = Load {
        connect_within: SHORT,
        ..place.load(Workload::Ping, 10)
    };
    let error = Clients::connect(&load).unwrap_err().to_string();
    assert!(error.contains("cannot connect"), "{error}");
}

/// Greets, then answers each line by calling `answer` with its number, from 1, and its text; `false`
/// hangs up.
fn by_line(answer: impl Fn(&mut UnixStream, u32, &str) -> bool) -> impl Fn(UnixStream) {
    move |mut stream| {
        if stream.write_all(b"READY\t1\ttest\n").is_err() {
            return;
        }
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for (n, line) in (1..).zip(lines) {
            if !line.is_ok_and(|line| answer(&mut stream, n, &line)) {
                return;
            }
        }
    }
}

fn a_row(stream: &mut UnixStream) -> bool {
    stream.write_all(b"ROW\tx\nOK\n").is_ok()
}

/// One light statement a millisecond, two heavy clients, from the start.
fn mixed(place: &Place) -> latency::load::Load {
    latency::load::Load {
        endpoint: Endpoint::Unix(place.folder.join("socket")),
        rows: 10,
        light: Light::Open {
            clients: 4,
            rate: 1_000,
        },
        heavy: 2,
        statement: b"HEAVY\n".to_vec(),
        mix: 1.0,
        warmup: Duration::ZERO,
        cold: true,
        measure: SHORT,
        patience: LONG,
        seed: 1,
    }
}

#[test]
fn each_light_statement_that_is_due_is_measured_once_and_all_of_them_are_sent() {
    let place = Place::new(128).serve(by_line(|stream, _, _| a_row(stream)));
    let measured = latency::load::run(&mixed(&place), |_| {}).unwrap();
    assert_eq!(measured.errors.total(), 0, "{:?}", measured.errors);
    assert_eq!(measured.latencies.len(), 30, "30 ms of one a millisecond");
    assert_eq!(measured.heavy_qps.len(), 2);
    assert!(measured.heavy_qps.iter().all(|qps| *qps > 0.0));
}

#[test]
fn light_statements_that_are_never_answered_are_errors_whether_sent_or_not() {
    let place = Place::new(128).serve(by_line(|_, _, _| true));
    let load = latency::load::Load {
        heavy: 0,
        patience: SHORT,
        ..mixed(&place)
    };
    let measured = latency::load::run(&load, |_| {}).unwrap();
    assert_eq!((measured.errors.stuck, measured.errors.total()), (30, 30));
    assert_eq!((measured.latencies.len(), measured.qps), (30, 0.0));
}

#[test]
fn heavy_clients_that_are_hung_up_on_do_not_hold_the_measurement_up() {
    let place = Place::new(128).serve(by_line(|stream, _, line| line != "HEAVY" && a_row(stream)));
    let load = latency::load::Load {
        cold: false,
        ..mixed(&place)
    };
    let measured = latency::load::run(&load, |_| {}).unwrap();
    assert_eq!((measured.errors.lost, measured.errors.total()), (2, 2));
    assert!(!measured.latencies.is_empty());
    assert_eq!(measured.heavy_qps, [0.0, 0.0]);
}

#[test]
fn heavy_clients_that_are_refused_do_not_hold_the_measurement_up() {
    let place = Place::new(128).serve(by_line(|stream, _, line| match line {
        "HEAVY" => stream.write_all(b"ERR\t1064\tno\n").is_ok(),
        _ => a_row(stream),
    }));
    let load = latency::load::Load {
        cold: false,
        ..mixed(&place)
    };
    let measured = latency::load::run(&load, |_| {}).unwrap();
    assert!(measured.errors.refused >= 2 && measured.errors.total() == measured.errors.refused);
    assert_eq!(measured.heavy_qps, [0.0, 0.0]);
}

#[test]
fn a_mixed_client_begins_with_a_heavy_statement_and_then_sends_as_many_as_was_asked() {
    let counts = Arc::new([const { AtomicU32::new(0) }; 2]);
    let seen = Arc::clone(&counts);
    let place = Place::new(128).serve(by_line(move |stream, n, line| {
        let heavy = line == "HEAVY";
        // Relaxed: read when the clients have got their replies.
        seen[usize::from(heavy)].fetch_add(1, Ordering::Relaxed);
        // Hangs up on the light client, which is not to be counted.
        (heavy || n > 1) && a_row(stream)
    }));
    let load = latency::load::Load {
        light: Light::Closed { clients: 1 },
        mix: 1e-9,
        measure: Duration::from_nanos(1),
        warmup: SHORT,
        cold: false,
        ..mixed(&place)
    };
    let measured = latency::load::run(&load, |_| {}).unwrap();
    assert_eq!((measured.errors.lost, measured.errors.total()), (1, 1));
    let [light, heavy] = [&counts[0], &counts[1]].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(heavy, 2, "one for each heavy client");
    assert!(light > 2, "{light}");
}

#[test]
fn a_row_that_was_waited_for_in_vain_is_counted_and_the_transaction_begins_again() {
    // BEGIN, UPDATE (refused), ROLLBACK, then BEGIN, UPDATE, COMMIT for good.
    let place = Place::new(128).serve(scripted(|stream, n| {
        let reply: &[u8] = match n {
            2 => b"ERR\t1205\tLock wait timeout exceeded\n",
            _ => b"OK\n",
        };
        stream.write_all(reply).is_ok()
    }));
    let measured = run(&place.load(Workload::Convoy, 3));
    assert_eq!((measured.lock_timeouts, measured.errors.total()), (3, 0));
}

/// The last client to be answered holds the row when the window closes.
#[test]
fn a_transaction_that_is_under_way_at_the_end_is_ended() {
    let (committed, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counts = (Arc::clone(&committed), Arc::clone(&seen));
    let place = Place::new(128).serve(move |mut stream| {
        stream.write_all(b"READY\t1\ttest\n").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            match line.unwrap().as_str() {
                "BEGIN" => counts.1.fetch_add(1, Ordering::Relaxed),
                "COMMIT" => counts.0.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
            stream.write_all(b"OK\n").unwrap();
        }
    });
    let measured = run(&place.load(Workload::Convoy, 5));
    assert_eq!(measured.errors.total(), 0);
    let counts = [&seen, &committed].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts[0], counts[1], "what was begun has been committed");
}

#[test]
fn by_the_clock_as_much_is_sent_as_is_due_and_no_more() {
    let sent = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&sent);
    let place = Place::new(128).serve(scripted(move |stream, _| {
        count.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"OK\n").is_ok()
    }));
    let load = Load {
        rate: Some(1_000),
        ..place.load(Workload::Ping, 4)
    };
    let mut clients = Clients::connect(&load).unwrap();
    let measured = clients.run_for(Duration::ZERO, SHORT, |_| {}).unwrap();
    assert_eq!(measured.errors.total(), 0);
    // One in each slot of a millisecond, the first slot beginning with the load, which begins a
    // little before the window; however late they were sent.
    let due = measured.latencies.len();
    assert!((29..=31).contains(&due), "{due}");
    assert!(u64::from(sent.load(Ordering::Relaxed)) >= due);
}

#[test]
fn a_transaction_by_the_clock_counts_once_and_begins_again_when_it_lost_its_lock() {
    let place = Place::new(128).serve(scripted(|stream, n| {
        let reply: &[u8] = if n == 2 {
            b"ERR\t1213\tDeadlock\n"
        } else {
            b"OK\n"
        };
        stream.write_all(reply).is_ok()
    }));
    let load = Load {
        rate: Some(500),
        ..place.load(Workload::Convoy, 2)
    };
    let mut clients = Clients::connect(&load).unwrap();
    let measured = clients.run_for(Duration::ZERO, SHORT, |_| {}).unwrap();
    assert_eq!(measured.errors.total(), 0, "{:?}", measured.errors);
    let due = measured.latencies.len();
    assert!((14..=16).contains(&due), "{due}");
}

#[test]
fn what_was_due_and_never_answered_is_an_error_each() {
    let place = Place::new(128).serve(scripted(|_, _| true));
    let load = Load {
        rate: Some(1_000),
        drain_within: SHORT,
        ..place.load(Workload::Ping, 2)
    };
    let mut clients = Clients::connect(&load).unwrap();
    let measured = clients.run_for(Duration::ZERO, SHORT, |_| {}).unwrap();
    let due = measured.latencies.len();
    assert!((29..=31).contains(&due), "{due}");
    // And those that were due before the window opened, or before it was closed.
    assert!(measured.errors.stuck >= due, "{:?}", measured.errors);
    let shortest = Duration::from_nanos(measured.latencies.min());
    assert!(
        shortest >= SHORT,
        "each has waited until the end: {shortest:?}"
    );
}

#[test]
fn clients_that_join_one_after_the_other_have_all_joined_when_it_is_measured() {
    let (joined, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&joined);
    let place = Place::new(128).serve(scripted(move |stream, n| {
        count.fetch_add(u32::from(n == 1), Ordering::Relaxed);
        stream.write_all(b"OK\n").is_ok()
    }));
    let load = Load {
        ramp: SHORT,
        ..place.load(Workload::Ping, 16)
    };
    let mut clients = Clients::connect(&load).unwrap();
    clients
        .run_for(Duration::ZERO, SHORT, |moment| {
            if moment == Moment::Closes {
                seen.store(joined.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        })
        .unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 16);
}
