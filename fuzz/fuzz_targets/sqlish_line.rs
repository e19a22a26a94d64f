//! No lines upset a session of `sqlish`: nothing panics, each statement gets one reply, what is not
//! understood gets an `ERR`, others see nothing of a transaction before its commit, and after a `ROLLBACK`
//! nothing is left of it.
//!
//! An input is what a client sends, line by line. Two more sessions are there: one that looks, and one that
//! holds a row and a named lock throughout. Whoever waits or computes stops at once. Run it by
//! `cargo fuzz run -s none sqlish_line`, with `fuzz/seeds/sqlish_line` to start from.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sqlish::{Admin, Engine, EngineConfig, Flow, Line, Session, next_line, unterminated};

/// Whoever waits or computes stops at once.
struct Hurry;

impl Admin for Hurry {
    fn cancelled(&self) -> bool {
        true
    }
}

/// With what a statement may begin. `sqlish` knows no other; this list is the README's.
const VERBS: [&str; 21] = [
    "PING",
    "ECHO",
    "SELECT",
    "UPDATE",
    "DELETE",
    "INSERT",
    "CREATE",
    "DROP",
    "SHOW",
    "USE",
    "BEGIN",
    "START",
    "COMMIT",
    "ROLLBACK",
    "SET",
    "FLUSH",
    "KILL",
    "SUBSCRIBE",
    "LOGIN",
    "ANSWER",
    "QUIT",
];

/// Statements that end no transaction.
const WITHIN: [&str; 4] = ["SELECT", "UPDATE", "DELETE", "INSERT"];

const ROWS: u64 = 3;

fn run(session: &mut Session, statement: &[u8]) -> (Vec<u8>, Flow) {
    let mut reply = Vec::new();
    let flow = session.execute(statement, &mut reply, &Hurry);
    (reply, flow.expect("a Vec takes everything"))
}

/// Runs one that cannot fail.
fn ok(session: &mut Session, statement: &str) -> Vec<u8> {
    let (reply, flow) = run(session, statement.as_bytes());
    assert_eq!(flow, Flow::Continue, "{statement}");
    let last = reply.split(|byte| *byte == b'\n').rev().nth(1);
    let shown = String::from_utf8_lossy(&reply);
    assert!(
        last.is_some_and(|last| last.starts_with(b"OK")),
        "{statement}: {shown}"
    );
    reply
}

/// The tables whose names can be written without quotes.
fn tables(session: &mut Session) -> Vec<String> {
    let shown = ok(session, "SHOW TABLES");
    let rows = shown
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"ROW\t"));
    let plain = |name: &&[u8]| {
        !name.is_empty() && name.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9'))
    };
    rows.filter(plain)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// All rows of all tables, as this session sees them.
fn view(session: &mut Session, tables: &[String]) -> Vec<u8> {
    let all = |table: &String| ok(session, &format!("SELECT * FROM {table}"));
    tables.iter().map(all).collect::<Vec<_>>().concat()
}

/// The first word, in capitals; none if something else may come before it.
fn verb(line: &[u8]) -> Option<String> {
    let end = line
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_'));
    let word = &line[..end.unwrap_or(line.len())];
    let comment = line.starts_with(b"/") || line.starts_with(b"-") || line.starts_with(b"#");
    (!comment).then(|| String::from_utf8_lossy(word).to_ascii_uppercase())
}

/// `ROW` lines and one other.
fn assert_one_reply(reply: &[u8], line: &[u8]) {
    let shown = || {
        let (line, reply) = (
            String::from_utf8_lossy(line),
            String::from_utf8_lossy(reply),
        );
        format!("{line:?} is answered by {reply:?}")
    };
    let lines = reply
        .strip_suffix(b"\n")
        .unwrap_or_else(|| panic!("{}", shown()));
    let mut lines: Vec<_> = lines.split(|byte| *byte == b'\n').collect();
    let last = lines.pop().unwrap_or_default();
    let is = |line: &[u8], word: &[u8]| {
        let rest = line.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"\t"))
    };
    let ends = is(last, b"OK") || (is(last, b"ERR") && code(last).is_some());
    assert!(ends, "{}", shown());
    assert!(lines.iter().all(|line| is(line, b"ROW")), "{}", shown());
}

