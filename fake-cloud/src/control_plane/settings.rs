//! How a control plane is set up: what kind of server it imitates, and its own rules.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// What [`Records`](super::Records) are made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which server is imitated.
    pub dialect: Dialect,
    /// When a worker counts as idle, and what happens then.
    pub idle: IdleRules,
    /// The prefix of the keys in etcd.
    pub etcd_prefix: String,
    /// What ids are drawn from: the same seed gives the same ids.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dialect: Dialect::default(), idle: IdleRules::default(), etcd_prefix: "/lcm".to_owned(), seed: 0 }
    }
}

/// Where servers in the field differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// Whether `exclude_statuses` is understood.
    pub exclude_statuses: Supported,
    /// Whether the notes of a worker's lifecycle (such as `drain_started_at`) are fields of a record.
    pub notes: Supported,
    /// What bulk import does to workers it knows already.
    pub known_workers: ReimportPolicy,
    /// Whether records have versions; without them every write is unconditional.
    pub versions: Supported,
    /// Whether `POST /workers/{id}/terminate` exists.
    pub terminate: Supported,
}

impl Dialect {
    /// A server from before the additions: ignores `exclude_statuses`, keeps notes in `metadata` only, has no versions
    /// and no way to terminate but a status write.
    pub const OLDER: Self = Self {
        exclude_statuses: Supported::No,
        notes: Supported::No,
        known_workers: ReimportPolicy::Rewrite,
        versions: Supported::No,
        terminate: Supported::No,
    };
}

/// Which server is imitated, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApiVersion {
    /// One with everything in the contract.
    #[default]
    Current,
    /// One from before the additions: [`Dialect::OLDER`].
    Older,
}

impl ApiVersion {
    /// Where it differs.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Current => Dialect::default(),
            Self::Older => Dialect::OLDER,
        }
    }
}

/// Reads `current` or `older`.
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

/// Whether the server knows a thing. What it does not know, it ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Supported {
    /// It does.
    #[default]
    Yes,
    /// It does not, as an older server.
    No,
}

/// What bulk import does to a worker whose instance is discovered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReimportPolicy {
    /// Its status and addresses are overwritten with what was discovered, as servers in the field do.
    #[default]
    Rewrite,
    /// It is left alone.
    Leave,
}

/// When a worker counts as idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleRules {
    /// Idle after this long without activity.
    pub timeout: Duration,
    /// Not paused for this long after a resume.
    pub snooze: Duration,
    /// Whether idle workers are paused by the server itself.
    pub auto_pause: AutoPause,
}

impl Default for IdleRules {
    fn default() -> Self {
        let hour = Duration::from_secs(3600);
        Self { timeout: hour, snooze: hour, auto_pause: AutoPause::On }
    }
}

/// Whether the server pauses idle workers by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoPause {
    /// It does, unless a request suppresses it.
    On,
    /// It never does.
    Off,
}
