//! Simulates the lifecycle of a worker against a model of EC2, without network and without waiting.
//!
//! Decisions are those of the controller; only EC2, CML and the control plane are models. Use it to test a policy or to
//! show what would happen to a worker.
//!
//! ```
//! use lcm_sdk::simulate::Simulation;
//! use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};
//!
//! let mut worker = Worker::new("w-1", WorkerStatus::Pending);
//! worker.desired_status = Some(DesiredStatus::Running);
//! let mut simulation = Simulation::new(worker);
//! let steps = simulation.play_until_quiet(50).expect("the worker settles");
//!
//! assert_eq!(simulation.worker.status, WorkerStatus::Running);
//! let transitions: Vec<_> = steps.iter().filter_map(|record| record.transition).map(|step| step.to_string()).collect();
//! assert_eq!(transitions, ["pending → provisioning (commanded)", "provisioning → running (commanded)"]);
//! ```

mod compare;
mod ec2;
mod events;
mod history;
mod rng;
mod run;
mod scenario;

use std::time::Duration;

pub use compare::{Comparison, compare};
pub use ec2::{ACCOUNT_ID, Catalog, Ec2Model};
pub use events::{
    CallLimit, ConsoleAction, ConsoleEvent, DesiredEvent, DrainAction, DrainEvent, Events, Fleet, LicenseEvent,
    LicenseResult, Member, Outage, OutageFailure, PlannedSession, Spread,
};
pub use history::{Figures, History, Inputs, Refusal, SessionFigures, Step, UnknownWorker};
pub use run::{SimulationError, run};
pub use scenario::{Scenario, ScenarioError};

use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::{Effect, EffectResult, IfRefused, LaunchedInstance};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::license::{RegistrationStatus, Submission};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics, Observation};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::record::{Applied, Record, record};
use crate::lifecycle::region::RegionConfig;
use crate::lifecycle::session::{KnownSessionState, Session, SessionState};
use crate::lifecycle::template::Template;
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::trust::{Caller, Place};
use crate::lifecycle::worker::Worker;

/// A worker and the services around it. Every field may be changed between two steps, as an operator, a user or another
/// user of the AWS console would.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Record of the worker.
    pub worker: Worker,
    /// EC2 in the region of the worker.
    pub ec2: Ec2Model,
    /// Sessions assigned to the worker.
    pub sessions: Vec<Session>,
    /// Template of the worker; `None` if it does not exist.
    pub template: Option<Template>,
    /// License registration of the CML system.
    pub registration: RegistrationStatus,
    /// How long a registration that was submitted takes. Default: until the time is advanced.
    pub registration_time: Duration,
    /// Result of a registration. Default: completed.
    pub registration_result: LicenseResult,
    /// Result of idle detection.
    pub idle: IdleReport,
    /// Number of running workers in the fleet.
    pub running_workers: usize,
    /// When another worker of the fleet was last scaled down.
    pub last_scale_down_at: Option<Timestamp>,
    /// When a metrics loop beside the reconciles last reported the worker's metrics. Default: never.
    pub metrics_reported_at: Option<Timestamp>,
    /// Policy that decisions follow.
    pub policy: Policy,
    /// Current simulated time.
    pub now: Timestamp,
    /// Time between two reconciles. Default: 30 s.
    pub step: Duration,
    /// Number of the instances of other workers, so that ids are unique in a fleet.
    other_instances: u64,
    /// When the license was submitted to CML.
    submitted_at: Option<Timestamp>,
}

/// One reconcile of a simulation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reconciled {
    /// The record as it was read.
    pub worker: Worker,
    /// The observation.
    pub observation: Observation,
    /// The decision.
    pub decision: Decision,
    /// Result of each effect that was tried.
    pub results: Vec<EffectResult>,
    /// The record of the results.
    pub record: Record,
}

impl Simulation {
    /// A simulation with the region and template of the worker, and without instances.
    pub fn new(mut worker: Worker) -> Self {
        let region = worker.aws_region.get_or_insert_with(|| "us-east-1".to_owned()).clone();
        let template = worker.template_name.get_or_insert_with(|| "metal".to_owned()).clone();
        let mut policy = Policy::default();
        policy.regions = policy.regions.with_region(region, RegionConfig::new("subnet-1", ["sg-1"]));
        let now = worker.created_at.unwrap_or(Timestamp::UNIX_EPOCH);
        worker.created_at = Some(now);
        worker.version = worker.version.or(Some(1));
        Self {
            worker,
            ec2: Ec2Model::default(),
            sessions: Vec::new(),
            template: Some(Template::new(template, "m5zn.metal")),
            registration: RegistrationStatus::from_wire("NOT_REGISTERED"),
            registration_time: Duration::ZERO,
            registration_result: LicenseResult::Completed,
            idle: IdleReport::default(),
            running_workers: 1,
            last_scale_down_at: None,
            metrics_reported_at: None,
            policy,
            now,
            step: Duration::from_secs(30),
            other_instances: 0,
            submitted_at: None,
        }
    }

