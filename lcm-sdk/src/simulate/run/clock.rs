//! Time of a simulation: the events that are due, in order.

use std::cmp::Reverse;
use std::time::Duration;

use chrono::TimeDelta;

use super::World;
use crate::lifecycle::time::Timestamp;

/// Milliseconds since the start.
pub(super) type Moment = u64;

pub(super) fn millis(duration: Duration) -> Moment {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The next session of the rate is requested.
    Arrival,
    /// A planned session is requested.
    Planned(usize),
    /// A worker may be requested for the waiting sessions.
    Place,
    /// A placed session begins.
    Begin(usize),
    /// A running session ends.
    End(usize),
    /// A waiting session is given up.
    GiveUp(usize),
    /// A worker is due; ignored if another time was set since.
    Reconcile {
        worker: usize,
        turn: u64,
    },
    /// A transition of EC2 is complete.
    Settle(usize),
    Console(usize),
    Desired(usize),
    Drain(usize),
    License(usize),
    ControllerFails(usize),
    /// A controller leads a shard again.
    TakeOver(usize),
}

impl World<'_> {
    /// The next event that is due before the end, at its time.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let Reverse((at, _, event)) = self.queue.pop()?;
        if at > self.end {
            return None;
        }
        self.now = at;
        Some(event)
    }

    pub(super) fn push(&mut self, at: Moment, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    pub(super) fn timestamp(&self, at: Moment) -> Timestamp {
        self.start + TimeDelta::milliseconds(i64::try_from(at).unwrap_or(i64::MAX / 2))
    }

    /// Number of the polling cycle that a moment is in.
    pub(super) fn cycle(&self, at: Moment) -> u64 {
        at / millis(self.fleet.interval)
    }

    pub(super) fn next_cycle(&self, after: Moment) -> Moment {
        (self.cycle(after) + 1) * millis(self.fleet.interval)
    }

    /// Sets when a worker is reconciled next, unless it is due earlier.
    pub(super) fn schedule(&mut self, worker: usize, at: Moment) {
        let node = &mut self.nodes[worker];
        if node.due.is_some_and(|due| due <= at) {
            return;
        }
        node.due = Some(at);
        node.turn += 1;
        let turn = node.turn;
        self.push(at, Event::Reconcile { worker, turn });
    }
}
