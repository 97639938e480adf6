//! The result of a simulation.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::events::{Events, Fleet};
use crate::lifecycle::effect::EffectName;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::policy::Policy;
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::scale_down::ScaleDownVerdict;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;

/// Everything that a simulation depends on beside the version of LCM. In JSON, times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Inputs {
    /// The fleet.
    pub fleet: Fleet,
    /// The events.
    pub events: Events,
    /// The policy.
    pub policy: Policy,
    /// Duration in hours.
    pub hours: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Inputs {
    /// The first 16 hexadecimal digits of the SHA-256 of their JSON.
    pub fn digest(&self) -> String {
        digest(self)
    }
}

/// The first 16 hexadecimal digits of the SHA-256 of a value's JSON.
pub(super) fn digest(inputs: &impl Serialize) -> String {
    let text = serde_json::to_vec(inputs).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Everything that happened in a simulation. The same version and inputs give the same history.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct History {
    /// Version of LCM that decided.
    pub version: &'static str,
    /// Fleet, events, policy, duration and seed.
    pub inputs: Inputs,
    /// When the simulation starts, in its own time.
    pub started_at: Timestamp,
    /// Ids of the workers; a [`Step`] refers to them by position.
    pub workers: Vec<WorkerId>,
    /// Status of each worker at the start.
    pub first_statuses: Vec<WorkerStatus>,
    /// The reconciles that changed something or failed, in order of time. Equal ones in a row are one step.
    pub steps: Vec<Step>,
    /// Actions of users that were refused, in order of time.
    pub refused: Vec<Refusal>,
    /// Record of each worker at the end.
    pub records: Vec<Worker>,
    /// The totals.
    pub figures: Figures,
}

/// A reconcile that changed something or failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// Position of the worker in [`History::workers`].
    pub worker: usize,
    /// Status before.
    pub from: WorkerStatus,
    /// Status after.
    pub to: WorkerStatus,
    /// The outcome.
    pub outcome: Outcome,
    /// The reason.
    pub reason: Reason,
    /// Observed state of the instance: a state of EC2, `absent`, `unknown` or `not requested`.
    pub ec2: &'static str,
    /// Number of sessions assigned to the worker.
    pub sessions: usize,
    /// Effects that were tried.
    pub effects: Vec<EffectName>,
    /// How many more followed that were the same.
    pub repeats: u32,
}

/// Workers up to which an error lists all of them.
const NAMED: usize = 12;

/// An action in the AWS console or a drain that was refused. The simulation goes on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Refusal {
    /// When.
    pub at: Timestamp,
    /// Position of the worker in [`History::workers`].
    pub worker: usize,
    /// The action: `start`, `stop`, `terminate`, `drain` or `cancel drain`.
    pub action: &'static str,
    /// The reason.
    pub why: String,
}

/// A worker that a simulation does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown worker '{worker}': the {workers} workers of the simulation are {known}")]
#[non_exhaustive]
pub struct UnknownWorker {
    /// The id as given.
    pub worker: String,
    /// Number of workers.
    pub workers: usize,
    /// Their ids, of which some may be left out.
    pub known: String,
}

/// Totals of a simulation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// The sessions.
    pub sessions: SessionFigures,
    /// Hours that instances were running.
    pub instance_hours: f64,
    /// Their price.
    pub cost: f64,
    /// Mean time from the wish for a worker to its being in service, in seconds; `None` if none came up.
    pub mean_time_to_running: Option<f64>,
    /// Longest time from the wish for a worker to its being in service, in seconds.
    pub longest_time_to_running: Option<f64>,
    /// Number of workers that came into service.
    pub starts: u64,
    /// Number of reconciles that were carried out. Those of a worker that is in service and has nothing due are not
    /// among them: they are skipped because they would change nothing.
    pub reconciles: u64,
    /// Number of calls that describe instances: one per thousand workers in each polling cycle, and one at every other
    /// moment with reconciles.
    pub describes: u64,
    /// How often a leader was replaced or restarted.
    pub leader_changes: u64,
    /// Number of effects by name.
    pub calls: BTreeMap<EffectName, u64>,
    /// Number of evaluations by scale-down, by verdict. Those of workers in use are left out where they would change
    /// nothing.
    pub scale_down: BTreeMap<ScaleDownVerdict, u64>,
    /// Number of reconciles by reason.
    pub reasons: BTreeMap<ReasonCode, u64>,
}

