//! An instance. Nobody moves it from state to state: it knows when it was told what, and its state follows from the time.

use std::net::Ipv4Addr;

use chrono::{DateTime, Utc};

use super::catalog::SecurityGroup;
use super::shared::Shared;
use super::tags::Tags;

/// The states EC2 knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// On its way up.
    Pending,
    /// Up.
    Running,
    /// On its way to the end.
    ShuttingDown,
    /// Gone, still visible for a while.
    Terminated,
    /// On its way down.
    Stopping,
    /// Down, can be started again.
    Stopped,
}

impl InstanceState {
    /// The number EC2 gives it.
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

    /// The name EC2 gives it.
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

/// What an instance was last told, and when that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// To run.
    Up {
        /// When it runs.
        running_at: DateTime<Utc>,
    },
    /// To stop.
    Down {
        /// When it was told.
        told_at: DateTime<Utc>,
        /// When it has stopped.
        stopped_at: DateTime<Utc>,
    },
    /// To end.
    Out {
        /// When it was told.
        told_at: DateTime<Utc>,
        /// When it has ended.
        terminated_at: DateTime<Utc>,
    },
}

/// A time in which an instance ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// From when.
    pub from: DateTime<Utc>,
    /// Until when; none while it runs.
    pub until: Option<DateTime<Utc>>,
}

/// Whether CloudWatch gets a point every minute or every five.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Monitoring {
    /// Every five minutes.
    Basic,
    /// Every minute.
    Detailed,
}

/// An instance profile, as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its ARN.
    pub arn: String,
    /// Its id.
    pub id: String,
}

/// An instance.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Its place in the order of launches.
    pub sequence: u64,
    /// Its id.
    pub id: String,
    /// The launch it came from.
    pub reservation_id: Shared<str>,
    /// Its number within that launch.
    pub launch_index: usize,
    /// The image it was made from.
    pub image_id: Shared<str>,
    /// Its type.
    pub instance_type: Shared<str>,
    /// The key pair it was given.
    pub key_name: Option<Shared<str>>,
    /// The token it was launched with.
    pub client_token: Option<Shared<str>>,
    /// The zone it is in.
    pub availability_zone: Shared<str>,
    /// The subnet it is in.
    pub subnet_id: Shared<str>,
    /// The VPC it is in.
    pub vpc_id: Shared<str>,
    /// Its security groups.
    pub groups: Shared<[SecurityGroup]>,
    /// Its instance profile.
    pub profile: Option<Profile>,
    /// How often it is measured.
    pub monitoring: Monitoring,
    /// Its volume.
    pub volume_id: Box<str>,
    /// Its network interface.
    pub interface_id: Box<str>,
    /// Its tags.
    pub tags: Shared<Tags>,
    /// When it was first launched; visibility lag counts from here.
    pub created_at: DateTime<Utc>,
    /// When it was launched or last started.
    pub launched_at: DateTime<Utc>,
    /// What it was last told.
    pub course: Course,
    /// When it ran, so that metrics exist for those times and no others.
    pub runs: Vec<Run>,
    /// Its address inside.
    pub private_ip: Ipv4Addr,
    /// Its address outside, since its last start.
    pub assigned_ip: Ipv4Addr,
}

/// More restarts than this and the oldest are forgotten.
const RUNS_KEPT: usize = 64;

impl Instance {
    /// Its state at a moment.
    pub fn state(&self, now: DateTime<Utc>) -> InstanceState {
        let (due, before, after) = match self.course {
            Course::Up { running_at } => (running_at, InstanceState::Pending, InstanceState::Running),
            Course::Down { stopped_at, .. } => (stopped_at, InstanceState::Stopping, InstanceState::Stopped),
            Course::Out { terminated_at, .. } => {
                (terminated_at, InstanceState::ShuttingDown, InstanceState::Terminated)
            }
        };
        if now < due { before } else { after }
    }

    /// Its outside address; it has one only while it runs.
    pub fn public_ip(&self, now: DateTime<Utc>) -> Option<Ipv4Addr> {
        (self.state(now) == InstanceState::Running).then_some(self.assigned_ip)
    }

    /// Since when it runs, if it does.
    pub fn running_since(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.course {
            Course::Up { running_at } if running_at <= now => Some(running_at),
            Course::Up { .. } | Course::Down { .. } | Course::Out { .. } => None,
        }
    }

    /// Whether it has ever run.
    pub fn has_run(&self, now: DateTime<Utc>) -> bool {
        self.runs.iter().any(|run| run.from <= now)
    }

    pub(super) fn go_up(&mut self, now: DateTime<Utc>, running_at: DateTime<Utc>, address: Ipv4Addr) {
        self.launched_at = now;
        self.assigned_ip = address;
        self.course = Course::Up { running_at };
        if self.runs.len() == RUNS_KEPT {
            self.runs.remove(0);
        }
        // Most instances run once.
        self.runs.reserve_exact(1);
        self.runs.push(Run { from: running_at, until: None });
    }

    pub(super) fn go_down(&mut self, now: DateTime<Utc>, stopped_at: DateTime<Utc>) {
        self.course = Course::Down { told_at: now, stopped_at };
        self.end_run(now);
    }

    pub(super) fn go_out(&mut self, now: DateTime<Utc>, terminated_at: DateTime<Utc>) {
        self.course = Course::Out { told_at: now, terminated_at };
        self.end_run(now);
    }

    fn end_run(&mut self, now: DateTime<Utc>) {
        // A run that had not begun yet never was.
        self.runs.retain(|run| run.from <= now);
        if let Some(run) = self.runs.last_mut() {
            run.until.get_or_insert(now);
        }
    }
}
