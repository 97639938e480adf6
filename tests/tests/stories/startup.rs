//! The first sweep after a start (ADR-043): changes made while no controller ran are reconciled, and workers at rest
//! cost almost nothing.

use std::time::Duration;

use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::etcd::Fault;
use fake_cloud::world::{LaunchRequest, StopWhilePending};
use fake_cloud::{FakeCloud, Pace, RequestFilter, Service};
use lcm_sdk::WorkerStatus as Status;
use lcm_sdk::controller::Readiness;
use rstest::rstest;
use serde_json::json;

use lcm_tests::harness::{Harness, REGION, eventually};

const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// State of the instance in EC2 at the time of the sweep.
#[derive(Clone, Copy)]
enum Ec2State {
    Running,
    Stopped,
    Terminated,
    /// EC2 no longer knows the recorded id.
    Vanished,
    /// The record has no instance id, and no instance exists.
    Missing,
}

#[rstest]
#[tokio::test]
async fn first_sweep_reconciles_every_divergence(#[values(Original, Extended)] generation: Generation) {
    let divergences = [
        ("stopped", Some("running"), Ec2State::Stopped, Status::Starting),
        ("stopped", Some("stopped"), Ec2State::Terminated, Status::Terminated),
        ("stopped", Some("stopped"), Ec2State::Vanished, Status::Terminated),
        ("stopped", None, Ec2State::Running, Status::Running),
        ("stopped", Some("running"), Ec2State::Running, Status::Running),
        ("stopped", Some("terminated"), Ec2State::Stopped, Status::Terminating),
        ("stopped", Some("running"), Ec2State::Missing, Status::Pending),
        ("running", Some("running"), Ec2State::Stopped, Status::Stopped),
        ("running", None, Ec2State::Stopped, Status::Stopped),
        ("running", Some("running"), Ec2State::Terminated, Status::Terminated),
        ("running", Some("running"), Ec2State::Vanished, Status::Terminated),
        ("running", Some("stopped"), Ec2State::Running, Status::Stopping),
        ("running", Some("terminated"), Ec2State::Running, Status::Terminating),
        ("provisioning", Some("running"), Ec2State::Running, Status::Running),
        ("provisioning", Some("running"), Ec2State::Terminated, Status::Failed),
        ("provisioning", Some("running"), Ec2State::Vanished, Status::Failed),
        ("starting", Some("running"), Ec2State::Running, Status::Running),
        ("starting", Some("running"), Ec2State::Vanished, Status::Terminated),
        ("stopping", Some("stopped"), Ec2State::Stopped, Status::Stopped),
        ("stopping", Some("stopped"), Ec2State::Terminated, Status::Terminated),
        ("draining", Some("stopped"), Ec2State::Stopped, Status::Stopped),
        ("draining", Some("stopped"), Ec2State::Terminated, Status::Terminated),
        ("terminating", Some("terminated"), Ec2State::Terminated, Status::Terminated),
        ("terminating", Some("terminated"), Ec2State::Vanished, Status::Terminated),
        ("failed", Some("terminated"), Ec2State::Stopped, Status::Terminating),
        ("failed", Some("terminated"), Ec2State::Missing, Status::Terminated),
        ("pending", Some("terminated"), Ec2State::Missing, Status::Terminated),
        ("pending", Some("running"), Ec2State::Missing, Status::Provisioning),
        ("unknown", Some("running"), Ec2State::Running, Status::Running),
        ("unknown", None, Ec2State::Vanished, Status::Terminated),
    ];
    let harness = Harness::with_manual_clock(generation).await;
    let names: Vec<String> = (0..divergences.len()).map(|number| format!("w-{number:02}")).collect();
    let mut instances = Vec::new();
    for (name, (_, _, found, _)) in names.iter().zip(&divergences) {
        instances.push(match found {
            Ec2State::Running | Ec2State::Stopped | Ec2State::Terminated => Some(
                harness.cloud.run_instance(REGION, &[("lcm:worker_id", name)]).expect("instance launches").id.clone(),
            ),
            Ec2State::Vanished => Some(format!("i-0dead{:012x}", instances.len())),
            Ec2State::Missing => None,
        });
    }
    harness.cloud.advance(Duration::from_secs(60)).await;
    for ((name, (status, desired, found, _)), instance) in names.iter().zip(&divergences).zip(&instances) {
        match (found, instance) {
            (Ec2State::Stopped, Some(id)) => drop(harness.cloud.stop_instance(REGION, id).expect("instance stops")),
            (Ec2State::Terminated, Some(id)) => {
                drop(harness.cloud.terminate_instance(REGION, id).expect("instance terminates"))
            }
            (
                Ec2State::Running | Ec2State::Vanished | Ec2State::Missing | Ec2State::Stopped | Ec2State::Terminated,
                _,
            ) => {}
        }
        harness.add_worker(
            name,
            json!({
                "status": status, "desired_status": desired, "ec2_instance_id": instance,
                "created_at": LONG_AGO, "updated_at": LONG_AGO, "launched_at": LONG_AGO,
                "is_idle_detection_enabled": false,
                // The original server does not show this switch. A worker that was used just now is not idle either.
                "last_activity_at": harness.cloud.now(),
            }),
        );
    }
    harness.cloud.advance(Duration::from_secs(60)).await;

    let swept = harness.first_sweep().await;
    assert_eq!(swept.report.listed, divergences.len());
    assert!(swept.report.is_complete(), "{:?}", swept.report.unfinished);
    for (name, (status, desired, _, expected)) in names.iter().zip(&divergences) {
        let mut results = swept.results.iter().filter(|result| result.worker_id.as_str() == name);
        let first = results.next().expect("worker was reconciled");
        let context = format!("{name}: {status}, desired {desired:?}: {}", first.reason);
        assert_eq!(first.to_status, *expected, "{context}");
        let last = results.next_back().unwrap_or(first);
        assert_eq!(harness.status(name).await, last.to_status, "{context}");
    }

    // All transitions complete.
    for _ in 0..8 {
        harness.cloud.advance(Duration::from_secs(30)).await;
        assert!(harness.first_sweep().await.report.is_complete());
    }
    for (name, (status, desired, found, _)) in names.iter().zip(&divergences) {
        let desired = match generation {
            // Every worker of the original server has a desired status.
            Original => Some(desired.unwrap_or("running")),
            Extended => *desired,
        };
        let end = match (*status, desired, found) {
            ("provisioning", _, Ec2State::Terminated | Ec2State::Vanished) => "failed",
            (_, _, Ec2State::Terminated | Ec2State::Vanished) | (_, Some("terminated"), _) => "terminated",
            (_, Some(desired), _) => desired,
            (_, None, Ec2State::Running) => "running",
            (_, None, Ec2State::Stopped | Ec2State::Missing) => "stopped",
        };
        assert_eq!(
            harness.cloud.worker(name).expect("record exists").status(),
            end,
            "{name}: {status}, desired {desired:?}"
        );
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 2, "only workers without an instance are launched");
}

