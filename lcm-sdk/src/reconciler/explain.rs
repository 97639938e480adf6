//! Explains one worker: what was observed, what a reconcile would do and why, and what would change that.

use std::time::Duration;

use serde::Serialize;

use super::result::{Mode, ReconcileResult};
use super::{Decided, Hints, Reconciler};
use crate::lifecycle::backoff::Backoff;
use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::observed::ObservedPart;
use crate::lifecycle::outcome::{Requeue, RequeueKind};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

/// The plan of a reconcile of a worker, with the reasons for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// When the worker was observed.
    pub at: Timestamp,
    /// The record, without secrets.
    pub record: RecordSummary,
    /// The lookups that the decision needed, with their responses, and the instance in any case.
    pub observed: Vec<ObservedPart>,
    /// The plan of a reconcile: its effects are not carried out.
    pub plan: ReconcileResult,
    /// Changes of the record or of EC2 that would lead to another decision.
    pub what_if: Vec<WhatIf>,
    /// The next reconcile after that.
    pub next: NextReconcile,
}

/// The fields of a record that people read, without secrets and free-form data.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RecordSummary {
    /// Id of the worker.
    pub id: String,
    /// Display name.
    pub name: Option<String>,
    /// Status on the record.
    pub status: WorkerStatus,
    /// Status that the owner desires; none means no preference.
    pub desired_status: Option<DesiredStatus>,
    /// Id of its instance.
    pub ec2_instance_id: Option<String>,
    /// Region that the record names for its instance.
    pub aws_region: Option<String>,
    /// Address to reach it at.
    pub address: Option<String>,
    /// Name of its template.
    pub template_name: Option<String>,
    /// Instance type on the record.
    pub instance_type: Option<String>,
    /// Version of the record.
    pub version: Option<u64>,
    /// State of its license, in the words of the control plane.
    pub license_status: Option<String>,
    /// License operation that waits to be carried out.
    pub license_operation: Option<&'static str>,
    /// When the record was created.
    pub created_at: Option<Timestamp>,
    /// When the record was last written.
    pub updated_at: Option<Timestamp>,
    /// When its instance was launched or last started.
    pub launched_at: Option<Timestamp>,
    /// When its drain began.
    pub drain_started_at: Option<Timestamp>,
    /// Number of launches that ended without an instance.
    pub launch_generation: u32,
    /// Whether the outcome of a launch is not known yet.
    pub launch_under_way: bool,
    /// Fields that have no effect, as sentences.
    pub warnings: Vec<String>,
}

impl From<&Worker> for RecordSummary {
    fn from(worker: &Worker) -> Self {
        Self {
            id: worker.id.to_string(),
            name: worker.name.clone(),
            status: worker.status,
            desired_status: worker.desired_status,
            ec2_instance_id: worker.ec2_instance_id.as_ref().map(ToString::to_string),
            aws_region: worker.known_region().map(str::to_owned),
            address: worker.address().map(str::to_owned),
            template_name: worker.template_name.clone(),
            instance_type: worker.instance_type.clone(),
            version: worker.version,
            license_status: worker.license.status.clone(),
            license_operation: worker.license.pending_operation.map(|operation| operation.as_str()),
            created_at: worker.created_at,
            updated_at: worker.updated_at,
            launched_at: worker.notes.launched_at.max(worker.start_initiated_at),
            drain_started_at: worker.notes.drain_started_at,
            launch_generation: worker.notes.launch_generation,
            launch_under_way: worker.notes.launch_plan.is_some(),
            warnings: worker.warnings.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A change that would lead to another decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    /// The change, such as `the desired status were stopped`.
    #[serde(rename = "if")]
    pub condition: String,
    /// The decision it would lead to, as a sentence.
    pub then: String,
    /// The status that the decision leads to; none if further lookups are needed to tell.
    pub to_status: Option<WorkerStatus>,
}

/// When the worker is reconciled again, and what it then waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NextReconcile {
    /// Kind of the requeue after the planned reconcile.
    pub requeue: RequeueKind,
    /// The same for people: `now`, `in 30 s`, `next cycle`, `after a backoff of 1 s to 60 s`, `on change`. Where a
    /// controller explains, a cycle is a time: `within 30 s (RECONCILE_INTERVAL)`.
    pub when: String,
    /// Earliest time of the next reconcile, as far as it is known.
    pub at: Option<Timestamp>,
    /// The event that the worker waits for after the planned reconcile.
    pub awaits: &'static str,
}

impl Reconciler {
    /// Explains what a reconcile of a worker would do now: performs every read and no write.
    ///
    /// # Errors
    /// None: a failed call is part of the [`Explanation`].
    pub async fn explain(&self, worker: &Worker) -> Explanation {
        let (hints, mode) = (Hints::default(), Mode::DryRun);
        let decided = match self.begin(worker, &hints, mode).await {
            Ok(begun) => self.observe_and_decide(begun.worker, &hints, mode, &begun.lock).await,
            Err(ended) => Err(ended),
        };
        match decided {
            Ok(Decided { worker, observed, decision, checks, now }) => {
                let observation = &observed.observation;
                let what_if = what_if(&worker, observation, &decision, self.policy(), now);
                let observed = self.with_instance(&worker, observation.clone()).await.parts();
                let record = RecordSummary::from(&worker);
                let plan = ReconcileResult::planned(&worker, decision).after(checks);
                Explanation { at: now, record, observed, next: self.next(&plan, now), plan, what_if }
            }
            Err(ended) => {
                let now = self.ports().clock.now();
                let (observed, what_if) = (Vec::new(), Vec::new());
                let record = RecordSummary::from(worker);
                Explanation { at: now, record, observed, next: self.next(&ended, now), plan: *ended, what_if }
            }
        }
    }