    /// Numbers new instances from here on.
    fn with_other_instances(self, other_instances: u64) -> Self {
        Self { other_instances, ..self }
    }

    /// Reconciles once: observe, decide, apply, record. Then advances the time by one step.
    pub fn play(&mut self) -> Record {
        let Reconciled { record, .. } = self.reconcile();
        self.advance(self.step);
        record
    }

    /// Reconciles once: observe, decide, apply, record. The time stands still.
    pub fn reconcile(&mut self) -> Reconciled {
        let (decision, observation) = self.decide();
        let as_read = self.worker.clone();
        let results = self.apply(&decision);
        let version = self.worker.version;
        let applied = Applied { decision, results, at: self.now, version };
        let record = record(&as_read, &applied);
        self.write(&record.patch);
        let Applied { decision, results, .. } = applied;
        Reconciled { worker: as_read, observation, decision, results, record }
    }

    /// Reconciles, but crashes after `effects` effects and records nothing. Returns whether effects were left: a reconcile
    /// with fewer effects loses only its record.
    pub fn play_and_crash_after(&mut self, effects: usize) -> bool {
        let (decision, _) = self.decide();
        for effect in decision.effects.iter().take(effects) {
            self.execute(effect);
        }
        self.advance(self.step);
        decision.effects.len() > effects
    }

    /// Reconciles until nothing changes, neither by the controller nor with time. Returns `None` if that takes more than
    /// `steps` reconciles.
    pub fn play_until_quiet(&mut self, steps: usize) -> Option<Vec<Record>> {
        let mut records = Vec::new();
        for _ in 0..steps {
            let before = self.ec2.states();
            let record = self.play();
            let quiet = record.patch.is_empty()
                && self.ec2.states() == before
                && !self.ec2.is_in_transition()
                && !is_waiting(&record);
            records.push(record);
            if quiet {
                return Some(records);
            }
        }
        None
    }

    /// Returns the decision for the current state and the observation behind it. Changes nothing.
    pub fn decide(&self) -> (Decision, Observation) {
        let mut seen = Observation { metrics_reported_at: self.metrics_reported_at, ..Observation::default() };
        loop {
            let open = queries(&self.worker, &seen, &self.policy, self.now);
            if open.is_empty() {
                let decision = decide(&self.worker, &seen, &self.policy, self.now);
                if !decision.checks_idle() {
                    return (decision, seen);
                }
                // The check changes nothing in this model, so it is made here and the next decision is the one that counts.
                seen.idle = Lookup::Found(self.idle.clone());
            }
            for query in open.iter() {
                self.observe(query, &mut seen);
            }
        }
    }

    /// Advances the time. Completes due transitions of EC2 and a registration in progress.
    pub fn advance(&mut self, duration: Duration) {
        self.now =
            self.now.checked_add_signed(chrono::TimeDelta::from_std(duration).unwrap_or_default()).unwrap_or(self.now);
        self.ec2.settle(self.now);
        let submitted_at = self.submitted_at.unwrap_or(Timestamp::UNIX_EPOCH);
        if self.registration.raw == "IN_PROGRESS" && time::age(submitted_at, self.now) >= self.registration_time {
            let result = match self.registration_result {
                LicenseResult::Completed => "COMPLETED",
                LicenseResult::Failed => "FAILED",
            };
            result.clone_into(&mut self.registration.raw);
        }
    }

    fn observe(&self, query: Query, seen: &mut Observation) {
        match query {
            Query::Instance => {
                seen.instance = match &self.worker.ec2_instance_id {
                    Some(id) => self.ec2.describe(id, self.now),
                    None => Lookup::Absent,
                };
            }
            Query::Tagged => {
                let is_tagged = |instance: &&Instance| instance.owner() == Some(self.worker.id.as_str());
                let listed = self.ec2.list(self.now);
                let tagged = listed.map(|listed| listed.filter(is_tagged).cloned().collect::<Vec<_>>());
                seen.tagged = tagged.into();
            }
            // The subnet belongs to the account of the model.
            Query::Place => {
                let account = self.ec2.account_id.as_str();
                seen.place = Lookup::Found(Place::new(Caller::new(account)).with_subnet_owner(account));
            }
            Query::Template => seen.template = self.template.clone().map_or(Lookup::Absent, Lookup::Found),
            Query::Images => {
                let image = |id: &str, date: &str| Image {
                    id: id.to_owned(),
                    name: "cisco-cml2.9".to_owned(),
                    creation_date: date.to_owned(),
                };
                seen.images = Lookup::Found(vec![image("ami-old", "2025-01-01"), image("ami-new", "2026-01-01")]);
            }
            Query::Sessions => seen.sessions = Lookup::Found(self.sessions.clone()),
            Query::CloudMetrics => seen.cloud_metrics = Lookup::Found(CloudMetrics::default()),
            Query::Cml => seen.cml = Lookup::Found(CmlMetrics::default()),
            Query::Registration => seen.registration = Lookup::Found(self.registration.clone()),
            Query::Telemetry => seen.telemetry = Lookup::Found(Vec::new()),
            Query::Idle => seen.idle = Lookup::Found(self.idle.clone()),
            Query::Fleet => {
                let last_scale_down_at = self.last_scale_down_at.max(self.worker.notes.scaled_down_at);
                seen.fleet = Lookup::Found(FleetView { running: self.running_workers, last_scale_down_at });
            }
        }
    }

