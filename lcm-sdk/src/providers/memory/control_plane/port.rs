//! Implements [`ControlPlane`] for [`MemoryControlPlane`].

use async_trait::async_trait;
use serde_json::Value;

use super::{MemoryControlPlane, ReportedMetrics, State, Versions, no_such};
use crate::lifecycle::capabilities::{Capabilities, Support};
use crate::lifecycle::decision::{Change, Changes};
use crate::lifecycle::drain;
use crate::lifecycle::event::{Audit, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::idle::{AutoPause, IdleReport, activity_at};
use crate::lifecycle::ids::{SessionId, WorkerId};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::license::{LicenseOperation, LicenseReport};
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics};
use crate::lifecycle::patch::{Patch, Route};
use crate::lifecycle::session::{KnownSessionState, Session, SessionPhase, SessionState};
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::lifecycle::worker_json::read_workers;
use crate::ports::{
    ControlPlane, Fence, IdleCheck, ImportSummary, ScanSettings, Scope, SessionMove, Version, WorkerListing,
};

#[async_trait]
impl ControlPlane for MemoryControlPlane {
    async fn workers(&self, scope: &Scope) -> Result<WorkerListing, CallFailure> {
        let region = scope.region.as_deref().unwrap_or("*");
        let argument = if scope.with_terminated { format!("{region} with terminated") } else { region.to_owned() };
        self.read("workers", &argument, |state| {
            let wanted = |worker: &&Worker| {
                let here = scope.region.is_none() || worker.aws_region == scope.region;
                here && (scope.with_terminated || worker.status != WorkerStatus::Terminated)
            };
            let (_, unreadable) = read_workers(state.unreadable.clone());
            Ok(WorkerListing { workers: state.workers.values().filter(wanted).cloned().collect(), unreadable })
        })
    }

