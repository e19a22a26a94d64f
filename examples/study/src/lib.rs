//! Load generator and tables.