    fn apply(&mut self, decision: &Decision) -> Vec<EffectResult> {
        let mut results = Vec::with_capacity(decision.effects.len());
        for effect in &decision.effects {
            let result = self.execute(effect);
            let stop = matches!(result, EffectResult::Failed(_)) && effect.stops_the_rest();
            results.push(result);
            if stop {
                break;
            }
        }
        results
    }

    fn execute(&mut self, effect: &Effect) -> EffectResult {
        match effect {
            Effect::RecordLaunchPlan { plan } => {
                self.worker.notes.launch_plan = Some(plan.clone());
                self.worker.notes.launched_at = Some(self.now);
                self.worker.notes.ec2_region = Some(plan.region.clone());
                self.bump()
            }
            Effect::RecordLicenseAttempt { attempted } => {
                self.worker.notes.license_attempt = Some(attempted.clone());
                self.bump()
            }
            Effect::LaunchInstance { plan, .. } => {
                let number = self.other_instances + self.ec2.all().count() as u64 + 1;
                match self.ec2.launch(plan, number, self.now) {
                    Ok(id) => EffectResult::Launched(LaunchedInstance { id, requested_at: self.now }),
                    Err(failure) => EffectResult::Failed(failure),
                }
            }
            Effect::StartInstance { instance } => changed(self.ec2.start(instance, self.now)),
            Effect::StopInstance { instance } => changed(self.ec2.stop(instance, self.now)),
            Effect::TerminateInstance { instance } => changed(self.ec2.terminate(instance, self.now)),
            Effect::ReportLicense { report } => {
                self.worker.license_reported(*report);
                self.bump()
            }
            Effect::SubmitLicense { submission, .. } => {
                let now = match submission {
                    Submission::Register | Submission::Reregister => "IN_PROGRESS",
                    Submission::Deregister => "NOT_REGISTERED",
                };
                self.submitted_at = Some(self.now);
                self.registration = RegistrationStatus::from_wire(now).attempted(&self.now.to_rfc3339());
                EffectResult::Done
            }
            Effect::HandBackSession {
                session, if_refused: IfRefused::KeepWaiting | IfRefused::Terminate(_), ..
            } => {
                self.sessions.retain(|held| held.id != *session);
                EffectResult::Done
            }
            Effect::RetrySession { session, attempt } => {
                self.change_session(session.as_str(), KnownSessionState::Instantiating, Some(*attempt))
            }
            Effect::TerminateSession { session, .. } => {
                self.change_session(session.as_str(), KnownSessionState::Terminated, None)
            }
            Effect::ReportMetrics { .. } => self.bump(),
            Effect::DetectIdle { .. } => EffectResult::IdleChecked(self.idle.clone()),
            Effect::Announce { .. } => EffectResult::Done,
        }
    }

    /// Writes a patch. Like the control plane, writes nothing if the version of the record is not the expected one.
    pub fn write(&mut self, patch: &Patch) {
        if !patch.is_empty() && patch.expected_version == self.worker.version {
            self.worker = patch.apply_to(&self.worker);
            self.bump();
        }
    }

    fn bump(&mut self) -> EffectResult {
        self.worker.version = self.worker.version.map(|version| version + 1);
        EffectResult::Done
    }

    fn change_session(&mut self, id: &str, state: KnownSessionState, retries: Option<u32>) -> EffectResult {
        match self.sessions.iter_mut().find(|session| session.id.as_str() == id) {
            Some(session) => {
                session.state = SessionState::Known(state);
                session.retry_count = retries.unwrap_or(session.retry_count);
                EffectResult::Done
            }
            None => EffectResult::Failed(CallFailure::new(FailureKind::Refused, format!("no session {id}"))),
        }
    }
}

fn changed(result: Result<(), CallFailure>) -> EffectResult {
    match result {
        Ok(()) => EffectResult::Done,
        Err(failure) => EffectResult::Failed(failure),
    }
}

/// Whether a reconcile waits for time to pass, such as a window, a deadline or a registration.
fn is_waiting(record: &Record) -> bool {
    use crate::lifecycle::outcome::{Outcome, Requeue};
    match record.outcome {
        Outcome::Success | Outcome::Skip => record.requeue == Requeue::Now,
        Outcome::Requeue | Outcome::Retry => true,
    }
}
