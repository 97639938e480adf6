//! A cloud on your laptop.

pub mod admin;
pub mod aws;
pub mod clock;
pub(crate) mod cloudwatch;
pub(crate) mod ec2;
pub mod faults;
pub mod recorder;
pub mod service;
pub mod world;
