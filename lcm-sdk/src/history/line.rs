//! The lines of a history file.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::redact;
use crate::lifecycle::capabilities::Capabilities;
use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::drain::Operation;
use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::fleet::FleetView;
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::license::{IntentOrigin, RegistrationStatus};
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::{CloudMetrics, CmlMetrics, Observation};
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::query::{Query, queries};
use crate::lifecycle::reason::{Detail, Reason, ReasonCode};
use crate::lifecycle::record::Record;
use crate::lifecycle::session::Session;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::template::Template;
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::transition::EdgeKind;
use crate::lifecycle::trust::Place;
use crate::lifecycle::worker::Worker;

/// Version of the format that this version writes. It reads this one and all earlier ones.
pub const FORMAT_VERSION: u32 = 1;

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub lcm_history: u32,
    /// Version of LCM that wrote the file.
    pub version: String,
    /// When the file was begun.
    pub started_at: Timestamp,
}

impl Header {
    /// The header of a file that this version begins now.
    pub fn new(started_at: Timestamp) -> Self {
        Self { lcm_history: FORMAT_VERSION, version: env!("CARGO_PKG_VERSION").to_owned(), started_at }
    }
}

/// One reconcile of a history: the input of a decision, the decision, and the results of its effects.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RecordedReconcile {
    /// The time of the decision.
    pub at: Timestamp,
    /// The record as read, without secrets.
    pub worker: Arc<Worker>,
    /// The observation.
    pub seen: Observation,
    /// The operation of an operator that it carries out; `None` for a reconcile of the controller's own.
    pub operation: Option<Operation>,
    /// The policy, which the reconciles of a file share.
    pub policy: Arc<Policy>,
    /// The decision as it was made.
    pub decision: RecordedDecision,
    /// Result of each effect, such as `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure.
    pub results: Vec<String>,
    /// How the reconcile ended if an effect kept it from the end that was decided.
    pub ended: Option<Ending>,
}

/// The end of a reconcile whose effects did not all succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ending {
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// The status entered, if it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<WorkerStatus>,
    /// Stable code of the reason.
    pub reason: String,
    /// The reason as a sentence.
    pub sentence: String,
}

impl Ending {
    /// The end of a reconcile, unless it is the decided one.
    pub fn of(decision: &Decision, record: &Record) -> Option<Self> {
        let is_as_decided = record.transition == decision.transition && record.reason.code == decision.reason.code;
        (!is_as_decided).then(|| Self {
            outcome: record.outcome,
            to: record.transition.map(|transition| transition.to()),
            reason: record.reason.code.as_str().to_owned(),
            sentence: record.reason.to_string(),
        })
    }
}

/// A decision of a history. Effects, changes and notices are those of a [`Decision`] as JSON, so that the decisions of
/// other versions can be read. They stay text until they are shown or differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedDecision {
    /// Outcome of the reconcile if every effect succeeds.
    pub outcome: Outcome,
    /// When to reconcile the worker again.
    pub requeue: Requeue,
    /// Stable code of the reason.
    pub reason: String,
    /// The reason as a sentence.
    pub sentence: String,
    /// The status entered, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<WorkerStatus>,
    /// Whether the lifecycle or EC2 causes the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<EdgeKind>,
    #[serde(default, skip_serializing_if = "Json::is_empty")]
    effects: Json,
    #[serde(default, skip_serializing_if = "Json::is_empty")]
    changes: Json,
    #[serde(default, skip_serializing_if = "Json::is_empty")]
    notices: Json,
}

impl From<&Decision> for RecordedDecision {
    fn from(decision: &Decision) -> Self {
        Self {
            outcome: decision.outcome,
            requeue: decision.requeue,
            reason: decision.reason.code.as_str().to_owned(),
            sentence: decision.reason.to_string(),
            to: decision.transition.map(|transition| transition.to()),
            kind: decision.transition.map(|transition| transition.kind()),
            effects: Json::of_effects(decision),
            changes: Json::of_changes(decision),
            notices: Json::of_notices(decision),
        }
    }
}

impl RecordedDecision {
    /// Effects in order.
    pub fn effects(&self) -> Vec<Value> {
        self.effects.parse()
    }

