//! Announced waits (stand-in until the library has them).

#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitKind {
    RowLock,
    Sleep,
}

pub(crate) fn during<R>(_kind: WaitKind, blocked: impl FnOnce() -> R) -> R {
    blocked()
}
