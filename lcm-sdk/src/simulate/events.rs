//! The fleet of a simulation and its events.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rng::Rng;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// The fleet at the start of a simulation, and the model around it. In JSON, times are seconds.
///
/// ```
/// use lcm_sdk::simulate::Fleet;
///
/// let fleet = Fleet::new(20).with_running(5);
/// assert_eq!((fleet.workers, fleet.running), (20, 5));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Fleet {
    /// Workers with names and statuses of their own, in place of `workers` and `running`.
    pub members: Vec<Member>,
    /// Number of workers, `w-1` and so on. Each has an instance.
    pub workers: usize,
    /// Number of them that run at the start; the others are stopped.
    pub running: usize,
    /// Sessions that a worker can hold at once. Default: 4.
    pub sessions_per_worker: usize,
    /// Time that an instance takes to start or stop. Default: 3 min.
    #[serde(with = "seconds")]
    pub boot_time: Duration,
    /// Time between two polling cycles of the controller. Default: 30 s.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Number of controllers. When the leader fails, another one takes over after the lease; a single one restarts.
    /// Default: 1.
    pub controllers: usize,
    /// Number of shards, each with a leader of its own. The first failure is that of the leader of the first shard, the
    /// next one that of the second, and so on. Default: 1.
    pub shards: usize,
    /// Time without a leader after one failed. Default: 15 s with several controllers.
    #[serde(with = "seconds")]
    pub takeover_time: Duration,
    /// Whether stopped workers are requested for sessions that no worker in service has room for. Default: yes.
    pub on_demand: bool,
    /// How long before the start of a session a stopped worker is requested for it. Default: 15 min.
    #[serde(with = "seconds")]
    pub start_ahead: Duration,
    /// Time that a single controller takes to restart. Default: 2 min.
    #[serde(with = "seconds")]
    pub restart_time: Duration,
    /// Time without an active session after which a worker counts as idle. Default: 30 min.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// How long a drain waits for active sessions. Default: 4 h.
    #[serde(with = "seconds")]
    pub drain_timeout: Duration,
    /// Price of a running instance per hour. Default: 1.
    pub price_per_hour: f64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            workers: 10,
            running: 0,
            sessions_per_worker: 4,
            boot_time: Duration::from_secs(180),
            interval: Duration::from_secs(30),
            controllers: 1,
            shards: 1,
            on_demand: true,
            start_ahead: Duration::from_secs(15 * 60),
            takeover_time: Duration::from_secs(15),
            restart_time: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(30 * 60),
            drain_timeout: Duration::from_secs(4 * 3600),
            price_per_hour: 1.0,
        }
    }
}

impl Fleet {
    /// A fleet of stopped workers.
    pub fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Sets the number of workers that run at the start.
    #[must_use]
    pub fn with_running(self, running: usize) -> Self {
        Self { running, ..self }
    }

    /// The workers at the start: the named ones, or those that are only counted.
    pub(super) fn at_start(&self) -> Vec<Member> {
        if !self.members.is_empty() {
            return self.members.clone();
        }
        let counted = |worker| {
            let (status, desired, state) = match worker < self.running {
                true => (WorkerStatus::Running, DesiredStatus::Running, Ec2State::Running),
                false => (WorkerStatus::Stopped, DesiredStatus::Stopped, Ec2State::Stopped),
            };
            Member { desired: Some(desired), instance: Some(state), ..Member::new(format!("w-{}", worker + 1), status) }
        };
        (0..self.workers).map(counted).collect()
    }
}

