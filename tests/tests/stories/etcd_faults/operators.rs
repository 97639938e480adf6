//! Operators that keep changing the desired status of workers and check that each change is applied exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::leaders::ControllerGroup;
use lcm_tests::harness::eventually;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Limit for the write of a change to etcd. Polling finds changes that never reach etcd.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Progress {
    requested: AtomicUsize,
    applied: AtomicUsize,
    /// Set while no new changes are requested.
    is_paused: AtomicBool,
    is_stopped: AtomicBool,
}

/// The desired status of one worker.
struct Target {
    worker: String,
    desired: &'static str,
    /// Time of the write; `None` once the change has been applied.
    requested_at: Option<String>,
}

pub(super) struct Operators {
    progress: Arc<Progress>,
    task: JoinHandle<()>,
}

impl Operators {
    /// Starts with workers that are running.
    pub(super) async fn start(group: Arc<ControllerGroup>, workers: &[String], etcd_endpoints: &str) -> Self {
        let progress = Arc::new(Progress::default());
        let etcd = Client::connect(etcd_endpoints.split(',').collect::<Vec<_>>(), None).await.expect("etcd client");
        let target = |worker: &String| Target { worker: worker.clone(), desired: "running", requested_at: None };
        let mut targets: Vec<_> = workers.iter().map(target).collect();
        let task = tokio::spawn({
            let progress = Arc::clone(&progress);
            async move {
                while !progress.is_stopped.load(Ordering::Relaxed) {
                    targets.iter_mut().for_each(|target| target.poll(&group, &progress, &etcd));
                    sleep(POLL_INTERVAL).await;
                }
            }
        });
        Self { progress, task }
    }

    /// Number of requested changes that have not been applied yet.
    pub(super) fn pending(&self) -> usize {
        // `applied` is read first: it may grow in between, and the difference must not underflow.
        let applied = self.progress.applied.load(Ordering::SeqCst);
        self.progress.requested.load(Ordering::SeqCst) - applied
    }

    /// Waits until four more changes have been applied.
    pub(super) async fn wait_for_progress(&self) {
        let applied = || self.progress.applied.load(Ordering::SeqCst);
        let before = applied();
        eventually("changes are applied", || async { self.assert_healthy() && applied() >= before + 4 }).await;
    }

    /// Waits until every requested change has been applied.
    pub(super) async fn wait_until_applied(&self) {
        self.pause().await;
        self.progress.is_paused.store(false, Ordering::SeqCst);
    }

    /// Stops new requests and waits until every earlier one has been applied.
    async fn pause(&self) {
        self.progress.is_paused.store(true, Ordering::SeqCst);
        // A poll that had already checked the flag has written its change by then.
        sleep(2 * POLL_INTERVAL).await;
        eventually("every change is applied", || async { self.assert_healthy() && self.pending() == 0 }).await;
    }

    /// Returns true, for use in conditions.
    fn assert_healthy(&self) -> bool {
        assert!(!self.task.is_finished(), "the operators found a violation");
        true
    }

    /// Waits until every change has been applied and returns the number of changes.
    pub(super) async fn stop(&self) -> usize {
        self.pause().await;
        self.progress.is_stopped.store(true, Ordering::SeqCst);
        eventually("the operators have stopped", || async { self.task.is_finished() }).await;
        assert_eq!(self.pending(), 0);
        self.progress.requested.load(Ordering::SeqCst)
    }
}

impl Target {
    fn poll(&mut self, group: &ControllerGroup, progress: &Progress, etcd: &Client) {
        let record = group.harness.cloud.worker(&self.worker).expect("record exists");
        if record.status() != self.desired {
            return;
        }
        if let Some(requested_at) = self.requested_at.take() {
            let history = record.get("state_history").and_then(Value::as_array).cloned().unwrap_or_default();
            let taken: Vec<_> = history
                .iter()
                .filter(|step| step["at"].as_str() > Some(requested_at.as_str()))
                .filter_map(|step| step["to"].as_str())
                .collect();
            let (two_steps, one_step) = match self.desired {
                "stopped" => (["stopping", "stopped"], ["stopped"]),
                _ => (["starting", "running"], ["running"]),
            };
            assert!(
                taken == two_steps || taken == one_step,
                "{} reached {} through unexpected steps: {taken:?}",
                self.worker,
                self.desired
            );
            progress.applied.fetch_add(1, Ordering::SeqCst);
        }
        if !progress.is_paused.load(Ordering::SeqCst) {
            self.toggle(group, progress, etcd);
        }
    }

    fn toggle(&mut self, group: &ControllerGroup, progress: &Progress, etcd: &Client) {
        self.desired = if self.desired == "running" { "stopped" } else { "running" };
        progress.requested.fetch_add(1, Ordering::SeqCst);
        let written = group.harness.cloud.update_worker(&self.worker, json!({"desired_status": self.desired}));
        self.requested_at = written.expect("desired status is accepted").text("updated_at").map(str::to_owned);
        // The control plane also writes to etcd, best effort and without waiting for the result.
        let (mut etcd, key, desired) =
            (etcd.clone(), format!("/lcm/workers/{}/desired_state", self.worker), self.desired);
        tokio::spawn(async move { timeout(ANNOUNCE_TIMEOUT, etcd.put(key, desired, None)).await });
    }
}
