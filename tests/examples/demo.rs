//! The main job in a minute: a controller keeps a fleet honest on a fake cloud, while things go wrong behind its back.
//!
//! Everything is real but the cloud: the AWS clients, etcd's client, HTTP and TLS, the election, the watch. The cloud's
//! clock runs a hundred times as fast as yours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::clock::{Clock as WorldClock, Pace};
use fake_cloud::cloud::{FakeCloud, Options};
use fake_cloud::world::{Settings as WorldSettings, World};
use lcm_sdk::Timestamp;
use lcm_sdk::assembly;
use lcm_sdk::ports::Clock;
use lcm_sdk::runtime::shutdown::Shutdown;
use lcm_sdk::runtime::telemetry::Telemetry;
use lcm_sdk::runtime::worker_controller::WorkerController;
use lcm_sdk::settings::Settings;
use serde_json::{Value, json};

const PACE: f64 = 100.0;
const REGION: &str = "us-east-1";

type Problem = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let settings = WorldSettings { clock: WorldClock::new(Pace::Accelerated(PACE)), ..WorldSettings::default() };
    let cloud = FakeCloud::start(Options { settings, ..Options::default() }).await?;
    let mut story = Story::begin(cloud);
    story.tell("A cloud on this machine: EC2, CloudWatch, CML, etcd and a control plane, a hundred times as fast.");

    let (controller, telemetry) = story.controller().await?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    let swept = controller.ready().await;
    story.tell(&format!("A controller has been elected and has swept the fleet: {} workers.", swept.listed));

    story.tell("An operator asks for three workers.");
    for worker in ["ada", "grace", "edsger"] {
        story.record(worker, json!({"status": "pending", "desired_status": "running"}))?;
    }
    story.until("all three run", |fleet| fleet.values().filter(|status| *status == "running").count() == 3).await?;
    let launches = story.cloud.instances(REGION).len();
    story.tell(&format!("{launches} instances were launched, one each, each recorded with its addresses."));

    story.tell("Somebody terminates grace's instance in the console.");
    let grace = story.instance("grace")?;
    story.cloud.terminate_instance(REGION, &grace).map_err(|error| error.to_string())?;
    story.until("grace's record says so", |fleet| fleet["grace"] == "terminated").await?;

    story.tell("Somebody stops ada's instance in the console. Ada is wanted, so it is started again.");
    let ada = story.instance("ada")?;
    story.cloud.stop_instance(REGION, &ada).map_err(|error| error.to_string())?;
    story.until("ada is away", |fleet| fleet["ada"] != "running").await?;
    story.until("ada is back", |fleet| fleet["ada"] == "running").await?;

    story.tell("Edsger is drained while a session runs on it.");
    story.cloud.add_session(json!({"id": "s-1", "worker_id": "edsger", "status": "running"}))?;
    story.cloud.records().drain("edsger", None, "maintenance", "operator")?;
    story.until("edsger drains", |fleet| fleet["edsger"] == "draining").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    story.until("it waits for the session", |fleet| fleet["edsger"] == "draining").await?;
    story.tell("The session ends.");
    story.cloud.records().terminate_session("s-1", Some("finished"), Some("its user"))?;
    story.until("edsger is stopped", |fleet| fleet["edsger"] == "stopped").await?;

    story.tell("The controller is asked to stop: it finishes what is under way and gives its lease up.");
    shutdown.request();
    running.await?;
    println!("\nWhat it counted:");
    for (counter, count) in telemetry.counters().into_iter().filter(|(_, count)| *count > 0) {
        println!("  {counter:28} {count}");
    }
    story.cloud.stop().await;
    Ok(())
}

/// The teller: shows what is done, and every change of the fleet as it happens.
struct Story {
    cloud: FakeCloud,
    began: Instant,
    shown: BTreeMap<String, String>,
}

impl Story {
    fn begin(cloud: FakeCloud) -> Self {
        Self { cloud, began: Instant::now(), shown: BTreeMap::new() }
    }

    fn tell(&self, sentence: &str) {
        println!("{:5.1} s  {sentence}", self.began.elapsed().as_secs_f64());
    }

    /// The controller as its command would make it, from the variables that the cloud prints; only its clock is the
    /// cloud's, and its habits are quick.
    async fn controller(&self) -> Result<(WorkerController, Telemetry), Problem> {
        let environment = self.cloud.endpoints().environment();
        let printed = environment.as_object().into_iter().flatten();
        let mut variables: BTreeMap<String, String> =
            printed.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
        let quick = [
            ("RECONCILE_INTERVAL", "0.5"),
            ("INITIAL_DELAY", "0.1"),
            ("STARTUP_RECONCILE_DELAY", "0.1"),
            ("DISCOVERY_INTERVAL", "5"),
            ("METRICS_POLL_INTERVAL", "5"),
            ("DEBOUNCE_SECONDS", "0.05"),
            ("WORKER_DISCOVERY_AMI_FILTER", "cisco-cml2.9*"),
        ];
        variables.extend(quick.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let settings = Settings::from_map(variables)?;
        let telemetry = Telemetry::default();
        let endpoints = self.cloud.endpoints();
        let mut ports = assembly::ports_at(&settings, &endpoints.aws_url, &telemetry)?;
        ports.clock = Arc::new(CloudClock(Arc::clone(self.cloud.world())));
        let (etcd, config) = (assembly::coordination(&settings)?, assembly::controller_config(&settings));
        let controller = WorkerController::new(ports, settings.policy(), etcd, config, telemetry.clone())?;
        Ok((controller, telemetry))
    }

    fn record(&mut self, id: &str, fields: Value) -> Result<(), Problem> {
        let mut record = json!({"id": id, "name": id, "template_name": "metal", "aws_region": REGION});
        if let (Some(record), Value::Object(fields)) = (record.as_object_mut(), fields) {
            record.extend(fields);
        }
        self.cloud.add_worker(record)?;
        Ok(())
    }

    fn instance(&self, worker: &str) -> Result<String, Problem> {
        let record = self.cloud.worker(worker)?;
        let id = record.get("ec2_instance_id").and_then(Value::as_str).ok_or("no instance yet")?;
        Ok(id.to_owned())
    }

    /// Waits, showing every change, until the fleet is as it should be.
    async fn until(&mut self, what: &str, holds: impl Fn(&BTreeMap<String, String>) -> bool) -> Result<(), Problem> {
        let patience = Instant::now();
        loop {
            let workers = self.cloud.workers();
            let fleet: BTreeMap<String, String> =
                workers.iter().map(|worker| (worker.id().to_owned(), worker.status().to_string())).collect();
            for (worker, status) in &fleet {
                match self.shown.insert(worker.clone(), status.clone()) {
                    Some(before) if before == *status => {}
                    Some(before) => self.tell(&format!("    {worker}: {before} → {status}")),
                    None => self.tell(&format!("    {worker}: {status}")),
                }
            }
            if holds(&fleet) {
                return Ok(());
            }
            if patience.elapsed() > Duration::from_secs(60) {
                return Err(format!("waited a minute in vain until {what}; the fleet: {fleet:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

struct CloudClock(Arc<World>);

impl Clock for CloudClock {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}