    /// Changed fields of the record.
    pub fn changes(&self) -> Map<String, Value> {
        self.changes.parse()
    }

    /// Events and audit entries.
    pub fn notices(&self) -> Vec<Value> {
        self.notices.parse()
    }

    /// Whether the decision was to do something, or at least to note something on the record.
    pub fn changes_something(&self) -> bool {
        self.to.is_some() || [&self.effects, &self.changes, &self.notices].iter().any(|json| !json.is_empty())
    }

    /// Whether a decision is the same but for the wording of its reason.
    pub(super) fn is_same(&self, decision: &Decision) -> bool {
        self.outcome == decision.outcome
            && self.requeue == decision.requeue
            && self.to == decision.transition.map(|transition| transition.to())
            && self.kind == decision.transition.map(|transition| transition.kind())
            && self.reason == decision.reason.code.as_str()
            && self.effects.is_empty() == decision.effects.is_empty()
            && self.notices.is_empty() == decision.notices.is_empty()
            && self.effects == Json::of_effects(decision)
            && self.changes == Json::of_changes(decision)
            && self.notices == Json::of_notices(decision)
    }
}

/// A list or an object as JSON text; none if it is empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Json(Option<Box<RawValue>>);

impl Json {
    fn of(value: &impl Serialize) -> Self {
        Self(to_raw_value(value).ok())
    }

    fn of_effects(decision: &Decision) -> Self {
        if decision.effects.is_empty() { Self(None) } else { Self::of(&redact::effects(decision)) }
    }

    fn of_changes(decision: &Decision) -> Self {
        decision.changes.as_deref().map_or(Self(None), Self::of)
    }

    fn of_notices(decision: &Decision) -> Self {
        if decision.notices.is_empty() { Self(None) } else { Self::of(&decision.notices) }
    }

    fn text(&self) -> &str {
        self.0.as_ref().map_or("", |raw| raw.get())
    }

    fn is_empty(&self) -> bool {
        matches!(self.text(), "" | "[]" | "{}" | "null")
    }

    fn parse<T: Default + DeserializeOwned>(&self) -> T {
        serde_json::from_str(self.text()).unwrap_or_default()
    }
}

/// Another version may order the fields differently.
impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
            || (self.is_empty() && other.is_empty())
            || (!self.is_empty() && !other.is_empty() && self.parse::<Value>() == other.parse::<Value>())
    }
}

/// `→ starting: The instance is stopped and should run: starting it. [start_instance]`
impl fmt::Display for RecordedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(to) = self.to {
            write!(f, "→ {to}: ")?;
        }
        f.write_str(&self.sentence)?;
        let effects = self.effects();
        for (index, effect) in effects.iter().enumerate() {
            let name = effect["effect"].as_str().unwrap_or_default();
            write!(f, "{}{name}", if index == 0 { " [" } else { ", " })?;
        }
        if effects.is_empty() { Ok(()) } else { f.write_str("]") }
    }
}

impl RecordedReconcile {
    /// A reconcile without the secrets of its record.
    pub fn new(
        worker: &Worker,
        seen: &Observation,
        policy: Arc<Policy>,
        at: Timestamp,
        decision: &Decision,
        results: &[EffectResult],
    ) -> Self {
        Self {
            at,
            worker: Arc::new(redact::worker(worker)),
            seen: redact::observation(seen),
            operation: None,
            policy,
            decision: decision.into(),
            results: results.iter().map(EffectResult::text).collect(),
            ended: None,
        }
    }

    /// Makes the decision again, under a policy. An operation depends on none.
    pub fn decide(&self, policy: &Policy) -> Decision {
        let Some(operation) = &self.operation else { return decide(&self.worker, &self.seen, policy, self.at) };
        let sessions = self.seen.sessions.found().map(Vec::as_slice).unwrap_or_default();
        operation.decide(&self.worker, sessions, self.at).unwrap_or_else(|refusal| {
            Decision::skip(Reason::new(ReasonCode::NoSuchTransition).with(Detail::Text(refusal.to_string().into())))
        })
    }

