//! Controllers of the demo, each configured and isolated like a process of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use lcm_sdk::from_settings;
use lcm_sdk::lifecycle::ReasonCode;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::WorkerController;
use lcm_tests::harness::{CloudClock, RunningController};

use crate::Problem;

/// TTL of the leader's lease: the time without a leader after a crash.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// A controller that is configured like its command and runs on threads of its own.
pub(crate) struct Controller(RunningController);

impl Controller {
    /// Starts a controller from the environment variables that the cloud prints. Only its clock is the cloud's, and its
    /// intervals are short.
    pub(crate) fn start(cloud: &FakeCloud, name: &str, sweep_after: Duration) -> Result<Self, Problem> {
        let settings = Settings::from_map(variables(cloud, name, sweep_after))?;
        RunningController::start_on_own_threads(|| {
            let telemetry = Telemetry::default();
            let mut ports = from_settings::ports_for_fake_cloud(&settings, &cloud.endpoints().aws_url, &telemetry)?;
            ports.clock = Arc::new(CloudClock(Arc::clone(cloud.world())));
            let (etcd, config) = (from_settings::coordination(&settings)?, from_settings::controller_config(&settings));
            let config = config.with_history(from_settings::history(&settings)?);
            let controller = WorkerController::new(ports, settings.policy(), etcd, config, telemetry.clone())?;
            Ok((controller, telemetry))
        })
        .map(Self)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.controller.identity()
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.0.telemetry
    }

    pub(crate) fn leads(&self) -> bool {
        self.0.controller.lease().is_some()
    }

    /// Fencing token of its writes while it leads; each leader has a higher one.
    pub(crate) fn fencing_token(&self) -> Option<i64> {
        self.0.controller.lease().and_then(|lease| lease.fence().0)
    }

    /// Reason of the last reconcile of a worker.
    pub(crate) fn last_reason(&self, worker: &str) -> Option<String> {
        let last = self.0.controller.controller().resource(worker)?.last?;
        let known = ReasonCode::ALL.iter().find(|code| code.as_str() == last.reason.as_str());
        Some(known.map_or(last.reason.as_str(), |code| code.sentence()).to_owned())
    }

    /// Stops the controller: work in progress is finished and the lease is released.
    pub(crate) async fn stop(self) {
        self.0.stop().await;
    }

    /// Ends the controller at once; its lease expires later.
    pub(crate) fn crash(self) {
        self.0.crash();
    }
}

fn variables(cloud: &FakeCloud, name: &str, sweep_after: Duration) -> BTreeMap<String, String> {
    let environment = cloud.endpoints().environment();
    let printed = environment.as_object().into_iter().flatten();
    let printed = printed.map(|(name, value)| (name.clone(), value.as_str().map_or_else(String::new, str::to_owned)));
    let overrides = [
        ("LCM_INSTANCE_ID", name.to_owned()),
        ("LEASE_TTL", LEASE.as_secs().to_string()),
        ("LEASE_MARGIN", "1".to_owned()),
        ("STARTUP_RECONCILE_DELAY", sweep_after.as_secs_f64().to_string()),
        // Changes arrive over the watch; workers seen once are requeued by themselves.
        ("RECONCILE_POLLING_ENABLED", "false".to_owned()),
        ("RECONCILE_INTERVAL", "1".to_owned()),
        ("DISCOVERY_INITIAL_DELAY", "0.2".to_owned()),
        ("METRICS_POLL_INTERVAL", "5".to_owned()),
        ("DEBOUNCE_SECONDS", "0.05".to_owned()),
    ];
    // The demo can be recorded.
    let recording = ["LCM_HISTORY_DIR", "LCM_HISTORY_SAMPLE"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    printed.chain(overrides.map(|(name, value)| (name.to_owned(), value))).chain(recording).collect()
}
