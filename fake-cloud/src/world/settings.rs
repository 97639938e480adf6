//! What makes one world differ from another.

use std::time::Duration;

use crate::clock::{Clock, Pace};

/// How long things take, on the world's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// From `pending` to `running`.
    pub starting: Duration,
    /// From `stopping` to `stopped`.
    pub stopping: Duration,
    /// From `shutting-down` to `terminated`.
    pub terminating: Duration,
    /// How long a terminated instance stays visible.
    pub terminated_visible: Duration,
    /// How long a client token is remembered after its instance ended.
    pub token_remembered: Duration,
    /// From `running` until the status checks pass.
    pub status_checks: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            starting: Duration::from_secs(15),
            stopping: Duration::from_secs(20),
            terminating: Duration::from_secs(20),
            terminated_visible: Duration::from_secs(3600),
            token_remembered: Duration::from_secs(24 * 3600),
            status_checks: Duration::from_secs(120),
        }
    }
}

impl Delays {
    /// Nothing takes any time, except that terminated instances stay visible for their hour.
    pub fn none() -> Self {
        Self {
            starting: Duration::ZERO,
            stopping: Duration::ZERO,
            terminating: Duration::ZERO,
            status_checks: Duration::ZERO,
            ..Self::default()
        }
    }
}

/// Under which dimensions the CloudWatch agent of an instance reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentDimensions {
    /// All it appends, and `InstanceId` alone as well (`aggregation_dimensions: [["InstanceId"]]`).
    #[default]
    Aggregated,
    /// Only all it appends: whoever asks by `InstanceId` alone finds nothing.
    Appended,
}

/// What StopInstances says to an instance that was launched and does not run yet. Both have been seen in the wild.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopWhilePending {
    /// `IncorrectInstanceState`.
    #[default]
    Refused,
    /// It stops.
    Allowed,
}

/// What makes one world differ from another.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Decides every random choice.
    pub seed: u64,
    /// The world's clock.
    pub clock: Clock,
    /// How long things take.
    pub delays: Delays,
    /// How the CloudWatch agents are set up.
    pub agent_dimensions: AgentDimensions,
    /// Whether a launch can be stopped before it runs.
    pub stop_while_pending: StopWhilePending,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            clock: Clock::new(Pace::Real),
            delays: Delays::default(),
            agent_dimensions: AgentDimensions::default(),
            stop_while_pending: StopWhilePending::default(),
        }
    }
}
