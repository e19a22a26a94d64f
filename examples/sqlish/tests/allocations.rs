//! The statements that a benchmark sends by the million do not allocate once a session is warm.

// The one way to count allocations is to be the allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sqlish::{Engine, EngineConfig, Flow, NoAdmin, Session};

struct Counting;

thread_local! {
    // Per thread, so that the test harness's own threads do not count.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` unchanged; counting touches a const-initialised
// thread-local without a destructor, which neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

#[test]
fn the_hot_statements_do_not_allocate() {
    let engine = Engine::new(EngineConfig {
        rows: 1000,
        ..EngineConfig::default()
    })
    .expect("it needs no thread");
    let mut session = Session::new(&engine, 1);
    let mut out = Vec::with_capacity(64 * 1024);
    let mut round = || {
        out.clear();
        for statement in [
            "PING",
            "SELECT c FROM sbtest1 WHERE id=17",
            "UPDATE sbtest1 SET k=k+1 WHERE id=17;\r",
            "UPDATE sbtest1 SET c='0123456789' WHERE id=18",
            "BEGIN",
            "UPDATE sbtest1 SET k=k+1 WHERE id=19",
            "SELECT c FROM sbtest1 WHERE id=19",
            "COMMIT",
            "ECHO x",
        ] {
            let flow = session.execute(statement.as_bytes(), &mut out, &NoAdmin);
            assert!(matches!(flow, Ok(Flow::Continue)), "{statement}");
        }
    };
    round();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        round();
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert!(out.ends_with(b"OK\nROW\tx\nOK\n"));
}
