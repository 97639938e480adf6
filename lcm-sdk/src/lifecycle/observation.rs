//! Observations: the input of a decision besides the record.
//!
//! Every part is a [`Lookup`], which keeps "there is none" and "the call failed" apart to the very end. A part that was
//! not requested is [`Lookup::NotRequested`]; `queries` returns the parts that are still needed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::capabilities::Capabilities;
use super::fleet::FleetView;
use super::idle::IdleReport;
use super::instance::{Image, Instance, first_live};
use super::license::RegistrationStatus;
use super::lookup::Lookup;
use super::session::Session;
use super::status::Ec2State;
use super::template::Template;
use super::time::Timestamp;
use super::trust::Place;
use super::worker::Worker;

/// Observed state of one worker, filled in by a driver's calls and read by [`decide`](super::decide).
///
/// # Calling protocol
/// A driver, such as the reconciler or [`Simulation`](crate::simulate::Simulation), makes the same calls in the same order
/// for every worker:
///
/// 1. [`queries`](super::queries), then fill in the responses, until no query is left.
/// 2. [`decide`](super::decide).
/// 3. Apply the effects in order. After a failure of one that [stops the rest](super::Effect::stops_the_rest), the others
///    are not tried.
/// 4. If the decision [checks for idleness](super::Decision::checks_idle), put the report into [`idle`](Self::idle) and
///    start again at 1 with the same observation.
/// 5. [`record`](super::record), then write the patch, publish the notices and raise the counters, in this order. If the
///    write conflicts, read the worker again and start over with an empty observation.
///
/// Which parts of an observation a decision reads is known to `queries` and `decide` only.
///
/// ```
/// use lcm_sdk::lifecycle::{Applied, EffectResult};
/// use lcm_sdk::{decide, queries, record, DesiredStatus, Ec2State, Instance, Lookup};
/// use lcm_sdk::{Observation, Policy, Query, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
/// worker.ec2_instance_id = Some("i-1".into());
/// worker.desired_status = Some(DesiredStatus::Running);
/// let (policy, now) = (Policy::default(), "2026-02-06T08:00:00Z".parse().unwrap());
///
/// let mut observation = Observation::default();
/// let record = loop {
///     loop {
///         let due = queries(&worker, &observation, &policy, now);
///         if due.is_empty() {
///             break;
///         }
///         for query in due.iter() {
///             match query {
///                 // A driver calls DescribeInstances here.
///                 Query::Instance => observation.instance = Lookup::Found(Instance::new("i-1", Ec2State::Stopped)),
///                 other => unreachable!("a stopped worker needs no {other}"),
///             }
///         }
///     }
///     let decision = decide(&worker, &observation, &policy, now);
///     // A driver calls StartInstances here.
///     let results = decision.effects.iter().map(|_| EffectResult::Done).collect();
///     let applied = Applied { decision, results, at: now, version: None };
///     if applied.decision.checks_idle() {
///         observation.idle = applied.idle_report();
///         continue;
///     }
///     break record(&worker, &applied);
/// };
/// assert_eq!(record.patch.status, Some(WorkerStatus::Starting));
/// assert_eq!(record.patch.apply_to(&worker).start_initiated_at, Some(now));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// The instance that the record names.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub instance: Lookup<Instance>,
    /// Every instance whose tags name this worker, including dead ones that EC2 still shows.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub tagged: Lookup<Vec<Instance>>,
    /// Facts about the place in which the instance was looked up, if EC2 showed none: see [`trust`](super::trust).
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub place: Lookup<Place>,
    /// The worker's template.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub template: Lookup<Template>,
    /// The AMIs that match the worker's pattern.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub images: Lookup<Vec<Image>>,
    /// The sessions assigned to the worker.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub sessions: Lookup<Vec<Session>>,
    /// Utilization from CloudWatch.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub cloud_metrics: Lookup<CloudMetrics>,
    /// CML's system report.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub cml: Lookup<CmlMetrics>,
    /// When the metrics loop last reported this worker's metrics; a reconcile need not repeat that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_reported_at: Option<Timestamp>,
    /// CML's registration status.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub registration: Lookup<RegistrationStatus>,
    /// CML's telemetry events, read for an idle check that is due. While [`idle`](Self::idle) is not requested, the
    /// decision is to make that check.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub telemetry: Lookup<Vec<Value>>,
    /// Report of the idle check made by an earlier decision of this reconcile.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub idle: Lookup<IdleReport>,
    /// When the caller last had the worker checked for idleness, for a server that does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_checked_at: Option<Timestamp>,
    /// The fleet, for scale-down.
    #[serde(skip_serializing_if = "Lookup::is_not_requested")]
    pub fleet: Lookup<FleetView>,
    /// Optional features of the control plane, as far as they are known.
    #[serde(skip_serializing_if = "is_default")]
    pub capabilities: Capabilities,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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

/// Figures of an instance from CloudWatch; `None` where none are reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CloudMetrics {
    /// CPU utilization of the instance in percent.
    pub cpu_utilization: Option<f64>,
    /// Memory utilization in percent, from the CloudWatch agent.
    pub memory_utilization: Option<f64>,
    /// Disk utilization in percent, from the CloudWatch agent.
    pub disk_utilization: Option<f64>,
    /// Bytes received in the latest period of five minutes.
    pub network_in_bytes: Option<f64>,
    /// Bytes sent in the latest period of five minutes.
    pub network_out_bytes: Option<f64>,
}

/// CML's report about its system. `None` is a value that was not read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CmlMetrics {
    /// Labs on the system.
    pub labs_count: Option<u64>,
    /// Nodes on the system.
    pub nodes_count: Option<u64>,
    /// CML's version, such as `2.9.1+build.7`.
    pub cml_version: Option<String>,
    /// Whether CML can start nodes.
    pub ready: Option<bool>,
    /// Capacity and use of the system: `all_cpu_count`, `all_memory_total`, `all_disk_used` and so on, and `computes`.
    pub system_info: Option<Map<String, Value>>,
    /// CML's own verdict on its health.
    pub system_health: Option<Map<String, Value>>,
    /// Registration, authorization and features of the license, as CML shows them. It contains no token.
    pub license_info: Option<Map<String, Value>>,
    /// Seconds since EC2 last started the instance. CML does not report how long it has run.
    pub uptime_seconds: Option<u64>,
}

impl CmlMetrics {
    /// The same report with the time since EC2 last started the instance.
    #[must_use]
    pub fn with_uptime(self, instance: &Instance, now: Timestamp) -> Self {
        let uptime = instance.launched_at.map(|launched_at| (now - launched_at).num_seconds());
        Self { uptime_seconds: uptime.and_then(|seconds| u64::try_from(seconds).ok()), ..self }
    }
}
