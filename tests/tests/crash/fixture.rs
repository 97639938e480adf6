//! A fake cloud with short delays, and controller settings with short intervals.
//!
//! Controllers use the wall clock, so the cloud does too: timeouts of hours are configured as seconds on both sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use fake_cloud::control_plane::{Generation, Input, Worker};
use fake_cloud::world::{Catalog, Delays, Instance, InstanceState, REGIONS};
use serde_json::{Value, json};

use crate::journal::Journal;

/// Number of regions. EC2 limits the changes per second in each, and two hundred workers in one would take minutes.
const REGION_COUNT: usize = 8;
/// Drain timeout of the template.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// Drain timeout on the original server, whose templates have none.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Time in which a controller sweeps the fleet twice.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// Settings of the controllers.
const SETTINGS: [(&str, &str); 20] = [
    ("ADMIN_PORT", "0"),
    ("BACKOFF_BASE", "0.2"),
    ("CML_TIMEOUT", "2"),
    // Longer than the rate limit can delay a launch, so that no pending launch is considered lost.
    ("CONSISTENCY_WINDOW", "30"),
    ("CONTROL_PLANE_EVENTS", "false"),
    ("DEBOUNCE_SECONDS", "0.05"),
    ("DISCOVERY_INITIAL_DELAY", "0.2"),
    ("DISCOVERY_INTERVAL", "10"),
    ("IDLE_DETECTION_INTERVAL", "86400"),
    ("INITIAL_DELAY", "0.5"),
    ("LEASE_MARGIN", "0.5"),
    ("LEASE_TTL", "3"),
    ("LCM_LOG_LEVEL", "warn"),
    ("MAX_BACKOFF", "2"),
    ("MAX_CONCURRENT", "16"),
    ("METRICS_POLL_INTERVAL", "86400"),
    ("RECONCILE_INTERVAL", "2"),
    ("RECONNECT_DELAY", "0.2"),
    ("RETRY_INTERVAL", "0.5"),
    ("STARTUP_RECONCILE_DELAY", "0"),
];

pub(crate) struct Fixture {
    pub(crate) generation: Generation,
    pub(crate) cloud: FakeCloud,
    pub(crate) journal: Journal,
}

impl Fixture {
    pub(crate) async fn start(generation: Generation, seed: u64) -> Self {
        let delays = Delays {
            starting: Duration::from_millis(600),
            stopping: Duration::from_millis(400),
            terminating: Duration::from_millis(400),
            ..Delays::default()
        };
        // This test covers instances, not the CML servers on them.
        let builder = FakeCloud::builder().control_plane(generation).seed(seed).delays(delays).cml_limit(0);
        let cloud = builder.start().await.expect("started");
        let discovery = json!({"regions": Self::regions(), "scan_interval_seconds": 3});
        cloud.set_discovery(discovery).expect("valid settings");
        let hours = DRAIN_TIMEOUT.as_secs_f64() / 3600.0;
        let template = json!({"name": "brief", "instance_type": "m5zn.metal", "drain_timeout_hours": hours});
        cloud.add_template(template).expect("a valid template");
        let journal = Journal::default();
        journal.subscribe(cloud.world().request_log());
        Self { generation, cloud, journal }
    }

    /// Time after which a drain ends the remaining sessions.
    pub(crate) fn drain_timeout(&self) -> Duration {
        match self.generation {
            Generation::Extended => DRAIN_TIMEOUT,
            Generation::Original => DEFAULT_DRAIN_TIMEOUT,
        }
    }

    pub(crate) fn regions() -> &'static [&'static str] {
        &REGIONS[..REGION_COUNT]
    }

    /// Environment variables of a controller.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let Value::Object(variables) = self.cloud.endpoints().environment() else { unreachable!("an object") };
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut environment: BTreeMap<_, _> = variables.into_iter().map(|(name, value)| (name, text(value))).collect();
        environment.extend(SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let regions = Self::regions().iter().map(|region| {
            let catalog = Catalog::for_region(region);
            let config = json!({"subnet_id": catalog.subnets[0].id, "security_group_ids": [catalog.groups[0].id]});
            ((*region).to_owned(), config)
        });
        let regions = json!({"default_region": REGIONS[0], "regions": Value::Object(regions.collect())});
        environment.insert("AWS_REGION_CONFIGS".to_owned(), regions.to_string());
        environment
    }

    /// All instances, terminated ones included.
    pub(crate) fn instances(&self) -> Vec<Arc<Instance>> {
        Self::regions().iter().flat_map(|region| self.cloud.instances(region)).collect()
    }

    /// The instance that a worker's record references, if any.
    pub(crate) fn instance_for(&self, worker: &Worker) -> Option<Arc<Instance>> {
        self.cloud.instance(worker.text("aws_region")?, worker.instance_id()?)
    }

    /// EC2 state of the instance that a worker's record references, if any.
    pub(crate) fn ec2_state(&self, worker: &Worker) -> Option<InstanceState> {
        self.instance_for(worker).map(|instance| instance.state(self.cloud.now()))
    }

    /// Resets failed workers, as an operator.
    pub(crate) fn reset_failed(&self) {
        for worker in self.cloud.workers().iter().filter(|worker| worker.status() == "failed") {
            let pending = Input::from_value(json!({"status": "pending"})).expect("an object");
            // Refused if the record has changed since.
            drop(self.cloud.records().write_status(worker.id(), Some(worker.version()), &pending));
        }
    }
}

/// Whether an instance is neither terminated nor shutting down.
pub(crate) fn is_live(state: InstanceState) -> bool {
    match state {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    }
}