    /// The observation that a decision needs and the history lacks, if there is one.
    pub(super) fn lacks(&self, policy: &Policy) -> Option<Query> {
        match self.operation {
            Some(_) => None,
            None => queries(&self.worker, &self.seen, policy, self.at).iter().next(),
        }
    }

    /// Encodes the line. `policy` is the [hash](policy_hash) of the policy.
    fn encode(&self, policy: &str, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            at: Timestamp,
            with: &'a str,
            worker: Map<String, Value>,
            #[serde(skip_serializing_if = "is_record")]
            license_origin: IntentOrigin,
            seen: &'a Observation,
            #[serde(skip_serializing_if = "Option::is_none")]
            operation: &'a Option<Operation>,
            decision: &'a RecordedDecision,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            results: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            ended: &'a Option<Ending>,
        }
        let line = Line {
            at: self.at,
            with: policy,
            worker: redact::worker_json(&self.worker),
            license_origin: self.worker.license.intent_origin,
            seen: &self.seen,
            operation: &self.operation,
            decision: &self.decision,
            results: &self.results,
            ended: &self.ended,
        };
        encode(&line, lines)
    }
}

fn is_record(origin: &IntentOrigin) -> bool {
    *origin == IntentOrigin::Record
}

/// Encodes the lines of one file. A policy is written before the first reconcile that was decided under it.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::history::{HistoryEncoder, HistoryReader, RecordedReconcile};
/// use lcm_sdk::{Observation, Policy, Worker, WorkerStatus, decide};
///
/// let (worker, seen) = (Worker::new("w-1", WorkerStatus::Stopped), Observation::default());
/// let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse()?);
/// let recorded = RecordedReconcile::new(&worker, &seen, policy.clone(), now, &decide(&worker, &seen, &policy, now), &[]);
///
/// let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
/// encoder.header(now, &mut lines)?;
/// encoder.reconcile(&recorded, &mut lines)?;
/// let read: Vec<_> = HistoryReader::from_lines(std::io::Cursor::new(lines)).collect::<Result<_, _>>()?;
/// assert_eq!(read, [recorded]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct HistoryEncoder {
    written: BTreeSet<String>,
    /// The latest policy and its hash.
    latest: Option<(Arc<Policy>, String)>,
}

impl HistoryEncoder {
    /// Encodes the first line of a file that begins at a time.
    ///
    /// # Errors
    /// None that a header can cause.
    pub fn header(&mut self, started_at: Timestamp, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        encode(&Header::new(started_at), lines)
    }

    /// Encodes a reconcile, and its policy if that is new.
    ///
    /// # Errors
    /// None that a reconcile can cause.
    pub fn reconcile(&mut self, reconcile: &RecordedReconcile, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        let latest = self.latest.take().filter(|(known, _)| Arc::ptr_eq(known, &reconcile.policy));
        let latest = latest.unwrap_or_else(|| (Arc::clone(&reconcile.policy), policy_hash(&reconcile.policy)));
        let (policy, hash) = self.latest.insert(latest);
        if !self.written.contains(hash) {
            encode(&PolicyLine { policy: hash, fields: policy }, lines)?;
            self.written.insert(hash.clone());
        }
        reconcile.encode(hash, lines)
    }
}

fn encode(line: &impl Serialize, lines: &mut Vec<u8>) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *lines, line)?;
    lines.push(b'\n');
    Ok(())
}

/// The line that defines a policy.
#[derive(Serialize)]
struct PolicyLine<'a> {
    policy: &'a str,
    fields: &'a Policy,
}

/// The name of a policy within a file.
fn policy_hash(policy: &Policy) -> String {
    let text = serde_json::to_string(policy).unwrap_or_default();
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The line of a policy as read.
#[derive(Deserialize)]
pub(super) struct ReadPolicy {
    pub(super) policy: String,
    pub(super) fields: Value,
}

/// The line of a reconcile as read. Parts that often occur again stay text.
#[derive(Deserialize)]
pub(super) struct ReadReconcile<'a> {
    #[serde(deserialize_with = "time")]
    at: Timestamp,
    /// Hash of its policy.
    pub(super) with: &'a str,
    #[serde(borrow)]
    worker: &'a RawValue,
    #[serde(default)]
    license_origin: IntentOrigin,
    #[serde(borrow)]
    seen: ReadObservation<'a>,
    #[serde(default)]
    operation: Option<Operation>,
    #[serde(borrow)]
    decision: &'a RawValue,
    #[serde(default)]
    results: Vec<String>,
    #[serde(default)]
    ended: Option<Ending>,
}

