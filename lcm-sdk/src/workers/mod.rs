//! The worker controller, discovery and the metrics loop.

pub(crate) mod controller;
pub(crate) mod discovery;
pub(crate) mod fleet;
pub(crate) mod metrics;
pub(crate) mod records;

pub use controller::{
    ElectedOnce, OneSweep, OneSweepError, WorkerController, WorkerControllerConfig, WorkerControllerError,
};
pub use discovery::{
    Discovery, DiscoveryConfig, DiscoveryReport, DiscoveryRun, DiscoveryStats, ExplainedVerdict, RegionReport,
    RegionRun, RegionStats,
};
pub use fleet::{FetchedWorker, SweepProgress, WorkerFleet};
pub use metrics::{MetricsLoop, MetricsReport};
pub use records::{RecordProblem, RecordStats};
