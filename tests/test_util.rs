//! What is promised to those who test with the kit, of the handler of our own tests.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use thread_group_pool::test_util::{Chaos, Client, Kind, Kit};
use thread_group_pool::{CloseReason, Limits, under_both_schedulers};

use common::NEVER;
use common::stage::{PATTERN, Stage};

fn staged(kind: Kind) -> (Arc<Stage>, Kit<Stage>) {
    let stage = Arc::new(Stage::default());
    let kit = kind.kit().serve(Arc::clone(&stage));
    (stage, kit)
}

/// A client that has been greeted.
fn greeted(kit: &Kit<Stage>) -> Client {
    let mut client = kit.client();
    assert_eq!(client.line(), format!("hello {}", client.id()));
    client
}

fn ask(client: &mut Client, line: &str) -> String {
    client.send(format!("{line}\n"));
    client.line()
}

/// None of these is waited for.
const LONG: Duration = Duration::from_secs(2 * 3600);

under_both_schedulers! {
    fn a_client_that_is_silent_too_long_is_closed_and_one_that_is_not_is_not(kind) {
        let (_, kit) = staged(kind);
        let (mut one, mut other) = (greeted(&kit), greeted(&kit));
        let idle = Limits::default().idle_timeout;
        kit.advance(idle / 2);
        assert_eq!(ask(&mut other, "ECHO still here"), "still here");
        kit.advance(idle / 2);
        assert!(one.rest().starts_with("farewell: the client was silent"));
        assert_eq!(ask(&mut other, "ECHO still here"), "still here");
        kit.advance(idle / 2);
        drop(other);
        assert_eq!(kit.finish(), [CloseReason::IdleTimeout, CloseReason::ClientClosed]);
    }

    fn the_rest_of_a_command_has_a_time_of_its_own(kind) {
        let (stage, kit) = staged(kind);
        let read = Limits::default().read_timeout;
        let mut half = greeted(&kit);
        half.send("ECHO hal");
        // And one that blocks for it in the handler.
        let mut blocked = greeted(&kit);
        blocked.send("READ 10\nabc");
        kit.advance(read - Duration::from_millis(500));
        assert_eq!(stage.reasons(), []);
        kit.advance(read);
        assert!(half.rest().starts_with("farewell: the rest of a command"));
        assert!(blocked.rest().starts_with("farewell: the rest of a command"));
        assert_eq!(kit.finish(), [CloseReason::ReadTimeout; 2]);
    }

    fn who_takes_nothing_of_a_reply_is_closed(kind) {
        let (_, kit) = staged(kind);
        // One blocks its handler, the other does not.
        let (mut large, mut stream) = (greeted(&kit), greeted(&kit));
        large.send("BIG 10000000\n");
        stream.send("STREAM 1000000\n");
        let write = Limits::default().write_timeout;
        kit.advance(write / 2);
        assert_eq!(kit.handle().stats().connections, 2);
        kit.advance(write);
        let got = [large.rest(), stream.rest()];
        assert!(got.iter().all(|got| !got.is_empty() && PATTERN.starts_with(&got.as_bytes()[..1])));
        assert_eq!(kit.finish(), [CloseReason::WriteTimeout; 2]);
    }

    fn a_login_and_a_transaction_have_their_times(kind) {
        let stage = Arc::new(Stage::default());
        stage.asks_for_login.store(true, SeqCst);
        let limits = Limits::default().idle_in_transaction_timeout(Duration::from_secs(600));
        let kit = kind.kit().limits(limits).serve(Arc::clone(&stage));
        let mut lunch = greeted(&kit);
        assert_eq!(ask(&mut lunch, "LOGIN"), "welcome");
        assert_eq!(ask(&mut lunch, "TRANSACTION true"), "set");
        let mut stranger = greeted(&kit);
        assert_eq!(ask(&mut stranger, "CHALLENGE"), "prove it");
        kit.advance(Limits::default().login_timeout);
        assert!(stranger.rest().contains("login_timeout"));
        kit.advance(Duration::from_secs(600));
        assert!(lunch.rest().contains("in a transaction"));
        assert_eq!(kit.finish(), [CloseReason::LoginTimeout, CloseReason::IdleInTransaction]);
    }

    fn a_command_that_takes_too_long_is_told_so_and_a_sleep_ends(kind) {
        let stage = Arc::new(Stage::default());
        let limits = Limits::default().command_timeout(LONG);
        let kit = kind.kit().limits(limits).serve(stage);
        let (mut waits, mut sleeps, mut ticks) = (greeted(&kit), greeted(&kit), greeted(&kit));
        waits.send("HEED never\n");
        sleeps.send(format!("SLEEP {}\n", NEVER.as_millis()));
        assert_eq!(ask(&mut ticks, &format!("TICK {}", NEVER.as_millis())), "ticking");
        let begun = Instant::now();
        kit.advance(NEVER);
        assert_eq!((sleeps.line(), ticks.line()), ("due".into(), "due".into()));
        kit.advance(LONG);
        assert_eq!(waits.line(), "cancelled: the command took longer than command_timeout");
        assert!(begun.elapsed() < NEVER);
        drop((waits, sleeps, ticks));
        kit.finish();
    }

    fn callbacks_on_other_threads_still_report_their_waits(kind) {
        let stage = Arc::new(Stage::default());
        let kit = kind.kit().chaos(Chaos::default().other_threads()).serve(Arc::clone(&stage));
        let (mut waits, mut opens) = (greeted(&kit), greeted(&kit));
        waits.send("WAIT gate\n");
        let waiting = || kit.handle().connections().iter().any(|c| c.state.name() == "waiting");
        common::until("it waits", waiting);
        // There is one group, and the slot of who waits is free.
        assert_eq!(ask(&mut opens, "OPEN gate"), "open");
        assert_eq!(waits.line(), "waited");
        let reported = kit.handle().stats().waits.iter().map(|w| w.count).sum::<u64>();
        assert_eq!(reported, 1);
        drop((waits, opens));
        kit.finish();
    }

    fn one_byte_at_a_time_is_enough(kind) {
        let stage = Arc::new(Stage::default());
        let kit = kind.kit().chaos(Chaos::all()).serve(Arc::clone(&stage));
        let mut client = greeted(&kit);
        client.send("ECHO one\nECHO two\nREAD 3\nabc");
        assert_eq!(client.line(), "one");
        assert_eq!(client.line(), "two");
        assert_eq!(client.line(), "read abc");
        // A call for each byte of the first two commands.
        let calls = kit.handle().connections()[0].commands;
        assert!(calls >= "ECHO one\nECHO two\nREAD 3\n".len() as u64, "{calls}");
        client.end_input();
        assert_eq!(client.rest(), "");
        kit.finish();
    }

    fn a_kill_at_each_callback_ends_the_conversation_there(kind) {
        let (stage, kit) = staged(kind);
        let mut killed = 0;
        for n in 1..100 {
            let mut client = kit.doomed_client(n);
            client.try_send("ECHO one\nAGAIN 2\nECHO two\n");
            client.end_input();
            let got = client.rest();
            let whole = format!("hello {}\none\nagain 2\ntwo\n", client.id());
            assert!(whole.starts_with(got.split("farewell").next().unwrap_or_default()), "{got}");
            if got == whole {
                break;
            }
            killed += 1;
        }
        // `open`, four or more calls, one of them for the end of input.
        assert!((5..20).contains(&killed), "{killed}");
        let reasons = kit.finish();
        let kills = reasons.iter().filter(|why| **why == CloseReason::Killed).count();
        assert_eq!(kills, killed);
        assert_eq!(stage.sessions().opened, stage.sessions().dropped);
    }
}
