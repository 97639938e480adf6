//! LCM keeps a fleet of cloud workers honest: it makes what the records say and what EC2 runs converge, without
//! losing a session, leaking an instance or launching twice.
//!
//! **Deciding is pure, doing is separate.** A pass over a worker goes
//!
//! ```text
//!          observe               decide                 apply               record
//! worker ──▶ queries ──▶ Observation ──▶ Decision{effects} ──▶ Applied ──▶ Patch ──▶ control plane
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
//! let seen = Observation::with_instance_state("i-1", Ec2State::Stopped);
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
//! | [`lifecycle`] | every decision, as pure functions; its own map is on its front page | always |
//! | [`simulate`] | a worker's life against a model of EC2: see what would happen | always |
//! | `providers` | what the real clients say, put into the core's words | `aws`, `etcd`, `cml`, `control-plane` |
//! | `runtime` | drives the core on tokio | `runtime` |
//! | `settings` | everything that can be tuned from outside | `runtime` |
//! | `conformance` | what every implementation of a port must do | `conformance` |
//!
//! With `default-features = false` the crate is the first two rooms: no network, no runtime, seconds to build.

#[cfg(feature = "runtime")]
pub mod admin;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "runtime")]
pub mod controller;
#[cfg(feature = "worker-controller")]
pub mod from_settings;
pub mod lifecycle;
#[cfg(feature = "logging")]
pub mod logging;
#[cfg(feature = "runtime")]
pub mod ports;
#[cfg(feature = "runtime")]
pub mod providers;
#[cfg(feature = "runtime")]
pub mod reconciler;
#[cfg(feature = "runtime")]
pub mod resilience;
#[cfg(feature = "runtime")]
pub mod settings;
pub mod simulate;
#[cfg(feature = "runtime")]
pub mod telemetry;
#[cfg(feature = "runtime")]
pub mod workers;

#[doc(inline)]
pub use lifecycle::{
    Applied, Backoff, CallFailure, Decision, DesiredStatus, Ec2State, EdgeKind, Effect, EffectResult, FailureKind,
    FleetView, Image, Instance, InstanceId, InvalidTransition, Lookup, Observation, Outcome, Patch, Policy, Queries,
    Query, Reason, ReasonCode, Record, RegionConfig, RegionConfigs, Requeue, Secret, Session, SessionId, Template,
    Timestamp, Transition, Worker, WorkerId, WorkerStatus, decide, eligible_workers, queries, record,
};

/// The examples of the README, run as tests.
#[cfg(all(doctest, feature = "worker-controller"))]
#[doc = include_str!("../../README.md")]
struct Readme;
