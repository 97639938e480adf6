//! Instances and their states. The state of an instance is derived from its [`Lifecycle`] and the current time.

use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::catalog::SecurityGroup;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A period in which an instance was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Start of the period.
    pub from: DateTime<Utc>,
    /// End of the period; `None` while the instance is running.
    pub until: Option<DateTime<Utc>>,
}

/// Interval of the metrics of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Monitoring {
    /// One data point every five minutes.
    Basic,
    /// One data point every minute.
    Detailed,
}

/// The instance profile of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// ARN of the profile.
    pub arn: String,
    /// Id with the prefix `AIPA`.
    pub id: String,
}

/// An EC2 instance. Instances of one launch share the values they have in common.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Position in launch order, unique in the world.
    pub sequence: u64,
    /// Instance id, such as `i-0123456789abcdef0`.
    pub id: String,
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

    /// Returns the public address, which exists only while the instance is running.
    pub fn public_ip(&self, now: DateTime<Utc>) -> Option<Ipv4Addr> {
        (self.state(now) == InstanceState::Running).then_some(self.assigned_ip)
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

    pub(super) fn stop(&mut self, now: DateTime<Utc>, stopped_at: DateTime<Utc>) {
        self.lifecycle = Lifecycle::Stopping { requested_at: now, stopped_at };
        self.end_run(now);
    }

    pub(super) fn terminate(&mut self, now: DateTime<Utc>, terminated_at: DateTime<Utc>) {
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
