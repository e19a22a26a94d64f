//! Tests that need a process of their own, because they count its threads and descriptors or lower
//! its limits; and what there is to see of a process.

use std::env;
#[cfg(unix)]
use std::fs;
use std::process::{Command, abort};
use std::thread;

use super::{PATIENCE, PIECE, until};
#[cfg(unix)]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Set in the process that runs one test only.
const ALONE: &str = "TGP_TEST_ALONE";

/// Runs the body of `test` (its full name) in a process of its own.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        thread::spawn(|| {
            // Nobody else would end a process that hangs. In pieces, as all waiting here.
            (0..4 * PATIENCE.as_millis() / PIECE.as_millis()).for_each(|_| thread::sleep(PIECE));
            eprintln!("hanging");
            abort();
        });
        return body();
    }
    let this = env::current_exe().expect("a test knows its own program");
    let ran = Command::new(this)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .expect("it can be started again");
    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{test}, alone: {}\n{out}\n{err}",
        ran.status
    );
    assert!(
        out.contains("1 passed"),
        "no test has this name: {test}\n{out}"
    );
}

/// The threads of this process.
#[cfg(unix)]
pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// The open descriptors of this process, and the one that it takes to look.
#[cfg(unix)]
pub(crate) fn descriptors() -> usize {
    entries("/proc/self/fd")
}

#[cfg(unix)]
fn entries(of: &str) -> usize {
    fs::read_dir(of).expect("Linux has /proc").count()
}

/// Sees to it that so many descriptors can be open; false if the system forbids it.
#[cfg(unix)]
pub(crate) fn allow_descriptors(n: u64) -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= n) {
        return true;
    }
    let wanted = Rlimit {
        current: Some(n),
        maximum,
    };
    maximum.is_none_or(|maximum| maximum >= n) && setrlimit(Resource::Nofile, wanted).is_ok()
}

/// Handles are not short there.
#[cfg(not(unix))]
pub(crate) fn allow_descriptors(_: u64) -> bool {
    true
}

/// Sets a soft limit.
#[cfg(unix)]
pub(crate) fn limit(resource: Resource, current: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current, maximum }).expect("the soft limit is ours to set");
}

/// Leaves so much of the address space, so that threads with larger stacks cannot be had: a limit of
/// processes would not hold for root.
#[cfg(unix)]
pub(crate) fn leave_address_space(bytes: u64) {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = size
        .and_then(|size| size.trim().strip_suffix(" kB"))
        .and_then(|size| size.parse().ok())
        .expect("a size in KiB");
    limit(Resource::As, Some(kib * 1024 + bytes));
}

/// Forbids all new threads, whose stacks are larger. Those that there are have begun: until then a thread
/// takes memory, of which there is none to be had any more, and there is no process without that.
#[cfg(unix)]
pub(crate) fn forbid_threads() {
    until("all other threads sleep", others_sleep);
    leave_address_space(200 * 1024);
}

#[cfg(unix)]
fn others_sleep() -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has /proc");
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    tasks
        .flatten()
        .filter(|task| *task.file_name() != *me)
        // One that has ended meanwhile does not count.
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        .all(|stat| {
            let state = stat.rsplit(')').next();
            state.is_some_and(|state| state.trim_start().starts_with('S'))
        })
}

#[cfg(unix)]
pub(crate) fn allow_threads() {
    limit(Resource::As, getrlimit(Resource::As).maximum);
}
