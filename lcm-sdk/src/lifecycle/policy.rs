//! The knobs of every decision, with the defaults of the design documents.

use std::time::Duration;

use super::backoff::Backoff;
use super::region::RegionConfigs;
use super::wire_enum::vocabulary;

vocabulary! {
    /// What a stop from outside means to a worker whose desired status is running.
    ExternalStopPolicy, "external stop policy" {
        /// Desired state wins: the worker is started again.
        Restart = "restart",
        /// The stop is taken as somebody's wish: desired becomes stopped.
        Respect = "respect",
    }
}

/// Everything a decision may depend on besides the worker, what was observed, and the time.
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
    /// How long EC2 may fail to show an instance that was just launched.
    pub consistency_window: Duration,
    /// How long an instance may take to come up.
    pub provisioning_timeout: Duration,
    /// What a stop from outside means.
    pub external_stop_policy: ExternalStopPolicy,
    /// Whether a live instance of a terminated record brings the record back.
    pub resurrect_terminated: bool,
    /// How often a failed session is retried on a draining worker.
    pub max_session_retries: u32,
    /// How old collected metrics may be before a pass asks again.
    pub metrics_interval: Duration,
    /// Shortest time between two idle checks of one worker.
    pub idle_detection_interval: Duration,
    /// When to look again at a licence that CML works on.
    pub license_poll_interval: Duration,
    /// Scale-down.
    pub scale_down: ScaleDownPolicy,
    /// Garbage collection of orphans.
    pub orphans: OrphanPolicy,
    /// Waiting between retries.
    pub backoff: Backoff,
    /// Where workers are launched.
    pub regions: RegionConfigs,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            consistency_window: Duration::from_secs(120),
            provisioning_timeout: Duration::from_secs(900),
            external_stop_policy: ExternalStopPolicy::Restart,
            resurrect_terminated: true,
            max_session_retries: 3,
            metrics_interval: Duration::from_secs(60),
            idle_detection_interval: Duration::from_secs(300),
            license_poll_interval: Duration::from_secs(5),
            scale_down: ScaleDownPolicy::default(),
            orphans: OrphanPolicy::default(),
            backoff: Backoff::default(),
            regions: RegionConfigs::default(),
        }
    }
}

/// When an idle worker may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleDownPolicy {
    /// Whether idle workers are scaled down at all.
    pub enabled: bool,
    /// Never fewer running workers than this.
    pub min_workers: usize,
    /// Shortest time between two scale-downs.
    pub cooldown: Duration,
    /// A session scheduled within this time keeps its worker.
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

/// How far garbage collection may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanPolicy {
    /// From this many records on, a scan that shows nothing at all freezes the region.
    pub freeze_from_records: usize,
    /// At most this many records are marked terminated in one pass.
    pub max_terminations_per_pass: Option<usize>,
}

impl Default for OrphanPolicy {
    fn default() -> Self {
        Self { freeze_from_records: 3, max_terminations_per_pass: None }
    }
}
