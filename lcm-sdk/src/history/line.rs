//! The lines of a history file.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::redact;
use crate::lifecycle::decide;
use crate::lifecycle::decision::Decision;
use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::license::IntentOrigin;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::policy::Policy;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::transition::EdgeKind;
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
    pub worker: Worker,
    /// The observation.
    pub seen: Observation,
    /// The policy, which the reconciles of a file share.
    pub policy: Arc<Policy>,
    /// The decision as it was made.
    pub decision: RecordedDecision,
    /// Result of each effect, such as `done`, `launched i-1`, `not_tried`, or `failed: ` and the failure.
    pub results: Vec<String>,
}

/// A decision of a history. Effects and changes are those of a [`Decision`] as JSON, so that the decisions of other
/// versions can be read.
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
    /// Effects in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Value>,
    /// Changed fields of the record.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub changes: Map<String, Value>,
    /// Events and audit entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Value>,
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
            effects: redact::effects(decision),
            changes: decision.changes.as_deref().map(|changes| changes.to_json()).unwrap_or_default(),
            notices: decision.notices.iter().map(|notice| serde_json::to_value(notice).unwrap_or_default()).collect(),
        }
    }
}

impl RecordedDecision {
    /// Whether a decision is the same but for the wording of its reason.
    pub(super) fn is_same(&self, decision: &Decision) -> bool {
        let plain = self.outcome == decision.outcome
            && self.requeue == decision.requeue
            && self.to == decision.transition.map(|transition| transition.to())
            && self.kind == decision.transition.map(|transition| transition.kind())
            && self.reason == decision.reason.code.as_str()
            && self.effects.len() == decision.effects.len()
            && self.notices.len() == decision.notices.len();
        let is_bare = self.changes.is_empty() && self.effects.is_empty() && self.notices.is_empty();
        // Converted to JSON only if there is something to compare.
        plain && ((is_bare && decision.changes.is_none()) || self.does_the_same(&Self::from(decision)))
    }

    fn does_the_same(&self, other: &Self) -> bool {
        (&self.effects, &self.changes, &self.notices) == (&other.effects, &other.changes, &other.notices)
    }
}

/// `→ starting: The instance is stopped and should run: starting it. [start_instance]`
impl fmt::Display for RecordedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(to) = self.to {
            write!(f, "→ {to}: ")?;
        }
        f.write_str(&self.sentence)?;
        for (index, effect) in self.effects.iter().enumerate() {
            let name = effect["effect"].as_str().unwrap_or_default();
            write!(f, "{}{name}", if index == 0 { " [" } else { ", " })?;
        }
        if self.effects.is_empty() { Ok(()) } else { f.write_str("]") }
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
            worker: redact::worker(worker),
            seen: redact::observation(seen),
            policy,
            decision: decision.into(),
            results: results.iter().map(result).collect(),
        }
    }

    /// Makes the decision again, under a policy.
    pub fn decide(&self, policy: &Policy) -> Decision {
        decide(&self.worker, &self.seen, policy, self.at)
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
            decision: &'a RecordedDecision,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            results: &'a [String],
        }
        let line = Line {
            at: self.at,
            with: policy,
            worker: redact::worker_json(&self.worker),
            license_origin: self.worker.license.intent_origin,
            seen: &self.seen,
            decision: &self.decision,
            results: &self.results,
        };
        encode(&line, lines)
    }
}

fn is_record(origin: &IntentOrigin) -> bool {
    *origin == IntentOrigin::Record
}

/// The result of an effect as one text.
fn result(result: &EffectResult) -> String {
    match result {
        EffectResult::Launched(launched) => format!("launched {}", launched.id),
        EffectResult::Failed(failure) => format!("failed: {failure}"),
        EffectResult::Planned | EffectResult::Done | EffectResult::IdleChecked(_) | EffectResult::NotTried => {
            result.as_str().to_owned()
        }
    }
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
    pub(super) fields: Policy,
}

/// The line of a reconcile as read.
#[derive(Deserialize)]
pub(super) struct ReadReconcile {
    at: Timestamp,
    /// Hash of its policy.
    pub(super) with: String,
    worker: Worker,
    #[serde(default)]
    license_origin: IntentOrigin,
    seen: Observation,
    decision: RecordedDecision,
    #[serde(default)]
    results: Vec<String>,
}

impl ReadReconcile {
    pub(super) fn under(self, policy: Arc<Policy>) -> RecordedReconcile {
        let Self { at, with: _, mut worker, license_origin, seen, decision, results } = self;
        worker.license.intent_origin = license_origin;
        RecordedReconcile { at, worker, seen, policy, decision, results }
    }
}
