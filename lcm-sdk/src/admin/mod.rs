//! HTTP server for operators: statistics, metrics, health and reconcile requests.
//!
//! | endpoint | response |
//! |---|---|
//! | `GET /` | the web console, for a browser |
//! | `GET /admin/stream` | all changes as server-sent events for the console; the first message is the whole state |
//! | `GET /admin/stats` | counters, role, queue, watch and last sweep |
//! | `GET /admin/resources` | state of every resource; accepts `?status=failed&limit=50` |
//! | `GET /admin/resources/{id}` | state of one resource |
//! | `POST /admin/resources/{id}/reconcile` | 202; the resource is reconciled at once. Accepts `{"reason": …, "requested_by": …}` |
//! | `GET /admin/events` | `{"next", "events"}`: the reconciles of all workers that changed something or went wrong; `?from=<next>` continues without a gap |
//! | `GET /admin/workers/{id}` | `{"id", "record", "queue", "history", "known", "sessions", "sessions_error"}`: the record without secrets, the state as in `/admin/resources/{id}`, the last reconciles that changed something or went wrong, the oldest first, the instance and CML as last seen, and the sessions |
//! | `POST /admin/workers/{id}/explain` | `{"at", "record", "observed", "plan", "what_if", "next"}`: what a reconcile would do now and why, without doing it; works on a standby as well |
//! | `POST /admin/workers/{id}/drain` | 200; the worker drains. Accepts `{"reason": …, "requested_by": …}` |
//! | `POST /admin/workers/{id}/cancel-drain` | 200; the worker is back in service. Accepts the same. 501 if the control plane cannot cancel a drain |
//! | `GET /admin/leader-status` | role, leader and fencing token |
//! | `GET /admin/fleet` | same as `/admin/resources` |
//! | `GET /admin/operations` | the last reconcile of every resource and the operations requested here, the newest first; accepts the same as `/admin/resources` |
//! | `GET /admin/discovery` | the last runs of discovery with their verdicts, the newest first |
//! | `POST /admin/trigger-reconcile` | 202; one worker (`{"worker_id": …}`) or all are reconciled at once |
//! | `POST /admin/resign-leadership` | 202; the controller finishes reconciles in progress, revokes its lease and stands by |
//! | `GET /metrics` | all metrics in the text format of Prometheus, or in the OpenMetrics format if the client accepts it |
//! | `GET /healthz` | 200 while the process serves requests and its run loop moves; otherwise 503 |
//! | `GET /readyz` | 200 after the first sweep and on a standby; otherwise, and while etcd or the control plane cannot be reached, 503 with the reason |
//!
//! The original controller has other paths, which are served as well: `/api/health`, `/api/ready`, `/api/info`,
//! `/api/metrics`, and under `/api/admin` `stats`, `leader-status`, `fleet`, `operations`, `trigger-reconcile` and
//! `resign-leadership`.
//!
//! A standby is ready: a rollout that waited for it to lead would never end.
//!
//! A change needs the admin key if one is set; without a key, changes are accepted from this host only, and from web pages
//! only if they are the console's own. Reads need no key, except what only the console shows: on a server that is open to
//! the network, `/admin/stream`, `/admin/workers/…`, `/admin/events` and `/admin/discovery` need it. The files of the
//! console contain no data and need no key.
//!
//! The server needs the feature `admin`; the data it serves, [`AdminSource`], does not.

mod source;
mod worker_source;

#[cfg(feature = "admin")]
mod auth;
#[cfg(feature = "admin")]
mod console;
#[cfg(feature = "admin")]
mod handlers;
#[cfg(feature = "admin")]
mod server;
#[cfg(feature = "admin")]
mod stream;

#[cfg(feature = "admin")]
pub use auth::{AdminOptions, Exposure};
#[cfg(feature = "admin")]
pub use server::{AdminError, AdminServer};
pub use source::{
    AdminSource, ControllerStats, ExternalStopStatus, LastOutcome, NotReady, Operation, OperationRequest,
    OutcomeReason, QueueStats, Refusal, ResourceSummary, Role, SweepSummary, Triggered, Waiting, WorkerReport,
};
