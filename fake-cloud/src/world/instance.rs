//! Instances and their states. The state of an instance is derived from its [`Lifecycle`] and the current time.

use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::catalog::{SecurityGroup, ZoneId};
use super::disruption::{ImposedChecks, Interruption, ScheduledEvent};
use super::launch::TokenKey;
use super::options::InstanceOptions;
use super::tags::Tags;

/// Instance states of EC2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// Launched or started, and not running yet.
    Pending,
    /// Running; the only state with a public address.
    Running,
    /// Terminating, and not yet terminated.
    ShuttingDown,
    /// Terminated; described for another [`Delays::terminated_visible`](super::Delays::terminated_visible).
    Terminated,
    /// Stopping, and not yet stopped.
    Stopping,
    /// Stopped; can be started again.
    Stopped,
}

impl InstanceState {
    /// Returns EC2's numeric state code.
    pub fn code(self) -> u16 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
            Self::Stopping => 64,
            Self::Stopped => 80,
        }
    }

    /// Returns EC2's state name, such as `shutting-down`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }
}

/// The state an instance is in or moving to, and the time at which it gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Lifecycle {
    /// Launched or started.
    Running {
        /// End of `pending`.
        running_at: DateTime<Utc>,
    },
    /// Stopped through the API or the console.
    Stopping {
        /// Time of the stop request.
        requested_at: DateTime<Utc>,
        /// End of `stopping`.
        stopped_at: DateTime<Utc>,
    },
    /// Terminated through the API or the console.
    Terminating {
        /// Time of the terminate request.
        requested_at: DateTime<Utc>,
        /// End of `shutting-down`.
        terminated_at: DateTime<Utc>,
    },
}

/// Cause of the last stop or termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StateCause {
    /// A request, or the console.
    User,
    /// A request to hibernate.
    Hibernation,
    /// EC2 took a spot instance back.
    SpotInterruption,
    /// A scheduled event.
    ScheduledStop,
}

/// State that few instances have.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Extra {
    /// Ids of the volumes after the root volume.
    pub volumes: Vec<Box<str>>,
    /// Network interfaces after the primary one.
    pub interfaces: Vec<ExtraInterface>,
    /// Status checks that are set from outside.
    pub checks: ImposedChecks,
    /// Events that EC2 has scheduled.
    pub events: Vec<ScheduledEvent>,
    /// Notice of a spot interruption.
    pub interruption: Option<Interruption>,
    /// Time of the recommendation to replace a spot instance.
    pub rebalance_at: Option<DateTime<Utc>>,
    /// Id of the spot instance request.
    pub spot_request: Option<String>,
    /// Time at which the spot instance request was canceled.
    pub spot_canceled_at: Option<DateTime<Utc>>,
}

/// A network interface beside the primary one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ExtraInterface {
    /// Id with the prefix `eni-`.
    pub id: Box<str>,
    /// Private address.
    pub private_ip: Ipv4Addr,
    /// Id of the subnet.
    pub subnet_id: String,
    /// Security groups.
    pub groups: Vec<SecurityGroup>,
}

/// A period in which an instance was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Run {
    /// Start of the period.
    pub from: DateTime<Utc>,
    /// End of the period; `None` while the instance is running.
    pub until: Option<DateTime<Utc>>,
}

/// Interval of the metrics of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Monitoring {
    /// One data point every five minutes.
    Basic,
    /// One data point every minute.
    Detailed,
}

/// The instance profile of an instance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// ARN of the profile.
    pub arn: String,
    /// Id with the prefix `AIPA`.
    pub id: String,
}

/// An EC2 instance. Instances of one launch share the values they have in common.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Instance {
    /// Position in launch order, unique in the world.
    pub sequence: u64,
    /// Instance id, such as `i-0123456789abcdef0`.
    pub id: String,
    /// Account id of the owner.
    pub owner: Arc<str>,
    /// Reservation id of the launch.
    pub reservation_id: Arc<str>,
    /// Index within the launch, from 0.
    pub launch_index: usize,
    /// Id of the image.
    pub image_id: Arc<str>,
    /// Instance type, such as `m5.large`.
    pub instance_type: Arc<str>,
    /// Name of the key pair.
    pub key_name: Option<Arc<str>>,
    /// Client token of the launch.
    pub client_token: Option<Arc<str>>,
    /// Availability zone of the subnet.
    pub availability_zone: Arc<str>,
    /// Id of the zone, such as `use1-az1`.
    #[serde(deserialize_with = "super::catalog::known_zone_id")]
    pub zone_id: Option<ZoneId>,
    /// Id of the subnet.
    pub subnet_id: Arc<str>,
    /// Id of the VPC of the subnet.
    pub vpc_id: Arc<str>,
    /// Security groups, in the order of the request.
    pub groups: Arc<[SecurityGroup]>,
    /// Instance profile, if the launch named one.
    pub profile: Option<Profile>,
    /// Interval of its metrics.
    pub monitoring: Monitoring,
    /// Id of the root volume.
    pub volume_id: Box<str>,
    /// Id of the network interface.
    pub interface_id: Box<str>,
    /// Options of the launch, with later modifications.
    pub options: Arc<InstanceOptions>,
    /// State that few instances have.
    pub extra: Arc<Extra>,
    /// Cause of the last stop or termination.
    pub cause: StateCause,
    /// Tags by key.
    pub tags: Arc<Tags>,
    /// Time of the launch; visibility lag counts from here.
    pub created_at: DateTime<Utc>,
    /// Time of the launch or of the last start.
    pub launched_at: DateTime<Utc>,
    /// The last state change and its timing.
    pub lifecycle: Lifecycle,
    /// Periods in which it was running; metrics exist for these periods only.
    pub runs: Vec<Run>,
    /// Private address, constant for the lifetime of the instance.
    pub private_ip: Ipv4Addr,
    /// Public address since the last start. Use [`Instance::public_ip`] for the address EC2 reports.
    pub assigned_ip: Ipv4Addr,
}

