//! What makes one world differ from another.

use std::str::FromStr;
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

/// Reads `none`, or what differs from the default in seconds: `starting=5,stopping=0.5`.
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
                "token-remembered" => &mut delays.token_remembered,
                "status-checks" => &mut delays.status_checks,
                _ => return Err(DelayError::UnknownName(name.to_owned())),
            };
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            *delay = seconds.ok_or_else(|| DelayError::NotADuration(part.to_owned()))?;
        }
        Ok(delays)
    }
}

/// Why delays cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DelayError {
    /// Neither `none` nor a name and a number.
    #[error("'{0}' should be 'none' or look like 'starting=5'")]
    NotAPair(String),
    /// Nothing of that name takes time.
    #[error(
        "there is no delay '{0}', only starting, stopping, terminating, terminated-visible, token-remembered and \
         status-checks"
    )]
    UnknownName(String),
    /// Not a number of seconds.
    #[error("'{0}' should give a number of seconds")]
    NotADuration(String),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read_as_what_differs_from_the_default() {
        let delays: Delays = "starting=5, status-checks=0.5".parse().expect("good delays");
        let expected =
            Delays { starting: Duration::from_secs(5), status_checks: Duration::from_millis(500), ..Delays::default() };
        assert_eq!(delays, expected);
        assert_eq!("none".parse(), Ok(Delays::none()));
        assert_eq!("".parse(), Ok(Delays::default()));
    }

    #[test]
    fn mistakes_in_delays_are_named() {
        for (text, hint) in [
            ("fast", "'fast' should be 'none' or look like 'starting=5'"),
            ("booting=5", "there is no delay 'booting'"),
            ("starting=soon", "'starting=soon' should give a number of seconds"),
            ("starting=-1", "'starting=-1' should give a number of seconds"),
        ] {
            let error = text.parse::<Delays>().expect_err(text).to_string();
            assert!(error.starts_with(hint), "{error}");
        }
    }
}
