//! The control plane: the service that owns the worker records.
//!
//! [`Records`] are the store and hold every rule; [`http`] decodes, asks them, and encodes. The contract is
//! `openapi/control-plane.yaml`. Each change is mirrored through a [`Projection`], for watchers in etcd.
//!
//! ```
//! use fake_cloud::clock::{Clock, Pace};
//! use fake_cloud::control_plane::{Input, Records};
//!
//! let records = Records::new(Clock::new(Pace::Manual));
//! let worker = records.create_worker(Input::of(serde_json::json!({"name": "blue", "template_name": "metal"}))?)?;
//! assert_eq!(worker.status(), "pending");
//! assert_eq!(records.template("metal")?["instance_type"], "m5zn.metal");
//! # Ok::<(), fake_cloud::control_plane::Problem>(())
//! ```

mod catalogue;
mod fields;
mod fleet;
pub mod http;
mod idle;
mod input;
mod ledger;
mod license;
mod lifecycle;
mod measurements;
mod problem;
mod projection;
mod records;
mod session_endings;
mod sessions;
mod settings;
#[cfg(test)]
mod tests;
mod words;
mod worker;

pub use fleet::Filter;
pub use http::{Options, router, serve};
pub use idle::{IdleReport, Standing};
pub use input::Input;
pub use license::{Operation, Step};
pub use lifecycle::Termination;
pub use measurements::Report;
pub use problem::Problem;
pub use projection::{NoProjection, Projection};
pub use records::{Object, Records};
pub use sessions::SessionFilter;
pub use settings::{AutoPause, Dialect, Generation, IdleRules, Knows, OnKnown, Settings};
pub use words::{DESIRED, SESSION_OVER, SESSION_STATES, STATUSES};
pub use worker::{NOTES, Worker};