/// Maximum number of retained runs; the oldest is dropped.
const MAX_RUNS: usize = 64;

impl Instance {
    /// Returns the state at `now`.
    pub fn state(&self, now: DateTime<Utc>) -> InstanceState {
        let (due, before, after) = match self.lifecycle {
            Lifecycle::Running { running_at } => (running_at, InstanceState::Pending, InstanceState::Running),
            Lifecycle::Stopping { stopped_at, .. } => (stopped_at, InstanceState::Stopping, InstanceState::Stopped),
            Lifecycle::Terminating { terminated_at, .. } => {
                (terminated_at, InstanceState::ShuttingDown, InstanceState::Terminated)
            }
        };
        if now < due { before } else { after }
    }

    /// Returns the client token of the launch with the account that used it.
    pub(super) fn token_key(&self) -> Option<TokenKey> {
        self.client_token.as_ref().map(|token| (Arc::clone(&self.owner), Arc::clone(token)))
    }

    /// Returns the public address, which exists only while the instance is running, unless the launch refused one.
    pub fn public_ip(&self, now: DateTime<Utc>) -> Option<Ipv4Addr> {
        (self.options.public_address && self.state(now) == InstanceState::Running).then_some(self.assigned_ip)
    }

    /// Returns the ids of the volumes, in the order of their options.
    pub fn volume_ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.volume_id).chain(self.extra.volumes.iter().map(|id| &**id))
    }

    /// Returns the ids of the network interfaces, in the order of their options.
    pub fn interface_ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.interface_id).chain(self.extra.interfaces.iter().map(|interface| &*interface.id))
    }

    /// Returns the time of the next spot interruption or scheduled event.
    pub fn next_disruption(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let events = self.extra.events.iter().map(|event| event.not_before);
        let interruption = self.extra.interruption.map(|interruption| interruption.at);
        events.chain(interruption).filter(|at| *at > now).min()
    }

    pub(super) fn extra_mut(&mut self) -> &mut Extra {
        Arc::make_mut(&mut self.extra)
    }

    /// Returns the time since which the instance is running.
    pub fn running_since(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.lifecycle {
            Lifecycle::Running { running_at } if running_at <= now => Some(running_at),
            Lifecycle::Running { .. } | Lifecycle::Stopping { .. } | Lifecycle::Terminating { .. } => None,
        }
    }

    /// Returns whether the instance has reached `running` at least once.
    pub fn has_run(&self, now: DateTime<Utc>) -> bool {
        self.runs.iter().any(|run| run.from <= now)
    }

    pub(super) fn start(&mut self, now: DateTime<Utc>, running_at: DateTime<Utc>, address: Ipv4Addr) {
        self.launched_at = now;
        self.assigned_ip = address;
        self.lifecycle = Lifecycle::Running { running_at };
        if self.runs.len() == MAX_RUNS {
            self.runs.remove(0);
        }
        // Most instances run once.
        self.runs.reserve_exact(1);
        self.runs.push(Run { from: running_at, until: None });
    }

    pub(super) fn stop(&mut self, now: DateTime<Utc>, stopped_at: DateTime<Utc>, cause: StateCause) {
        self.cause = cause;
        self.lifecycle = Lifecycle::Stopping { requested_at: now, stopped_at };
        self.end_run(now);
    }

    pub(super) fn terminate(&mut self, now: DateTime<Utc>, terminated_at: DateTime<Utc>, cause: StateCause) {
        self.cause = cause;
        self.lifecycle = Lifecycle::Terminating { requested_at: now, terminated_at };
        self.end_run(now);
    }

    fn end_run(&mut self, now: DateTime<Utc>) {
        // A run that has not begun is dropped.
        self.runs.retain(|run| run.from <= now);
        if let Some(run) = self.runs.last_mut() {
            run.until.get_or_insert(now);
        }
    }
}
