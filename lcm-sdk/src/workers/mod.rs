//! The worker controller, discovery and the metrics loop.

pub(crate) mod controller;
pub(crate) mod discovery;
pub(crate) mod fleet;
pub(crate) mod metrics;

pub use controller::{OneSweep, OneSweepError, WorkerController, WorkerControllerConfig};
pub use discovery::{Discovery, DiscoveryConfig, DiscoveryReport, RegionReport};
pub use fleet::{FetchedWorker, WorkerFleet};
pub use metrics::{MetricsLoop, MetricsReport};
