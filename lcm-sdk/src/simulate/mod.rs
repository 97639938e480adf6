//! Simulation: a worker's life played out against a small model of EC2, without a network and without waiting.
//!
//! Every decision is the real one; only the world is a model. Use it to see what would happen, to test a policy,
//! or to show somebody how a worker lives.
//!
//! ```
//! use lcm_sdk::simulate::Simulation;
//! use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};
//!
//! let mut worker = Worker::new("w-1", WorkerStatus::Pending);
//! worker.desired_status = Some(DesiredStatus::Running);
//! let mut simulation = Simulation::new(worker);
//! let steps = simulation.play_until_quiet(50).expect("it settles");
//!
//! assert_eq!(simulation.worker.status, WorkerStatus::Running);
//! let way: Vec<_> = steps.iter().filter_map(|record| record.transition).map(|step| step.to_string()).collect();
//! assert_eq!(way, ["pending → provisioning (commanded)", "provisioning → running (commanded)"]);
//! ```

mod model;

use std::time::Duration;

pub use model::ModelCloud;

use crate::lifecycle::decide::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::{Effect, EffectResult, IfRefused};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::Image;
use crate::lifecycle::license::{RegistrationStatus, Submission};
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics, Lookup, Observation};
use crate::lifecycle::patch::Patch;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::record::{Applied, Record, record};
use crate::lifecycle::region::RegionConfig;
use crate::lifecycle::session::{KnownSessionState, Session, SessionState};
use crate::lifecycle::template::Template;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;

/// One worker and its world. Every field may be changed between two steps, as an operator, a user or a stranger
/// with console access would.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// The record.
    pub worker: Worker,
    /// EC2.
    pub cloud: ModelCloud,
    /// The sessions on the worker.
    pub sessions: Vec<Session>,
    /// The worker's template, if it exists.
    pub template: Option<Template>,
    /// How CML's registration stands.
    pub registration: RegistrationStatus,
    /// What idle detection would say.
    pub idle: IdleReport,
    /// How many workers of the fleet run.
    pub running_workers: usize,
    /// The knobs.
    pub policy: Policy,
    /// The time.
    pub now: Timestamp,
    /// How much time passes between two steps.
    pub step: Duration,
}

impl Simulation {
    /// A world for one worker: a region, a template and an AMI that fit it, and EC2 without any instance.
    pub fn new(mut worker: Worker) -> Self {
        let region = worker.aws_region.get_or_insert_with(|| "us-east-1".to_owned()).clone();
        let template = worker.template_name.get_or_insert_with(|| "metal".to_owned()).clone();
        let mut policy = Policy::default();
        policy.regions.regions.insert(
            region,
            RegionConfig {
                security_group_ids: vec!["sg-1".to_owned()],
                subnet_id: "subnet-1".to_owned(),
                ..RegionConfig::default()
            },
        );
        let now = worker.created_at.unwrap_or(Timestamp::UNIX_EPOCH);
        worker.created_at = Some(now);
        worker.version = worker.version.or(Some(1));
        Self {
            worker,
            cloud: ModelCloud::default(),
            sessions: Vec::new(),
            template: Some(Template::new(template, "m5zn.metal")),
            registration: RegistrationStatus::from_wire("NOT_REGISTERED"),
            idle: IdleReport::default(),
            running_workers: 1,
            policy,
            now,
            step: Duration::from_secs(30),
        }
    }

    /// One pass, as a controller makes it: observe, decide, apply, record. Then time goes on.
    pub fn play(&mut self) -> Record {
        let (decision, _) = self.consider();
        let as_read = self.worker.clone();
        let results = self.apply(&decision);
        let version = self.worker.version;
        let record = record(&as_read, &Applied { decision, results, at: self.now, version });
        self.write(&record.patch);
        self.pass_time(self.step);
        record
    }

    /// A pass that dies after `effects` effects, before anything is recorded. Returns whether it died: a pass with
    /// fewer effects runs to its end and only its record is lost.
    pub fn play_and_crash_after(&mut self, effects: usize) -> bool {
        let (decision, _) = self.consider();
        for effect in decision.effects.iter().take(effects) {
            self.carry_out(effect);
        }
        self.pass_time(self.step);
        decision.effects.len() > effects
    }