    async fn clear_sync(&self, id: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        self.change("clear_sync", id.as_str(), fence, |state, _| state.worker_mut(id).map(drop))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, CallFailure> {
        self.read("worker", id.as_str(), |state| Ok(state.workers.get(id).cloned()))
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Result<Version, CallFailure> {
        self.change("write", worker.id.as_str(), fence, |state, now| {
            let before = state.worker_mut(&worker.id)?.clone();
            let route = patch.route(worker.status);
            if route == Some(Route::Terminate) && before.status == WorkerStatus::Terminated {
                return Ok(before.version);
            }
            if patch.is_empty() {
                return Ok(patch.expected_version);
            }
            self.check(&before, patch)?;
            let patch = &self.without_missing_features(&before, patch)?;
            if state.writes_to_cut > 0 {
                state.writes_to_cut -= 1;
                let mut all_but_status = Patch { status: None, ..patch.clone() };
                if matches!(route, Some(Route::Drain | Route::CancelDrain)) {
                    // The drain endpoints set these together with the status.
                    all_but_status.changes.desired_status = None;
                    all_but_status.changes.drain_started_at = Change::Keep;
                }
                self.store(state, all_but_status.apply_to(&before), now);
                return Err(CallFailure::new(FailureKind::Unclear, "the connection was lost halfway"));
            }
            let mut after = patch.apply_to(&before);
            match route {
                None => {}
                Some(Route::Status) if before.status == WorkerStatus::Terminated => after.terminated_at = None,
                Some(Route::Status) => {}
                Some(Route::Terminate) => state.end_sessions(&before.id),
                Some(Route::Drain) => {
                    expect_status(&before, WorkerStatus::Running)?;
                    after.desired_status = Some(DesiredStatus::Stopped);
                    if self.capabilities.notes == Support::Yes {
                        after.notes.drain_started_at = after.notes.drain_started_at.or(Some(now));
                    }
                }
                Some(Route::CancelDrain) => {
                    expect_status(&before, WorkerStatus::Draining)?;
                    after.desired_status = Some(DesiredStatus::Running);
                    after.notes.drain_started_at = None;
                }
            }
            Ok(self.store(state, after, now))
        })
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Result<Version, CallFailure> {
        self.change("report_metrics", id.as_str(), fence, |state, _| {
            let version = state.worker_mut(id)?.version;
            let before = state.metrics.remove(id);
            let (old_cloud, old_cml) = before.map(|before| (before.cloud, before.cml)).unwrap_or_default();
            let report = ReportedMetrics { cloud: cloud.copied().or(old_cloud), cml: cml.cloned().or(old_cml), at };
            state.metrics.insert(id.clone(), report);
            Ok(version)
        })
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Result<Version, CallFailure> {
        self.change("report_license", id.as_str(), fence, |state, now| {
            let mut worker = state.worker_mut(id)?.clone();
            expect_operation(&worker, report)?;
            worker.license_reported(report);
            Ok(self.store(state, worker, now))
        })
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Result<IdleCheck, CallFailure> {
        if self.capabilities.pause_suppression == Support::No && auto_pause == AutoPause::Suppressed {
            let shows_activity = telemetry.iter().flatten().any(|event| activity_at(event).is_some());
            if telemetry.is_some() && !shows_activity {
                let feature = "idle detection without an automatic pause";
                return Err(CallFailure::not_supported(feature, "read the idle status"));
            }
        }
        self.change("detect_idle", id.as_str(), fence, |state, now| {
            let report = state.detect_idle(id, telemetry.as_deref(), auto_pause, self.idle_timeout, now);
            let report = report.ok_or_else(|| no_such("worker", id.as_str()))?;
            let worker = state.worker_mut(id)?.clone();
            // A pause changes the version, because other clients must see it; a check without one does not.
            let version = if report.auto_pause_triggered { self.store(state, worker, now) } else { worker.version };
            Ok(IdleCheck { report, version })
        })
    }

    async fn idle_status(&self, id: &WorkerId) -> Result<IdleReport, CallFailure> {
        self.read("idle_status", id.as_str(), |state| {
            let worker = state.workers.get(id).ok_or_else(|| no_such("worker", id.as_str()))?;
            Ok(state.idle_report(worker, self.idle_timeout, self.clock.now()))
        })
    }

    async fn template(&self, name: &str) -> Result<Option<Template>, CallFailure> {
        self.read("template", name, |state| Ok(state.templates.get(name).cloned()))
    }

    async fn sessions(&self, worker: &WorkerId) -> Result<Vec<Session>, CallFailure> {
        self.read("sessions", worker.as_str(), |state| {
            let of_worker = |session: &&Session| session.worker_id.as_ref() == Some(worker);
            Ok(state.sessions.values().filter(of_worker).cloned().collect())
        })
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Result<(), CallFailure> {
        if self.capabilities.session_moves == Support::No {
            return Err(CallFailure::not_supported("moving a session", "end it"));
        }
        self.change("move_session", session.as_str(), fence, |state, _| {
            let session = state.sessions.get_mut(session).ok_or_else(|| no_such("session", session.as_str()))?;
            if session.state.phase() == SessionPhase::Over {
                return Err(CallFailure::with_code(FailureKind::Conflict, "409", "the session has ended"));
            }
            match to {
                SessionMove::BackToScheduler => {
                    session.state = SessionState::Known(KnownSessionState::Pending);
                    session.worker_id = None;
                }
                SessionMove::Retry { attempt } => {
                    session.state = SessionState::Known(KnownSessionState::Instantiating);
                    session.retry_count = attempt;
                }
            }
            Ok(())
        })
    }

    async fn terminate_session(
        &self,
        session: &SessionId,
        _reason: SessionEnd,
        fence: Fence,
    ) -> Result<(), CallFailure> {
        self.change("terminate_session", session.as_str(), fence, |state, _| {
            let session = state.sessions.get_mut(session).ok_or_else(|| no_such("session", session.as_str()))?;
            if session.state.phase() != SessionPhase::Over {
                session.state = SessionState::Known(KnownSessionState::Terminated);
            }
            Ok(())
        })
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Result<ImportSummary, CallFailure> {
        self.change("import", region, fence, |state, now| {
            let mut summary = ImportSummary::default();
            for instance in instances {
                let known = state.workers.values().find(|worker| worker.ec2_instance_id.as_ref() == Some(&instance.id));
                let Some(mut worker) = known.cloned() else {
                    let mut worker = Worker::new(format!("imported-{}", instance.id), WorkerStatus::Unknown);
                    worker.aws_region = Some(region.to_owned());
                    worker.name = instance.tags.get("Name").cloned();
                    worker.ec2_instance_id = Some(instance.id.clone());
                    worker.created_at = Some(now);
                    worker.notes.launched_at = instance.launched_at;
                    self.store(state, described(worker, instance), now);
                    summary.imported += 1;
                    continue;
                };
                let before = worker.clone();
                if before.status != WorkerStatus::Terminated {
                    worker = described(worker, instance);
                }
                if worker == before {
                    summary.skipped += 1;
                } else {
                    self.store(state, worker, now);
                    summary.updated += 1;
                }
            }
            Ok(summary)
        })
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.capabilities;
        capabilities.versions = match self.versions {
            Versions::Kept => Support::Yes,
            Versions::NotKept => Support::No,
        };
        capabilities
    }

    async fn discovery_settings(&self) -> Result<Option<ScanSettings>, CallFailure> {
        self.read("discovery_settings", "", |state| Ok(state.discovery.clone()))
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Result<(), CallFailure> {
        self.change("audit", id.as_str(), fence, |state, _| {
            if self.capabilities.audits == Support::Yes {
                state.audit.push((id.clone(), audit.label(), detail.to_owned()));
            }
            Ok(())
        })
    }
}

impl MemoryControlPlane {
    /// Stores a record as a new version of itself.
    fn store(&self, state: &mut State, mut worker: Worker, now: Timestamp) -> Version {
        let before = state.workers.get(&worker.id).and_then(|before| before.version);
        worker.version = self.next(before);
        worker.updated_at = Some(now);
        self.drop_notes(&mut worker);
        let version = worker.version;
        state.workers.insert(worker.id.clone(), worker);
        version
    }

    /// The part of a patch that a server with these features stores.
    ///
    /// # Errors
    /// [`FailureKind::NotSupported`] if a feature is missing that the patch needs.
    fn without_missing_features(&self, before: &Worker, patch: &Patch) -> Result<Patch, CallFailure> {
        let Capabilities { notes, desired_status, cancel_drain, .. } = self.capabilities;
        let mut patch = patch.clone();
        let (route, desired) = (patch.route(before.status), patch.changes.desired_status);
        let is_implied = match route {
            Some(Route::Drain) => desired == Some(DesiredStatus::Stopped),
            Some(Route::CancelDrain) => desired == Some(DesiredStatus::Running),
            Some(Route::Status | Route::Terminate) | None => false,
        };
        if route == Some(Route::CancelDrain)
            && cancel_drain == Support::No
            && before.desired_status != Some(DesiredStatus::Running)
        {
            return Err(drain::cancel_unsupported());
        }
        if desired.is_some() && desired != before.desired_status && !is_implied {
            match desired_status {
                Support::Yes => {}
                Support::Unknown => patch.changes.desired_status = None,
                Support::No => return Err(CallFailure::not_supported("writing a desired status", "drain the worker")),
            }
        }
        if notes == Support::No {
            let Changes {
                ec2_instance_id, aws_region, addresses, desired_status, license_report, license_error, ..
            } = patch.changes;
            patch.changes = Changes {
                ec2_instance_id,
                aws_region,
                addresses,
                desired_status,
                license_report,
                license_error,
                ..Changes::default()
            };
        }
        Ok(patch)
    }

    fn check(&self, current: &Worker, patch: &Patch) -> Result<(), CallFailure> {
        if let Some(report) = patch.changes.license_report {
            expect_operation(current, report)?;
        }
        match (self.versions, patch.expected_version) {
            (Versions::Kept, Some(expected)) if current.version != Some(expected) => {
                let message = format!("the record is at version {:?}, expected version {expected}", current.version);
                Err(CallFailure::with_code(FailureKind::Conflict, "409", message))
            }
            (Versions::Kept | Versions::NotKept, _) => Ok(()),
        }
    }
}

impl State {
    fn end_sessions(&mut self, worker: &WorkerId) {
        for session in self.sessions.values_mut().filter(|session| session.worker_id.as_ref() == Some(worker)) {
            if session.state.phase() != SessionPhase::Over {
                session.state = SessionState::Known(KnownSessionState::Terminated);
            }
        }
    }
}

fn expect_status(worker: &Worker, expected: WorkerStatus) -> Result<(), CallFailure> {
    if worker.status == expected {
        return Ok(());
    }
    let message = format!("the worker is {}, expected {expected}", worker.status);
    Err(CallFailure::with_code(FailureKind::Conflict, "409", message))
}

/// Refuses a report about another operation than the pending one.
fn expect_operation(worker: &Worker, report: LicenseReport) -> Result<(), CallFailure> {
    let operation = match report {
        LicenseReport::StartRegistration | LicenseReport::CompleteRegistration | LicenseReport::FailRegistration => {
            LicenseOperation::Register
        }
        LicenseReport::StartDeregistration
        | LicenseReport::CompleteDeregistration
        | LicenseReport::FailDeregistration => LicenseOperation::Deregister,
    };
    match worker.license.pending_operation {
        Some(pending) if pending != operation => {
            Err(CallFailure::with_code(FailureKind::Conflict, "409", format!("{pending} is pending")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Rewrites a record from a discovered instance, as real servers do.
fn described(mut worker: Worker, instance: &Instance) -> Worker {
    worker.status = instance.state.worker_status();
    worker.public_ip.clone_from(&instance.public_ip);
    worker.private_ip.clone_from(&instance.private_ip);
    worker.ip_address = instance.address().map(str::to_owned);
    worker.instance_type.clone_from(&instance.instance_type);
    worker
}
