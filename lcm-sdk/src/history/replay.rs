//! Decides the reconciles of a history again and lists the differences.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::line::{RecordedDecision, RecordedReconcile};
use super::read::{HistoryError, HistoryReader};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::query::Query;
use crate::lifecycle::reason::ReasonCode;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;

/// Maximum number of differences that a replay keeps. Others are only counted.
pub const MAX_DIFFERENCES: usize = 10_000;

/// The policy of a replay.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ReplayPolicy {
    /// The policy that each decision was made under: only this version differs.
    #[default]
    AsRecorded,
    /// That policy with some [fields replaced](Policy::with_fields).
    Changed(Value),
    /// Another policy for all decisions.
    Replaced(Box<Policy>),
}

/// The result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Replay {
    /// Number of decisions made again.
    pub decisions: u64,
    /// Number of them that are not the same.
    pub changed: u64,
    /// Number of them that need an observation that the history lacks, by its name. They are not among the changed.
    pub undecided: BTreeMap<&'static str, u64>,
    /// The first [`MAX_DIFFERENCES`] of those that are not the same, in order of the history.
    pub differences: Vec<Difference>,
    /// Parts of the history that this version does not know and skipped, as sentences.
    pub warnings: Vec<String>,
    /// The number of those that are not the same, by worker, recorded and replayed reason.
    #[serde(rename = "summary", serialize_with = "serialize_summary")]
    counts: Counts,
}

/// The differences of one worker from one reason to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The worker.
    pub worker: WorkerId,
    /// Reason code of the recorded decisions.
    pub recorded: String,
    /// Reason code of the replayed decisions.
    pub replayed: &'static str,
    /// Their number.
    pub decisions: u64,
}

/// Differences that are expected of a change: those of a worker or of a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// Every difference of a worker.
    Worker(WorkerId),
    /// Every difference whose recorded or replayed decision has this reason.
    Reason(ReasonCode),
}

impl Expected {
    /// Whether it covers differences.
    pub fn covers(&self, summary: &Summary) -> bool {
        match self {
            Self::Worker(worker) => *worker == summary.worker,
            Self::Reason(code) => code.as_str() == summary.recorded || code.as_str() == summary.replayed,
        }
    }
}

/// A decision that is not the same as the recorded one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The time of the decision.
    pub at: Timestamp,
    /// The worker.
    pub worker: WorkerId,
    /// Status on its record.
    pub status: WorkerStatus,
    /// The decision of the history.
    pub recorded: RecordedDecision,
    /// The decision of this version under the policy of the replay.
    pub replayed: RecordedDecision,
}

impl Replay {
    /// Whether every decision could be made again and is the same.
    pub fn is_same(&self) -> bool {
        self.changed == 0 && self.undecided.is_empty()
    }

    /// The number of differences by the recorded and the replayed reason.
    pub fn by_reason(&self) -> BTreeMap<(&str, &str), u64> {
        let mut counts = BTreeMap::new();
        for ((_, recorded, replayed), decisions) in &self.counts {
            *counts.entry((recorded.as_str(), *replayed)).or_default() += decisions;
        }
        counts
    }

    /// The number of differences by worker.
    pub fn by_worker(&self) -> BTreeMap<&WorkerId, u64> {
        let mut counts = BTreeMap::new();
        for ((worker, _, _), decisions) in &self.counts {
            *counts.entry(worker).or_default() += decisions;
        }
        counts
    }

    /// The number of differences by worker and reasons.
    pub fn summary(&self) -> Vec<Summary> {
        summary(&self.counts)
    }

    /// The differences that none of these covers.
    pub fn unexpected(&self, expected: &[Expected]) -> Vec<Summary> {
        let mut summary = self.summary();
        summary.retain(|part| !expected.iter().any(|expected| expected.covers(part)));
        summary
    }
}

impl Difference {
    /// Effects of the recorded decision that the replayed one lacks.
    pub fn no_longer(&self) -> Vec<Value> {
        let replayed = self.replayed.effects();
        self.recorded.effects().into_iter().filter(|effect| !replayed.contains(effect)).collect()
    }

    /// Effects of the replayed decision that the recorded one lacks.
    pub fn newly(&self) -> Vec<Value> {
        let recorded = self.recorded.effects();
        self.replayed.effects().into_iter().filter(|effect| !recorded.contains(effect)).collect()
    }
}

