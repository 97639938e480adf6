//! Records as a server keeps and shows them: some servers drop fields, some records have unreadable ones.

use lcm_sdk::lifecycle::{Change, Changes, UnreadableWorker, read_workers};
use lcm_sdk::ports::Fence;
use lcm_sdk::providers::memory::Fencing;
use lcm_sdk::{CallFailure, FailureKind, Patch, Worker, WorkerId};
use serde_json::{Value, json};

use super::world::World;

/// The fields that a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    KeepsAll,
    /// It keeps its own fields only: all notes are dropped.
    DropsNotes,
    /// It ignores a desired status in a write.
    OwnsDesiredStatus,
    /// It takes a cleared or replaced instance id for one that was not sent.
    KeepsInstanceId,
}

impl Server {
    /// A write as this server reads it.
    pub(crate) fn reads(self, mut patch: Patch) -> Patch {
        let changes = &mut patch.changes;
        match self {
            Self::KeepsAll => {}
            Self::DropsNotes => {
                *changes = Changes {
                    drain_started_at: Change::Keep,
                    drain_timeout_seconds: Change::Keep,
                    drain_tries: None,
                    scaled_down_at: None,
                    launched_at: None,
                    launch_generation: None,
                    launch_plan: Change::Keep,
                    license_attempt: None,
                    license_wait: None,
                    ec2_account_id: None,
                    ec2_region: None,
                    ..std::mem::take(changes)
                };
            }
            Self::OwnsDesiredStatus => changes.desired_status = None,
            Self::KeepsInstanceId => {
                if changes.ec2_instance_id == Change::Clear {
                    changes.ec2_instance_id = Change::Keep;
                }
            }
        }
        patch
    }
}

impl World {
    /// A record as the server shows it. `Err` is a record that cannot be read at all.
    pub(crate) fn show(&self, mut worker: Worker) -> Result<Worker, Box<UnreadableWorker>> {
        if self.nameless.lock().contains(&worker.id) {
            worker.ec2_instance_id = None;
        }
        if self.setup.server == Server::DropsNotes {
            // The server sets the start of a drain by itself; it shows no other note.
            let drain_started_at = worker.notes.drain_started_at;
            worker.notes = lcm_sdk::lifecycle::Notes { drain_started_at, ..Default::default() };
        }
        if !self.garbled.lock().contains(&worker.id) {
            return Ok(worker);
        }
        garble(&worker)
    }

    /// Refuses a write with an older fencing token than the record has seen.
    pub(crate) fn check_fence(&self, worker: &WorkerId, fence: Fence) -> Result<(), CallFailure> {
        if self.setup.shards == 1 || self.setup.fencing == Fencing::Ignored {
            return Ok(());
        }
        let Some(token) = fence.0 else { return Ok(()) };
        let mut fences = self.fences.lock();
        let highest = fences.entry(worker.clone()).or_insert(token);
        if token < *highest {
            return Err(CallFailure::new(FailureKind::Conflict, "a newer leader has written"));
        }
        *highest = token;
        Ok(())
    }
}

/// Makes fields unreadable that no decision needs.
fn garble(worker: &Worker) -> Result<Worker, Box<UnreadableWorker>> {
    let mut record = serde_json::to_value(worker).expect("a record is JSON");
    record["aws_tags"] = json!({"team": null});
    record["last_activity_check_at"] = json!(17);
    record["created_at"] = json!("yesterday");
    if worker.license.pending_operation.is_none() {
        record["license"]["pending_operation"] = json!("transfer");
    }
    let (mut readable, unreadable) = read_workers(vec![record]);
    let Some(mut shown) = readable.pop() else {
        return Err(Box::new(unreadable.into_iter().next().expect("one of both")));
    };
    // Secrets are not written to JSON.
    shown.cml_password.clone_from(&worker.cml_password);
    shown.license.token.clone_from(&worker.license.token);
    shown.license.pending_token.clone_from(&worker.license.pending_token);
    shown.created_at = None;
    Ok(shown)
}

/// The same record as a controller reads it that needs every field.
pub(crate) fn unreadable(worker: &Worker) -> UnreadableWorker {
    let mut record = serde_json::to_value(worker).expect("a record is JSON");
    record["status"] = Value::from("unreadable");
    read_workers(vec![record]).1.into_iter().next().expect("no such status")
}
