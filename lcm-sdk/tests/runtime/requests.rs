//! Requests of the control plane in etcd: synchronizations and license operations.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::controller::{Shutdown, WatchConfig, WatchState};
use lcm_sdk::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream};
use lcm_sdk::providers::memory::{Fault, MemoryCoordination};
use lcm_sdk::reconciler::Mode;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, WorkerStatus};

use super::harness::{Harness, pass_time, worker_id};

const SYNC: &str = "/lcm/workers/w-1/sync";
const REQUEST: &str = r#"{"scope": "full", "include_labs": true, "reason": "manual", "requested_by": "alice"}"#;
const LICENSE: &str = "/lcm/workers/w-1/license";
const REGISTER: &str = r#"{"operation": "register", "token": "hunter2", "reregister": false}"#;
const ADDRESS: &str = "10.0.0.1";

/// An etcd behind a proxy that does not pass on the watch of the workers.
struct WithoutWatch(MemoryCoordination);

#[async_trait]
impl Coordination for WithoutWatch {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.0.grant(ttl).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.0.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.0.revoke(lease).await
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.0.claim(key, value, lease).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        self.0.list(prefix).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        if prefix.ends_with("/workers/") {
            return Err(CallFailure::new(FailureKind::Unreachable, "no streams"));
        }
        self.0.watch(prefix, from_revision).await
    }

    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        Coordination::value(&self.0, key).await
    }
}

struct Running {
    harness: Harness,
    etcd: MemoryCoordination,
    controller: WorkerController,
}

impl Running {
    /// A controller of one running worker, after its first reconciles.
    async fn start(config: WorkerControllerConfig, earlier: &[(&str, &str)]) -> Self {
        let etcd = MemoryCoordination::new();
        Self::start_with(etcd.clone(), Arc::new(etcd), config, earlier).await
    }

    async fn start_on(etcd: WithoutWatch, config: WorkerControllerConfig, earlier: &[(&str, &str)]) -> Self {
        Self::start_with(etcd.0.clone(), Arc::new(etcd), config, earlier).await
    }

    async fn start_with(
        etcd: MemoryCoordination,
        coordination: Arc<dyn Coordination>,
        config: WorkerControllerConfig,
        earlier: &[(&str, &str)],
    ) -> Self {
        let harness = Harness::new();
        harness.worker(1, WorkerStatus::Running, Ec2State::Running);
        harness.control_plane.edit(&worker_id(1), |worker| worker.is_idle_detection_enabled = false);
        for (key, value) in earlier {
            etcd.put(key, value);
        }
        let controller = WorkerController::new(
            harness.ports(),
            harness.policy.clone(),
            Some(coordination),
            config.without_discovery(),
            Telemetry::default(),
        );
        let controller = controller.expect("valid");
        let running = controller.clone();
        tokio::spawn(async move { running.run(&Shutdown::new()).await });
        pass_time(15).await;
        Self { harness, etcd, controller }
    }

    fn calls(&self, call: &str) -> usize {
        let calls = self.harness.control_plane.calls().into_iter().chain(self.harness.cml.calls());
        calls.filter(|made| made.starts_with(call)).count()
    }
}

#[tokio::test(start_paused = true)]
async fn requested_worker_is_reconciled_with_fresh_metrics() {
    let running = Running::start(WorkerControllerConfig::default(), &[]).await;
    assert_eq!(running.calls("clear_sync"), 0);
    let (systems, reports) = (running.calls("system"), running.calls("report_metrics"));
    running.etcd.put(SYNC, REQUEST);
    pass_time(2).await;
    assert_eq!(running.calls("system"), systems + 1, "the metrics were recent, and are collected again");
    assert_eq!(running.calls("report_metrics"), reports + 1);
    assert_eq!(running.calls("clear_sync w-1"), 1);
    // The control plane deletes the key, which the watch reports as well.
    running.etcd.delete(SYNC);
    pass_time(10).await;
    assert_eq!((running.calls("system"), running.calls("clear_sync")), (systems + 1, 1));
}

