//! Observations: the input of a decision besides the record.
//!
//! Every part is a [`Lookup`], which keeps "there is none" and "the call failed" apart to the very end. A part that was
//! not requested is [`Lookup::NotRequested`]; `queries` returns the parts that are still needed.

use serde_json::Value;

use super::failure::CallFailure;
use super::fleet::FleetView;
use super::idle::IdleReport;
use super::instance::{Image, Instance, first_live};
use super::license::RegistrationStatus;
use super::session::Session;
use super::status::Ec2State;
use super::template::Template;
use super::time::Timestamp;
use super::worker::Worker;

/// Result of looking something up.
///
/// ```
/// use lcm_sdk::lifecycle::Lookup;
///
/// let nobody_home: Lookup<u8> = Lookup::Absent;
/// assert_ne!(nobody_home, Lookup::NotRequested);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Lookup<T> {
    /// No call was made.
    #[default]
    NotRequested,
    /// The call returned this.
    Found(T),
    /// The call returned that there is none.
    Absent,
    /// The call failed: nothing may be concluded.
    Unknown(CallFailure),
}

impl<T> Lookup<T> {
    /// The value, if it was found.
    pub const fn found(&self) -> Option<&T> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotRequested | Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// The failure, if the call failed.
    pub const fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Unknown(failure) => Some(failure),
            Self::NotRequested | Self::Found(_) | Self::Absent => None,
        }
    }

    /// Whether no call was made.
    pub const fn is_not_requested(&self) -> bool {
        match self {
            Self::NotRequested => true,
            Self::Found(_) | Self::Absent | Self::Unknown(_) => false,
        }
    }
}

impl<T> From<Result<T, CallFailure>> for Lookup<T> {
    fn from(result: Result<T, CallFailure>) -> Self {
        result.map_or_else(Self::Unknown, Self::Found)
    }
}

impl<T> From<Result<Option<T>, CallFailure>> for Lookup<T> {
    fn from(result: Result<Option<T>, CallFailure>) -> Self {
        match result {
            Ok(Some(value)) => Self::Found(value),
            Ok(None) => Self::Absent,
            Err(failure) => Self::Unknown(failure),
        }
    }
}

/// What was seen of one worker's world. Start from the default and fill in what `queries` asks for.
///
/// ```
/// use lcm_sdk::{Ec2State, Observation};
///
/// let seen = Observation::with_instance_state("i-1", Ec2State::Stopped);
/// assert_eq!(seen.instance.found().map(|instance| instance.state), Some(Ec2State::Stopped));
/// assert!(seen.sessions.is_not_requested());
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// The instance that the record names.
    pub instance: Lookup<Instance>,
    /// Every instance whose tags name this worker, including dead ones that EC2 still shows.
    pub tagged: Lookup<Vec<Instance>>,
    /// The worker's template.
    pub template: Lookup<Template>,
    /// The AMIs that match the worker's pattern.
    pub images: Lookup<Vec<Image>>,
    /// The sessions assigned to the worker.
    pub sessions: Lookup<Vec<Session>>,
    /// Utilization from CloudWatch.
    pub cloud_metrics: Lookup<CloudMetrics>,
    /// CML's system report.
    pub cml: Lookup<CmlMetrics>,
    /// When the metrics loop last reported this worker's metrics; a reconcile need not repeat that.
    pub metrics_reported_at: Option<Timestamp>,
    /// CML's registration status.
    pub registration: Lookup<RegistrationStatus>,
    /// CML's telemetry events, read for an idle check that is due. While [`idle`](Self::idle) is not requested, the
    /// decision is to make that check.
    pub telemetry: Lookup<Vec<Value>>,
    /// Report of the idle check made by an earlier decision of this reconcile.
    pub idle: Lookup<IdleReport>,
    /// When the caller last had the worker checked for idleness, for a server that does not report it.
    pub idle_checked_at: Option<Timestamp>,
    /// The fleet, for scale-down.
    pub fleet: Lookup<FleetView>,
}

impl Observation {
    /// An observation of nothing but an instance in a state.
    pub fn with_instance_state(id: &str, state: Ec2State) -> Self {
        Self { instance: Lookup::Found(Instance::new(id, state)), ..Self::default() }
    }

    /// The worker's instance, found by the id on the record, or by its tag if the record names none.
    pub fn instance_of(&self, worker: &Worker) -> Option<&Instance> {
        if worker.ec2_instance_id.is_some() { self.instance.found() } else { first_live(self.tagged.found()?) }
    }
}

/// Utilization of an instance, in percent; `None` where no agent reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct CloudMetrics {
    /// CPU utilization of the instance.
    pub cpu_utilization: Option<f64>,
    /// Memory utilization, from the CloudWatch agent.
    pub memory_utilization: Option<f64>,
    /// Disk utilization, from the CloudWatch agent.
    pub disk_utilization: Option<f64>,
}

/// CML's report about its system.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct CmlMetrics {
    /// Labs on the system.
    pub labs_count: Option<u64>,
    /// Nodes on the system.
    pub nodes_count: Option<u64>,
    /// CML's version, such as `2.9.1+build.7`.
    pub version: Option<String>,
    /// Whether CML can start nodes.
    pub ready: Option<bool>,
}