/// Time, worker, both reasons, and each part that differs.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, recorded, replayed, .. } = self;
        let at = self.at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
        write!(f, "{at} {worker}: ")?;
        match recorded.reason == replayed.reason {
            true => write!(f, "{}: ", recorded.reason)?,
            false => write!(f, "{} → {}: ", recorded.reason, replayed.reason)?,
        }
        let status = |decision: &RecordedDecision| decision.to.unwrap_or(self.status);
        let mut parts = Vec::new();
        if status(recorded) != status(replayed) {
            parts.push(format!("status {} → {}", status(recorded), status(replayed)));
        }
        parts.extend(self.no_longer().iter().map(|effect| format!("no longer {}", named(effect))));
        parts.extend(self.newly().iter().map(|effect| format!("newly {}", named(effect))));
        let (before, after) = (recorded.changes(), replayed.changes());
        let fields: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for field in fields {
            let (before, after) = (before.get(field), after.get(field));
            if before != after {
                let shown = |value: Option<&Value>| value.map_or_else(|| "unchanged".to_owned(), Value::to_string);
                parts.push(format!("{field} {} → {}", shown(before), shown(after)));
            }
        }
        if recorded.requeue != replayed.requeue {
            parts.push(format!("again {} → {}", recorded.requeue, replayed.requeue));
        }
        if recorded.outcome != replayed.outcome {
            parts.push(format!("outcome {} → {}", recorded.outcome, replayed.outcome));
        }
        if recorded.notices() != replayed.notices() {
            parts.push("other events".to_owned());
        }
        if parts.is_empty() {
            parts.push("another reason".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

/// The name of an effect and the instance or session it is about.
pub(super) fn named(effect: &Value) -> String {
    let text = |field: &str| effect.get(field).and_then(Value::as_str);
    let name = text("effect").unwrap_or("an effect");
    match text("instance").or_else(|| text("session")) {
        Some(subject) => format!("{name} {subject}"),
        None => name.to_owned(),
    }
}

/// Decides every reconcile again with this version.
///
/// # Errors
/// The first error of the history, or an invalid policy.
pub fn replay<R: Borrow<RecordedReconcile>>(
    history: impl IntoIterator<Item = Result<R, HistoryError>>,
    policy: &ReplayPolicy,
) -> Result<Replay, HistoryError> {
    let mut result = Replay::default();
    let mut policies = Policies::default();
    for reconcile in history {
        let reconcile = reconcile?;
        let reconcile = reconcile.borrow();
        let policy = policies.get(&reconcile.policy, policy)?;
        result.add(reconcile, policy);
    }
    Ok(result)
}

/// Replays histories one after the other: files, or directories of files.
///
/// # Errors
/// If a history cannot be read, or the policy is invalid.
pub fn replay_paths(paths: &[impl AsRef<Path>], policy: &ReplayPolicy) -> Result<Replay, HistoryError> {
    let mut reader = HistoryReader::open_all(paths)?;
    let result = replay(&mut reader, policy)?;
    Ok(Replay { warnings: reader.warnings().to_vec(), ..result })
}

/// The latest recorded policy and its replacement. The reconciles of a file share one policy.
#[derive(Default)]
struct Policies(Option<(Arc<Policy>, Arc<Policy>)>);

impl Policies {
    fn get(&mut self, recorded: &Arc<Policy>, policy: &ReplayPolicy) -> Result<&Policy, HistoryError> {
        let known = self.0.take().filter(|(known, _)| Arc::ptr_eq(known, recorded));
        let entry = match known {
            Some(entry) => entry,
            None => {
                let replacement = match policy {
                    ReplayPolicy::AsRecorded => Arc::clone(recorded),
                    ReplayPolicy::Changed(fields) => Arc::new(recorded.with_fields(fields)?),
                    ReplayPolicy::Replaced(policy) => Arc::new(Policy::clone(policy)),
                };
                (Arc::clone(recorded), replacement)
            }
        };
        Ok(&self.0.insert(entry).1)
    }
}

impl Replay {
    fn add(&mut self, reconcile: &RecordedReconcile, policy: &Policy) {
        let decision = reconcile.decide(policy);
        self.decisions += 1;
        if reconcile.decision.is_same(&decision) {
            return;
        }
        if let Some(query) = reconcile.lacks(policy) {
            *self.undecided.entry(Query::as_str(query)).or_default() += 1;
            return;
        }
        self.changed += 1;
        let reasons = (reconcile.decision.reason.clone(), decision.reason.code.as_str());
        *self.counts.entry((reconcile.worker.id.clone(), reasons.0, reasons.1)).or_default() += 1;
        if self.differences.len() < MAX_DIFFERENCES {
            self.differences.push(Difference {
                at: reconcile.at,
                worker: reconcile.worker.id.clone(),
                status: reconcile.worker.status,
                recorded: reconcile.decision.clone(),
                replayed: (&decision).into(),
            });
        }
    }
}

/// Numbers of differences by worker, recorded and replayed reason.
type Counts = BTreeMap<(WorkerId, String, &'static str), u64>;

fn summary(counts: &Counts) -> Vec<Summary> {
    let part = |((worker, recorded, replayed), decisions): (&(WorkerId, String, &'static str), &u64)| Summary {
        worker: worker.clone(),
        recorded: recorded.clone(),
        replayed,
        decisions: *decisions,
    };
    counts.iter().map(part).collect()
}

fn serialize_summary<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
    summary(counts).serialize(serializer)
}
