//! EC2 as a simulated fleet sees it: transitions, users of the AWS console, outages and throttling.

use super::clock::{Event, Moment, millis};
use super::{Node, World};
use crate::lifecycle::effect::Effect;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::status::Ec2State;
use crate::simulate::events::{CallLimit, ConsoleAction, OutageFailure};
use crate::simulate::{Outage, Reconciled};

/// Workers whose instances one call describes.
const INSTANCES_PER_CALL: u64 = 1000;

/// The calls that EC2 still accepts, as a bucket that fills with time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    limit: CallLimit,
    tokens: f64,
    filled_at: Moment,
}

impl Bucket {
    pub(super) const fn new(limit: CallLimit) -> Self {
        Self { limit, tokens: limit.burst as f64, filled_at: 0 }
    }

    /// The calls that are accepted at a moment.
    fn left(&mut self, now: Moment) -> u32 {
        let seconds = now.saturating_sub(self.filled_at) as f64 / 1000.0;
        self.tokens = (self.tokens + seconds * self.limit.per_second).min(f64::from(self.limit.burst));
        self.filled_at = now;
        self.tokens as u32
    }

    fn take(&mut self, calls: u32) {
        self.tokens -= f64::from(calls);
    }
}

/// Describe calls: one per thousand workers in every polling cycle, and one at every other moment with reconciles.
#[derive(Debug, Default)]
pub(super) struct Describes {
    /// Workers that are polled.
    polled: u64,
    /// Cycle up to which the polls are counted.
    counted_to: u64,
    /// Moment of the latest describe.
    latest: Option<Moment>,
    pub(super) calls: u64,
}

impl World<'_> {
    pub(super) fn act_in_console(&mut self, worker: usize, action: ConsoleAction) {
        let now = self.timestamp(self.now);
        let ec2 = &mut self.nodes[worker].simulation.ec2;
        (ec2.outage, ec2.changes_left) = (None, None);
        let live: Vec<_> =
            ec2.all().filter(|instance| instance.state.is_live()).map(|instance| instance.id.clone()).collect();
        let mut refused = if live.is_empty() { Some("the worker has no instance".to_owned()) } else { None };
        for id in live {
            let result = match action {
                ConsoleAction::Start => ec2.start(&id, now),
                ConsoleAction::Stop => ec2.stop(&id, now),
                ConsoleAction::Terminate => ec2.terminate(&id, now),
            };
            refused = result.err().map(|failure| failure.to_string()).or(refused);
        }
        if let Some(why) = refused {
            self.refuse(worker, action.as_str(), why);
        }
        self.note_power(worker);
        self.watch_transition(worker);
        if !self.nodes[worker].simulation.worker.is_at_rest() {
            self.schedule(worker, self.next_cycle(self.now));
        }
    }

    pub(super) fn settle(&mut self, worker: usize) {
        let now = self.timestamp(self.now);
        self.nodes[worker].simulation.ec2.settle(now);
        self.note_power(worker);
    }

    pub(super) fn watch_transition(&mut self, worker: usize) {
        let ec2 = &self.nodes[worker].simulation.ec2;
        if ec2.is_in_transition() {
            let at = self.now + millis(ec2.transition_time);
            self.push(at, Event::Settle(worker));
        }
    }

    /// Adds the time that the instance was running, and ends the sessions of one that is not.
    pub(super) fn note_power(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        let is_up = node.simulation.ec2.all().any(|instance| instance.state == Ec2State::Running);
        match (node.running_since, is_up) {
            (None, true) => node.running_since = Some(self.now),
            (Some(since), false) => {
                node.running_since = None;
                self.figures.instance_hours += (self.now - since) as f64 / 3_600_000.0;
                self.follow_sessions(worker);
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// The failure of every call of the reconcile that begins now, if there is one.
    pub(super) fn call_failure(&mut self) -> Option<CallFailure> {
        let (events, now) = (self.events, self.now);
        let is_current = |outage: &&Outage| (millis(outage.from)..millis(outage.to)).contains(&now);
        for outage in events.outages.iter().filter(is_current) {
            if outage.share >= 1.0 || self.faults.fraction() < outage.share {
                return Some(match outage.failure {
                    OutageFailure::Unreachable => CallFailure::new(FailureKind::Unreachable, "no response"),
                    OutageFailure::Throttled => throttled(),
                });
            }
        }
        if events.fault_rate > 0.0 && self.faults.fraction() < events.fault_rate {
            return Some(throttled());
        }
        // Reconciles of one moment share a describe.
        let is_described = self.describes.latest == Some(now);
        self.describes.latest = Some(now);
        if !is_described && now % millis(self.fleet.interval) != 0 {
            self.describes.calls += 1;
        }
        match &mut self.describe_limit {
            Some(bucket) if !is_described => match bucket.left(now) {
                0 => {
                    self.describes.latest = None;
                    Some(throttled())
                }
                _ => {
                    bucket.take(1);
                    None
                }
            },
            Some(_) | None => None,
        }
    }

    /// The changes that EC2 accepts now; `None` for no limit.
    pub(super) fn changes_left(&mut self) -> Option<u32> {
        let now = self.now;
        self.change_limit.as_mut().map(|bucket| bucket.left(now))
    }

    /// Counts the changes of a reconcile against the limit.
    pub(super) fn note_changes(&mut self, reconciled: &Reconciled) {
        let tried = reconciled.decision.effects.iter().zip(&reconciled.results);
        let changes = tried.filter(|(effect, result)| is_ec2_change(effect) && result.is_success()).count();
        if let Some(bucket) = &mut self.change_limit {
            bucket.take(u32::try_from(changes).unwrap_or(u32::MAX));
        }
    }

    /// Notes whether the controller polls a worker. Polls that change nothing are counted and not carried out.
    pub(super) fn note_poll(&mut self, worker: usize) {
        let is_polled = !self.nodes[worker].simulation.worker.is_at_rest();
        if is_polled == self.nodes[worker].is_polled {
            return;
        }
        self.count_polls();
        self.nodes[worker].is_polled = is_polled;
        match is_polled {
            true => self.describes.polled += 1,
            false => self.describes.polled -= 1,
        }
    }

    /// Counts the describes of the polling cycles up to now.
    pub(super) fn count_polls(&mut self) {
        let cycle = self.cycle(self.now);
        let describes = &mut self.describes;
        describes.calls += (cycle - describes.counted_to) * describes.polled.div_ceil(INSTANCES_PER_CALL);
        describes.counted_to = cycle;
    }
}

impl Node {
    /// Makes every call of the next reconcile fail, or limits its changes.
    pub(super) fn limit_calls(&mut self, failure: Option<CallFailure>, changes_left: Option<u32>) {
        self.simulation.ec2.outage = failure;
        self.simulation.ec2.changes_left = changes_left;
    }
}

const fn is_ec2_change(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::LaunchInstance { .. }
            | Effect::StartInstance { .. }
            | Effect::StopInstance { .. }
            | Effect::TerminateInstance { .. }
    )
}

fn throttled() -> CallFailure {
    CallFailure::with_code(FailureKind::Throttled, "RequestLimitExceeded", "Request limit exceeded.")
}
