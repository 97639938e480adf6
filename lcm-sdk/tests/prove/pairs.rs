//! Two events that cancel each other out: a controller that observes before and after sees nothing, and must not be
//! misled.

use lcm_sdk::{DesiredStatus, Ec2State, Session, WorkerStatus};

use super::oracle::Wish;
use super::world::{HERE, World};

/// A change that is undone before a controller observes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// An operator changes the desired status and changes it back.
    WishedOtherwiseAndBack,
    /// An instance is stopped and started again.
    StoppedAndStarted,
    /// A drain is begun and called off.
    DrainedAndCancelled,
    /// A session is placed and ends.
    SessionCameAndWent,
    /// The template is removed and put back.
    TemplateGoneAndBack,
}

impl Pair {
    pub(crate) const ALL: [Self; 5] = [
        Self::WishedOtherwiseAndBack,
        Self::StoppedAndStarted,
        Self::DrainedAndCancelled,
        Self::SessionCameAndWent,
        Self::TemplateGoneAndBack,
    ];
}

impl World {
    /// Applies a pair of events to every worker it can apply to.
    pub(crate) fn cancel_out(&self, pair: Pair) {
        self.tell(format!("here: {pair:?}"));
        if pair == Pair::TemplateGoneAndBack {
            self.control_plane.remove_template("metal");
            self.control_plane.put_template(super::world::template());
            return;
        }
        for worker in self.workers() {
            match pair {
                Pair::WishedOtherwiseAndBack => {
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
                        instance.launched_at = Some(self.clock.truth());
                        self.compute.put(HERE, instance);
                    }
                }
                Pair::DrainedAndCancelled => {
                    if worker.status == WorkerStatus::Running {
                        let now = self.clock.truth();
                        let mut oracle = self.oracle.lock();
                        oracle.wish(&worker.id, Wish::Drain);
                        oracle.wish(&worker.id, Wish::Run);
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
                Pair::SessionCameAndWent => {
                    let mut session = Session::new(format!("s-{}", self.number()), "running");
                    session.worker_id = Some(worker.id.clone());
                    self.control_plane.put_session(session.clone());
                    session.state = lcm_sdk::lifecycle::SessionState::from_wire("stopped");
                    self.control_plane.put_session(session);
                }
                Pair::TemplateGoneAndBack => {}
            }
        }
    }
}
