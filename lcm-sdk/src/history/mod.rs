//! Histories on disk: every decision with its input, to be decided again.
//!
//! A history is a directory of files, or one of them. A file holds one JSON object per line: a [`Header`], each policy
//! once, and the [reconciles](RecordedReconcile) with the record as read, the observation, the decision and the results.
//! Passwords, tokens and free-form data are left out; the decisions about the rest are the same.
//!
//! # How do I write one?
//! Set `LCM_HISTORY_DIR`, or give a `HistoryWriter` to a reconciler. Every reconcile that changes something is written,
//! and one in a hundred of the others.
//!
//! # How do I find out which decisions a new policy or version changes?
//! [`replay`] decides every recorded reconcile again:
//!
//! ```
//! use std::sync::Arc;
//! use lcm_sdk::history::{RecordedReconcile, ReplayPolicy, replay};
//! use lcm_sdk::{Ec2State, Observation, Policy, Worker, WorkerStatus, decide};
//!
//! let worker: Worker = lcm_sdk::serde_json::from_str(
//!     r#"{"id": "w-1", "status": "running", "desired_status": "running", "ec2_instance_id": "i-1"}"#,
//! )?;
//! let seen = Observation::with_instance_state("i-1", Ec2State::Stopped);
//! let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse()?);
//! let decision = decide(&worker, &seen, &policy, now);
//! let recorded = RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[]);
//!
//! let same = replay([Ok(recorded.clone())], &ReplayPolicy::AsRecorded)?;
//! assert!(same.is_same());
//!
//! let respect = ReplayPolicy::Changed(lcm_sdk::serde_json::json!({"external_stop_policy": "respect"}));
//! let changed = replay([Ok(recorded)], &respect)?;
//! assert_eq!(changed.differences[0].to_string(), "2026-02-06T08:00:00Z w-1: drift → external_stop: \
//!     desired_status unchanged → \"stopped\"");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod line;
mod read;
mod redact;
mod replay;
mod why;
#[cfg(feature = "runtime")]
mod write;

pub use line::{Ending, FORMAT_VERSION, Header, HistoryEncoder, RecordedDecision, RecordedReconcile};
pub use read::{HistoryError, HistoryReader};
pub use replay::{Difference, Expected, MAX_DIFFERENCES, Replay, ReplayPolicy, Summary, replay, replay_paths};
#[cfg(feature = "runtime")]
pub(crate) use why::chain;
pub use why::{RecordedStep, StepReason, why};
#[cfg(feature = "runtime")]
pub use write::{HistoryLimits, HistoryWriter};
