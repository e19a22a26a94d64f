//! A crate that embeds the pool, and has a lock of its own under loom.
//!
//! It stands for every such crate: what it shows is explained in `src/guide/loom.md`, whose code is
//! this code. Run by `RUSTFLAGS="--cfg loom" cargo test` in this folder.

pub mod row;
mod sync;

#[cfg(test)]
mod served;
