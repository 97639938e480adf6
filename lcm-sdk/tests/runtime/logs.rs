//! Log lines that operators rely on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::Shutdown;
use lcm_sdk::lifecycle::{Capabilities, DrainRequest, ExternalStopPolicy, Support};
use lcm_sdk::logging::{self, Color};
use lcm_sdk::ports::Clock as _;
use lcm_sdk::ports::DiscoveryFilter;
use lcm_sdk::providers::events::LogEvents;
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::settings::Settings;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, WorkerController, WorkerControllerConfig};
use lcm_sdk::{DesiredStatus, Ec2State, Image, Worker, WorkerStatus};
use parking_lot::Mutex;
use tracing::subscriber::DefaultGuard;

use super::harness::{Harness, REGION, pass_time, worker_id};

/// The log lines of the current thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn capture() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let settings = Settings::from_map([("LCM_LOG_FORMAT", "text")]).expect("valid settings");
        let subscriber = logging::subscriber(&settings.logs, Color::Off, move || writer.clone()).expect("directives");
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// The lines with all of these words.
    fn with(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).expect("text");
        let found = text.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        found.map(str::to_owned).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_are_logged() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    for number in 1..=3 {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    }
    for number in 1..=2 {
        harness.compute.remove(REGION, &format!("i-{number}").as_str().into());
    }
    let filter = DiscoveryFilter::default().with_tag_key("lcm:worker_id");
    let config = DiscoveryConfig::default().with_regions([REGION]).with_filter(filter);
    let report = Discovery::new(harness.reconciler(), config, |_| {}).run_once().await;
    assert_eq!(report.orphans_terminated(), 2);
    for (worker, instance, count) in [("w-1", "i-1", 1), ("w-2", "i-2", 1), ("w-3", "i-3", 0)] {
        let logged = lines.with(&["WARN", worker, instance, "the instance is gone: marked terminated"]);
        assert_eq!(logged.len(), count, "{logged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn canceled_drains_are_logged() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Draining, Ec2State::Running);
    let mut ports = harness.ports();
    ports.events = Arc::new(LogEvents);
    let reconciler = Reconciler::new(ports, harness.policy.clone()).expect("a supported policy");
    let request = DrainRequest { reason: "class goes on".to_owned(), requested_by: "alice".to_owned() };
    let canceled = reconciler.cancel_drain(&worker_id(1), &request).await.expect("it drains");
    assert_eq!(canceled.to_status, WorkerStatus::Running);
    assert_eq!(reconciler.flush(Duration::from_secs(1)).await, 0);
    let logged = lines.with(&["w-1", "cml_worker.drain.cancelled.v1", "alice", "class goes on"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
}

#[tokio::test(start_paused = true)]
async fn unreadable_records_are_logged() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.control_plane.put_unreadable(serde_json::json!({"id": "w-9", "status": "asleep"}));
    let config = WorkerControllerConfig::default().without_discovery();
    let controller = WorkerController::new(harness.ports(), harness.policy.clone(), None, config, Telemetry::default())
        .expect("a valid configuration");
    let run = tokio::spawn(async move { controller.run(&Shutdown::new()).await });
    pass_time(120).await;
    run.abort();
    let logged = lines.with(&["WARN", "w-9", "asleep"]);
    assert_eq!(logged.len(), 1, "once, although every cycle reads it: {logged:?}");
}

#[tokio::test(start_paused = true)]
async fn launches_name_their_instance() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    let image = Image { id: "ami-1".into(), name: "cisco-cml2.9".into(), creation_date: "2026-01-01".into() };
    harness.compute.put_image(REGION, image);
    harness.compute.put_subnet(REGION, "subnet-1");
    let mut worker = Worker::new("w-1", WorkerStatus::Pending);
    worker.template_name = Some("metal".to_owned());
    worker.created_at = Some(harness.clock.now());
    harness.control_plane.put_worker(worker);
    let _ = harness.reconcile(&harness.reconciler(), 1).await;
    let id = harness.record(1).ec2_instance_id.expect("launched");
    let instance = format!("instance={id}");
    let logged = lines.with(&["worker=w-1", &instance, "from=pending", "to=provisioning", "reason=\"launch\""]);
    assert_eq!(logged.len(), 1, "{:?}", lines.with(&["w-1"]));
}

#[tokio::test(start_paused = true)]
async fn lapsed_stop_policy_is_logged_once() {
    let (lines, _guard) = Lines::capture();
    let mut known = Capabilities::all(Support::Yes);
    known.desired_status = Support::No;
    let mut harness = Harness::with_control_plane(|control_plane| control_plane.with_capabilities(known));
    harness.policy.external_stop_policy = ExternalStopPolicy::Respect;
    let reconciler = harness.reconciler();
    for number in 1..=2 {
        harness.worker(number, WorkerStatus::Running, Ec2State::Stopped);
        harness.control_plane.edit(&worker_id(number), |worker| worker.desired_status = Some(DesiredStatus::Running));
        assert_eq!(harness.reconcile(&reconciler, number).await.to_status, WorkerStatus::Stopped);
        assert_eq!(harness.record(number).desired_status, Some(DesiredStatus::Running), "it is started again");
    }
    assert_eq!(lines.with(&["WARN", "the external stop policy has lapsed", "respect"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn automatic_pauses_are_named() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    let result = harness.reconcile(&harness.reconciler(), 1).await;
    assert_eq!(harness.record(1).desired_status, Some(DesiredStatus::Stopped), "{result}");
    let logged = lines.with(&["WARN", "the control plane paused the idle worker w-1", "idle_minutes=1440"]);
    assert_eq!(logged.len(), 1, "{:?}", lines.with(&["w-1"]));
}

#[tokio::test(start_paused = true)]
async fn each_change_is_one_record_with_fields() {
    let (lines, _guard) = Lines::capture();
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    let reconciler = harness.reconciler();
    for _ in 0..3 {
        let _ = harness.reconcile(&reconciler, 1).await;
    }
    assert_eq!(lines.with(&["w-1"]), [""; 0], "nothing changed");
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let _ = harness.reconcile(&reconciler, 1).await;
    let logged = lines.with(&["w-1"]);
    assert_eq!(logged.len(), 1, "{logged:?}");
    for field in ["i-1", "from=stopped", "to=starting", "start_requested", "start_instance i-1"] {
        assert!(logged[0].contains(field), "{field} is not in {logged:?}");
    }
}
