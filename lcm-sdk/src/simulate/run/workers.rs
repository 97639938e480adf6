//! Workers: operators that change their records, and controllers that reconcile them.

use super::clock::{Event, Moment, millis};
use super::{Node, SOON, WATCH_DELAY, World};
use crate::lifecycle::drain;
use crate::lifecycle::effect::Effect;
use crate::lifecycle::fleet::{Eligibility, eligibility};
use crate::lifecycle::idle::IdleReport;
use crate::lifecycle::license::LicenseOperation;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::outcome::{Outcome, Requeue};
use crate::lifecycle::record::{Applied, record};
use crate::lifecycle::secret::Secret;
use crate::lifecycle::status::{DesiredStatus, WorkerStatus};
use crate::lifecycle::time;
use crate::simulate::Reconciled;
use crate::simulate::events::{DrainAction, LicenseEvent};

/// The requester and the reason of a drain.
const OPERATOR: &str = "operator";
const REQUESTED: &str = "requested";

impl World<'_> {
    pub(super) fn desire(&mut self, worker: usize, desired: DesiredStatus) {
        let now = self.now;
        let node = &mut self.nodes[worker];
        node.simulation.worker.desired_status = Some(desired);
        let is_wanted = desired == DesiredStatus::Running && !node.is_eligible;
        if is_wanted && node.requested_at.is_none() {
            node.requested_at = Some(now);
            self.coming += 1;
        }
        self.touch(worker);
        self.note_service(worker);
    }

    /// Begins or cancels a drain, as an operator does.
    pub(super) fn operate(&mut self, worker: usize, action: DrainAction) {
        let now = self.timestamp(self.now);
        let simulation = &mut self.nodes[worker].simulation;
        let as_read = simulation.worker.clone();
        let decided = match action {
            DrainAction::Begin => drain::initiate(&as_read, &simulation.sessions, REQUESTED, OPERATOR, now),
            DrainAction::Cancel => drain::cancel(&as_read, OPERATOR, REQUESTED),
        };
        let decision = match decided {
            Ok(decision) => decision,
            Err(error) => return self.refuse(worker, action.as_str(), error.to_string()),
        };
        let applied = Applied { decision, results: Vec::new(), at: now, version: as_read.version };
        let record = record(&as_read, &applied);
        simulation.write(&record.patch);
        let Applied { decision, results, .. } = applied;
        let observation = Observation::default();
        self.note_step(worker, &Reconciled { worker: as_read, observation, decision, results, record });
        self.schedule(worker, self.now + WATCH_DELAY);
        self.note_service(worker);
    }

    /// Requests the registration of a license.
    pub(super) fn license(&mut self, worker: usize, event: &LicenseEvent) {
        let simulation = &mut self.nodes[worker].simulation;
        simulation.registration_time = event.takes;
        simulation.registration_result = event.result;
        simulation.worker.license.pending_operation = Some(LicenseOperation::Register);
        simulation.worker.license.pending_token = Some(Secret::from("token"));
        self.touch(worker);
    }

    /// A write to the record, which a watch reports.
    fn touch(&mut self, worker: usize) {
        let record = &mut self.nodes[worker].simulation.worker;
        record.version = record.version.map(|version| version + 1);
        self.note_poll(worker);
        self.schedule(worker, self.now + WATCH_DELAY);
    }

    /// The shard of a worker. Shards have equal numbers of workers.
    fn shard(&self, worker: usize) -> usize {
        worker % self.leaderless_until.len()
    }

    /// The leader of a shard fails: a standby takes over, or the controller restarts.
    pub(super) fn fail_controller(&mut self, failure: usize) {
        let gap = if self.fleet.controllers > 1 { self.fleet.takeover_time } else { self.fleet.restart_time };
        let shard = failure % self.leaderless_until.len();
        let until = self.leaderless_until[shard].max(self.now + millis(gap));
        self.leaderless_until[shard] = until;
        self.push(until, Event::TakeOver(shard));
    }

    /// A new leader sweeps its workers. It knows nothing of the retries of the one before.
    pub(super) fn take_over(&mut self, shard: usize) {
        if self.now < self.leaderless_until[shard] {
            return;
        }
        self.figures.leader_changes += 1;
        let first = self.now + SOON;
        for worker in (shard..self.nodes.len()).step_by(self.leaderless_until.len()) {
            self.nodes[worker].retries = 0;
            if !self.nodes[worker].simulation.worker.is_at_rest() {
                self.schedule(worker, first);
            }
        }
    }

    /// Notes whether a worker takes sessions, and whether one that was requested is still to come.
    pub(super) fn note_service(&mut self, worker: usize) {
        self.note_poll(worker);
        let node = &mut self.nodes[worker];
        let is_eligible = eligibility(&node.simulation.worker) == Eligibility::Eligible;
        if !is_eligible && !node.may_come() && node.requested_at.take().is_some() {
            self.coming -= 1;
        }
        if is_eligible == node.is_eligible {
            return;
        }
        node.is_eligible = is_eligible;
        if !is_eligible {
            self.running -= 1;
            return;
        }
        self.running += 1;
        node.idle_since = self.now;
        if let Some(requested_at) = node.requested_at.take() {
            self.coming -= 1;
            self.note_start(requested_at);
        }
        self.begin_due(worker);
    }

    /// Schedules the next idle check of a worker in service. A check that finds activity changes nothing and is skipped.
    pub(super) fn schedule_service(&mut self, worker: usize) {
        let node = &self.nodes[worker];
        if !self.policy.scale_down.enabled || !node.is_eligible || node.is_active() {
            return;
        }
        let checked = node.simulation.worker.last_activity_check_at;
        let checked = checked.map_or(0, |at| millis(time::age(self.start, at)));
        let idle_at = node.idle_since + millis(self.fleet.idle_timeout);
        let due = idle_at.max(checked + millis(self.policy.idle_detection_interval)).max(self.now);
        self.schedule(worker, self.next_cycle(due));
    }

    pub(super) fn reconcile(&mut self, worker: usize, turn: u64) {
        if self.nodes[worker].turn != turn {
            return;
        }
        self.nodes[worker].due = None;
        let led_from = self.leaderless_until[self.shard(worker)];
        if self.now < led_from {
            self.schedule(worker, led_from);
            return;
        }
        let now = self.timestamp(self.now);
        let failure = self.call_failure();
        let changes_left = self.changes_left();
        let (running, last_scale_down_at) = (self.running, self.last_scale_down_at);
        let idle_timeout = millis(self.fleet.idle_timeout);
        let node = &mut self.nodes[worker];
        node.limit_calls(failure, changes_left);
        let idle = node.idle_report(self.now, idle_timeout);
        let simulation = &mut node.simulation;
        simulation.advance(time::age(simulation.now, now));
        simulation.running_workers = running;
        simulation.last_scale_down_at = last_scale_down_at;
        simulation.metrics_reported_at = Some(now);
        simulation.idle = idle;
        let reconciled = simulation.reconcile();
        node.limit_calls(None, None);
        if reconciled.observation.idle.found().is_some() {
            node.simulation.worker.last_activity_check_at = Some(now);
        }
        if reconciled.decision.scales_down() {
            self.last_scale_down_at = Some(now);
        }
        self.note_changes(&reconciled);
        self.note_reconcile(&reconciled);
        self.note_step(worker, &reconciled);
        self.note_service(worker);
        self.note_power(worker);
        if reconciled.decision.effects.iter().any(Effect::changes_cloud) {
            self.watch_transition(worker);
        }
        self.follow_effects(worker, &reconciled);
        self.schedule_after(worker, &reconciled);
        if self.nodes[worker].is_eligible || !self.waiting.is_empty() {
            self.place_waiting();
        }
    }

    fn schedule_after(&mut self, worker: usize, reconciled: &Reconciled) {
        let record = &reconciled.record;
        let node = &mut self.nodes[worker];
        match record.outcome {
            Outcome::Success | Outcome::Skip => node.retries = 0,
            Outcome::Requeue | Outcome::Retry => {}
        }
        let is_at_rest = node.simulation.worker.is_at_rest();
        let is_settled = node.simulation.worker.status == WorkerStatus::Running
            && record.outcome == Outcome::Success
            && record.patch.is_empty()
            && !node.simulation.ec2.is_in_transition();
        let at = match record.requeue {
            Requeue::Now => Some(self.now + SOON),
            Requeue::After(delay) => Some(self.now + millis(delay).max(SOON)),
            Requeue::Backoff => {
                let delay = self.policy.backoff.delay_with_jitter(node.retries, self.jitter.fraction());
                node.retries += 1;
                Some(self.now + millis(delay).max(SOON))
            }
            Requeue::NextCycle | Requeue::OnChange if is_at_rest => None,
            Requeue::NextCycle if is_settled => {
                self.schedule_service(worker);
                None
            }
            Requeue::NextCycle | Requeue::OnChange => Some(self.next_cycle(self.now)),
        };
        if let Some(at) = at {
            self.schedule(worker, at);
        }
    }
}

impl Node {
    /// Whether a worker that was requested can still come into service.
    fn may_come(&self) -> bool {
        let is_wanted = self.simulation.worker.desired_status == Some(DesiredStatus::Running);
        match self.simulation.worker.status {
            WorkerStatus::Terminating | WorkerStatus::Terminated | WorkerStatus::Failed => false,
            WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Unknown => is_wanted,
        }
    }

    /// The report of idle detection: a worker without an active session is idle after a time.
    fn idle_report(&self, now: Moment, timeout: Moment) -> IdleReport {
        let idle_for = now - self.idle_since;
        let is_idle = !self.is_active() && idle_for >= timeout;
        IdleReport {
            telemetry_fetched: true,
            idle_check_performed: true,
            is_idle,
            eligible_for_pause: is_idle,
            idle_minutes: Some(idle_for as f64 / 60_000.0),
            ..IdleReport::default()
        }
    }
}