/// A worker at the start of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Member {
    /// Id of the worker.
    pub id: String,
    /// Status on its record.
    pub status: WorkerStatus,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// Its desired status.
    #[serde(default)]
    pub desired: Option<DesiredStatus>,
    /// Its region. Default: `us-east-1`.
    #[serde(default)]
    pub region: Option<String>,
    /// Time since its record was created. Default: 0.
    #[serde(default, with = "seconds")]
    pub age: Duration,
    /// State of its instance; none if it has none.
    #[serde(default)]
    pub instance: Option<Ec2State>,
    /// Id of the instance on its record. Without an instance it names one that does not exist.
    #[serde(default)]
    pub instance_id: Option<String>,
    /// Type of its instance.
    #[serde(default)]
    pub instance_type: Option<String>,
    /// Time since its instance was launched. Default: 0.
    #[serde(default, with = "seconds")]
    pub instance_age: Duration,
    /// Tags of its instance, beside the one with the id of the worker.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// How long its drain waits for active sessions. Default: that of the fleet.
    #[serde(default, with = "optional_seconds")]
    pub drain_timeout: Option<Duration>,
}

impl Member {
    /// A worker without an instance.
    pub fn new(id: impl Into<String>, status: WorkerStatus) -> Self {
        Self {
            id: id.into(),
            status,
            name: None,
            desired: None,
            region: None,
            age: Duration::ZERO,
            instance: None,
            instance_id: None,
            instance_type: None,
            instance_age: Duration::ZERO,
            tags: BTreeMap::new(),
            drain_timeout: None,
        }
    }
}

/// The events of a simulation. In JSON, times are seconds since its start.
///
/// ```
/// use lcm_sdk::simulate::Events;
///
/// let events: Events = lcm_sdk::serde_json::from_str(
///     r#"{"sessions_per_hour": 12, "duration": {"exponential": 5400}, "fault_rate": 0.01,
///         "outages": [{"from": 3600, "to": 4200}]}"#,
/// )?;
/// assert_eq!(events.outages[0].to.as_secs(), 4200);
/// # Ok::<(), lcm_sdk::serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Events {
    /// Mean number of sessions that are requested per hour, at random times. Default: 0.
    pub sessions_per_hour: f64,
    /// Factors on that number by hour of the day, repeated every 24 hours; empty for none.
    pub by_hour: Vec<f64>,
    /// Duration of these sessions. Default: 2 h, exponential.
    pub duration: Spread,
    /// Time between the request of these sessions and the start that they request. Default: 0.
    #[serde(with = "seconds")]
    pub lead: Duration,
    /// Sessions at given times.
    pub sessions: Vec<PlannedSession>,
    /// How long a session waits for a worker before it is given up. Default: 1 h.
    #[serde(with = "seconds")]
    pub patience: Duration,
    /// Share of reconciles in which EC2 throttles the first call. Default: 0.
    pub fault_rate: f64,
    /// Times in which calls to EC2 fail.
    pub outages: Vec<Outage>,
    /// Limit of the calls to EC2; calls beyond it are throttled. Default: none.
    pub call_limit: Option<CallLimit>,
    /// Actions in the AWS console.
    pub console: Vec<ConsoleEvent>,
    /// Changes of the desired status by an operator.
    pub desired: Vec<DesiredEvent>,
    /// Drains that an operator begins or cancels.
    pub drains: Vec<DrainEvent>,
    /// Licenses to register.
    pub licenses: Vec<LicenseEvent>,
    /// Times at which a leading controller fails.
    #[serde(with = "many_seconds")]
    pub controller_failures: Vec<Duration>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sessions_per_hour: 0.0,
            by_hour: Vec::new(),
            duration: Spread::Exponential(Duration::from_secs(2 * 3600)),
            lead: Duration::ZERO,
            sessions: Vec::new(),
            patience: Duration::from_secs(3600),
            fault_rate: 0.0,
            outages: Vec::new(),
            call_limit: None,
            console: Vec::new(),
            desired: Vec::new(),
            drains: Vec::new(),
            licenses: Vec::new(),
            controller_failures: Vec::new(),
        }
    }
}