    /// Plays until a pass neither moves the worker nor writes nor does anything, and time alone changes nothing
    /// any more. `None` if that does not happen within `steps` passes.
    pub fn play_until_quiet(&mut self, steps: usize) -> Option<Vec<Record>> {
        let mut records = Vec::new();
        for _ in 0..steps {
            let before = self.cloud.states();
            let record = self.play();
            let quiet = record.patch.is_empty()
                && self.cloud.states() == before
                && !self.cloud.is_in_motion()
                && !is_waiting(&record);
            records.push(record);
            if quiet {
                return Some(records);
            }
        }
        None
    }

    /// What would be decided now, and what was looked at for it. Changes nothing.
    pub fn consider(&self) -> (Decision, Observation) {
        let mut seen = Observation::default();
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
                self.answer(query, &mut seen);
            }
        }
    }

    /// Lets time pass: EC2's transitions and CML's registration go on.
    pub fn pass_time(&mut self, duration: Duration) {
        self.now =
            self.now.checked_add_signed(chrono::TimeDelta::from_std(duration).unwrap_or_default()).unwrap_or(self.now);
        self.cloud.settle(self.now);
        if self.registration.word == "IN_PROGRESS" {
            "COMPLETED".clone_into(&mut self.registration.word);
        }
    }

    fn answer(&self, query: Query, seen: &mut Observation) {
        match query {
            Query::Instance => {
                seen.instance = match &self.worker.ec2_instance_id {
                    Some(id) => self.cloud.describe(id, self.now),
                    None => Lookup::Absent,
                };
            }
            Query::Tagged => seen.tagged = self.cloud.tagged(self.worker.id.as_str(), self.now),
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
            Query::Fleet => {
                let last_scale_down_at = self.worker.notes.scaled_down_at;
                seen.fleet = Lookup::Found(FleetView { running: self.running_workers, last_scale_down_at });
            }
        }
    }

    fn apply(&mut self, decision: &Decision) -> Vec<EffectResult> {
        let mut results = Vec::with_capacity(decision.effects.len());
        for effect in &decision.effects {
            let result = self.carry_out(effect);
            let stop = matches!(result, EffectResult::Failed(_)) && effect.stops_the_rest();
            results.push(result);
            if stop {
                break;
            }
        }
        results
    }

    fn carry_out(&mut self, effect: &Effect) -> EffectResult {
        match effect {
            Effect::RecordLaunchPlan { plan, begun_at } => {
                self.worker.notes.launch_plan = Some(plan.clone());
                self.worker.notes.launched_at = Some(*begun_at);
                self.bump()
            }
            Effect::RecordLicenseAttempt { attempted } => {
                self.worker.notes.license_attempt = Some(attempted.clone());
                self.bump()
            }
            Effect::LaunchInstance { plan, .. } => self.cloud.run(plan, self.now),
            Effect::StartInstance { instance } => self.cloud.start(instance, self.now),
            Effect::StopInstance { instance } => self.cloud.stop(instance, self.now),
            Effect::TerminateInstance { instance } => self.cloud.terminate(instance, self.now),
            Effect::ReportLicense { report } => {
                self.worker.license_reported(*report);
                self.bump()
            }
            Effect::SubmitLicense { submission, .. } => {
                let now = match submission {
                    Submission::Register | Submission::Reregister => "IN_PROGRESS",
                    Submission::Deregister => "NOT_REGISTERED",
                };
                self.registration = RegistrationStatus::from_wire(now).attempted(&self.now.to_rfc3339());
                EffectResult::Done
            }
            Effect::HandBackSession { session, if_refused: IfRefused::KeepWaiting | IfRefused::Terminate } => {
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

    /// Writes a patch, unless the record is another version than the patch was made for: then nothing is written, as
    /// the control plane would have it.
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

/// Whether a pass said that time alone will bring something: a window, a deadline, a registration under way.
fn is_waiting(record: &Record) -> bool {
    use crate::lifecycle::outcome::{Outcome, Requeue};
    match record.outcome {
        Outcome::Success | Outcome::Skip => record.requeue == Requeue::Now,
        Outcome::Requeue | Outcome::Retry => true,
    }
}
