//! Fake control plane: the HTTP service that owns the worker records.
//!
//! [`Records`] is the store and enforces every rule. [`http`] decodes requests, calls it and encodes the responses. The
//! contract of each [`Generation`] is in `openapi`: `control-plane-original.yaml`, the default, and
//! `control-plane-extended.yaml`. Every change is put into an [`EtcdMirror`], so that clients can watch it.
//!
//! ```
//! use fake_cloud::{Clock, Pace};
//! use fake_cloud::control_plane::{Input, Records};
//!
//! let records = Records::new(Clock::new(Pace::Manual));
//! let body = Input::from_value(serde_json::json!({"name": "blue", "template_name": "metal"}))?;
//! let worker = records.create_worker(body)?;
//! assert_eq!(worker.status(), "pending");
//! assert_eq!(records.template("metal")?["instance_type"], "m5zn.metal");
//! # Ok::<(), fake_cloud::control_plane::ApiError>(())
//! ```

mod console;
mod enums;
mod error;
mod etcd_mirror;
mod fleet;
pub mod http;
mod idle;
mod input;
mod license;
mod lifecycle;
mod original;
mod records;
mod reports;
mod sessions;
mod settings;
mod settings_and_audit;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use self::original::WRITE_CONFLICT;
pub use enums::{DESIRED_STATUSES, FINAL_SESSION_STATES, SESSION_STATES, STATUSES};
pub use error::ApiError;
pub use etcd_mirror::{EtcdMirror, NoMirror};
pub use fleet::WorkerFilter;
pub use http::{Options, router, serve};
pub use idle::{IdleReport, IdleState};
pub use input::Input;
pub use license::{LicenseOperation, LicenseStep};
pub use lifecycle::Termination;
pub(crate) use records::RecordsState;
pub use records::{Object, Records};
pub use reports::ReportKind;
pub use sessions::SessionFilter;
pub use settings::{AutoPause, Generation, IdleRules, Settings};
pub use worker::{LIFECYCLE_FIELDS, Worker};
