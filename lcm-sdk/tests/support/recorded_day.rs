//! A day of a fleet as controllers record it, for benches.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::history::RecordedReconcile;
use lcm_sdk::simulate::Simulation;
use lcm_sdk::{DesiredStatus, Policy, Session, Template, Worker, WorkerStatus};

/// Time between two reconciles of a worker.
const INTERVAL: Duration = Duration::from_secs(30);

/// Reconciles of a worker in a day.
const RECONCILES: u32 = 2_880;

/// One in so many reconciles that change nothing is recorded, as by default.
const SAMPLE: u32 = 100;

/// Every reconcile of a day that changes something, and a sample of the others, in order of time. Each worker is
/// launched, serves two sessions, is drained in the evening and stopped.
pub(crate) fn recorded_day(workers: u32) -> Vec<RecordedReconcile> {
    let policy = Arc::new(Policy::default());
    let mut recorded: Vec<_> = (0..workers).flat_map(|number| life(number, &policy)).collect();
    recorded.sort_by_key(|reconcile| reconcile.at);
    recorded
}

fn life(number: u32, policy: &Arc<Policy>) -> Vec<RecordedReconcile> {
    let mut record = Worker::new(format!("worker-{number:08}"), WorkerStatus::Pending);
    record.desired_status = Some(DesiredStatus::Running);
    record.name = Some(format!("lab {number}"));
    record.template_name = Some("metal".to_owned());
    record.aws_region = Some("us-east-1".to_owned());
    let mut simulation = Simulation::new(record);
    simulation.template = Some(Template::new("metal", "m5zn.metal"));
    simulation.worker.created_at = Some(simulation.now);
    // Workers are not launched in the same second.
    simulation.advance(Duration::from_secs(u64::from(number % 1_800)));
    let mut recorded = Vec::new();
    for turn in 0..RECONCILES {
        match turn {
            60 => {
                simulation.sessions = ["s-1", "s-2"].map(|id| Session::new(format!("{id}-{number}"), "running")).into()
            }
            2_000 => {
                simulation.worker.status = WorkerStatus::Draining;
                simulation.worker.desired_status = Some(DesiredStatus::Stopped);
                simulation.worker.notes.drain_started_at = Some(simulation.now);
            }
            2_200 => simulation.sessions.clear(),
            _ => {}
        }
        let at = simulation.now;
        let reconciled = simulation.reconcile();
        let is_routine = reconciled.decision.does_nothing();
        if !is_routine || (turn + number).is_multiple_of(SAMPLE) {
            let (worker, seen) = (&reconciled.worker, &reconciled.observation);
            let policy = Arc::clone(policy);
            recorded.push(RecordedReconcile::new(worker, seen, policy, at, &reconciled.decision, &reconciled.results));
        }
        simulation.advance(INTERVAL);
    }
    recorded
}