    /// Adds the recorded instance where the decision did not need it: people compare the record with it.
    async fn with_instance(&self, worker: &Worker, mut observation: Observation) -> Observation {
        let region = self.policy().regions.region_of(worker);
        if let (Lookup::NotRequested, Some(region), Some(id)) = (&observation.instance, region, &worker.ec2_instance_id)
        {
            observation.instance = self.ports().compute.instance(region, id).await;
        }
        observation
    }
}

impl Reconciler {
    fn next(&self, plan: &ReconcileResult, now: Timestamp) -> NextReconcile {
        let at = match plan.requeue {
            Requeue::Now => Some(now),
            Requeue::After(delay) => Some(now + delay),
            Requeue::NextCycle | Requeue::Backoff | Requeue::OnChange => None,
        };
        let Backoff { base, max, .. } = self.policy().backoff;
        let when = match plan.requeue {
            Requeue::Backoff => {
                let (least, most) = (time::spoken(base), time::spoken(max));
                format!("after a backoff of {least} to {most} (BACKOFF_BASE, MAX_BACKOFF)")
            }
            Requeue::Now | Requeue::After(_) | Requeue::NextCycle | Requeue::OnChange => plan.requeue.to_string(),
        };
        NextReconcile { requeue: plan.requeue.kind(), when, at, awaits: awaited(plan.to_status) }
    }
}

impl NextReconcile {
    /// Names the time of the next cycle of a controller that polls at an interval; `None` if it does not poll.
    pub(crate) fn in_cycles_of(&mut self, interval: Option<Duration>) {
        if self.requeue == RequeueKind::NextCycle {
            self.when = match interval {
                Some(interval) => format!("within {} (RECONCILE_INTERVAL)", time::spoken(interval)),
                None => "on change (RECONCILE_POLLING_ENABLED is false)".to_owned(),
            };
        }
    }
}

/// The event that ends a status.
const fn awaited(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Pending => "a launch, or an instance that carries the worker's tag",
        WorkerStatus::Provisioning => "an instance that is running and has an address",
        WorkerStatus::Starting => "EC2 to show the instance as running with an address",
        WorkerStatus::Running => "another desired status, a drain, idleness, or a change in EC2",
        WorkerStatus::Draining => "the end of its sessions, or the deadline of the drain",
        WorkerStatus::Stopping => "EC2 to show the instance as stopped",
        WorkerStatus::Stopped => "another desired status, or a start from outside",
        WorkerStatus::Terminating => "EC2 to show the instance as terminated",
        WorkerStatus::Terminated => "nothing: the status is final",
        WorkerStatus::Failed => "an operator, who resets it to pending or requests its termination",
        WorkerStatus::Unknown => "EC2 to show a state with a name",
    }
}

/// Decides again with one thing changed at a time, and keeps the changes that matter.
fn what_if(
    worker: &Worker,
    observation: &Observation,
    decision: &Decision,
    policy: &Policy,
    now: Timestamp,
) -> Vec<WhatIf> {
    let mut found = Vec::new();
    let mut consider = |condition: String, worker: &Worker, observation: &Observation| {
        let due = queries(worker, observation, policy, now);
        if !due.is_empty() {
            let due: Vec<&str> = due.iter().map(Query::as_str).collect();
            let then = format!("further lookups decide: {}", due.join(", ").replace('_', " "));
            found.push(WhatIf { condition, then, to_status: None });
            return;
        }
        let other = decide(worker, observation, policy, now);
        let is_same = (other.transition, &other.effects) == (decision.transition, &decision.effects);
        if is_same || other.reason.code == ReasonCode::NotObserved {
            return;
        }
        let to = other.transition.map_or(worker.status, |transition| transition.to());
        let mut then = match other.transition {
            Some(transition) => format!("{} → {}: {}", transition.from(), transition.to(), other.reason),
            None => other.reason.to_string(),
        };
        for effect in &other.effects {
            then += &format!(" [{effect}]");
        }
        found.push(WhatIf { condition, then, to_status: Some(to) });
    };
    for desired in DesiredStatus::ALL.iter().copied().filter(|desired| worker.desired_status != Some(*desired)) {
        let other = Worker { desired_status: Some(desired), ..worker.clone() };
        consider(format!("the desired status were {desired}"), &other, observation);
    }
    if let Some(instance) = observation.instance_of(worker) {
        let states = [Ec2State::Running, Ec2State::Stopped, Ec2State::Terminated];
        for state in states.into_iter().filter(|state| *state != instance.state) {
            let other = Instance { state, ..instance.clone() };
            let mut observation = observation.clone();
            match worker.ec2_instance_id {
                Some(_) => observation.instance = Lookup::Found(other),
                None => observation.tagged = Lookup::Found(vec![other]),
            }
            consider(format!("EC2 showed the instance as {state}"), worker, &observation);
        }
    }
    found
}
