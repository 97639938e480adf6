//! Applying: carrying a decision's effects out, in order, one at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::controller::shards::ScaleDownLock;
use crate::lifecycle::decision::{Change, Changes, Decision};
use crate::lifecycle::effect::{Effect, EffectResult, IfRefused};
use crate::lifecycle::event::{Event, SessionEnd};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::license::Submission;
use crate::lifecycle::patch::Patch;
use crate::lifecycle::record::Applied;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;
use crate::ports::{CloudEvent, IdleCheck, SessionMove, Version};
use crate::reconciler::Reconciler;
use crate::reconciler::cache::{WriteKind, follows};
use crate::telemetry::Anomaly;

/// A wish to stop between two effects. What was begun is finished and recorded.
#[derive(Debug, Default)]
pub(crate) struct CancelFlag(AtomicBool);

impl CancelFlag {
    pub(crate) fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Carries a decision out while a lock lasts: when it ends, nothing more is begun.
///
/// # Errors
/// If it ended before anything was done: what was decided may be wrong by now.
pub(crate) async fn run_while_leased(
    lock: Option<&ScaleDownLock>,
    cancel: &CancelFlag,
    applying: impl Future<Output = Applied>,
) -> Result<Applied, CallFailure> {
    let Some(right) = lock.map(ScaleDownLock::right) else { return Ok(applying.await) };
    tokio::pin!(applying);
    let applied = tokio::select! {
        biased;
        () = right.lost() => {
            cancel.request();
            applying.await
        }
        applied = &mut applying => applied,
    };
    if right.is_valid() || applied.did_something() {
        return Ok(applied);
    }
    let message = "counting the fleet took too long; another controller may be counting it now";
    Err(CallFailure::new(FailureKind::Conflict, message))
}

impl Reconciler {
    /// Carries a decision out. Each effect is tried only while the right to lead holds and nobody wants the pass to
    /// end; one that others build on takes them down with it.
    pub(crate) async fn apply(
        &self,
        worker: &Worker,
        decision: Decision,
        cancel: &CancelFlag,
        at: Timestamp,
    ) -> Applied {
        let mut applied = Applied { decision, results: Vec::new(), at, version: None };
        let effects = std::mem::take(&mut applied.decision.effects);
        let mut stopped = false;
        for effect in &effects {
            let result = if stopped || cancel.is_requested() || !self.leadership().is_valid() {
                EffectResult::NotTried
            } else {
                tokio::select! {
                    biased;
                    // A call may wait for its lock long after the right was looked at; it must not be made then.
                    () = self.leadership().lost(), if effect.changes_cloud() => {
                        let message = "the lead was lost while this was under way";
                        EffectResult::Failed(CallFailure::new(FailureKind::Unclear, message))
                    }
                    result = self.carry_out(worker, effect, &mut applied.version, at) => result,
                }
            };
            if effect.changes_cloud() && !matches!(result, EffectResult::NotTried) {
                self.cache().mark_mutated(&worker.id);
            }
            match &result {
                EffectResult::Failed(failure) => {
                    tracing::warn!(target: "lcm::apply", worker = %worker.id, %effect, %failure, "an effect failed");
                    stopped |= effect.stops_the_rest();
                }
                EffectResult::Planned | EffectResult::NotTried => stopped = true,
                EffectResult::Done | EffectResult::Launched(_) | EffectResult::IdleChecked(_) => {
                    tracing::info!(target: "lcm::apply", worker = %worker.id, %effect, "done");
                }
            }
            applied.results.push(result);
        }
        applied.decision.effects = effects;
        applied
    }

