//! Configuration of a world.

use std::str::FromStr;
use std::time::Duration;

use super::account::Account;
use crate::clock::{Clock, Pace};

/// Durations of instance state changes, on the clock of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Delays {
    /// Duration of `pending`.
    pub starting: Duration,
    /// Duration of `stopping`.
    pub stopping: Duration,
    /// Duration of `shutting-down`.
    pub terminating: Duration,
    /// Time for which a terminated instance is still described.
    pub terminated_visible: Duration,
    /// Time for which a client token stays in use after the termination of its instances.
    pub token_lifetime: Duration,
    /// Time between `running` and passing status checks.
    pub status_checks: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            starting: Duration::from_secs(15),
            stopping: Duration::from_secs(20),
            terminating: Duration::from_secs(20),
            terminated_visible: Duration::from_secs(3600),
            token_lifetime: Duration::from_secs(24 * 3600),
            status_checks: Duration::from_secs(120),
        }
    }
}

impl Delays {
    /// Returns delays of zero. Terminated instances and client tokens keep their default lifetimes.
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

/// Parses `none`, or a comma-separated list of overrides in seconds: `starting=5,stopping=0.5`.
impl FromStr for Delays {
    type Err = DelayError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::none());
        }
        let mut delays = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| DelayError::NotAPair(part.to_owned()))?;
            let delay = match name {
                "starting" => &mut delays.starting,
                "stopping" => &mut delays.stopping,
                "terminating" => &mut delays.terminating,
                "terminated-visible" => &mut delays.terminated_visible,
                "token-remembered" => &mut delays.token_lifetime,
                "status-checks" => &mut delays.status_checks,
                _ => return Err(DelayError::UnknownName(name.to_owned())),
            };
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            *delay = seconds.ok_or_else(|| DelayError::NotADuration(part.to_owned()))?;
        }
        Ok(delays)
    }
}

/// Error of parsing [`Delays`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DelayError {
    /// A part is not of the form `name=seconds`.
    #[error("invalid delay '{0}': expected 'none' or a list such as 'starting=5'")]
    NotAPair(String),
    /// The name of a delay is unknown.
    #[error(
        "unknown delay '{0}': expected starting, stopping, terminating, terminated-visible, token-remembered or \
         status-checks"
    )]
    UnknownName(String),
    /// The value is not a non-negative number of seconds.
    #[error("invalid delay '{0}': expected a number of seconds")]
    NotADuration(String),
}

/// Dimensions of the metrics that the CloudWatch agent of an instance reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum AgentDimensions {
    /// All appended dimensions, and `InstanceId` alone (`aggregation_dimensions: [["InstanceId"]]`).
    #[default]
    Aggregated,
    /// All appended dimensions only. Queries by `InstanceId` alone return no data.
    Appended,
}

/// Behavior of StopInstances for a `pending` instance that has never run. EC2 has been observed to do both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StopWhilePending {
    /// The call fails with `IncorrectInstanceState`.
    #[default]
    Refused,
    /// The instance stops.
    Allowed,
}

/// Configuration of a [`World`](super::World).
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Settings {
    /// Seed of all random numbers; 0 by default.
    pub seed: u64,
    /// Clock of the world; real time by default.
    #[serde(skip, default = "real_clock")]
    pub clock: Clock,
    /// Durations of instance state changes.
    pub delays: Delays,
    /// Dimensions of agent metrics.
    pub agent_dimensions: AgentDimensions,
    /// Behavior of StopInstances for a `pending` instance.
    pub stop_while_pending: StopWhilePending,
    /// Accounts beside the default account.
    pub accounts: Vec<Account>,
}

/// The clock of settings that are read from a snapshot, until it is replaced.
fn real_clock() -> Clock {
    Clock::new(Pace::Real)
}

impl Settings {
    /// Returns the default settings with this clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            clock: Clock::new(Pace::Real),
            delays: Delays::default(),
            agent_dimensions: AgentDimensions::default(),
            stop_while_pending: StopWhilePending::default(),
            accounts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_override_the_defaults() {
        let delays: Delays = "starting=5, status-checks=0.5".parse().expect("good delays");
        let expected =
            Delays { starting: Duration::from_secs(5), status_checks: Duration::from_millis(500), ..Delays::default() };
        assert_eq!(delays, expected);
        assert_eq!("none".parse(), Ok(Delays::none()));
        assert_eq!("".parse(), Ok(Delays::default()));
    }

    #[test]
    fn invalid_delays_are_named_in_the_error() {
        for (text, hint) in [
            ("fast", "invalid delay 'fast': expected 'none' or a list such as 'starting=5'"),
            ("booting=5", "unknown delay 'booting'"),
            ("starting=soon", "invalid delay 'starting=soon': expected a number of seconds"),
            ("starting=-1", "invalid delay 'starting=-1': expected a number of seconds"),
        ] {
            let error = text.parse::<Delays>().expect_err(text).to_string();
            assert!(error.starts_with(hint), "{error}");
        }
    }
}
