//! A small SQL subset.
