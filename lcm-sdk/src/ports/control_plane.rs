use async_trait::async_trait;
use serde_json::Value;

use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::idle::{AutoPause, IdleReport};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::LicenseReport;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::session::Session;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::lifecycle::worker_json::UnreadableWorker;

/// The control plane: the owner of the records.
///
/// Writes to a record are conditional on a version where the server keeps versions; a failure of kind
/// [`Conflict`](crate::FailureKind) means that somebody wrote in between and nothing was written. Every write carries
/// the leader's [`Fence`], and gives the version the record has after it, if the server tells.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// Lists workers. A record that cannot be read is told apart, never dropped. Implementations filter what the
    /// server sent once more, because an older server ignores what it does not know.
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure>;

    /// Reads one worker; `None` if the server said that there is none.
    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure>;

    /// Writes a patch. `worker` is the record the patch was made for. Where one call cannot carry everything, the status
    /// comes last: what else is written before it does no harm if it stays alone, the other way round it might.
    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure>;

    /// Reports metrics that were collected at a moment.
    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure>;

    /// Reports how a licence operation goes. Reporting the same again is a success.
    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure>;

    /// Asks idle detection about a worker. `telemetry` is what CML told; `None` if it could not be read, which is
    /// not the same as nothing.
    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure>;

    /// The last verdict of idle detection, changing nothing.
    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure>;

    /// A template by name; `None` if the server said that there is none.
    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure>;

    /// The sessions assigned to a worker, in every state.
    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure>;

    /// Moves a session.
    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure>;

    /// Ends a session. One that has ended already is a success.
    async fn terminate_session(&self, session: &SessionId, reason: SessionEnd, fence: Fence)
    -> Result<(), CallFailure>;

    /// Imports instances that nobody knows.
    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure>;

    /// What operators set for discovery; `None` from a server that keeps no such settings.
    async fn discovery_settings(&self) -> Result<Option<DiscoverySettings>, CallFailure>;

    /// Adds an entry to the scaling audit.
    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure>;
}

/// Which workers to list. It is an argument of the call, never shared state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only those of one region.
    pub region: Option<String>,
    /// Whether terminated ones are listed too.
    pub with_terminated: bool,
}

impl Scope {
    /// All but terminated ones.
    pub const fn living() -> Self {
        Self { region: None, with_terminated: false }
    }

    /// All, terminated ones included.
    pub const fn everything() -> Self {
        Self { region: None, with_terminated: true }
    }
}

/// What a listing gave.
#[derive(Debug, Clone, Default)]
pub struct WorkerListing {
    /// The records that could be read.
    pub workers: Vec<Worker>,
    /// Those that could not: skipped, counted, reported, never written.
    pub unreadable: Vec<UnreadableWorker>,
}

/// The version of a record after a write; `None` from a server that does not tell.
pub type Version = Option<u64>;

/// The leader's fencing token on a write; none where nobody is elected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub Option<i64>);

/// An idle check and what it did to the record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IdleCheck {
    /// The verdict.
    pub report: IdleReport,
    /// The version after it.
    pub version: Version,
}

/// Where a session is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionMove {
    /// Back to the scheduler: pending, without a worker.
    BackToScheduler,
    /// Tried again on the same worker: instantiating, with its count of retries.
    Retry {
        /// Which attempt, counted from one.
        attempt: u32,
    },
}

/// What the server did with instances to import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// New records.
    pub imported: usize,
    /// Left alone.
    pub skipped: usize,
    /// Records it changed.
    pub updated: usize,
}

/// What operators set for discovery in the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverySettings {
    /// Whether discovery runs.
    pub enabled: bool,
    /// The regions to scan.
    pub regions: Vec<String>,
    /// Name pattern of the AMI.
    pub ami_name_pattern: Option<String>,
    /// Time between two scans.
    pub scan_interval: Option<std::time::Duration>,
}
