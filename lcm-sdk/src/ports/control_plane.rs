use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use crate::lifecycle::capabilities::Capabilities;
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
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

/// The control plane, which owns the records.
///
/// Required are [`workers`](Self::workers), [`worker`](Self::worker), [`write`](Self::write),
/// [`template`](Self::template) and [`sessions`](Self::sessions). The other methods have defaults for a control plane
/// without the feature; the default of each is documented.
///
/// Every write carries the [`Fence`] of the leader and returns the version of the record after it, if the server reports
/// versions.
///
/// # Promises
/// - Lists are filtered, and unreadable records are reported.
/// - Missing resources are `None`.
/// - Writes are conditional on the version, if the server keeps versions. A concurrent write is a
///   [`Conflict`](crate::FailureKind), and nothing is written.
/// - Desired statuses are written.
/// - Patches are written completely, and other fields are kept.
/// - Cleared fields are removed.
/// - Termination is idempotent. The caller ends the sessions of the worker.
/// - Drains start and are canceled.
/// - Only running workers are drained.
/// - License reports move the pending token, and are idempotent.
/// - Metrics do not change the version.
/// - Idle detection requires telemetry.
/// - Sessions are moved and terminated.
/// - Unknown instances are imported.
/// - Audit entries are stored.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// Lists workers. Implementations filter again, because older servers ignore filters they do not know.
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure>;

    /// Reads a worker; `None` if the server reported that it does not exist.
    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure>;

    /// Writes a patch that was computed for the record `worker`. If that takes several calls, the status is written last:
    /// the other fields are harmless without it.
    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure>;

    /// Reads a template by name; `None` if the server reported that it does not exist.
    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure>;

    /// Lists the sessions assigned to a worker, in every state. Must be complete: a drain waits for these sessions only.
    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure>;

    /// Moves a session. By default refused.
    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        let _ = (session, to, fence);
        Err(unsupported("moving sessions"))
    }

    /// Terminates a session. Succeeds if it has ended. By default refused.
    async fn terminate_session(
        &self,
        session: &SessionId,
        reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        let _ = (session, reason, fence);
        Err(unsupported("terminating sessions"))
    }

    /// Reports metrics collected at a time. By default discards them.
    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        let _ = (id, cloud, cml, at, fence);
        Ok(None)
    }

    /// Reports the progress of a license operation. By default refused, which keeps the operation from starting.
    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        let _ = (id, report, fence);
        Err(unsupported("license reports"))
    }

    /// Runs idle detection on the telemetry of a worker; `None` if the telemetry is unavailable. By default returns an
    /// inconclusive report, so that no worker is idle.
    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        let _ = (id, telemetry, auto_pause, fence);
        Ok(IdleCheck::default())
    }

    /// Reads the latest result of idle detection. By default returns an inconclusive report.
    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        let _ = id;
        Ok(IdleReport::default())
    }

    /// Imports instances that have no record. By default skips all.
    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        let _ = (region, fence);
        Ok(ImportSummary { skipped: instances.len(), ..ImportSummary::default() })
    }

    /// Reads the discovery settings of operators; `None` if the server has none, which is the default.
    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        Ok(None)
    }

    /// Adds an entry to the scaling audit. By default discards it.
    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        let _ = (id, audit, detail, fence);
        Ok(())
    }

    /// Clears the request to synchronize a worker, after it was synchronized. Succeeds if there is none. By default does
    /// nothing.
    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        let _ = (id, fence);
        Ok(())
    }

    /// Optional features, as far as earlier responses have shown them. By default all are unknown.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The features that the configuration of this port fixes, before any response; `None` if they are read off responses,
    /// which is the default.
    fn pinned_capabilities(&self) -> Option<Capabilities> {
        None
    }

    /// Adds the notes of a worker that was not read from this port. By default returns it as it is, because the record
    /// has all notes. See [`NotesControlPlane`](crate::providers::notes::NotesControlPlane).
    async fn with_notes(&self, worker: Worker) -> Result<Worker, CallFailure> {
        Ok(worker)
    }

    /// Deletes the notes of workers that ended long ago and that `fence` returns a fencing token for. Returns their
    /// number. By default there are none to delete.
    async fn collect_notes(
        &self,
        fence: &(dyn for<'w> Fn(&'w WorkerId) -> Option<Fence> + Send + Sync),
    ) -> Result<usize, CallFailure> {
        let _ = fence;
        Ok(0)
    }

    /// Where the notes of the workers are kept. By default on the records.
    fn notes_status(&self) -> NotesStatus {
        NotesStatus::new("record", "the control plane has no notes store")
    }

    /// Address of the service for operators, without credentials. By default returns `None`.
    fn url(&self) -> Option<String> {
        None
    }
}

