//! LCM's controller and kube-runtime's, with the same workers, the same no-op reconcile and the same runtime.
//!
//! # Fairness
//! - Both run on one thread, so that a second of processor time is a second on one core.
//! - kube-runtime's `applier` runs without its watcher, and its reconciles are boxed futures: its own `Controller`
//!   spawns a task for each, which costs more. Requests are built from the objects, as its watch does.
//! - LCM's controller runs complete, with timeouts, metrics and the state that its admin API shows.
//! - Both share objects by reference count, so that no listing copies them.

pub mod kube;
pub mod lcm;

use std::time::Duration;

use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};

/// Requeue of a no-op reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Only after a change.
    OnChange,
    /// After a delay: both keep a timer for it.
    After(Duration),
}

/// Returns a worker with all fields that a control plane usually sets.
#[must_use]
pub fn worker(number: usize) -> Worker {
    let mut worker = Worker::new(name(number), WorkerStatus::Running);
    worker.desired_status = Some(DesiredStatus::Running);
    worker.ec2_instance_id = Some(format!("i-{number:017x}").as_str().into());
    worker.version = Some(7);
    worker.name = Some(format!("lab {number}"));
    worker.aws_region = Some("us-east-1".to_owned());
    worker.public_ip = Some(format!("203.0.113.{}", number % 250));
    worker.private_ip = Some(format!("10.0.0.{}", number % 250));
    worker.template_name = Some("metal".to_owned());
    worker.instance_type = Some("m5zn.metal".to_owned());
    worker
}

/// Returns the ID of a worker.
#[must_use]
pub fn name(number: usize) -> String {
    format!("worker-{number:08}")
}