/// The distribution of a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Always the same.
    Fixed(#[serde(with = "seconds")] Duration),
    /// Exponential with a mean.
    Exponential(#[serde(with = "seconds")] Duration),
    /// Every time between two bounds is equally probable.
    Uniform {
        /// Lower bound.
        #[serde(with = "seconds")]
        from: Duration,
        /// Upper bound.
        #[serde(with = "seconds")]
        to: Duration,
    },
}

impl Spread {
    pub(super) fn draw(self, rng: &mut Rng) -> Duration {
        // One number each, so that the arrivals after it do not depend on the kind.
        match self {
            Self::Fixed(time) => {
                rng.fraction();
                time
            }
            Self::Exponential(mean) => rng.exponential(mean),
            Self::Uniform { from, to } => from + to.saturating_sub(from).mul_f64(rng.fraction()),
        }
    }
}

/// A session at a given time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSession {
    /// When it is requested.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// How long it lasts.
    #[serde(with = "seconds")]
    pub lasts: Duration,
    /// Time between the request and the start that it requests.
    #[serde(default, with = "seconds")]
    pub lead: Duration,
    /// Id of the worker that it is assigned to, if that is in service; any worker with room by default.
    #[serde(default)]
    pub worker: Option<String>,
}

/// A time in which calls to EC2 fail.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Its start.
    #[serde(with = "seconds")]
    pub from: Duration,
    /// Its end.
    #[serde(with = "seconds")]
    pub to: Duration,
    /// Share of reconciles whose calls fail. Default: 1.
    #[serde(default = "all")]
    pub share: f64,
    /// The failure. Default: no response.
    #[serde(default)]
    pub failure: OutageFailure,
}

fn all() -> f64 {
    1.0
}

/// The failure of calls in an outage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutageFailure {
    /// EC2 does not respond.
    #[default]
    Unreachable,
    /// EC2 throttles the calls.
    Throttled,
}

/// A limit of calls, which EC2 keeps as a bucket that fills with time: one for describes and one for changes. Reconciles at
/// one moment share a describe; every change is a call of its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallLimit {
    /// Calls that each bucket gains per second.
    pub per_second: f64,
    /// Calls that a full bucket allows at once.
    pub burst: u32,
}

/// An action in the AWS console on the instance of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleEvent {
    /// When.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// Id of the worker.
    pub worker: String,
    /// The action.
    pub action: ConsoleAction,
}

/// An action in the AWS console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsoleAction {
    /// Starts the instance.
    Start,
    /// Stops the instance.
    Stop,
    /// Terminates the instance.
    Terminate,
}

impl ConsoleAction {
    /// The action as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Terminate => "terminate",
        }
    }
}

/// A change of the desired status of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredEvent {
    /// When.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// Id of the worker.
    pub worker: String,
    /// The desired status.
    pub desired: DesiredStatus,
}

/// A drain that an operator begins or cancels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainEvent {
    /// When.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// Id of the worker.
    pub worker: String,
    /// The action. Default: begin.
    #[serde(default)]
    pub action: DrainAction,
}

/// An action of an operator on the drain of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainAction {
    /// Begins a drain. Refused unless the worker is running.
    #[default]
    Begin,
    /// Cancels the drain and puts the worker back in service. Refused unless the worker is draining.
    Cancel,
}

impl DrainAction {
    /// The action as a phrase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "drain",
            Self::Cancel => "cancel drain",
        }
    }
}

/// A license to register on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LicenseEvent {
    /// When.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// Id of the worker.
    pub worker: String,
    /// How long CML takes to register it. Default: until the next reconcile.
    #[serde(default, with = "seconds")]
    pub takes: Duration,
    /// Result of the registration. Default: completed.
    #[serde(default)]
    pub result: LicenseResult,
}

/// The result of a registration in CML.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LicenseResult {
    /// CML registers the license.
    #[default]
    Completed,
    /// CML refuses it.
    Failed,
}

mod seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| serde::de::Error::custom(format_args!("invalid time {seconds}: expected seconds from 0 up")))
    }
}

mod optional_seconds {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Seconds(#[serde(with = "super::seconds")] Duration);
        Ok(Option::<Seconds>::deserialize(deserializer)?.map(|time| time.0))
    }
}

mod many_seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(times: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(times.iter().map(Duration::as_secs_f64))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Seconds(#[serde(with = "super::seconds")] Duration);
        Ok(Vec::<Seconds>::deserialize(deserializer)?.into_iter().map(|time| time.0).collect())
    }
}
