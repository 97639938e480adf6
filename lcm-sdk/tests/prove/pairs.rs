//! Pairs of events that cancel each other out between two observations of a controller.

use lcm_sdk::{DesiredStatus, Ec2State, Session, WorkerStatus};

use super::oracle::OperatorRequest;
use super::world::World;

/// A change that is undone before a controller observes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// An operator changes the desired status and changes it back.
    DesiredStatusChangedAndReverted,
    /// An instance is stopped and started again.
    StoppedAndStarted,
    /// A drain is started and canceled.
    DrainedAndCanceled,
    /// A session is placed and ends.
    SessionPlacedAndEnded,
    /// The template is removed and put back.
    TemplateRemovedAndRestored,
}

impl Pair {
    pub(crate) const ALL: [Self; 5] = [
        Self::DesiredStatusChangedAndReverted,
        Self::StoppedAndStarted,
        Self::DrainedAndCanceled,
        Self::SessionPlacedAndEnded,
        Self::TemplateRemovedAndRestored,
    ];
}

impl World {
    /// Applies a pair of events to every worker it can apply to.
    pub(crate) fn apply_pair(&self, pair: Pair) {
        self.log(format!("injected: {pair:?}"));
        if pair == Pair::TemplateRemovedAndRestored {
            self.control_plane.remove_template("metal");
            self.control_plane.put_template(super::world::template());
            return;
        }
        for worker in self.workers() {
            match pair {
                Pair::DesiredStatusChangedAndReverted => {
                    let other = match worker.desired_status {
                        Some(DesiredStatus::Running) | None => DesiredStatus::Stopped,
                        Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => DesiredStatus::Running,
                    };
                    self.edit(&worker.id, |record| record.desired_status = Some(other));
                    self.edit(&worker.id, |record| record.desired_status = worker.desired_status);
                }
                Pair::StoppedAndStarted => {
                    let instance = worker.ec2_instance_id.as_ref().and_then(|id| self.instance(id));
                    if let Some(mut instance) = instance.filter(|instance| instance.state == Ec2State::Running) {
                        instance.launched_at = Some(self.clock.true_time());
                        self.compute.put(self.region_of(&instance.id), instance);
                    }
                }
                Pair::DrainedAndCanceled => {
                    if worker.status == WorkerStatus::Running {
                        let now = self.clock.true_time();
                        let mut oracle = self.oracle.lock();
                        oracle.request(&worker.id, OperatorRequest::Drain);
                        oracle.request(&worker.id, OperatorRequest::Run);
                        drop(oracle);
                        self.edit(&worker.id, |record| {
                            record.status = WorkerStatus::Draining;
                            record.notes.drain_started_at = Some(now);
                        });
                        self.edit(&worker.id, |record| {
                            record.status = WorkerStatus::Running;
                            record.notes.drain_started_at = None;
                        });
                    }
                }
                Pair::SessionPlacedAndEnded => {
                    let mut session = Session::new(format!("s-{}", self.next_number()), "running");
                    session.worker_id = Some(worker.id.clone());
                    self.control_plane.put_session(session.clone());
                    session.state = lcm_sdk::lifecycle::SessionState::from_wire("stopped");
                    self.control_plane.put_session(session);
                }
                Pair::TemplateRemovedAndRestored => {}
            }
        }
    }
}
