//! Promises about last words: whoever is sent away reads why, and then the end; also one that was still
//! sending, whose unread input would have the kernel answer with a reset.

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::client::Client;
use common::{Harness, NEVER, Options, Setup, Transport, everywhere, in_the_pool, until};
use thread_group_pool::Limits;

everywhere! {
    a_login_that_fails_is_told,
    one_too_many_is_told,
    a_client_whose_command_panics_is_told,
    a_client_whose_command_fails_is_told,
    a_client_that_is_killed_is_told,
    a_silent_client_is_told,
    a_client_that_owes_the_rest_of_a_command_is_told,
    a_client_whose_command_is_too_long_is_told,
    a_client_in_a_drain_is_told,
    a_client_that_goes_on_after_its_last_command_reads_all_replies,
    words_behind_a_large_reply_are_read,
    so_many_sockets_linger_and_no_more,
    a_client_that_never_closes_is_closed_when_its_time_is_over,
}

in_the_pool! {
    a_client_that_goes_on_sending_after_its_kill_is_told,
    a_client_that_goes_on_sending_after_it_was_silent_is_told,
}

/// A server at which sockets linger until their clients have gone: no machine is too slow for that.
fn patient() -> Limits {
    Limits::default().linger_timeout(Duration::from_secs(60))
}

/// More than a read takes, and more than is read to make room for last words.
static MUCH: [u8; 300_000] = [b'x'; 300_000];

/// Nobody lingers for ever.
#[track_caller]
fn was_told(server: Harness, mut client: Client, words: &str) {
    assert_eq!(client.rest(), words);
    drop(client);
    until("nobody lingers", || server.stats().lingering == 0);
    assert_eq!(server.stats().not_lingered, 0);
    server.finish();
}

fn a_login_that_fails_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    server.stage.open_waits.store(true, SeqCst);
    server.stage.open_errors.store(1, SeqCst);
    let mut client = Client::connect_only(&server.at);
    until("it is being opened", || {
        server.stage.running("open").now == 1
    });
    client.send_bytes(&MUCH[..100_000]);
    server.stage.open("open");
    client.try_to_send(&MUCH);
    let words = "refused: the handler refused the connection\n";
    was_told(server, client, words);
}

fn one_too_many_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient().max_connections(1)));
    let mut first = server.client();
    let mut client = Client::connect_only(&server.at);
    client.send_bytes(&MUCH);
    first.ping();
    let words = "refused: too many connections (max_connections is 1)\n";
    was_told(server, client, words);
}

fn a_client_whose_command_panics_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send("PANIC");
    client.send_bytes(&MUCH);
    was_told(server, client, "farewell: the handler panicked\n");
}

fn a_client_whose_command_fails_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send("ERR");
    client.send_bytes(&MUCH);
    let words = "farewell: the handler failed: other error\n";
    was_told(server, client, words);
}

const KILLED: &str = "farewell: the connection was killed\n";

fn a_client_that_is_killed_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send("WAIT gate");
    until("it waits", || server.stage.running("WAIT").now == 1);
    client.send_bytes(&MUCH[..100_000]);
    assert!(server.handle.kill(client.id));
    server.stage.open("gate");
    was_told(server, client, &format!("waited\n{KILLED}"));
}

/// Not under thread-per-connection: there a thread has to be called out of its read.
fn a_client_that_goes_on_sending_after_its_kill_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.ping();
    assert!(server.handle.kill(client.id));
    server.until_closed_as("killed", 1);
    client.send_bytes(&MUCH);
    client.send_bytes(&MUCH);
    was_told(server, client, KILLED);
}

const SILENT: &str = "farewell: the client was silent for longer than idle_timeout\n";
const SOON: Duration = Duration::from_millis(50);

fn a_silent_client_is_told(setup: Setup) {
    let limits = patient().idle_timeout(SOON).read_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let client = server.client();
    was_told(server, client, SILENT);
}

fn a_client_that_goes_on_sending_after_it_was_silent_is_told(setup: Setup) {
    let limits = patient().idle_timeout(SOON).read_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    server.until_closed_as("idle_timeout", 1);
    client.send_bytes(&MUCH);
    client.send_bytes(&MUCH);
    was_told(server, client, SILENT);
}

fn a_client_that_owes_the_rest_of_a_command_is_told(setup: Setup) {
    let limits = patient().read_timeout(SOON).idle_timeout(NEVER);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send_bytes(b"ECHO ha");
    let words = "farewell: the rest of a command did not arrive within read_timeout\n";
    was_told(server, client, words);
}

fn a_client_whose_command_is_too_long_is_told(setup: Setup) {
    let server = setup.serve(Options::limits(patient().max_input(20_000)));
    let mut client = server.client();
    client.send_bytes(&MUCH);
    let words = "farewell: a command was longer than max_input\n";
    was_told(server, client, words);
}

fn a_client_in_a_drain_is_told(setup: Setup) {
    let mut server = setup.serve(Options::limits(patient()));
    let mut clients = server.clients(20);
    clients.iter_mut().for_each(Client::ping);
    let report = server.take_server().drain(common::AMPLE);
    assert!(report.clean(), "{report}");
    for client in &mut clients {
        assert_eq!(client.rest(), "farewell: the server is shutting down\n");
    }
    server.check(&server.stats());
}

fn a_client_that_goes_on_after_its_last_command_reads_all_replies(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send("ECHO one\nECHO two\nCLOSE");
    client.send_bytes(&MUCH);
    server.until_closed_as("handler_closed", 1);
    client.send_bytes(&MUCH);
    was_told(server, client, "one\ntwo\nbye\n");
}

/// There is no room for them when they are said.
fn words_behind_a_large_reply_are_read(setup: Setup) {
    const SIZE: usize = 20_000_000;
    let mut server = setup.serve(Options::limits(patient().output_bound(64 << 20)));
    let mut client = server.client();
    client.send(&format!("BIG {SIZE}"));
    client.read_big(0, 10);
    let running = server.take_server();
    let drain = std::thread::spawn(move || running.drain(common::AMPLE));
    client.read_big(10, SIZE);
    assert_eq!(client.rest(), "\nfarewell: the server is shutting down\n");
    let report = drain.join().expect("no panic");
    assert!(report.clean(), "{report}");
    server.check(&server.stats());
}

fn so_many_sockets_linger_and_no_more(setup: Setup) {
    let server = setup.serve(Options::limits(
        patient().max_connections(1).max_lingering(2),
    ));
    let mut first = server.client();
    let mut refused: Vec<_> = (0..5).map(|_| Client::connect_only(&server.at)).collect();
    until("all are refused", || server.stats().refused == 5);
    until("two linger", || {
        let stats = server.stats();
        (stats.lingering, stats.not_lingered) == (2, 3)
    });
    for client in &mut refused {
        assert!(client.rest().starts_with("refused: too many"));
    }
    first.ping();
    drop(refused);
    until("nobody lingers", || server.stats().lingering == 0);
    server.finish();
}

fn a_client_that_never_closes_is_closed_when_its_time_is_over(setup: Setup) {
    let limits = Limits::default().max_connections(1).linger_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut first = server.client();
    let mut refused = Client::connect_only(&server.at);
    assert!(refused.rest().starts_with("refused: too many"));
    until("its time is over", || {
        let stats = server.stats();
        stats.refused == 1 && stats.lingering == 0
    });
    // Nobody is there any more.
    if setup.transport != Transport::Tcp {
        until("a write fails", || refused.is_refused_a_byte());
    }
    first.ping();
    server.finish();
}
