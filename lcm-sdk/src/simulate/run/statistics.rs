//! Steps and figures of a simulation.

use super::World;
use super::clock::Moment;
use crate::lifecycle::event::{Audit, Notice};
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::outcome::Outcome;
use crate::simulate::Reconciled;
use crate::simulate::history::{History, Inputs, Refusal, Step};

/// Times from the request for a worker to its being in service, in seconds.
#[derive(Debug, Default)]
pub(super) struct StartTimes {
    total: f64,
    longest: f64,
}

impl World<'_> {
    /// Notes an action that EC2 or the status of the worker did not allow.
    pub(super) fn refuse(&mut self, worker: usize, action: &'static str, why: String) {
        let at = self.timestamp(self.now);
        self.refused.push(Refusal { at, worker, action, why });
    }

    pub(super) fn note_start(&mut self, requested_at: Moment) {
        let seconds = (self.now - requested_at) as f64 / 1000.0;
        self.start_times.total += seconds;
        self.start_times.longest = self.start_times.longest.max(seconds);
        self.figures.starts += 1;
    }

    pub(super) fn note_reconcile(&mut self, reconciled: &Reconciled) {
        let Reconciled { decision, results, record, .. } = reconciled;
        self.figures.reconciles += 1;
        *self.figures.reasons.entry(record.reason.code).or_default() += 1;
        for (effect, _) in decision.effects.iter().zip(results) {
            *self.figures.calls.entry(effect.name()).or_default() += 1;
        }
        for notice in &record.notices {
            match notice {
                Notice::Audit(Audit::ScaleDown(verdict)) => {
                    *self.figures.scale_down.entry(*verdict).or_default() += 1;
                }
                Notice::Audit(_) | Notice::Event(_) => {}
            }
        }
    }

    pub(super) fn note_step(&mut self, worker: usize, reconciled: &Reconciled) {
        let Reconciled { worker: as_read, observation, decision, results, record } = reconciled;
        let to = record.patch.status.unwrap_or(as_read.status);
        let is_routine = to == as_read.status && record.outcome != Outcome::Retry && !decision.relies_on_record();
        if is_routine && decision.changes.is_none() {
            return;
        }
        let step = Step {
            at: self.timestamp(self.now),
            worker,
            from: as_read.status,
            to,
            outcome: record.outcome,
            reason: record.reason.clone(),
            ec2: ec2_shown(&observation.instance),
            sessions: self.nodes[worker].simulation.sessions.len(),
            effects: decision.effects.iter().zip(results).map(|(effect, _)| effect.name()).collect(),
            repeats: 0,
        };
        let latest = self.nodes[worker].latest_step;
        if let Some(latest) = latest.map(|position| &mut self.steps[position])
            && (latest.from, latest.to, latest.reason.code, &latest.effects)
                == (step.from, step.to, step.reason.code, &step.effects)
            && step.from == step.to
        {
            latest.repeats += 1;
            return;
        }
        self.nodes[worker].latest_step = Some(self.steps.len());
        self.steps.push(step);
    }

    pub(super) fn finish(mut self, hours: f64, seed: u64) -> History {
        self.now = self.end;
        self.count_polls();
        for node in &self.nodes {
            if let Some(since) = node.running_since {
                self.figures.instance_hours += (self.end - since) as f64 / 3_600_000.0;
            }
        }
        let mut figures = self.figures;
        figures.cost = figures.instance_hours * self.fleet.price_per_hour;
        figures.describes = self.describes.calls;
        if figures.starts > 0 {
            figures.mean_time_to_running = Some(self.start_times.total / figures.starts as f64);
            figures.longest_time_to_running = Some(self.start_times.longest);
        }
        let delays = self.delays;
        figures.sessions.mean_delay = if delays.begun > 0 { delays.total / delays.begun as f64 } else { 0.0 };
        figures.sessions.longest_delay = delays.longest;
        let inputs =
            Inputs { fleet: self.fleet.clone(), events: self.events.clone(), policy: self.policy.clone(), hours, seed };
        History {
            version: env!("CARGO_PKG_VERSION"),
            inputs,
            started_at: self.start,
            workers: self.nodes.iter().map(|node| node.simulation.worker.id.clone()).collect(),
            first_statuses: self.first_statuses,
            steps: self.steps,
            refused: self.refused,
            records: self.nodes.into_iter().map(|node| node.simulation.worker).collect(),
            figures,
        }
    }
}

/// The observed state of an instance as a word.
fn ec2_shown(instance: &Lookup<Instance>) -> &'static str {
    match instance {
        Lookup::Found(instance) => instance.state.as_str(),
        Lookup::Absent => "absent",
        Lookup::Unknown(_) => "unknown",
        Lookup::NotRequested => "not requested",
    }
}