/// An [`Observation`] as read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReadObservation<'a> {
    #[serde(borrow)]
    instance: Option<&'a RawValue>,
    tagged: Lookup<Vec<Instance>>,
    place: Lookup<Place>,
    #[serde(borrow)]
    template: Option<&'a RawValue>,
    images: Lookup<Vec<Image>>,
    #[serde(borrow)]
    sessions: Option<&'a RawValue>,
    cloud_metrics: Lookup<CloudMetrics>,
    cml: Lookup<CmlMetrics>,
    #[serde(deserialize_with = "optional_time")]
    metrics_reported_at: Option<Timestamp>,
    registration: Lookup<RegistrationStatus>,
    telemetry: Lookup<Vec<Value>>,
    idle: Lookup<IdleReport>,
    #[serde(deserialize_with = "optional_time")]
    idle_checked_at: Option<Timestamp>,
    fleet: Lookup<FleetView>,
    capabilities: Capabilities,
}

/// Parts of earlier lines by their text, so that one that occurs again is not parsed again.
#[derive(Default)]
pub(super) struct KnownParts {
    workers: Known<Worker>,
    instances: Known<Lookup<Instance>>,
    templates: Known<Lookup<Template>>,
    sessions: Known<Lookup<Vec<Session>>>,
    decisions: Known<RecordedDecision>,
}

/// Size of the texts of one kind of part from which on they are forgotten.
const MAX_KNOWN: usize = 4 << 20;

/// Values by their text.
struct Known<T> {
    by_text: HashMap<Box<str>, Arc<T>>,
    bytes: usize,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { by_text: HashMap::new(), bytes: 0 }
    }
}

impl<T: DeserializeOwned> Known<T> {
    fn read(&mut self, text: &RawValue) -> serde_json::Result<Arc<T>> {
        let text = text.get();
        if let Some(known) = self.by_text.get(text) {
            return Ok(Arc::clone(known));
        }
        let value = Arc::new(serde_json::from_str(text)?);
        if self.bytes + text.len() > MAX_KNOWN {
            *self = Self::default();
        }
        self.bytes += text.len();
        self.by_text.insert(text.into(), Arc::clone(&value));
        Ok(value)
    }

    fn read_optional(&mut self, text: Option<&RawValue>) -> serde_json::Result<T>
    where
        T: Clone + Default,
    {
        text.map_or_else(|| Ok(T::default()), |text| Ok(T::clone(&*self.read(text)?)))
    }
}

impl ReadReconcile<'_> {
    pub(super) fn under(self, policy: Arc<Policy>, known: &mut KnownParts) -> serde_json::Result<RecordedReconcile> {
        let Self { at, with: _, worker, license_origin, seen, operation, decision, results, ended } = self;
        let mut worker = known.workers.read(worker)?;
        if worker.license.intent_origin != license_origin {
            Arc::make_mut(&mut worker).license.intent_origin = license_origin;
        }
        let seen = Observation {
            instance: known.instances.read_optional(seen.instance)?,
            tagged: seen.tagged,
            place: seen.place,
            template: known.templates.read_optional(seen.template)?,
            images: seen.images,
            sessions: known.sessions.read_optional(seen.sessions)?,
            cloud_metrics: seen.cloud_metrics,
            cml: seen.cml,
            metrics_reported_at: seen.metrics_reported_at,
            registration: seen.registration,
            telemetry: seen.telemetry,
            idle: seen.idle,
            idle_checked_at: seen.idle_checked_at,
            fleet: seen.fleet,
            capabilities: seen.capabilities,
        };
        let decision = RecordedDecision::clone(&*known.decisions.read(decision)?);
        Ok(RecordedReconcile { at, worker, seen, operation, policy, decision, results, ended })
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    match time::parse_plain(&text) {
        Some(time) => Ok(time),
        None => text.parse().map_err(serde::de::Error::custom),
    }
}

fn optional_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    time(deserializer).map(Some)
}
