//! A cloud on your laptop.

pub mod clock;
