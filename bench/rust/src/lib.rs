//! LCM next to what one would use instead, where that is Rust. Both sides of a comparison are measured in one run, in
//! turns, so that what else the machine does hits both alike.
//!
//! | question | room |
//! |---|---|
//! | What does a decision cost? | [`decide`] |
//! | What does a controller cost? | [`reconciles`], [`memory`], over the [`controllers`] |
//! | How soon is a change looked at? | [`watch`] |
//! | How fast is the fake etcd? | [`etcd`], on [`servers`] |
//! | How soon does somebody else lead? | [`failover`] |

pub mod controllers;
pub mod decide;
pub mod etcd;
pub mod failover;
pub mod measure;
pub mod memory;
pub mod reconciles;
pub mod servers;
pub mod watch;

/// Why something could not be measured.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Tells what was measured: a line of JSON on stdout. What else there is to say goes to stderr.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn tell(measured: &impl serde::Serialize) -> Result<(), Error> {
    println!("{}", serde_json::to_string(measured)?);
    Ok(())
}
