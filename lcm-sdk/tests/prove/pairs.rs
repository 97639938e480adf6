//! Two events that cancel each other out: whoever looks before and after sees nothing, and must not be led astray.

use lcm_sdk::{DesiredStatus, Ec2State, Session, WorkerStatus};

use super::ledger::Wish;
use super::world::{HERE, World};

/// Something that happens and is undone before anybody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// An operator changes his mind, twice.
    WishedOtherwiseAndBack,
    /// Somebody stops an instance and starts it again.
    StoppedAndStarted,
    /// A drain is begun and called off.
    DrainedAndCancelled,
    /// A session comes and goes.
    SessionCameAndWent,
    /// The template is taken away and put back.
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
    /// Lets a pair of events happen to everybody it can happen to.
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
                        let mut ledger = self.ledger.lock();
                        ledger.wish(&worker.id, Wish::Drain);
                        ledger.wish(&worker.id, Wish::Run);
                        drop(ledger);
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