/// Where the notes about workers are, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NotesStatus {
    /// `record`, `undecided`, or the kind of the store, such as `etcd`.
    pub place: &'static str,
    /// Reason for this place.
    pub reason: &'static str,
    /// Address of the store, if notes are kept there.
    pub url: Option<String>,
    /// Whether a note that was written to a record was missing at the next read.
    pub lost: bool,
}

impl NotesStatus {
    /// Notes in a place, for a reason.
    pub fn new(place: &'static str, reason: &'static str) -> Self {
        Self { place, reason, url: None, lost: false }
    }
}

fn unsupported(feature: &str) -> CallFailure {
    CallFailure::new(FailureKind::Refused, format!("this control plane does not support {feature}"))
}

/// Filter of a worker list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Lists only workers of this region.
    pub region: Option<String>,
    /// Also lists terminated workers. Default: off.
    pub with_terminated: bool,
}

impl Scope {
    /// All workers that are not terminated.
    pub const fn active() -> Self {
        Self { region: None, with_terminated: false }
    }

    /// All workers, including terminated ones.
    pub const fn everything() -> Self {
        Self { region: None, with_terminated: true }
    }
}

/// Result of listing workers.
#[derive(Debug, Clone, Default)]
pub struct WorkerListing {
    /// Records that could be parsed.
    pub workers: Vec<Worker>,
    /// Records that could not be parsed. They are reported and never written.
    pub unreadable: Vec<UnreadableWorker>,
}

/// Version of a record after a write; `None` if the server does not report versions.
pub type Version = Option<u64>;

/// Fencing token of the leader; `None` without leader election.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub Option<i64>);

/// Result of an idle check.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IdleCheck {
    /// Report of idle detection.
    pub report: IdleReport,
    /// Version of the record after the check.
    pub version: Version,
}

/// Target of a session move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionMove {
    /// Back to the scheduler: pending, without a worker.
    BackToScheduler,
    /// A retry on the same worker: instantiating.
    Retry {
        /// Number of the retry, from 1.
        attempt: u32,
    },
}

/// Result of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Number of new records.
    pub imported: usize,
    /// Number of instances without a change.
    pub skipped: usize,
    /// Number of changed records.
    pub updated: usize,
}

/// Discovery settings that operators keep in the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanSettings {
    /// Whether discovery runs; `None` leaves the switch as it was.
    pub enabled: Option<bool>,
    /// Regions to scan.
    pub regions: Vec<String>,
    /// Name pattern of the AMI.
    pub ami_name_pattern: Option<String>,
    /// Time between two scans.
    pub scan_interval: Option<std::time::Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Minimal;

    #[async_trait]
    impl ControlPlane for Minimal {
        async fn workers(&self, _: &Scope) -> Result<WorkerListing, CallFailure> {
            Ok(WorkerListing::default())
        }

        async fn worker(&self, _: &WorkerId) -> Result<Option<Worker>, CallFailure> {
            Ok(None)
        }

        async fn write(&self, _: &Worker, _: &Patch, _: Fence) -> Result<Version, CallFailure> {
            Ok(None)
        }

        async fn template(&self, _: &str) -> Result<Option<Template>, CallFailure> {
            Ok(None)
        }

        async fn sessions(&self, _: &WorkerId) -> Result<Vec<Session>, CallFailure> {
            Ok(Vec::new())
        }
    }

    #[tokio::test]
    async fn defaults_claim_nothing_was_done() {
        let (id, fence) = (WorkerId::from("w-1"), Fence::default());
        let idle = Minimal.detect_idle(&id, Some(Vec::new()), AutoPause::ServerDecides, fence).await;
        assert!(!idle.expect("a report").report.is_conclusive());
        assert!(!Minimal.idle_status(&id).await.expect("a report").is_conclusive());
        let instances = [Instance::new("i-1", crate::lifecycle::status::Ec2State::Running)];
        let imported = Minimal.import("us-east-1", &instances, fence).await.expect("a summary");
        assert_eq!((imported.imported, imported.skipped), (0, 1));
        let refused = [
            Minimal.move_session(&"s-1".into(), SessionMove::BackToScheduler, fence).await.expect_err("refused"),
            Minimal.terminate_session(&"s-1".into(), SessionEnd::DrainTimeout, fence).await.expect_err("refused"),
            Minimal.report_license(&id, LicenseReport::StartRegistration, fence).await.expect_err("refused"),
        ];
        assert!(refused.iter().all(|failure| failure.kind == FailureKind::Refused), "{refused:?}");
    }
}
