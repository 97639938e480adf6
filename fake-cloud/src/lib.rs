//! A cloud on your laptop.

pub mod admin;
pub mod aws;
pub mod clock;
pub mod cloud;
pub(crate) mod cloudwatch;
pub mod cml;
pub mod control_plane;
pub(crate) mod ec2;
pub mod etcd;
pub mod faults;
mod http_server;
pub mod interruption;
pub mod recorder;
pub mod scenario;
pub mod service;
pub mod world;
