//! LCM next to its Rust alternatives. Both sides of a comparison run in one process in turns, so that a slow phase of
//! the machine affects both.
//!
//! | measurement | module |
//! |---|---|
//! | cost of a decision | [`decide`] |
//! | cost of a controller | [`reconciles`] and [`memory`], over the [`controllers`] |
//! | cost of a recording and its replay | [`recording`] |
//! | delay from a change to its reconcile | [`watch`] |
//! | throughput of the fake etcd | [`etcd`], on [`servers`] |
//! | time to the next leader | [`failover`] |

pub mod controllers;
pub mod decide;
pub mod etcd;
pub mod failover;
pub mod measure;
pub mod memory;
pub mod reconciles;
pub mod recording;
pub mod servers;
pub mod watch;

/// Error of a measurement.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Prints a measurement as a line of JSON on stdout; progress goes to stderr.
///
/// # Errors
/// If the measurement cannot be serialized.
pub fn report(measured: &impl serde::Serialize) -> Result<(), Error> {
    println!("{}", serde_json::to_string(measured)?);
    Ok(())
}
