//! A controller as a process of its own would be: own threads, own adapters, own counters, and a sudden end if need be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fake_cloud::FakeCloud;
use fake_cloud::world::World;
use lcm_sdk::Timestamp;
use lcm_sdk::controller::Shutdown;
use lcm_sdk::from_settings;
use lcm_sdk::lifecycle::ReasonCode;
use lcm_sdk::ports::Clock;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::WorkerController;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::Problem;

/// How long a leader's lease lives: how long nobody leads after one has died.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// A controller that runs.
pub(crate) struct Controller {
    controller: WorkerController,
    telemetry: Telemetry,
    shutdown: Shutdown,
    running: JoinHandle<()>,
    _threads: Threads,
}

impl Controller {
    /// Starts one as its command would: from the variables that the cloud prints. Only its clock is the cloud's, and its
    /// habits are quick.
    pub(crate) fn start(cloud: &FakeCloud, name: &str, sweep_after: Duration) -> Result<Self, Problem> {
        let threads = Threads::new()?;
        // Whatever is begun from here on runs there, and ends with it.
        let inside = threads.0.as_ref().map(Runtime::enter);
        let settings = Settings::from_map(variables(cloud, name, sweep_after))?;
        let telemetry = Telemetry::default();
        let mut ports = from_settings::ports_for_fake_cloud(&settings, &cloud.endpoints().aws_url, &telemetry)?;
        ports.clock = Arc::new(CloudClock(Arc::clone(cloud.world())));
        let (etcd, config) = (from_settings::coordination(&settings)?, from_settings::controller_config(&settings));
        let controller = WorkerController::new(ports, settings.policy(), etcd, config, telemetry.clone())?;
        let shutdown = Shutdown::new();
        let running = tokio::spawn({
            let (controller, shutdown) = (controller.clone(), shutdown.clone());
            async move { controller.run(&shutdown).await }
        });
        drop(inside);
        Ok(Self { controller, telemetry, shutdown, running, _threads: threads })
    }

    pub(crate) fn name(&self) -> &str {
        self.controller.identity()
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    pub(crate) fn leads(&self) -> bool {
        self.controller.lease().is_some()
    }

    /// What its writes carry while it leads: it grows with every leader.
    pub(crate) fn fencing_token(&self) -> Option<i64> {
        self.controller.lease().and_then(|leadership| leadership.fence().0)
    }

    /// Why its last pass over a worker ended as it did.
    pub(crate) fn last_reason(&self, worker: &str) -> Option<String> {
        let ending = self.controller.controller().resource(worker)?.last?;
        let known = ReasonCode::ALL.iter().find(|code| code.as_str() == ending.reason.as_str());
        Some(known.map_or(ending.reason.as_str(), |code| code.sentence()).to_owned())
    }

    /// A clean stop: what is under way is finished, and the lease is given up.
    pub(crate) async fn stop(self) -> Result<(), Problem> {
        self.shutdown.request();
        Ok(self.running.await?)
    }

    /// An end in the middle of everything: nothing is finished, nothing is given back.
    pub(crate) fn crash(self) {
        drop(self);
    }
}

/// Threads that end at once with whatever runs on them.
struct Threads(Option<Runtime>);

impl Threads {
    fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn variables(cloud: &FakeCloud, name: &str, sweep_after: Duration) -> BTreeMap<String, String> {
    let environment = cloud.endpoints().environment();
    let printed = environment.as_object().into_iter().flatten();
    let printed = printed.map(|(name, value)| (name.clone(), value.as_str().map_or_else(String::new, str::to_owned)));
    let own = [
        ("LCM_INSTANCE_ID", name.to_owned()),
        ("LEASE_TTL", LEASE.as_secs().to_string()),
        ("LEASE_MARGIN", "1".to_owned()),
        ("STARTUP_RECONCILE_DELAY", sweep_after.as_secs_f64().to_string()),
        // Told of changes by the watch, and looking again by itself at whatever it has looked at once.
        ("RECONCILE_POLLING_ENABLED", "false".to_owned()),
        ("RECONCILE_INTERVAL", "1".to_owned()),
        ("DISCOVERY_INITIAL_DELAY", "0.2".to_owned()),
        ("METRICS_POLL_INTERVAL", "5".to_owned()),
        ("DEBOUNCE_SECONDS", "0.05".to_owned()),
    ];
    printed.chain(own.map(|(name, value)| (name.to_owned(), value))).collect()
}

struct CloudClock(Arc<World>);

impl Clock for CloudClock {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}
