//! Time skipping: the clock moves together with the timers of a controller.

use std::pin::Pin;
use std::time::{Duration, Instant};

use fake_cloud::control_plane::Generation;
use fake_cloud::{FakeCloud, LeaseClock, Pace, RequestFilter, Service, TimeFollower};
use lcm_sdk::WorkerStatus;
use lcm_sdk::controller::ControllerConfig;
use lcm_sdk::workers::{WorkerController, WorkerControllerConfig};
use serde_json::json;

use lcm_tests::harness::{Harness, RunningController, discovery_config};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const INTERVAL: Duration = Duration::from_secs(30);

struct Followed(WorkerController);

impl TimeFollower for Followed {
    fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.controller().idle())
    }

    fn next_due(&self) -> Option<Duration> {
        self.0.controller().next_due()
    }

    fn skip(&self, time: Duration) {
        self.0.controller().skip(time);
    }
}

async fn harness() -> Harness {
    let builder = FakeCloud::builder().control_plane(Generation::Extended).pace(Pace::Manual);
    Harness::start(builder.lease_clock(LeaseClock::Wall)).await
}

/// Starts a controller with the intervals of production and waits until it is ready.
async fn start(harness: &Harness) -> (RunningController, Followed) {
    let running = harness.start_controller("only", |config: &mut WorkerControllerConfig| {
        config.controller = ControllerConfig::default().with_interval(INTERVAL).with_max_concurrent(5);
        config.discovery = Some(discovery_config());
        config.metrics_interval = MINUTE;
    });
    let _report = running.controller.ready().await;
    let followed = Followed(running.controller.clone());
    (running, followed)
}

#[tokio::test]
async fn hour_of_reconciles_passes_in_seconds() {
    let harness = harness().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let (running, followed) = start(&harness).await;
    let lease = running.controller.lease().expect("it leads");
    let (began, start) = (Instant::now(), harness.cloud.now());
    harness.cloud.advance_with(HOUR, &[&followed]).await.expect("it becomes idle");
    let took = began.elapsed();
    assert!(took < MINUTE, "an hour took {took:?}");
    assert_eq!(harness.cloud.now() - start, chrono::TimeDelta::hours(1), "the clock is where it was moved to");
    assert_eq!(harness.status("w-1").await, WorkerStatus::Running);
    assert_eq!((harness.ec2_calls("RunInstances"), harness.active_instances().len()), (1, 1), "one launch");
    // Every cycle happened, each at its time.
    let operation = Some("list_workers".to_owned());
    let filter = RequestFilter { service: Some(Service::ControlPlane), operation, ..RequestFilter::default() };
    let at: Vec<_> = harness.cloud.requests(&filter).iter().map(|request| request.at).collect();
    assert!(at.is_sorted());
    let cycles = at.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((118..=260).contains(&cycles), "{cycles} listings at different times, of cycles, metrics and discovery");
    let longest = at.windows(2).map(|pair| pair[1] - pair[0]).max().expect("several");
    assert!(longest.to_std().expect("sorted") < INTERVAL + Duration::from_secs(1), "{longest}");
    // The lease is the same: another term would have another token.
    assert!(lease.is_valid());
    assert_eq!(running.controller.lease().expect("it leads").fence(), lease.fence());
    running.stop().await;
}

#[tokio::test]
async fn drain_ends_at_its_deadline() {
    let harness = harness().await;
    harness.add_running_worker("w-1").await;
    harness.add_session("s-1", "w-1", "running");
    let (running, followed) = start(&harness).await;
    harness.drain("w-1");
    // The default deadline is four hours after the start.
    harness.cloud.advance_with(4 * HOUR - MINUTE, &[&followed]).await.expect("it becomes idle");
    assert_eq!(harness.status("w-1").await, WorkerStatus::Draining);
    assert_eq!((harness.control_plane_calls("terminate_session"), harness.ec2_calls("StopInstances")), (0, 0));
    harness.cloud.advance_with(20 * MINUTE, &[&followed]).await.expect("it becomes idle");
    assert_eq!(harness.status("w-1").await, WorkerStatus::Stopped);
    assert_eq!(harness.session_field("s-1", "status_reason"), "drain_timeout");
    assert_eq!((harness.control_plane_calls("terminate_session"), harness.ec2_calls("StopInstances")), (1, 1));
    running.stop().await;
}

#[tokio::test]
async fn follower_that_is_never_due_leaves_the_clock_alone() {
    struct Resting;
    impl TimeFollower for Resting {
        fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
            Box::pin(std::future::ready(()))
        }

        fn next_due(&self) -> Option<Duration> {
            None
        }

        fn skip(&self, _: Duration) {}
    }
    let harness = harness().await;
    let start = harness.cloud.now();
    harness.cloud.advance_with(HOUR, &[&Resting, &Resting]).await.expect("idle");
    assert_eq!(harness.cloud.now() - start, chrono::TimeDelta::hours(1));
}
