//! Tests that look at more than one crate. They live in `tests/`.
