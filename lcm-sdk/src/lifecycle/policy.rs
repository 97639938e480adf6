//! Configuration of decisions, with the defaults of the design documents.

use std::time::Duration;

use super::backoff::Backoff;
use super::capabilities::{Capabilities, Support};
use super::region::RegionConfigs;
use super::wire_enum::vocabulary;

vocabulary! {
    /// The meaning of a stop from outside for a worker whose desired status is running.
    ExternalStopPolicy, "external stop policy" {
        /// The desired status wins: the worker is started again.
        Restart = "restart",
        /// The stop wins: the desired status becomes stopped.
        Respect = "respect",
    }
}

impl ExternalStopPolicy {
    /// The policy that can be carried out: to respect a stop, its desired status has to be stored.
    #[must_use]
    pub const fn effective(self, known: &Capabilities) -> Self {
        match (self, known.desired_status) {
            (Self::Respect, Support::No) => Self::Restart,
            (Self::Respect, Support::Unknown | Support::Yes) | (Self::Restart, _) => self,
        }
    }
}

/// Every input of a decision besides the worker, the observation and the time.
///
/// ```
/// use lcm_sdk::Policy;
///
/// let policy = Policy::default();
/// assert_eq!(policy.consistency_window.as_secs(), 120);
/// assert!(!policy.scale_down.enabled);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// How long EC2 may not show an instance that was just launched.
    pub consistency_window: Duration,
    /// How long an instance may take to come up.
    pub provisioning_timeout: Duration,
    /// The meaning of a stop from outside.
    pub external_stop_policy: ExternalStopPolicy,
    /// Whether a live instance of a terminated record brings the record back.
    pub resurrect_terminated: bool,
    /// How often a failed session is retried on a draining worker.
    pub max_session_retries: u32,
    /// Minimum time between the end of placement on a worker and the last listing of its sessions before it is stopped.
    pub drain_settle: Duration,
    /// How often a session may keep a worker from stopping after the deadline of its drain.
    pub max_drain_tries: u32,
    /// Maximum age of reported metrics before a reconcile collects them again.
    pub metrics_interval: Duration,
    /// Minimum time between two idle checks of one worker.
    pub idle_detection_interval: Duration,
    /// Delay before CML's registration status is read again.
    pub license_poll_interval: Duration,
    /// How long CML may take to finish a registration before it is reported as failed.
    pub license_timeout: Duration,
    /// Rules for taking idle workers out of service.
    pub scale_down: ScaleDownPolicy,
    /// Limits of garbage collection.
    pub orphans: OrphanPolicy,
    /// Delays between retries.
    pub backoff: Backoff,
    /// Configuration of the regions workers are launched in.
    pub regions: RegionConfigs,
    /// Id of the account that the workers' instances are in: an absence reported by this account is believed.
    pub aws_account_id: Option<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            consistency_window: Duration::from_secs(120),
            provisioning_timeout: Duration::from_secs(900),
            external_stop_policy: ExternalStopPolicy::Restart,
            resurrect_terminated: true,
            max_session_retries: 3,
            drain_settle: Duration::from_secs(10),
            max_drain_tries: 3,
            metrics_interval: Duration::from_secs(60),
            idle_detection_interval: Duration::from_secs(300),
            license_poll_interval: Duration::from_secs(5),
            license_timeout: Duration::from_secs(900),
            scale_down: ScaleDownPolicy::default(),
            orphans: OrphanPolicy::default(),
            backoff: Backoff::default(),
            regions: RegionConfigs::default(),
            aws_account_id: None,
        }
    }
}

/// Rules for taking idle workers out of service. Scale-down is disabled by default; [`ScaleDownPolicy::new`] enables it.
///
/// ```
/// use std::time::Duration;
/// use lcm_sdk::lifecycle::ScaleDownPolicy;
///
/// let policy = ScaleDownPolicy::new(2).with_cooldown(Duration::from_secs(300));
/// assert!(policy.enabled && !ScaleDownPolicy::default().enabled);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScaleDownPolicy {
    /// Whether idle workers are scaled down at all.
    pub enabled: bool,
    /// Minimum number of running workers.
    pub min_workers: usize,
    /// Minimum time between two scale-downs.
    pub cooldown: Duration,
    /// A session that begins within this time keeps its worker in service.
    pub look_ahead: Duration,
}

impl Default for ScaleDownPolicy {
    fn default() -> Self {
        Self {
            enabled: false,
            min_workers: 0,
            cooldown: Duration::from_secs(600),
            look_ahead: Duration::from_secs(30 * 60),
        }
    }
}

impl ScaleDownPolicy {
    /// Enabled, and at least `min_workers` stay in service.
    pub fn new(min_workers: usize) -> Self {
        Self { enabled: true, min_workers, ..Self::default() }
    }

    /// Sets the minimum time between two scale-downs.
    #[must_use]
    pub fn with_cooldown(self, cooldown: Duration) -> Self {
        Self { cooldown, ..self }
    }

    /// Sets how long before the start of a session its worker stays in service.
    #[must_use]
    pub fn with_look_ahead(self, look_ahead: Duration) -> Self {
        Self { look_ahead, ..self }
    }
}

/// Limits of garbage collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrphanPolicy {
    /// Maximum number of records marked terminated in one run.
    pub max_terminations_per_pass: Option<usize>,
}

impl OrphanPolicy {
    /// Limits the number of records marked terminated in one run.
    #[must_use]
    pub fn with_max_terminations_per_pass(self, max: usize) -> Self {
        Self { max_terminations_per_pass: Some(max) }
    }
}
