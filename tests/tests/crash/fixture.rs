//! Where it happens: a fake cloud in which everything is short, and the settings of controllers that think so too.
//!
//! Controllers go by the clock on the wall, so this world does as well; an hour of the real one is a few seconds here,
//! on both sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use fake_cloud::control_plane::{Input, Worker};
use fake_cloud::world::{Catalog, Delays, Instance, InstanceState, REGIONS};
use serde_json::{Value, json};

use crate::journal::Journal;

/// The regions in use. EC2 allows so many changes a second in each; in one alone two hundred workers would take minutes.
const USED: usize = 8;
/// How long a drain waits for its sessions.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a controller may take to look at everybody twice.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// How the controllers are set up.
const HABITS: [(&str, &str); 20] = [
    ("ADMIN_PORT", "0"),
    ("BACKOFF_BASE", "0.2"),
    ("CML_TIMEOUT", "2"),
    // Longer than a launch can be held back by our own rates, so that no launch is ever taken for gone too early.
    ("CONSISTENCY_WINDOW", "30"),
    ("CONTROL_PLANE_EVENTS", "false"),
    ("DEBOUNCE_SECONDS", "0.05"),
    ("DISCOVERY_INITIAL_DELAY", "0.2"),
    ("DISCOVERY_INTERVAL", "3"),
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
    pub(crate) cloud: FakeCloud,
    pub(crate) journal: Journal,
}

impl Fixture {
    pub(crate) async fn prepare(seed: u64) -> Self {
        let delays = Delays {
            starting: Duration::from_millis(600),
            stopping: Duration::from_millis(400),
            terminating: Duration::from_millis(400),
            ..Delays::default()
        };
        // The machines matter here, not what runs on them.
        let builder = FakeCloud::builder().seed(seed).delays(delays).cml_limit(0);
        let cloud = builder.start().await.expect("the cloud starts");
        let discovery = json!({"regions": Self::regions(), "scan_interval_seconds": 3});
        cloud.set_discovery(discovery).expect("good settings");
        let hours = DRAIN_TIMEOUT.as_secs_f64() / 3600.0;
        let template = json!({"name": "brief", "instance_type": "m5zn.metal", "drain_timeout_hours": hours});
        cloud.add_template(template).expect("a good template");
        let journal = Journal::default();
        journal.listen_to(cloud.world().request_log());
        Self { cloud, journal }
    }

    pub(crate) fn regions() -> &'static [&'static str] {
        &REGIONS[..USED]
    }

    /// What a controller finds in its environment.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let Value::Object(variables) = self.cloud.endpoints().environment() else { unreachable!("an object") };
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut environment: BTreeMap<_, _> = variables.into_iter().map(|(name, value)| (name, text(value))).collect();
        environment.extend(HABITS.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let regions = Self::regions().iter().map(|region| {
            let catalog = Catalog::for_region(region);
            let config = json!({"subnet_id": catalog.subnets[0].id, "security_group_ids": [catalog.groups[0].id]});
            ((*region).to_owned(), config)
        });
        let regions = json!({"default_region": REGIONS[0], "regions": Value::Object(regions.collect())});
        environment.insert("AWS_REGION_CONFIGS".to_owned(), regions.to_string());
        environment
    }

    /// Every instance there ever was.
    pub(crate) fn instances(&self) -> Vec<Arc<Instance>> {
        Self::regions().iter().flat_map(|region| self.cloud.instances(region)).collect()
    }

    /// The instance of a worker, if its record names one.
    pub(crate) fn instance_of(&self, worker: &Worker) -> Option<Arc<Instance>> {
        self.cloud.instance(worker.text("aws_region")?, worker.instance_id()?)
    }

    /// What EC2 says about the instance of a worker, if its record names one.
    pub(crate) fn ec2_state(&self, worker: &Worker) -> Option<InstanceState> {
        self.instance_of(worker).map(|instance| instance.state(self.cloud.now()))
    }

    /// An operator tries again what has failed.
    pub(crate) fn reset_failed(&self) {
        for worker in self.cloud.workers().iter().filter(|worker| worker.status() == "failed") {
            let pending = Input::from_value(json!({"status": "pending"})).expect("an object");
            // Somebody may have been faster.
            drop(self.cloud.records().write_status(worker.id(), Some(worker.version()), &pending));
        }
    }
}

/// Whether an instance lives: one on its way out does not any more.
pub(crate) fn lives(state: InstanceState) -> bool {
    match state {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    }
}