#[rstest]
#[tokio::test]
async fn changes_made_during_downtime_are_reconciled(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let workers = ["w-paused", "w-killed", "w-rested", "w-doomed", "w-asleep", "w-awake"];
    workers.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));
    let first = harness.start_controller("first", |_| {});
    wait_for_statuses(&harness, &workers.map(|worker| (worker, "running"))).await;
    for parked in ["w-asleep", "w-awake"] {
        harness.cloud.update_worker(parked, json!({"desired_status": "stopped"})).expect("desired status is accepted");
    }
    wait_for_statuses(&harness, &[("w-asleep", "stopped"), ("w-awake", "stopped")]).await;
    first.crash();

    let instance = |worker: &str| {
        harness.cloud.worker(worker).expect("record exists").instance_id().expect("worker has an instance").to_owned()
    };
    harness.cloud.stop_instance(REGION, &instance("w-paused")).expect("instance stops");
    harness.cloud.terminate_instance(REGION, &instance("w-killed")).expect("instance terminates");
    harness.cloud.start_instance(REGION, &instance("w-awake")).expect("instance starts");
    harness.cloud.update_worker("w-awake", json!({"desired_status": null})).expect("record is updated");
    for (worker, desired) in [("w-rested", "stopped"), ("w-doomed", "terminated"), ("w-asleep", "running")] {
        harness.cloud.update_worker(worker, json!({"desired_status": desired})).expect("desired status is accepted");
    }

    let second = harness.start_controller("second", |_| {});
    let report = second.controller.ready().await;
    // Discovery runs beside the sweep. On a busy machine it may have terminated two of them before they are listed.
    assert!(report.is_complete() && (4..=6).contains(&report.listed), "{report:?}");
    wait_for_statuses(
        &harness,
        &[
            ("w-paused", "running"),
            ("w-killed", "terminated"),
            ("w-rested", "stopped"),
            ("w-doomed", "terminated"),
            ("w-asleep", "running"),
            ("w-awake", "running"),
        ],
    )
    .await;
    second.stop().await;
    assert_eq!(harness.active_instances().len(), 4);
    assert_eq!(harness.ec2_calls("RunInstances"), 6, "no worker was launched again");
}

