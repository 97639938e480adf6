//! Settings of a control plane: its dialect, idle rules and etcd prefix.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// Settings of [`Records`](super::Records).
#[derive(Debug, Clone)]
pub struct Settings {
    /// Differences from the current API.
    pub dialect: Dialect,
    /// Idle timeout and auto-pause.
    pub idle: IdleRules,
    /// Prefix of the mirrored etcd keys.
    pub etcd_prefix: String,
    /// Seed of the generated ids; equal seeds give equal ids.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dialect: Dialect::default(), idle: IdleRules::default(), etcd_prefix: "/lcm".to_owned(), seed: 0 }
    }
}

/// Differences between deployed servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// Filter `exclude_statuses` of the worker listing.
    pub exclude_statuses: Supported,
    /// Lifecycle fields (such as `drain_started_at`) at the top level of a record.
    pub lifecycle_fields: Supported,
    /// Effect of a bulk import on known workers.
    pub reimport: ReimportPolicy,
    /// Versions of records; without them every write is unconditional.
    pub versions: Supported,
    /// Endpoint `POST /workers/{id}/terminate`.
    pub terminate: Supported,
}

impl Dialect {
    /// A server from before the additions: it ignores `exclude_statuses`, keeps lifecycle fields in `metadata` only,
    /// and has neither versions nor a terminate endpoint.
    pub const LEGACY: Self = Self {
        exclude_statuses: Supported::No,
        lifecycle_fields: Supported::No,
        reimport: ReimportPolicy::Rewrite,
        versions: Supported::No,
        terminate: Supported::No,
    };
}

/// Version of the control plane API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApiVersion {
    /// Supports everything in the OpenAPI document.
    #[default]
    Current,
    /// Predates the additions: [`Dialect::LEGACY`].
    Older,
}

impl ApiVersion {
    /// Differences of this version.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Current => Dialect::default(),
            Self::Older => Dialect::LEGACY,
        }
    }
}

/// Parses `current` or `older`.
impl FromStr for ApiVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "current" => Ok(Self::Current),
            "older" => Ok(Self::Older),
            other => Err(format!("{other:?} is no generation; accepted: current, older")),
        }
    }
}

/// Whether the server supports a feature. Unsupported parameters are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Supported {
    /// Supported, as in the current version.
    #[default]
    Yes,
    /// Not supported, as in the older version.
    No,
}

/// Effect of a bulk import on a worker whose instance is already known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReimportPolicy {
    /// Overwrites its status and addresses with the discovered ones, as deployed servers do.
    #[default]
    Rewrite,
    /// Leaves the record unchanged.
    Leave,
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