    async fn carry_out(&self, worker: &Worker, effect: &Effect, version: &mut Version, at: Timestamp) -> EffectResult {
        let ports = self.ports();
        let (control_plane, fence) = (&ports.control_plane, self.leadership().fence());
        match effect {
            Effect::RecordLaunchPlan { plan, begun_at } => {
                let changes = Changes {
                    launch_plan: Change::Set(plan.clone()),
                    launched_at: Some(*begun_at),
                    ..Changes::default()
                };
                self.note(worker, changes, version, at).await
            }
            Effect::RecordLicenseAttempt { attempted } => {
                let changes = Changes { license_attempt: Some(attempted.clone()), ..Changes::default() };
                self.note(worker, changes, version, at).await
            }
            Effect::LaunchInstance { plan, .. } => match ports.compute.launch(plan).await {
                Ok(instance) => EffectResult::Launched(instance),
                Err(failure) => EffectResult::Failed(failure),
            },
            Effect::StartInstance { instance } => match self.region(worker) {
                Ok(region) => done(ports.compute.start(region, instance).await),
                Err(failure) => EffectResult::Failed(failure),
            },
            Effect::StopInstance { instance } => match self.region(worker) {
                Ok(region) => done(ports.compute.stop(region, instance).await),
                Err(failure) => EffectResult::Failed(failure),
            },
            Effect::TerminateInstance { instance } => match self.region(worker) {
                Ok(region) => done(ports.compute.terminate(region, instance).await),
                Err(failure) => EffectResult::Failed(failure),
            },
            Effect::ReportMetrics { cloud, cml } => {
                let reported = control_plane.report_metrics(&worker.id, cloud.as_ref(), cml.as_ref(), at, fence).await;
                if reported.is_ok() {
                    self.cache().mark_metrics_reported(&worker.id, at);
                }
                self.written(worker, reported, version, WriteKind::Unconditional)
            }
            Effect::DetectIdle { telemetry, auto_pause } => {
                let check = control_plane.detect_idle(&worker.id, telemetry.clone(), *auto_pause, fence).await;
                match check {
                    Ok(IdleCheck { report, version: left }) => {
                        self.cache().mark_idle_checked(&worker.id, ports.clock.now());
                        let _done = self.written(worker, Ok(left), version, WriteKind::Unconditional);
                        EffectResult::IdleChecked(report)
                    }
                    Err(failure) => EffectResult::Failed(failure),
                }
            }
            Effect::ReportLicense { report } => {
                let reported = control_plane.report_license(&worker.id, *report, fence).await;
                self.written(worker, reported, version, WriteKind::Unconditional)
            }
            Effect::SubmitLicense { submission, address } => {
                done(self.submit_license(worker, *submission, address).await)
            }
            Effect::HandBackSession { session, if_refused } => {
                let moved = control_plane.move_session(session, SessionMove::BackToScheduler, fence).await;
                match (moved, if_refused) {
                    (Ok(()), _) => EffectResult::Done,
                    // Only what the server does not take back is ended. That it could not be asked is no refusal.
                    (Err(failure), IfRefused::Terminate) if is_refusal(failure.kind) => {
                        done(control_plane.terminate_session(session, SessionEnd::DrainTimeout, fence).await)
                    }
                    (Err(failure), IfRefused::KeepWaiting | IfRefused::Terminate) => EffectResult::Failed(failure),
                }
            }
            Effect::RetrySession { session, attempt } => {
                done(control_plane.move_session(session, SessionMove::Retry { attempt: *attempt }, fence).await)
            }
            Effect::TerminateSession { session, reason } => {
                done(control_plane.terminate_session(session, *reason, fence).await)
            }
            Effect::Announce { event } => done(self.announce(worker.id.as_str(), event, at).await),
        }
    }

    async fn submit_license(&self, worker: &Worker, submission: Submission, address: &str) -> Result<(), CallFailure> {
        let target = self.target_at(worker, address.to_owned());
        let cml = &self.ports().cml;
        let token = || {
            let missing = || CallFailure::new(FailureKind::Conflict, "the record has no token to register");
            worker.license.pending_token.as_ref().ok_or_else(missing)
        };
        match submission {
            Submission::Register => cml.register(&target, token()?).await,
            Submission::Reregister => cml.reregister(&target, token()?).await,
            Submission::Deregister => cml.deregister(&target).await,
        }
    }

    /// Writes a note to the record in the middle of a pass.
    async fn note(&self, worker: &Worker, changes: Changes, version: &mut Version, at: Timestamp) -> EffectResult {
        let mut patch = Patch::from_changes(worker, changes, at);
        patch.expected_version = version.or(patch.expected_version);
        let written = self.ports().control_plane.write(worker, &patch, self.leadership().fence()).await;
        self.written(worker, written, version, WriteKind::Conditional)
    }

    /// Keeps the version that a write left, so that the next one is not refused because of ourselves; but not if
    /// somebody else wrote in between: then the next one must be refused, because it was decided on what was before.
    fn written(
        &self,
        worker: &Worker,
        written: Result<Version, CallFailure>,
        version: &mut Version,
        kind: WriteKind,
    ) -> EffectResult {
        match written {
            Ok(left) => {
                self.cache().mark_written(&worker.id, left, kind);
                let ours = match kind {
                    WriteKind::Conditional => left,
                    WriteKind::Unconditional => left.filter(|left| follows(version.or(worker.version), *left)),
                };
                *version = ours.or(*version);
                EffectResult::Done
            }
            Err(failure) => EffectResult::Failed(failure),
        }
    }

    /// Tells everyone who listens. An event that cannot be delivered is logged and counted; nothing waits for it.
    pub(crate) async fn announce(&self, subject: &str, event: &Event, at: Timestamp) -> Result<(), CallFailure> {
        let event = CloudEvent::about(subject, event, at);
        let published = self.ports().events.publish(&event).await;
        if let Err(failure) = &published {
            tracing::warn!(target: "lcm::events", subject, kind = event.kind, %failure, "an event was not delivered");
            self.telemetry().count_anomaly(Anomaly::EventUndelivered);
        }
        published
    }
}

const fn is_refusal(kind: FailureKind) -> bool {
    match kind {
        FailureKind::Refused | FailureKind::Conflict => true,
        FailureKind::Throttled
        | FailureKind::NoCapacity
        | FailureKind::Unclear
        | FailureKind::Unreachable
        | FailureKind::Unparsable
        | FailureKind::LaunchDied => false,
    }
}

fn done(result: Result<(), CallFailure>) -> EffectResult {
    match result {
        Ok(()) => EffectResult::Done,
        Err(failure) => EffectResult::Failed(failure),
    }
}
