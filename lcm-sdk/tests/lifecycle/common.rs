//! Fixtures of the lifecycle tests: a timestamp, a worker with an instance, and every response of EC2 about it.

use std::time::Duration;

use chrono::TimeDelta;
use lcm_sdk::lifecycle::trust::Place;
use lcm_sdk::{
    CallFailure, DesiredStatus, Ec2State, FailureKind, Instance, Lookup, Policy, RegionConfig, RegionConfigs,
};
use lcm_sdk::{Timestamp, Worker, WorkerStatus};

/// The time of every decision in these tests.
pub(crate) fn now() -> Timestamp {
    "2026-02-06T08:00:00Z".parse().expect("valid")
}

/// The time this long before [`now`].
pub(crate) fn ago(duration: Duration) -> Timestamp {
    now() - TimeDelta::from_std(duration).expect("in range")
}

/// Long before any window or timeout.
pub(crate) const LONG: Duration = Duration::from_secs(86_400);
/// Within the consistency window.
pub(crate) const SHORT: Duration = Duration::from_secs(60);

/// Every desired status, and none.
pub(crate) const DESIRED: [Option<DesiredStatus>; 4] =
    [None, Some(DesiredStatus::Running), Some(DesiredStatus::Stopped), Some(DesiredStatus::Terminated)];

/// A policy with one region, which is the default.
pub(crate) fn policy() -> Policy {
    let regions = RegionConfigs::default()
        .with_region("us-east-1", RegionConfig::new("subnet-1", ["sg-1"]))
        .with_default_region("us-east-1");
    Policy { regions, ..Policy::default() }
}

/// A worker whose instance was launched a day ago, and whose drain began a minute ago.
pub(crate) fn worker(status: WorkerStatus, desired: Option<DesiredStatus>) -> Worker {
    let mut worker = Worker::new("w-1", status);
    worker.desired_status = desired;
    worker.ec2_instance_id = Some("i-1".into());
    worker.aws_region = Some("us-east-1".into());
    worker.template_name = Some("metal".into());
    worker.created_at = Some(ago(LONG));
    worker.notes.launched_at = Some(ago(LONG));
    worker.notes.drain_started_at = (status == WorkerStatus::Draining).then(|| ago(SHORT));
    worker.is_idle_detection_enabled = false;
    worker
}

/// The worker's instance, launched a day ago, with addresses where EC2 would show them.
pub(crate) fn instance(state: Ec2State) -> Instance {
    let mut instance = Instance::new("i-1", state);
    instance.launched_at = Some(ago(LONG));
    instance.private_ip = Some("10.0.0.1".into());
    if state == Ec2State::Running {
        instance.public_ip = Some("203.0.113.1".into());
    }
    instance
}

/// A place in which an absence is proved.
pub(crate) fn proved_place() -> Lookup<Place> {
    Lookup::Found(Place::default().with_sighting(now()))
}

/// A throttled call.
pub(crate) fn throttled() -> CallFailure {
    CallFailure::with_code(FailureKind::Throttled, "RequestLimitExceeded", "Request limit exceeded.")
}

/// Every response of EC2 about a worker's instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ec2Response {
    /// An instance in a state, launched a day ago.
    State(Ec2State),
    /// Pending since a minute ago.
    PendingRecent,
    /// Running, but without any address, since a minute ago.
    RunningWithoutAddress,
    /// No instance, a minute after the launch.
    AbsentRecent,
    /// No instance, a day after the launch.
    AbsentOld,
    /// A call without a response.
    Unknown,
}

impl Ec2Response {
    /// Every response, in the order of the table.
    pub(crate) const ALL: [Self; 12] = [
        Self::PendingRecent,
        Self::State(Ec2State::Pending),
        Self::RunningWithoutAddress,
        Self::State(Ec2State::Running),
        Self::State(Ec2State::Stopping),
        Self::State(Ec2State::Stopped),
        Self::State(Ec2State::ShuttingDown),
        Self::State(Ec2State::Terminated),
        Self::State(Ec2State::Other),
        Self::AbsentRecent,
        Self::AbsentOld,
        Self::Unknown,
    ];

    /// The label in the snapshot.
    pub(crate) fn label(self) -> String {
        match self {
            Self::State(Ec2State::Pending) => "pending (a day)".into(),
            Self::State(state) => state.to_string(),
            Self::PendingRecent => "pending (a minute)".into(),
            Self::RunningWithoutAddress => "running, no address".into(),
            Self::AbsentRecent => "absent, recent launch".into(),
            Self::AbsentOld => "absent, old launch".into(),
            Self::Unknown => "no response".into(),
        }
    }

    /// EC2's response about instance `i-1`.
    pub(crate) fn lookup(self) -> Lookup<Instance> {
        match self {
            Self::State(state) => Lookup::Found(instance(state)),
            Self::PendingRecent => {
                Lookup::Found(Instance { launched_at: Some(ago(SHORT)), ..instance(Ec2State::Pending) })
            }
            Self::RunningWithoutAddress => {
                let instance = instance(Ec2State::Running);
                Lookup::Found(Instance { public_ip: None, private_ip: None, launched_at: Some(ago(SHORT)), ..instance })
            }
            Self::AbsentRecent | Self::AbsentOld => Lookup::Absent,
            Self::Unknown => Lookup::Unknown(throttled()),
        }
    }

    /// Sets the launch time of a worker to match the response.
    pub(crate) fn adjust(self, mut worker: Worker) -> Worker {
        match self {
            Self::PendingRecent | Self::RunningWithoutAddress | Self::AbsentRecent => {
                worker.notes.launched_at = Some(ago(SHORT));
            }
            Self::State(_) | Self::AbsentOld | Self::Unknown => {}
        }
        worker
    }
}
