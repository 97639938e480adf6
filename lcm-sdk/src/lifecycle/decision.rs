//! A decision about a worker, as data. Nothing has happened yet.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::counters::{Counter, Counts};
use super::effect::Effect;
use super::event::{Event, Notice};
use super::failure::CallFailure;
use super::ids::InstanceId;
use super::instance::{ImageDetails, Instance};
use super::license::LicenseReport;
use super::outcome::{Outcome, Requeue};
use super::reason::{Detail, Reason, ReasonCode};
use super::status::{DesiredStatus, WorkerStatus};
use super::time::Timestamp;
use super::transition::{EdgeKind, Transition};
use super::worker::LaunchPlan;
#[cfg(feature = "runtime")]
use super::worker::NotesOnRecord;

/// The decision about a worker: a transition, effects, and the reason for them.
///
/// ```
/// use lcm_sdk::{decide, DesiredStatus, Ec2State, Observation, Outcome, Policy, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
/// worker.ec2_instance_id = Some("i-1".into());
/// worker.desired_status = Some(DesiredStatus::Running);
///
/// let seen = Observation::with_instance_state("i-1", Ec2State::Stopped);
/// let decision = decide(&worker, &seen, &Policy::default(), "2026-02-06T08:00:00Z".parse().unwrap());
///
/// assert_eq!(decision.outcome, Outcome::Success);
/// assert_eq!(decision.transition.unwrap().to(), WorkerStatus::Starting);
/// assert_eq!(decision.effects[0].to_string(), "start_instance i-1");
/// assert_eq!(decision.reason.to_string(), "The instance is stopped and should run: starting it.");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[must_use = "a decision does nothing until it is applied"]
pub struct Decision {
    /// Outcome of the reconcile if every effect succeeds.
    pub outcome: Outcome,
    /// The transition, if the status changes.
    pub transition: Option<Transition>,
    /// Effects, in the order to carry them out.
    pub effects: Vec<Effect>,
    /// Reason for the decision.
    pub reason: Reason,
    /// When to reconcile the worker again.
    pub requeue: Requeue,
    /// Fields of the record to change besides the status.
    pub changes: Option<Box<Changes>>,
    /// Events and audit entries to publish after the record is written.
    pub notices: Vec<Notice>,
    /// Counters to raise after the record is written.
    pub counts: Counts,
}

/// Fields of a record to change besides its status.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Id of the worker's instance.
    pub ec2_instance_id: Change<InstanceId>,
    /// Region of the instance, for a record that relied on the default.
    pub aws_region: Option<String>,
    /// Addresses of the instance. Both at once, because the server clears the one it is not given.
    pub addresses: Option<Addresses>,
    /// The AMI of the instance, for a record that lacks it. Together with the addresses, which the same call writes.
    pub image: Option<Box<ImageDetails>>,
    /// The desired status.
    pub desired_status: Option<DesiredStatus>,
    /// When a start of the instance was requested.
    pub start_initiated_at: Option<Timestamp>,
    /// When the drain began.
    pub drain_started_at: Change<Timestamp>,
    /// The timeout that the template gave the drain, in seconds.
    pub drain_timeout_seconds: Change<u64>,
    /// How often a session kept the worker from leaving the drain.
    pub drain_tries: Option<u32>,
    /// When the worker was scaled down.
    pub scaled_down_at: Option<Timestamp>,
    /// When the launch began.
    pub launched_at: Option<Timestamp>,
    /// Number of ended launches; part of the next launch token.
    pub launch_generation: Option<u32>,
    /// The plan of a launch whose outcome is unknown.
    pub launch_plan: Change<Box<LaunchPlan>>,
    /// CML's mark of the registration attempt before ours, and a fingerprint of our token.
    pub license_attempt: Option<String>,
    /// Since when CML has not finished the registration, and a fingerprint of our token.
    pub license_wait: Option<String>,
    /// The account that owns the instance.
    pub ec2_account_id: Option<String>,
    /// The region of the instance, for a record that does not keep `aws_region`.
    pub ec2_region: Option<String>,
    /// Progress of a license operation, reported to the control plane.
    pub license_report: Option<LicenseReport>,
    /// Reason of a failed license operation, sent with its report.
    pub license_error: Option<String>,
}