#[tokio::test(start_paused = true)]
async fn request_from_before_the_term_is_answered() {
    let running = Running::start(WorkerControllerConfig::default(), &[(SYNC, REQUEST)]).await;
    assert_eq!(running.calls("clear_sync w-1"), 1);
}

#[tokio::test(start_paused = true)]
async fn request_is_answered_without_a_watch() {
    let running = Running::start(WorkerControllerConfig::default().without_watch(), &[]).await;
    running.etcd.put(SYNC, REQUEST);
    pass_time(35).await;
    assert_eq!(running.calls("clear_sync w-1"), 1);
}

#[tokio::test(start_paused = true)]
async fn request_is_answered_while_the_watch_is_down() {
    let watch = WatchConfig::new(["/lcm/workers/"]).with_max_reconnect_attempts(1);
    let etcd = WithoutWatch(MemoryCoordination::new());
    let running = Running::start_on(etcd, WorkerControllerConfig::default().with_watch(watch), &[]).await;
    assert_eq!(running.controller.watch_state(), Some(WatchState::GivenUp));
    running.etcd.put(SYNC, REQUEST);
    running.etcd.put(LICENSE, REGISTER);
    pass_time(65).await;
    assert!(running.calls("clear_sync w-1") > 0);
    assert_eq!(running.calls("register"), 1);
}

#[tokio::test(start_paused = true)]
async fn request_in_a_gap_of_the_watch_is_answered() {
    let running = Running::start(WorkerControllerConfig::default(), &[]).await;
    running.etcd.stall_watches();
    running.etcd.put(SYNC, REQUEST);
    running.etcd.put("/elsewhere", "");
    running.etcd.compact();
    running.etcd.resume_watches();
    pass_time(10).await;
    assert_eq!(running.calls("clear_sync w-1"), 1, "before the next cycle of polling");
}

#[tokio::test(start_paused = true)]
async fn request_that_was_not_cleared_is_answered_again() {
    let running = Running::start(WorkerControllerConfig::default(), &[]).await;
    let away = CallFailure::new(FailureKind::Unreachable, "connection refused");
    running.harness.control_plane.plan("clear_sync", Fault::Fail(away));
    running.etcd.put(SYNC, REQUEST);
    pass_time(2).await;
    assert_eq!(running.calls("clear_sync"), 1);
    pass_time(35).await;
    assert_eq!(running.calls("clear_sync"), 2, "the next cycle clears it");
    pass_time(90).await;
    assert_eq!(running.calls("clear_sync"), 2);
}

#[tokio::test(start_paused = true)]
async fn license_requested_in_etcd_is_registered_once() {
    let running = Running::start(WorkerControllerConfig::default(), &[]).await;
    running.etcd.put(LICENSE, REGISTER);
    pass_time(3).await;
    assert_eq!(running.calls("register"), 1);
    assert!(running.harness.cml.edit(ADDRESS, |system| system.token.is_some()).expect("a system"));
    // CML takes ten seconds.
    for _ in 0..6 {
        running.harness.clock.advance(Duration::from_secs(5));
        pass_time(5).await;
    }
    assert_eq!(running.harness.record(1).license.status.as_deref(), Some("registered"));
    // The key is still there, as on a server that deletes it late.
    pass_time(90).await;
    assert_eq!(running.calls("register"), 1);
    let shown = format!("{:?} {:?}", running.harness.record(1), running.controller);
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn dry_run_shows_the_license_request_and_keeps_it() {
    let running = Running::start(WorkerControllerConfig::default().without_watch(), &[]).await;
    running.etcd.put(LICENSE, REGISTER);
    running.etcd.put(SYNC, REQUEST);
    let planned = running.controller.sweep_once(Mode::DryRun, Duration::from_secs(1)).await.expect("a plan");
    let effects = format!("{:?}", planned.results[0].effects);
    assert!(effects.contains("submit_license") || effects.contains("SubmitLicense"), "{effects}");
    assert!(!effects.contains("hunter2"), "{effects}");
    assert_eq!((running.calls("register"), running.calls("clear_sync")), (0, 0));
}
