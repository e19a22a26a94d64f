//! Faults on purpose: each leaves out one step of a protocol, to see that a model notices.
//!
//! Under a model checker, `THREAD_GROUP_MUTANT` names the one that is on. In every other build
//! [`is`] is `false` and nothing of this is left.

/// Whether the step is to be left out.
#[cfg(not(all(test, any(loom, shuttle))))]
#[inline(always)]
pub(crate) const fn is(_: &str) -> bool {
    false
}

/// The variable that names the mutant.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) const VARIABLE: &str = "THREAD_GROUP_MUTANT";

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) fn is(name: &str) -> bool {
    static ON: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var(VARIABLE).ok());
    ON.as_deref() == Some(name)
}
