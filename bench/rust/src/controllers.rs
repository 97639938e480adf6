//! The two controllers, set up alike: the same workers, the same pass that does nothing, the same runtime.
//!
//! # Fairness
//! - One thread for both, so that a second of processor time is a second on one core.
//! - kube-runtime's `applier` is driven by itself, without its watcher, and its passes are boxed futures: its own
//!   `Controller` spawns a task for each, which costs more. Requests are made from the objects as its watch does.
//! - LCM's controller is driven whole, with its time-outs, its metrics and its bookkeeping for people.
//! - Objects are shared with both by reference count, so that no listing copies them.

pub mod kube;
pub mod lcm;

use std::time::Duration;

use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};

/// When a pass wants to be followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// When something changes.
    OnChange,
    /// After so long: both keep a timer for it.
    After(Duration),
}

/// A worker as the control plane tells it, with all that is usually set.
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

/// The name of a worker.
#[must_use]
pub fn name(number: usize) -> String {
    format!("worker-{number:08}")
}