#[rstest]
#[tokio::test]
async fn sweep_of_stopped_workers_batches_describes(#[values(Original, Extended)] generation: Generation) {
    let builder =
        FakeCloud::builder().control_plane(generation).pace(Pace::Manual).stop_while_pending(StopWhilePending::Allowed);
    let harness = Harness::start(builder).await;
    let image = fake_cloud::world::Catalog::for_region(REGION).images[3].id.clone();
    let thousand = LaunchRequest { min_count: 1000, max_count: 1000, ..LaunchRequest::new(image) };
    let instances = harness.cloud.world().console_launch(REGION, thousand).expect("instances launch");
    for (number, instance) in instances.iter().enumerate() {
        harness.cloud.stop_instance(REGION, &instance.id).expect("instance stops");
        harness.add_worker(
            &format!("w-{number:04}"),
            json!({
                "status": "stopped", "desired_status": "stopped", "ec2_instance_id": instance.id,
                "created_at": LONG_AGO, "launched_at": LONG_AGO,
            }),
        );
    }
    harness.cloud.advance(Duration::from_secs(60)).await;

    let swept = harness.first_sweep().await;
    assert_eq!((swept.report.listed, swept.report.is_complete()), (1000, true));
    assert_eq!(swept.report.outcomes.get("success"), Some(&1000));
    let describes = harness.ec2_calls("DescribeInstances");
    assert!((1..=2).contains(&describes), "{describes} describes for a thousand workers");
    assert_eq!(harness.control_plane_writes(), 0);
    assert_eq!(harness.ec2_calls("StartInstances") + harness.ec2_calls("StopInstances"), 0);
    assert_eq!(harness.cloud.count(Service::ControlPlane, "list_workers"), 1);
    assert_eq!(harness.cloud.count(Service::ControlPlane, "get_worker"), 0);
}

#[rstest]
#[tokio::test]
async fn sweep_describes_each_region_once(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    for (region, number) in
        [REGION, "eu-west-1"].into_iter().flat_map(|region| (1..=5).map(move |number| (region, number)))
    {
        let instance = harness.cloud.run_instance(region, &[]).expect("instance launches").id.clone();
        harness.add_worker(
            &format!("w-{region}-{number}"),
            json!({"status": "stopped", "aws_region": region, "ec2_instance_id": instance, "created_at": LONG_AGO}),
        );
    }
    harness.cloud.advance(Duration::from_secs(60)).await;
    let swept = harness.first_sweep().await;
    assert!(
        swept.results.iter().take(10).all(|result| result.to_status == Status::Running),
        "each instance is described in its own region"
    );
    let in_region = |region: &str| {
        let filter = RequestFilter {
            operation: Some("DescribeInstances".to_owned()),
            region: Some(region.to_owned()),
            ..RequestFilter::default()
        };
        harness
            .cloud
            .requests(&filter)
            .into_iter()
            .filter(|record| record.parameters.iter().filter(|(name, _)| name.starts_with("InstanceId")).count() == 5)
            .count()
    };
    assert_eq!((in_region(REGION), in_region("eu-west-1")), (1, 1));
}

#[rstest]
#[tokio::test]
async fn failed_describe_in_a_sweep_changes_no_record(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_manual_clock(generation).await;
    let ended = harness.add_running_worker("w-ended").await;
    harness.add_running_worker("w-alive").await;
    harness.cloud.terminate_instance(REGION, &ended).expect("instance terminates");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.inject(json!({"service": "ec2", "action": {"kind": "error", "code": "UnauthorizedOperation"}}));

    let failed = harness.first_sweep().await;
    assert_eq!(failed.report.outcomes.get("retry"), Some(&2), "{:?}", failed.report);
    assert!(failed.results.iter().all(|result| result.to_status == Status::Running && result.error.is_some()));
    assert_eq!(harness.control_plane_writes(), 0);

    harness.cloud.clear_faults();
    assert!(harness.first_sweep().await.report.is_complete());
    assert_eq!(
        (harness.status("w-ended").await, harness.status("w-alive").await),
        (Status::Terminated, Status::Running)
    );
}

