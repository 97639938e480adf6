//! The result of a simulation.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::lifecycle::effect::EffectName;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::reason::{Reason, ReasonCode};
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::worker::Worker;

/// Everything that happened in a simulation. The same version, fleet, events, policy, duration and seed give the same
/// history.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct History {
    /// Version of LCM that decided.
    pub version: &'static str,
    /// Seed of the random numbers.
    pub seed: u64,
    /// When the simulation starts, in its own time.
    pub started_at: Timestamp,
    /// Its duration in hours.
    pub hours: f64,
    /// Ids of the workers; a [`Step`] refers to them by position.
    pub workers: Vec<WorkerId>,
    /// Status of each worker at the start.
    pub first_statuses: Vec<WorkerStatus>,
    /// The reconciles that changed something or failed, in order of time. Equal ones in a row are one step.
    pub steps: Vec<Step>,
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
    /// Number of effects by name.
    pub calls: BTreeMap<EffectName, u64>,
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
    /// Sessions that were ended by the end of their worker.
    pub cut_short: u64,
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
    /// and the one that took it out of there. Empty for an unknown worker, and if nothing had happened yet.
    pub fn why(&self, worker: &str, at: Timestamp) -> Vec<&Step> {
        let steps: Vec<&Step> = self.steps_of(worker).take_while(|step| step.at <= at).collect();
        let Some((last, earlier)) = steps.split_last() else { return Vec::new() };
        let is_settled = |step: &&Step| step.to != step.from && step.to.is_settled();
        let begin = earlier.iter().rposition(is_settled).map_or(0, |settled| settled + 1);
        earlier[begin..].iter().copied().chain([*last]).collect()
    }

    /// The status of a worker at a time; `None` for an unknown worker.
    pub fn status(&self, worker: &str, at: Timestamp) -> Option<WorkerStatus> {
        let position = self.workers.iter().position(|id| id.as_str() == worker)?;
        let latest = self.steps_of(worker).take_while(|step| step.at <= at).last();
        Some(latest.map_or(self.first_statuses[position], |step| step.to))
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