/// The change of one optional field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// Leaves the field as it is.
    #[default]
    Keep,
    /// Sets the field to a value.
    Set(T),
    /// Clears the field.
    Clear,
}

impl Changes {
    /// Whether no field changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changed fields under the names the record itself uses; null clears a field.
    ///
    /// `license_report` and `license_error` are not fields of the record: the control plane derives the license fields
    /// from them.
    pub fn to_json(&self) -> Map<String, Value> {
        let Self {
            ec2_instance_id,
            aws_region,
            addresses,
            image,
            desired_status,
            start_initiated_at,
            drain_started_at,
            drain_timeout_seconds,
            drain_tries,
            scaled_down_at,
            launched_at,
            launch_generation,
            launch_plan,
            license_attempt,
            license_wait,
            ec2_account_id,
            ec2_region,
            license_report,
            license_error,
        } = self;
        let mut map = Map::new();
        let mut put = |field: &str, value: Option<Value>| {
            map.extend(value.map(|value| (field.to_owned(), value)));
        };
        put("ec2_instance_id", ec2_instance_id.to_json(|id| id.as_str().into()));
        put("aws_region", aws_region.as_deref().map(Value::from));
        if let Some(addresses) = addresses {
            put("public_ip", Some(addresses.public_ip.as_deref().into()));
            put("private_ip", Some(addresses.private_ip.as_deref().into()));
            put("ip_address", Some(addresses.preferred().into()));
        }
        if let Some(ImageDetails { id, name, description, creation_date }) = image.as_deref() {
            put("ami_id", Some(id.as_str().into()));
            put("ami_name", Some(name.as_deref().into()));
            put("ami_description", Some(description.as_deref().into()));
            put("ami_creation_date", Some(creation_date.as_deref().into()));
        }
        put("desired_status", desired_status.map(|desired| desired.as_str().into()));
        put("start_initiated_at", start_initiated_at.map(written));
        put("drain_started_at", drain_started_at.to_json(|at| written(*at)));
        put("drain_timeout_seconds", drain_timeout_seconds.to_json(|seconds| (*seconds).into()));
        put("drain_tries", drain_tries.map(Value::from));
        put("scaled_down_at", scaled_down_at.map(written));
        put("launched_at", launched_at.map(written));
        put("launch_generation", launch_generation.map(Value::from));
        put("launch_plan", launch_plan.to_json(|plan| serde_json::to_value(plan).unwrap_or_default()));
        put("license_attempt", license_attempt.as_deref().map(Value::from));
        put("license_wait", license_wait.as_deref().map(Value::from));
        put("ec2_account_id", ec2_account_id.as_deref().map(Value::from));
        put("ec2_region", ec2_region.as_deref().map(Value::from));
        put("license_report", license_report.map(|report| serde_json::to_value(report).unwrap_or_default()));
        put("license_error", license_error.as_deref().map(Value::from));
        map
    }
}

#[cfg(feature = "runtime")]
impl Changes {
    /// Takes the notes out of the changes, under the names that the record uses; null clears one.
    pub(crate) fn take_notes(&mut self) -> Map<String, Value> {
        let mut notes = self.to_json();
        notes.retain(|field, _| NotesOnRecord::FIELDS.contains(&field.as_str()));
        // Every field is named, so that a new one cannot be lost on the way to the record.
        let Self {
            ec2_instance_id: _,
            aws_region: _,
            addresses: _,
            image: _,
            desired_status: _,
            start_initiated_at: _,
            drain_started_at,
            drain_timeout_seconds,
            drain_tries,
            scaled_down_at,
            launched_at,
            launch_generation,
            launch_plan,
            license_attempt,
            license_wait,
            ec2_account_id,
            ec2_region,
            license_report: _,
            license_error: _,
        } = self;
        (*drain_started_at, *drain_timeout_seconds, *launch_plan) = (Change::Keep, Change::Keep, Change::Keep);
        (*drain_tries, *scaled_down_at, *launched_at, *launch_generation) = (None, None, None, None);
        (*license_attempt, *license_wait, *ec2_account_id, *ec2_region) = (None, None, None, None);
        notes
    }
}

