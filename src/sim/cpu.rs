//! The virtual cores: one run queue, round robin, time slices.
//!
//! A thread that becomes runnable goes to the tail of the queue; nobody is preempted before the
//! slice is over. That is harsher than a real kernel, where a thread that wakes often goes first:
//! a saturated core makes the monitor and the called workers wait their turn.

use std::collections::VecDeque;

/// A thread, by its place among the world's.
pub(super) type ThreadId = usize;

#[derive(Debug)]
struct Core {
    runs: Option<ThreadId>,
    last: Option<ThreadId>,
    /// What is left of the burst, and of the slice.
    burst: u64,
    slice: u64,
    /// How long it runs until the next look.
    stretch: u64,
}

#[derive(Debug)]
pub(super) struct Cpu {
    cores: Vec<Core>,
    ready: VecDeque<(ThreadId, u64)>,
    slice: u64,
    switch: u64,
}

impl Cpu {
    pub(super) fn new(cores: usize, slice: u64, switch: u64) -> Self {
        let core = || Core {
            runs: None,
            last: None,
            burst: 0,
            slice: 0,
            stretch: 0,
        };
        Self {
            cores: std::iter::repeat_with(core).take(cores.max(1)).collect(),
            ready: VecDeque::new(),
            slice: slice.max(1),
            switch,
        }
    }

    /// The thread wants to run for `burst` nanoseconds.
    pub(super) fn ready(&mut self, thread: ThreadId, burst: u64) {
        self.ready.push_back((thread, burst));
    }

    /// Puts whoever waits on an idle core. The core, and when to look at it: call until `None`.
    pub(super) fn start(&mut self) -> Option<(usize, u64)> {
        let idle = self.cores.iter().position(|core| core.runs.is_none())?;
        let (thread, burst) = self.ready.pop_front()?;
        let core = &mut self.cores[idle];
        let switch = if core.last == Some(thread) {
            0
        } else {
            self.switch
        };
        core.runs = Some(thread);
        core.last = Some(thread);
        core.burst = burst;
        core.slice = self.slice;
        core.stretch = burst.min(self.slice);
        Some((idle, switch + core.stretch))
    }

    /// The core has run for its stretch. Whose burst is over, if that is so: it stays on the core
    /// until [`go_on`](Self::go_on) or [`leave`](Self::leave).
    pub(super) fn look(&mut self, core: usize) -> Option<ThreadId> {
        let core = &mut self.cores[core];
        core.burst -= core.stretch;
        core.slice -= core.stretch;
        core.runs.filter(|_| core.burst == 0)
    }

    /// Who is on the core has more to do. When to look, unless its slice is over and others wait.
    pub(super) fn go_on(&mut self, at: usize, more: u64) -> Option<u64> {
        let core = &mut self.cores[at];
        core.burst += more;
        if core.slice == 0 {
            if !self.ready.is_empty()
                && let Some(thread) = core.runs.take()
            {
                self.ready.push_back((thread, core.burst));
                return None;
            }
            core.slice = self.slice;
        }
        core.stretch = core.burst.min(core.slice);
        Some(core.stretch)
    }

    /// Who is on the core blocks, or ends.
    pub(super) fn leave(&mut self, core: usize) {
        self.cores[core].runs = None;
    }
}
