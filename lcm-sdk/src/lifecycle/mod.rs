//! Pure decisions about workers: functions over data, without I/O.
//!
//! No function here reads a clock, calls a network, logs, spawns or sleeps. The time is an argument, deadlines are
//! returned, and actions are data ([`Effect`]).
//!
//! A driver calls [`queries`], [`decide`] and [`record()`] for one worker; [`Observation`] documents the order, with an
//! example.
//!
//! # Modules and types
//! | topic | items |
//! |---|---|
//! | statuses and their changes | [`WorkerStatus`], [`DesiredStatus`], [`Ec2State`], [`transition`] |
//! | records of the control plane | [`Worker`], [`read_workers`], [`Template`], [`Session`], [`License`], [`RegionConfigs`] |
//! | responses of the cloud | [`Instance`], [`Observation`], [`Lookup`], [`CallFailure`] |
//! | configuration | [`Policy`], [`Backoff`] |
//! | decisions | [`queries`], [`decide()`], [`Decision`], [`Effect`], [`Reason`], [`Outcome`], [`Requeue`] |
//! | launches that happen exactly once | [`launch`] |
//! | results | [`record()`], [`Patch`], [`Counters`](Counts), [`Event`] |
//! | drains, idle workers, placement | [`drain`], [`IdleReport`], [`scale_down`], [`FleetView`], [`eligible_workers`] |
//! | scans and garbage collection | [`discovery`], [`orphans`] |
//! | proof of an absence | [`trust`] |

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub(crate) mod backoff;
pub(crate) mod capabilities;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod decision;
pub mod discovery;
pub mod drain;
pub(crate) mod effect;
pub(crate) mod event;
pub(crate) mod failure;
pub(crate) mod fleet;
mod handlers;
pub(crate) mod idle;
pub(crate) mod ids;
pub(crate) mod instance;
pub(crate) mod json;
pub mod launch;
pub(crate) mod license;
pub(crate) mod lookup;
mod misspelling;
pub(crate) mod observation;
pub(crate) mod observed;
pub(crate) mod open_sessions;
pub mod orphans;
pub(crate) mod outcome;
pub(crate) mod patch;
pub(crate) mod policy;
mod policy_json;
pub(crate) mod query;
pub(crate) mod reason;
pub(crate) mod record;
pub(crate) mod region;
pub mod scale_down;
pub(crate) mod secret;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod template;
pub mod time;
pub mod transition;
pub mod trust;
pub(crate) mod wire_enum;
pub(crate) mod worker;
pub(crate) mod worker_json;

pub use backoff::Backoff;
pub use capabilities::{Capabilities, ControlPlaneGeneration, Support};
pub use counters::{Counter, Counts};
pub use decision::{Addresses, Change, Changes, Decision};
pub use effect::{
    Effect, EffectName, EffectResult, EffectResultKind, IfFailed, IfLaunchRefused, IfRefused, LaunchedInstance,
};
pub use event::{Audit, Event, Notice, SessionEnd};
pub use failure::{CallFailure, Cause, FailureKind};
pub use fleet::{Eligibility, FleetView, eligibility, eligible_workers};
pub use handlers::decide;
pub use idle::{AutoPause, IdleReport};
pub use ids::{InstanceId, SessionId, WorkerId};
pub use instance::{
    Image, ImageDetails, ImageOwners, Instance, MANAGED_BY, MANAGED_BY_TAG, PROTECT_TAG, TEMPLATE_NAME_TAG,
    WORKER_ID_TAG,
};
pub use json::{FieldError, FieldWarning};
pub use license::{IntentOrigin, License, LicenseOperation, LicenseReport, RegistrationStatus, Submission};
pub use lookup::Lookup;
pub use observation::{CloudMetrics, CmlMetrics, Observation};
pub use observed::ObservedPart;
pub use outcome::{Outcome, Requeue, RequeueKind};
pub use patch::{DrainRequest, Patch, Route, Termination};
pub use policy::{ExternalStopPolicy, OrphanPolicy, Policy, ScaleDownPolicy};
pub use policy_json::PolicyError;
pub use query::{Queries, Query, queries};
pub use reason::{Detail, Reason, ReasonCode};
pub use record::{Applied, Record, record};
pub use region::{RegionConfig, RegionConfigs, RegionError};
pub use secret::Secret;
pub use session::{KnownSessionState, Session, SessionPhase, SessionState};
pub use status::{DesiredStatus, Ec2State, WorkerStatus};
pub use template::{DEFAULT_AMI_PATTERN, DEFAULT_DRAIN_TIMEOUT, Template};
#[doc(inline)]
pub use time::Timestamp;
#[doc(inline)]
pub use transition::{EdgeKind, InvalidTransition, Transition};
pub use wire_enum::{ParseEnumError, Vocabulary};
pub use worker::{Notes, NotesOnRecord, NotesReading, Worker};
pub use worker_json::{UnreadableWorker, read_workers};
