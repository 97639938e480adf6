//! What a controller tells operators, and the server that tells it.
//!
//! | path | answer |
//! |---|---|
//! | `GET /admin/stats` | the twelve counters, who leads, the queue, the watch, the last sweep |
//! | `GET /admin/resources` | the state of every resource; `?status=failed&limit=50` |
//! | `GET /admin/resources/{id}` | the state of one |
//! | `POST /admin/resources/{id}/reconcile` | looks at one now: 202 |
//! | `GET /metrics` | all metrics, in the text format of OpenMetrics that Prometheus reads |
//! | `GET /healthz` | 200 while the process answers |
//! | `GET /readyz` | 200 once the first sweep is done, and on a standby; 503 with the reason otherwise |
//!
//! A standby is ready: it does what it is there for, and a rollout that waited for it to lead would wait for ever.
//!
//! Everybody who reaches it may look. A change needs the admin key where one is set, and where others than this machine
//! can come in nobody may change anything without one.
//!
//! The server is behind the feature `admin`; what a controller tells, [`AdminSource`], is not.

mod source;
mod worker_source;

#[cfg(feature = "admin")]
mod auth;
#[cfg(feature = "admin")]
mod connection;
#[cfg(feature = "admin")]
mod handlers;
#[cfg(feature = "admin")]
mod server;

#[cfg(feature = "admin")]
pub use auth::{AdminOptions, Exposure};
#[cfg(feature = "admin")]
pub use server::{AdminError, AdminServer};
pub use source::{
    AdminSource, ControllerStats, LastOutcome, QueueStats, Readiness, ResourceState, ResourceStatus, Role,
    SweepSummary, Triggered, WatchState,
};
