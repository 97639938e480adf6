//! Settings of a control plane: its generation, idle rules and etcd prefix.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of [`Records`](super::Records).
#[derive(Debug, Clone)]
pub struct Settings {
    /// Generation whose endpoints, responses, errors and etcd keys the server has.
    pub generation: Generation,
    /// Idle timeout and auto-pause.
    pub idle: IdleRules,
    /// Prefix of the mirrored etcd keys.
    pub etcd_prefix: String,
    /// Seed of the generated ids; equal seeds give equal ids.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { generation: Generation::default(), idle: IdleRules::default(), etcd_prefix: "/lcm".to_owned(), seed: 0 }
    }
}

/// Generation of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Generation {
    /// The deployed server as it is. Its endpoints ignore notes, versions and unknown filters. The contract is
    /// `openapi/control-plane-original.yaml`.
    #[default]
    Original,
    /// A server with record versions, notes on the record and everything else in `openapi/control-plane-extended.yaml`.
    Extended,
}

impl Settings {
    /// Returns the default settings for a generation.
    pub fn for_generation(generation: Generation) -> Self {
        Self { generation, ..Self::default() }
    }
}

impl Generation {
    /// Whether records have versions, and keep lifecycle fields such as `drain_started_at`.
    pub(crate) fn is_extended(self) -> bool {
        self == Self::Extended
    }
}

/// Parses `original` or `extended`.
impl FromStr for Generation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "original" => Ok(Self::Original),
            "extended" => Ok(Self::Extended),
            other => Err(format!("invalid control plane generation '{other}': expected 'original' or 'extended'")),
        }
    }
}

/// Idle rules of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleRules {
    /// Time without activity after which a worker is idle.
    pub timeout: Duration,
    /// Time after a resume during which a worker is not paused.
    pub snooze: Duration,
    /// Whether the server pauses idle workers.
    pub auto_pause: AutoPause,
}

impl Default for IdleRules {
    fn default() -> Self {
        let hour = Duration::from_secs(3600);
        Self { timeout: hour, snooze: hour, auto_pause: AutoPause::On }
    }
}

/// Whether the server pauses idle workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoPause {
    /// Pauses them, unless a request suppresses it.
    On,
    /// Never pauses them.
    Off,
}