/// Totals of the sessions. Those that wait or run at the end are in none of served and lost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SessionFigures {
    /// Sessions that were requested.
    pub requested: u64,
    /// Sessions that ran to their end.
    pub served: u64,
    /// Sessions that began more than a minute late.
    pub delayed: u64,
    /// Sessions that were given up while they waited.
    pub given_up: u64,
    /// Sessions that were ended by the end of their worker or of its drain.
    pub cut_short: u64,
    /// How often a drain handed a session back before it began.
    pub handed_back: u64,
    /// Mean delay of the sessions that began, in seconds.
    pub mean_delay: f64,
    /// Longest delay of a session that began, in seconds.
    pub longest_delay: f64,
}

impl SessionFigures {
    /// Sessions that were given up or cut short.
    pub const fn lost(&self) -> u64 {
        self.given_up + self.cut_short
    }
}

impl History {
    /// The steps of a worker, in order of time.
    pub fn steps_of<'a>(&'a self, worker: &str) -> impl Iterator<Item = &'a Step> {
        let position = self.workers.iter().position(|id| id.as_str() == worker);
        self.steps.iter().filter(move |step| Some(step.worker) == position)
    }

    /// The chain of steps that led to the status of a worker at a time: those since it was last in service or at rest,
    /// and the one that took it out of there. Empty if nothing had happened yet.
    ///
    /// # Errors
    /// For an unknown worker.
    pub fn why(&self, worker: &str, at: Timestamp) -> Result<Vec<&Step>, UnknownWorker> {
        self.position(worker)?;
        let steps: Vec<&Step> = self.steps_of(worker).take_while(|step| step.at <= at).collect();
        let Some((last, earlier)) = steps.split_last() else { return Ok(Vec::new()) };
        let is_settled = |step: &&Step| step.to != step.from && step.to.is_settled();
        let begin = earlier.iter().rposition(is_settled).map_or(0, |settled| settled + 1);
        Ok(earlier[begin..].iter().copied().chain([*last]).collect())
    }

    fn position(&self, worker: &str) -> Result<usize, UnknownWorker> {
        self.workers.iter().position(|id| id.as_str() == worker).ok_or_else(|| {
            let named: Vec<&str> = self.workers.iter().take(NAMED).map(|id| id.as_str()).collect();
            let known = match self.workers.last().filter(|_| self.workers.len() > NAMED) {
                Some(last) => format!("{} to {last}", named[0]),
                None => named.join(", "),
            };
            UnknownWorker { worker: worker.to_owned(), workers: self.workers.len(), known }
        })
    }

    /// The status of a worker at a time.
    ///
    /// # Errors
    /// For an unknown worker.
    pub fn status(&self, worker: &str, at: Timestamp) -> Result<WorkerStatus, UnknownWorker> {
        let position = self.position(worker)?;
        let latest = self.steps_of(worker).take_while(|step| step.at <= at).last();
        Ok(latest.map_or(self.first_statuses[position], |step| step.to))
    }
}

/// `2026-01-05T09:00:31Z stopped → starting: The instance is stopped and should run: starting it. [start_instance]`
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        write!(f, "{at} {}", self.from)?;
        if self.to != self.from {
            write!(f, " → {}", self.to)?;
        }
        write!(f, ": {}", self.reason)?;
        for (index, effect) in self.effects.iter().enumerate() {
            write!(f, "{}{effect}", if index == 0 { " [" } else { ", " })?;
        }
        f.write_str(if self.effects.is_empty() { "" } else { "]" })?;
        if self.repeats > 0 { write!(f, " ({} more times)", self.repeats) } else { Ok(()) }
    }
}

/// Sessions, hours and cost in one line.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = &self.sessions;
        write!(
            f,
            "{} sessions requested, {} served, {} delayed, {} lost; {:.1} instance hours, cost {:.2}",
            sessions.requested,
            sessions.served,
            sessions.delayed,
            sessions.lost(),
            self.instance_hours,
            self.cost
        )
    }
}
