//! LCM keeps a fleet of cloud workers honest: it makes what the records say and what EC2 runs converge, without
//! losing a session, leaking an instance or launching twice.
//!
//! **Deciding is pure, doing is separate.** A pass over a worker goes
//!
//! ```text
//!          observe               decide                 apply               record
//! worker ──▶ queries ──▶ Observation ──▶ Decision{effects} ──▶ Applied ──▶ StatusPatch ──▶ control plane
//! ```
//!
//! and everything that is not a call to somebody else is a function over data:
//!
//! ```
//! use lcm_sdk::{decide, DesiredStatus, Ec2State, Observation, Policy, Worker, WorkerStatus};
//!
//! // The record says running, its owner wants it running, and somebody stopped it in the console.
//! let worker: Worker = serde_json::from_str(
//!     r#"{"id": "w-1", "status": "running", "desired_status": "running", "ec2_instance_id": "i-1"}"#,
//! )?;
//! let seen = Observation::of_ec2("i-1", Ec2State::Stopped);
//! let now = "2026-02-06T08:00:00Z".parse()?;
//!
//! let decision = decide(&worker, &seen, &Policy::default(), now);
//! assert_eq!(decision.transition.unwrap().to(), WorkerStatus::Stopped);
//! assert_eq!(decision.reason.code.as_str(), "drift");
//! println!("{}", decision.reason);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The map
//! | room | what is in it | feature |
//! |---|---|---|
//! | [`core`] | every decision, as pure functions; its own map is on its front page | always |
//! | [`rehearsal`] | a worker's life against a model of EC2: see what would happen | always |
//! | `adapters` | what the real clients say, put into the core's words | `aws`, `etcd`, `cml`, `control-plane` |
//! | `runtime` | drives the core on tokio | `runtime` |
//! | `settings` | everything that can be tuned from outside | `runtime` |
//! | `conformance` | what every implementation of a port must do | `conformance` |
//!
//! With `default-features = false` the crate is the first two rooms: no network, no runtime, seconds to build.

#[cfg(feature = "runtime")]
pub mod adapters;
#[cfg(feature = "worker-controller")]
pub mod assembly;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod core;
#[cfg(feature = "runtime")]
pub mod ports;
pub mod rehearsal;
#[cfg(feature = "runtime")]
pub mod runtime;
#[cfg(feature = "runtime")]
pub mod settings;

pub use crate::core::backoff::Backoff;
pub use crate::core::decide::decide;
pub use crate::core::decision::Decision;
pub use crate::core::effect::Effect;
pub use crate::core::failure::{CallFailure, FailureKind};
pub use crate::core::fleet::FleetView;
pub use crate::core::ids::{InstanceId, SessionId, WorkerId};
pub use crate::core::instance::{Image, Instance};
pub use crate::core::observation::{Answer, Observation};
pub use crate::core::outcome::{LookAgain, Outcome};
pub use crate::core::patch::StatusPatch;
pub use crate::core::placement::eligible_workers;
pub use crate::core::policy::Policy;
pub use crate::core::query::{Queries, Query, queries};
pub use crate::core::reason::{Reason, ReasonCode};
pub use crate::core::record::{Applied, EffectResult, Record, record};
pub use crate::core::region::{RegionConfig, RegionConfigs};
pub use crate::core::secret::Secret;
pub use crate::core::session::Session;
pub use crate::core::status::{DesiredStatus, Ec2State, WorkerStatus};
pub use crate::core::template::Template;
pub use crate::core::time::Timestamp;
pub use crate::core::transition::{EdgeKind, InvalidTransition, Transition};
pub use crate::core::worker::Worker;

/// The examples of the README, run as tests.
#[cfg(all(doctest, feature = "worker-controller"))]
#[doc = include_str!("../../README.md")]
struct Readme;