/// Of an `ERR` line.
fn code(line: &[u8]) -> Option<u16> {
    let code = line
        .strip_prefix(b"ERR\t")?
        .split(|byte| *byte == b'\t')
        .next()?;
    std::str::from_utf8(code).ok()?.parse().ok()
}

/// Nothing is left of a transaction of `session`.
fn assert_rolled_back(session: &mut Session, other: &mut Session, before: &[u8]) {
    assert!(!session.in_transaction() && !session.holds_locks());
    let tables = tables(other);
    assert_eq!(
        view(other, &tables),
        before,
        "a ROLLBACK has changed something"
    );
    // Which begins another one without autocommit, so the last look is not the session's.
    let own = view(session, &tables);
    let left = String::from_utf8_lossy(&own);
    let committed = String::from_utf8_lossy(before);
    assert_eq!(left, committed, "a change is left");
    ok(session, "ROLLBACK");
}

fuzz_target!(|data: &[u8]| {
    let config = EngineConfig {
        rows: ROWS,
        tables: 2,
        ..EngineConfig::default()
    };
    let engine = Engine::new(config).expect("it needs no thread");
    let [mut session, mut other, mut holder] = [7, 8, 9].map(|id| Session::new(&engine, id));
    ok(&mut holder, "BEGIN");
    ok(&mut holder, "UPDATE sbtest2 SET k=k+1 WHERE id=1");
    ok(&mut holder, "SELECT GET_LOCK('held', 0)");

    let mut rest = data;
    while !rest.is_empty() {
        let Line::Complete { line, consumed } = next_line(rest) else {
            let mut reply = Vec::new();
            unterminated(&mut reply).expect("a Vec takes everything");
            assert_one_reply(&reply, rest);
            break;
        };
        rest = &rest[consumed..];
        let seen = tables(&mut other);
        let before = view(&mut other, &seen);
        let was_in_transaction = session.in_transaction();
        let (reply, flow) = run(&mut session, line);

        let statement = line.trim_ascii();
        if statement.is_empty() {
            assert!(reply.is_empty() && flow == Flow::Continue, "a blank line");
            continue;
        }
        assert_one_reply(&reply, line);
        assert!(
            matches!(flow, Flow::Continue | Flow::Quit),
            "nobody parks here"
        );
        let verb = verb(statement);
        let is = |one: &&str| verb.as_deref() == Some(one);
        if verb.is_some() && !VERBS.iter().any(|one| is(&one)) {
            let code = code(&reply);
            assert!(
                matches!(code, Some(1064 | 1065 | 1300)),
                "{verb:?}: {code:?}"
            );
            assert_eq!(flow, Flow::Continue);
        }
        if was_in_transaction && session.in_transaction() && WITHIN.iter().any(|one| is(&one)) {
            assert_eq!(
                view(&mut other, &seen),
                before,
                "others see what is not committed"
            );
        }
        if statement.eq_ignore_ascii_case(b"ROLLBACK") {
            assert_eq!(reply, b"OK\n");
            assert_rolled_back(&mut session, &mut other, &before);
        }
        if flow == Flow::Quit {
            break;
        }
    }

    let seen = tables(&mut other);
    let before = view(&mut other, &seen);
    ok(&mut session, "ROLLBACK");
    assert_rolled_back(&mut session, &mut other, &before);
    ok(&mut session, "SELECT RELEASE_ALL_LOCKS()");
    let standing = session.changed_standing();
    assert!(standing.is_none_or(|standing| !standing.holding && !standing.in_transaction));
    // No row is locked: whoever had to wait for one would fail.
    ok(&mut holder, "ROLLBACK");
    for table in seen {
        for id in 1..=ROWS {
            ok(
                &mut other,
                &format!("UPDATE {table} SET k=k+1 WHERE id={id}"),
            );
        }
    }
    drop(holder);
    assert_eq!(
        Arc::strong_count(&engine),
        3,
        "the sessions that are left, and this"
    );
});
