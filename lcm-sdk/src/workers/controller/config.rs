//! How a worker controller works.

use std::time::Duration;

use crate::controller::ControllerConfig;
use crate::controller::election::ElectionConfig;
use crate::controller::shards::Shards;
use crate::controller::watch::WatchConfig;
use crate::reconciler::CmlDefaults;
use crate::workers::discovery::DiscoveryConfig;

/// Settings of a worker controller, with the defaults of the documents.
#[derive(Debug, Clone)]
pub struct WorkerControllerConfig {
    /// The reconcile loop.
    pub controller: ControllerConfig,
    /// The election; unused where there is no etcd.
    pub election: ElectionConfig,
    /// How many parts the fleet is divided into, each led by one of several controllers. All of them are configured with
    /// the same number; unused where there is no etcd.
    pub shards: Shards,
    /// The watch; `None` relies on polling alone.
    pub watch: Option<WatchConfig>,
    /// Discovery and garbage collection; `None` leaves both to somebody else.
    pub discovery: Option<DiscoveryConfig>,
    /// Time between two rounds of metrics.
    pub metrics_interval: Duration,
    /// The look at everything on becoming leader.
    pub startup: StartupConfig,
    /// How to sign in to a CML whose record does not say.
    pub cml: CmlDefaults,
}

impl Default for WorkerControllerConfig {
    fn default() -> Self {
        Self {
            controller: ControllerConfig { max_concurrent: 5, ..ControllerConfig::default() },
            election: ElectionConfig::default(),
            shards: Shards::ONE,
            watch: Some(WatchConfig::new(["/workers/", "/lcm/workers/"])),
            discovery: Some(DiscoveryConfig::default()),
            metrics_interval: Duration::from_secs(60),
            startup: StartupConfig::default(),
            cml: CmlDefaults::default(),
        }
    }
}

/// The look at everything on becoming leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupConfig {
    /// Time before it.
    pub delay: Duration,
    /// How long others wait for it at the most; `None` skips it.
    pub limit: Option<Duration>,
}

impl Default for StartupConfig {
    fn default() -> Self {
        Self { delay: Duration::from_secs(2), limit: Some(Duration::from_secs(60)) }
    }
}