#[rstest]
#[tokio::test]
async fn readiness_follows_the_first_sweep(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    for number in 1..=8 {
        harness.add_worker(&format!("w-{number}"), json!({"desired_status": "running"}));
    }
    let mut leader = harness.start_controller("leader", |config| config.startup.delay = Duration::from_millis(300));
    assert_eq!(*leader.controller.readiness().borrow(), Readiness::Standby);
    let report = leader.controller.ready().await;
    assert_eq!((report.listed, report.is_complete()), (8, true));
    assert!(
        harness.cloud.workers().iter().all(|worker| worker.status() != "pending"),
        "all workers were reconciled before"
    );
    assert!(leader.telemetry.to_prometheus().contains("lcm_ready 1"));

    // A standby has not swept, so it is not ready.
    let standby = harness.start_controller("standby", |_| {});
    assert_eq!(*standby.controller.readiness().borrow(), Readiness::Standby);
    leader.stop().await;
    leader = standby;
    assert_eq!(leader.controller.ready().await.listed, 8);
    leader.stop().await;
}

#[rstest]
#[tokio::test]
async fn hung_worker_does_not_block_readiness(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    let stuck = harness.add_running_worker("w-stuck").await;
    for number in 1..=4 {
        harness.add_worker(&format!("w-{number}"), json!({"desired_status": "running"}));
    }
    harness.inject(hang_cml(&stuck));
    let actor = harness.start_controller("leader", |config| {
        // Long enough for the others on a busy machine, shorter than the CML timeout.
        config.startup.limit = Some(Duration::from_secs(8));
        config.discovery = None;
    });
    let report = actor.controller.ready().await;
    assert_eq!((report.listed, &report.unfinished), (5, &vec!["w-stuck".to_owned()]));
    assert_eq!(report.outcomes.values().sum::<usize>(), 4);
    let others = [("w-1", "running"), ("w-2", "running"), ("w-3", "running"), ("w-4", "running")];
    wait_for_statuses(&harness, &others).await;
    harness.cloud.clear_faults();
    actor.crash();
}

#[rstest]
#[tokio::test]
async fn failed_listing_is_retried_before_readiness(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "control-plane", "operation": "list_workers", "times": 3, "action": {"kind": "error", "code": "500"},
    }));
    let actor = harness.start_controller("leader", |config| config.discovery = None);
    let report = actor.controller.ready().await;
    assert_eq!(report.listed, 1, "a failed listing is not an empty report");
    assert_eq!(harness.faults_applied(), 3);
    wait_for_statuses(&harness, &[("w-1", "running")]).await;
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn polling_makes_no_calls_for_workers_at_rest(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    for number in 1..=5 {
        let id = harness.cloud.run_instance(REGION, &[]).expect("instance launches").id.clone();
        harness.cloud.stop_instance(REGION, &id).expect("instance stops");
        harness.add_worker(
            &format!("w-{number}"),
            json!({"status": "stopped", "desired_status": "stopped", "ec2_instance_id": id}),
        );
    }
    harness.add_worker("w-failed", json!({"status": "failed", "desired_status": "running"}));
    let actor = harness.start_standalone_controller(|config| config.discovery = None);
    let report = actor.controller.ready().await;
    assert_eq!(report.listed, 6);
    let describes = harness.ec2_calls("DescribeInstances");
    assert!(describes <= 2, "the sweep describes all instances in batches: {describes}");

    let listings = || harness.cloud.count(Service::ControlPlane, "list_workers");
    let before = listings();
    eventually("several polling cycles have passed", async || listings() >= before + 8).await;
    assert_eq!(harness.ec2_calls("DescribeInstances"), describes);
    assert_eq!(harness.control_plane_writes(), 0);
    actor.stop().await;
}

#[rstest]
#[tokio::test]
async fn polling_converges_without_watch_events(#[values(Original, Extended)] generation: Generation) {
    let harness = Harness::with_real_clock(generation).await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("leader", |config| config.discovery = None);
    wait_for_statuses(&harness, &[("w-1", "running")]).await;
    harness.cloud.etcd().inject(Fault::WatchStall);

    for (desired, status) in [("stopped", "stopped"), ("running", "running"), ("terminated", "terminated")] {
        harness.cloud.update_worker("w-1", json!({"desired_status": desired})).expect("desired status is accepted");
        wait_for_statuses(&harness, &[("w-1", status)]).await;
    }
    // A new worker is found by the next listing.
    harness.add_worker("w-2", json!({"desired_status": "running"}));
    wait_for_statuses(&harness, &[("w-2", "running")]).await;
    actor.stop().await;
}

async fn wait_for_statuses(harness: &Harness, expected: &[(&str, &str)]) {
    let is_reached = async || {
        expected
            .iter()
            .all(|(worker, status)| harness.cloud.worker(worker).is_ok_and(|record| record.status() == *status))
    };
    eventually(&format!("{expected:?}"), is_reached).await;
}

fn hang_cml(instance: &str) -> serde_json::Value {
    json!({"service": "cml", "instance": instance, "action": {"kind": "latency", "seconds": 600, "on": "real"}})
}
