//! Keeps EC2 workers and their records in agreement.
//!
//! LCM compares the record of each worker with the instance that runs it, and repairs the difference: it launches,
//! starts, stops and terminates instances, drains sessions, and marks records whose instance is gone. No session is
//! lost, no instance leaks, and no worker is launched twice.
//!
//! Decisions are pure functions; everything that calls a service is behind a port:
//!
//! ```text
//!          observe               decide                 apply               record
//! worker ──▶ queries ──▶ Observation ──▶ Decision{effects} ──▶ Applied ──▶ Patch ──▶ control plane
//! ```
//!
//! # How do I make a decision?
//! [`decide()`] takes a worker, an observation, a policy and the time. It makes no calls:
//!
//! ```
//! use lcm_sdk::{Ec2State, Observation, Policy, Worker, WorkerStatus, decide};
//!
//! // The record is running, and the instance was stopped in the AWS console.
//! let worker: Worker = lcm_sdk::serde_json::from_str(
//!     r#"{"id": "w-1", "status": "running", "desired_status": "running", "ec2_instance_id": "i-1"}"#,
//! )?;
//! let observation = Observation::with_instance_state("i-1", Ec2State::Stopped);
//! let now = "2026-02-06T08:00:00Z".parse()?;
//!
//! let decision = decide(&worker, &observation, &Policy::default(), now);
//! assert_eq!(decision.transition.unwrap().to(), WorkerStatus::Stopped);
//! assert_eq!(decision.reason.code.as_str(), "drift");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The order of calls for a driver of its own is described in [`lifecycle`].
//!
//! # How do I try a policy without a cloud?
//! [`simulate`] plays the life of a worker against a model of EC2:
//!
//! ```
//! use lcm_sdk::simulate::Simulation;
//! use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};
//!
//! let mut worker = Worker::new("w-1", WorkerStatus::Pending);
//! worker.desired_status = Some(DesiredStatus::Running);
//! let mut simulation = Simulation::new(worker);
//! simulation.play_until_quiet(50).expect("the worker settles within 50 steps");
//! assert_eq!(simulation.worker.status, WorkerStatus::Running);
//! ```
//!
//! # How do I run a controller?
//! Settings are environment variables; several controllers elect one leader:
//!
#![cfg_attr(feature = "from-settings", doc = "```no_run")]
#![cfg_attr(not(feature = "from-settings"), doc = "```ignore")]
//! use lcm_sdk::prelude::*;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings::from_env()?;
//! let controller = lcm_sdk::from_settings::worker_controller(&settings).await?;
//! let shutdown = Shutdown::new();
//! shutdown.on_signals()?;
//! controller.run(&shutdown).await;
//! # Ok(())
//! # }
//! ```
//!
//! For resources other than workers, implement `controller::Resource` and run a `Controller`: see the example
//! `scheduler`.
//!
//! # How do I test my code?
//! `providers::memory` has an in-memory implementation of every port, with faults on demand. `conformance` has a suite
//! for each port that your own implementation must pass. The crate `fake-cloud` serves the EC2, CML, etcd and
//! control-plane APIs over the network.
//!
//! # Features
//! | feature | contents |
//! |---|---|
//! | none | [`lifecycle`], [`simulate`] and [`history`]: no network, no async runtime |
//! | `runtime` | `ports`, `controller`, `reconciler`, `workers`, `settings`, `telemetry`, `providers::memory` |
//! | `aws`, `etcd`, `cml`, `control-plane` | `providers` for these services; each includes `runtime` |
//! | `admin` | HTTP server for statistics, metrics and health |
//! | `logging` | log output as readable lines or JSON |
//! | `otel` | OpenTelemetry traces of reconciles and calls |
//! | `from-settings` | builds a worker controller with all providers from settings |
//! | `conformance`, `testing` | conformance suites; helpers for tests |
//!
//! By default all are enabled except `conformance`, `otel` and `testing`.
//!
//! # Minimum supported Rust version
#![doc = concat!("Rust ", env!("CARGO_PKG_RUST_VERSION"), ". An increase is a minor version change.")]

#[cfg(feature = "runtime")]
pub mod admin;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "runtime")]
pub mod controller;
#[cfg(feature = "from-settings")]
pub mod from_settings;
pub mod history;
pub mod lifecycle;
#[cfg(feature = "logging")]
pub mod logging;
#[cfg(feature = "otel")]
pub mod otel;
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
pub mod spans;
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

/// Attribute for implementations of the [`ports`], re-exported from the crate of the same name.
#[cfg(feature = "runtime")]
pub use async_trait::async_trait;
pub use chrono;
pub use serde_json;

/// Types and traits that most users need: `use lcm_sdk::prelude::*;`.
pub mod prelude {
    pub use crate::lifecycle::{
        CallFailure, Decision, DesiredStatus, Ec2State, Effect, EffectResult, FailureKind, Instance, InstanceId,
        Lookup, Observation, Outcome, Patch, Policy, Reason, ReasonCode, Requeue, Secret, Session, SessionId, Template,
        Timestamp, Transition, Worker, WorkerId, WorkerStatus, decide, queries, record,
    };

    #[cfg(feature = "runtime")]
    pub use crate::controller::{Controller, ControllerConfig, Resource, Shutdown};
    #[cfg(feature = "runtime")]
    pub use crate::ports::{Clock, Cml, Compute, ControlPlane, Coordination, Events, Metrics, Ports};
    #[cfg(feature = "runtime")]
    pub use crate::reconciler::{Mode, ReconcileResult, Reconciler};
    #[cfg(feature = "runtime")]
    pub use crate::settings::Settings;
    #[cfg(feature = "runtime")]
    pub use crate::telemetry::Telemetry;
    #[cfg(feature = "runtime")]
    pub use crate::workers::{WorkerController, WorkerControllerConfig};
    #[cfg(feature = "runtime")]
    pub use async_trait::async_trait;
}

/// Examples of the README and of pages, compiled as tests.
#[cfg(all(doctest, feature = "from-settings"))]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/controller.md")]
struct PagesWithProviders;

/// Examples of a page that need no feature.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../docs/start/rust.md")]
struct PagesOfTheLifecycle;
