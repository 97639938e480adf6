//! How a control plane is set up: what kind of server it imitates, and its own rules.

use std::time::Duration;

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
    pub exclude_statuses: Knows,
    /// Whether the notes of a worker's lifecycle (such as `drain_started_at`) are fields of a record.
    pub notes: Knows,
    /// What bulk import does to workers it knows already.
    pub known_workers: OnKnown,
}

impl Dialect {
    /// A server from before the additions: ignores `exclude_statuses`, and keeps notes in `metadata` only.
    pub const OLDER: Self = Self { exclude_statuses: Knows::No, notes: Knows::No, known_workers: OnKnown::Rewrite };
}

/// Whether the server knows a thing. What it does not know, it ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Knows {
    /// It does.
    #[default]
    Yes,
    /// It does not, as an older server.
    No,
}

/// What bulk import does to a worker whose instance is discovered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnKnown {
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
