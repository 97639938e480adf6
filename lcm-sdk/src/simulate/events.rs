//! The fleet of a simulation and its events.

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
    /// Time without a leader after one failed. Default: 15 s with several controllers.
    #[serde(with = "seconds")]
    pub takeover_time: Duration,
    /// Time that a single controller takes to restart. Default: 2 min.
    #[serde(with = "seconds")]
    pub restart_time: Duration,
    /// Time without sessions after which a worker counts as idle. Default: 30 min.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// How long a drain waits for sessions. Default: 4 h.
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
            Member {
                id: format!("w-{}", worker + 1),
                status,
                desired: Some(desired),
                instance: Some(state),
                instance_id: None,
            }
        };
        (0..self.workers).map(counted).collect()
    }
}

/// A worker at the start of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Id of the worker.
    pub id: String,
    /// Status on its record.
    pub status: WorkerStatus,
    /// Its desired status.
    #[serde(default)]
    pub desired: Option<DesiredStatus>,
    /// State of its instance; none if it has none.
    #[serde(default)]
    pub instance: Option<Ec2State>,
    /// Id of the instance on its record. Without an instance it names one that does not exist.
    #[serde(default)]
    pub instance_id: Option<String>,
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
    /// Times in which EC2 responds to no call.
    pub outages: Vec<Outage>,
    /// Actions in the AWS console.
    pub console: Vec<ConsoleEvent>,
    /// Changes of the desired status by an operator.
    pub desired: Vec<DesiredEvent>,
    /// Licenses to register.
    pub licenses: Vec<LicenseEvent>,
    /// Times at which the leading controller fails.
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
            console: Vec::new(),
            desired: Vec::new(),
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

/// A time in which EC2 responds to no call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Its start.
    #[serde(with = "seconds")]
    pub from: Duration,
    /// Its end.
    #[serde(with = "seconds")]
    pub to: Duration,
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

/// A license to register on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LicenseEvent {
    /// When.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// Id of the worker.
    pub worker: String,
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