/// `record public_ip 203.0.113.7, launched_at 2026-02-06T08:00:00Z; clear launch_plan`. A nested value is left out.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.to_json();
        let (cleared, set): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, value)| value.is_null());
        let told = |(field, value): (String, Value)| match value {
            // They contain a fingerprint of the license token.
            _ if field == "license_attempt" || field == "license_wait" => field,
            Value::String(text) if !text.is_empty() => format!("{field} {text}"),
            Value::Number(number) => format!("{field} {number}"),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => field,
        };
        let set: Vec<String> = set.into_iter().map(told).collect();
        let cleared: Vec<String> = cleared.into_iter().map(|(field, _)| field).collect();
        let parts = [("record", set), ("clear", cleared)].into_iter().filter(|(_, fields)| !fields.is_empty());
        let parts: Vec<String> = parts.map(|(verb, fields)| format!("{verb} {}", fields.join(", "))).collect();
        f.write_str(&parts.join("; "))
    }
}

fn written(moment: Timestamp) -> Value {
    super::worker_json::written(Some(moment))
}

impl Serialize for Changes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<T> Change<T> {
    fn to_json(&self, value: impl FnOnce(&T) -> Value) -> Option<Value> {
        match self {
            Self::Keep => None,
            Self::Set(new) => Some(value(new)),
            Self::Clear => Some(Value::Null),
        }
    }
}

impl<T: Clone> Change<T> {
    /// Applies the change to a field.
    pub(crate) fn apply(&self, field: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Set(value) => *field = Some(value.clone()),
            Self::Clear => *field = None,
        }
    }
}

/// Addresses of an instance; both `None` once it is stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// Public address, while the instance has one.
    pub public_ip: Option<String>,
    /// Private address within the VPC.
    pub private_ip: Option<String>,
}

impl Addresses {
    /// The address to connect to: public before private.
    pub fn preferred(&self) -> Option<&str> {
        self.public_ip.as_deref().or(self.private_ip.as_deref())
    }
}

impl From<&Instance> for Addresses {
    fn from(instance: &Instance) -> Self {
        Self { public_ip: instance.public_ip.clone(), private_ip: instance.private_ip.clone() }
    }
}

/// Outcome, time of the next reconcile, transition, reason and effects, in one line.
///
/// ```
/// use lcm_sdk::{decide, DesiredStatus, Ec2State, Observation, Policy, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopping);
/// worker.ec2_instance_id = Some("i-1".into());
/// let observation = Observation::with_instance_state("i-1", Ec2State::Running);
/// let decision = decide(&worker, &observation, &Policy::default(), "2026-02-06T08:00:00Z".parse().unwrap());
/// assert_eq!(
///     decision.to_string(),
///     "requeue (next cycle): The instance is running and should stop: stopping it. [stop_instance i-1]",
/// );
/// ```
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.outcome, self.requeue)?;
        if let Some(transition) = self.transition {
            write!(f, "{transition}: ")?;
        }
        write!(f, "{}", self.reason)?;
        for (index, effect) in self.effects.iter().enumerate() {
            write!(f, "{}{effect}", if index == 0 { " [" } else { ", " })?;
        }
        if self.effects.is_empty() { Ok(()) } else { f.write_str("]") }
    }
}

