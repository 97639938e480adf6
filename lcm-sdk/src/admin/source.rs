//! What a controller tells operators about itself.

use std::collections::BTreeMap;

use serde::Serialize;

pub use crate::controller::queue::ResourceStatus;
use crate::controller::shards::HeldShard;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::wire_enum::vocabulary;

/// A controller, as operators see it.
///
/// # Assumptions
/// Every answer comes from memory and at once: the server calls these on the tasks that serve its connections.
pub trait AdminSource: Send + Sync + 'static {
    /// What the controller as a whole is doing.
    fn stats(&self) -> ControllerStats;

    /// The state of every resource it knows, in the order of their ids.
    fn resources(&self) -> Vec<ResourceState>;

    /// The state of one resource; `None` if it knows none of that id.
    fn resource(&self, id: &str) -> Option<ResourceState>;

    /// Asks for a look at a resource now. Returns before the look.
    fn trigger(&self, id: &str) -> Triggered;

    /// Whether the controller does what it is there for.
    fn readiness(&self) -> Readiness;
}

/// What a controller as a whole is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControllerStats {
    /// Who it is.
    pub instance_id: String,
    /// Whether it leads.
    pub role: Role,
    /// What its writes carry while it leads by election.
    pub fencing_token: Option<i64>,
    /// The shards it leads, each with a token of its own; left out where the fleet is not divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<HeldShard>>,
    /// How busy it is.
    pub queue: QueueStats,
    /// How the watch stands.
    pub watch: WatchState,
    /// The last sweep that came to its end.
    pub last_sweep: Option<SweepSummary>,
}

vocabulary! {
    /// Whether a controller leads.
    Role, "role" {
        /// It may change the cloud.
        Leader = "leader",
        /// Another one may.
        Standby = "standby",
    }
}

vocabulary! {
    /// How a watch stands.
    WatchState, "watch state" {
        /// Events arrive.
        Connected = "connected",
        /// It is on its way (back).
        Connecting = "connecting",
        /// It gave up for now: polling carries on, and every cycle tries again.
        GivenUp = "given_up",
        /// It is switched off, or nobody leads here.
        Off = "off",
    }
}

/// How busy a controller is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Reconciles in progress.
    pub active: usize,
    /// Resources that wait, by lane.
    pub waiting: BTreeMap<&'static str, usize>,
}

/// How a sweep over all resources went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepSummary {
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// How many resources it looked at.
    pub resources: usize,
    /// How many of them have to be retried.
    pub failed: usize,
}

/// How the reconciliation of one resource stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResourceState {
    /// Its id.
    pub resource_id: String,
    /// How it stands.
    pub status: ResourceStatus,
    /// Failures in a row.
    pub retry_count: u32,
    /// Earliest next attempt.
    pub next_retry_at: Option<Timestamp>,
    /// When it last ended well.
    pub last_reconciled_at: Option<Timestamp>,
    /// How the last look ended.
    pub last_outcome: Option<LastOutcome>,
}

/// How a look ended, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastOutcome {
    /// How.
    pub outcome: Outcome,
    /// The stable code of the reason.
    pub reason_code: String,
    /// The reason as a sentence.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

/// What came of asking for a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triggered {
    /// It will be looked at as soon as there is room.
    Queued,
    /// There is no such resource.
    NoSuchResource,
    /// Another controller leads: ask that one.
    NotLeading,
    /// The controller takes nothing on any more.
    ShuttingDown,
}

/// Whether a controller does what it is there for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It leads, and its first sweep is done.
    Ready,
    /// It waits to take over.
    Standby,
    /// Not yet, or not any more.
    NotReady {
        /// Why, as a sentence: `the first sweep has looked at 3 of 40 workers`.
        reason: String,
    },
}
