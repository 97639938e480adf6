//! HTTP server for operators: statistics, metrics, health and reconcile requests.
//!
//! | endpoint | response |
//! |---|---|
//! | `GET /admin/stats` | counters, role, queue, watch and last sweep |
//! | `GET /admin/resources` | state of every resource; accepts `?status=failed&limit=50` |
//! | `GET /admin/resources/{id}` | state of one resource |
//! | `POST /admin/resources/{id}/reconcile` | 202; the resource is reconciled at once |
//! | `GET /metrics` | all metrics in the OpenMetrics text format |
//! | `GET /healthz` | 200 while the process serves requests |
//! | `GET /readyz` | 200 after the first sweep and on a standby; otherwise 503 with the reason |
//!
//! A standby is ready: a rollout that waited for it to lead would never end.
//!
//! Reads need no key. A change needs the admin key if one is set; without a key, changes are accepted from this host
//! only.
//!
//! The server needs the feature `admin`; the data it serves, [`AdminSource`], does not.

mod source;
mod worker_source;

#[cfg(feature = "admin")]
mod auth;
#[cfg(feature = "admin")]
mod handlers;
#[cfg(feature = "admin")]
mod server;

#[cfg(feature = "admin")]
pub use auth::{AdminOptions, Exposure};
#[cfg(feature = "admin")]
pub use server::{AdminError, AdminServer};
pub use source::{
    AdminSource, ControllerStats, LastOutcome, NotReady, QueueStats, ResourceSummary, Role, SweepSummary, Triggered,
};