impl Decision {
    fn without_effects(outcome: Outcome, requeue: Requeue, reason: Reason) -> Self {
        Self {
            outcome,
            transition: None,
            effects: Vec::new(),
            reason,
            requeue,
            changes: None,
            notices: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The worker is in the status it should be in.
    pub(crate) fn success(reason: impl Into<Reason>) -> Self {
        Self::without_effects(Outcome::Success, Requeue::NextCycle, reason.into())
    }

    /// In progress: reconcile again at the next cycle.
    pub(crate) fn requeue(reason: impl Into<Reason>) -> Self {
        Self::without_effects(Outcome::Requeue, Requeue::NextCycle, reason.into())
    }

    /// A problem: reconcile again after the backoff.
    pub(crate) fn retry(reason: impl Into<Reason>) -> Self {
        Self::without_effects(Outcome::Retry, Requeue::Backoff, reason.into())
    }

    /// An unanswered call: nothing changes.
    pub(crate) fn unanswered(code: ReasonCode, failure: &CallFailure) -> Self {
        Self::retry(Reason::failed(code, failure))
    }

    /// Nothing to do until the record changes.
    pub(crate) fn skip(reason: impl Into<Reason>) -> Self {
        Self::without_effects(Outcome::Skip, Requeue::OnChange, reason.into())
    }

    /// A query has not been sent yet.
    pub(crate) fn not_observed() -> Self {
        Self::requeue(ReasonCode::NotObserved).with_requeue(Requeue::Now)
    }

    /// A commanded transition.
    pub(crate) fn command(from: WorkerStatus, to: WorkerStatus, reason: impl Into<Reason>) -> Self {
        Self::transition(from, to, EdgeKind::Commanded, reason.into())
    }

    /// An observed transition: the record follows EC2.
    pub(crate) fn follow(from: WorkerStatus, to: WorkerStatus, reason: impl Into<Reason>) -> Self {
        Self::transition(from, to, EdgeKind::Observed, reason.into())
    }

    /// A transition that was looked up already.
    pub(crate) fn from_transition(transition: Transition, reason: impl Into<Reason>) -> Self {
        let requeue = match transition.to() {
            // The next step is known already.
            WorkerStatus::Pending | WorkerStatus::Draining | WorkerStatus::Stopping | WorkerStatus::Terminating => {
                Requeue::Now
            }
            WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Stopped
            | WorkerStatus::Unknown => Requeue::NextCycle,
            WorkerStatus::Terminated | WorkerStatus::Failed => Requeue::OnChange,
        };
        Self { transition: Some(transition), ..Self::without_effects(Outcome::Success, requeue, reason.into()) }
    }

    fn transition(from: WorkerStatus, to: WorkerStatus, kind: EdgeKind, reason: Reason) -> Self {
        match Transition::new(from, to, kind) {
            Ok(transition) => Self::from_transition(transition, reason),
            Err(invalid) => {
                Self::skip(Reason::new(ReasonCode::NoSuchTransition).with(Detail::Text(invalid.to_string().into())))
            }
        }
    }

    /// The same decision with a commanded transition.
    pub(crate) fn with_command(self, from: WorkerStatus, to: WorkerStatus, reason: impl Into<Reason>) -> Self {
        let Self { outcome, transition, reason, requeue, .. } = Self::command(from, to, reason);
        Self { outcome, transition, reason, requeue, ..self }
    }

    pub(crate) fn with_outcome(self, outcome: Outcome, requeue: Requeue) -> Self {
        Self { outcome, requeue, ..self }
    }

    pub(crate) fn with_requeue(self, requeue: Requeue) -> Self {
        Self { requeue, ..self }
    }

    pub(crate) fn with_effect(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }

    pub(crate) fn with_changes(mut self, change: impl FnOnce(&mut Changes)) -> Self {
        change(self.changes.get_or_insert_default());
        self
    }

    pub(crate) fn with_event(mut self, event: Event) -> Self {
        self.notices.push(Notice::Event(event));
        self
    }

    pub(crate) fn with_audit(mut self, audit: super::event::Audit) -> Self {
        self.notices.push(Notice::Audit(audit));
        self
    }

    pub(crate) fn with_counter(self, counter: Counter) -> Self {
        Self { counts: self.counts.and(counter), ..self }
    }

    /// Whether it consists of an idle check, whose report is put into the observation before deciding again. A report of
    /// activity on a busy worker is no such check.
    pub fn checks_idle(&self) -> bool {
        self.reason.code == ReasonCode::IdleCheckDue
    }

    /// Whether it launches an instance.
    pub fn launches(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::LaunchInstance { .. }))
    }

    /// Whether an effect would do harm if the record had changed since it was read.
    pub fn relies_on_record(&self) -> bool {
        self.effects.iter().any(Effect::relies_on_record)
    }

    /// Whether the worker becomes terminated.
    pub(crate) fn terminates(&self) -> bool {
        self.transition.is_some_and(|transition| transition.to() == WorkerStatus::Terminated)
    }

    /// Whether it takes the worker out of service because it is idle.
    pub fn scales_down(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| changes.scaled_down_at.is_some())
    }

    /// Whether nothing would be done, written or announced.
    pub fn does_nothing(&self) -> bool {
        self.transition.is_none() && self.effects.is_empty() && self.changes.is_none() && self.notices.is_empty()
    }
}
