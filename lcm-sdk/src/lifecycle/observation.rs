//! What was seen of the world in one pass.
//!
//! Every part is an [`Lookup`], which keeps "no" and "could not ask" apart to the very end. A part nobody asked for
//! is [`Lookup::NotRequested`]; `queries` says which parts a pass still needs.

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

/// What somebody said when asked.
///
/// ```
/// use lcm_sdk::lifecycle::Lookup;
///
/// let nobody_home: Lookup<u8> = Lookup::Absent;
/// assert_ne!(nobody_home, Lookup::NotRequested);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Lookup<T> {
    /// The question was not put.
    #[default]
    NotRequested,
    /// This is it.
    Found(T),
    /// The one who knows answered that there is none.
    Absent,
    /// No answer: nothing may be concluded.
    Unknown(CallFailure),
}

impl<T> Lookup<T> {
    /// What was found, if anything.
    pub const fn found(&self) -> Option<&T> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotRequested | Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// Why there was no answer, if there was none.
    pub const fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Unknown(failure) => Some(failure),
            Self::NotRequested | Self::Found(_) | Self::Absent => None,
        }
    }

    /// Whether the question is still open.
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
    /// The instance the record names.
    pub instance: Lookup<Instance>,
    /// Every instance whose tags name this worker, dead ones that EC2 still shows included.
    pub tagged: Lookup<Vec<Instance>>,
    /// The worker's template.
    pub template: Lookup<Template>,
    /// The AMIs that match.
    pub images: Lookup<Vec<Image>>,
    /// The sessions assigned to the worker.
    pub sessions: Lookup<Vec<Session>>,
    /// What CloudWatch says.
    pub cloud_metrics: Lookup<CloudMetrics>,
    /// What CML says about itself.
    pub cml: Lookup<CmlMetrics>,
    /// When the metrics loop last collected and reported this worker's metrics; a pass need not repeat that.
    pub metrics_reported_at: Option<Timestamp>,
    /// What CML says about its registration.
    pub registration: Lookup<RegistrationStatus>,
    /// CML's telemetry events, for an idle check. Without an [`idle`](Self::idle) report beside them the next decision
    /// is to make that check.
    pub telemetry: Lookup<Vec<Value>>,
    /// The report of the idle check that an earlier decision of this reconcile made.
    pub idle: Lookup<IdleReport>,
    /// When idle detection was last asked about this worker, as far as the caller remembers.
    pub idle_checked_at: Option<Timestamp>,
    /// What the fleet looks like, for scale-down.
    pub fleet: Lookup<FleetView>,
}

impl Observation {
    /// An observation in which EC2 shows the instance in a state, and nothing else was asked.
    pub fn with_instance_state(id: &str, state: Ec2State) -> Self {
        Self { instance: Lookup::Found(Instance::new(id, state)), ..Self::default() }
    }

    /// The worker's instance, once it was found by the id on the record, or by its tag if the record names none.
    pub fn instance_of(&self, worker: &Worker) -> Option<&Instance> {
        if worker.ec2_instance_id.is_some() { self.instance.found() } else { first_live(self.tagged.found()?) }
    }
}

/// Utilisation of an instance, in percent; what the agent does not report is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct CloudMetrics {
    /// Processor.
    pub cpu_utilization: Option<f64>,
    /// Memory, from the CloudWatch agent.
    pub memory_utilization: Option<f64>,
    /// Disk, from the CloudWatch agent.
    pub disk_utilization: Option<f64>,
}

/// What CML reports about itself.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct CmlMetrics {
    /// Labs on the system.
    pub labs_count: Option<u64>,
    /// Nodes on the system.
    pub nodes_count: Option<u64>,
    /// CML's version, such as `2.9.1+build.7`.
    pub version: Option<String>,
    /// Whether CML says it can start nodes.
    pub ready: Option<bool>,
}
