//! The first sweep after a start (ADR-043): whatever happened while nobody looked is put right, and what is at rest costs
//! next to nothing.

use std::time::Duration;

use fake_cloud::etcd::Fault;
use fake_cloud::world::{LaunchRequest, StopWhilePending};
use fake_cloud::{FakeCloud, Pace, RequestFilter, Service};
use lcm_sdk::WorkerStatus as Status;
use lcm_sdk::workers::Readiness;
use serde_json::json;

use lcm_tests::harness::{Harness, REGION, eventually};

const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// What EC2 has by the time somebody looks again.
#[derive(Clone, Copy)]
enum Found {
    Running,
    Stopped,
    Terminated,
    /// An id that EC2 does not know any more.
    Vanished,
    /// The record names none, and there is none.
    Nothing,
}

#[tokio::test]
async fn every_divergence_is_answered_within_the_first_sweep() {
    let divergences = [
        ("stopped", Some("running"), Found::Stopped, Status::Starting),
        ("stopped", Some("stopped"), Found::Terminated, Status::Terminated),
        ("stopped", Some("stopped"), Found::Vanished, Status::Terminated),
        ("stopped", None, Found::Running, Status::Running),
        ("stopped", Some("running"), Found::Running, Status::Running),
        ("stopped", Some("terminated"), Found::Stopped, Status::Terminating),
        ("stopped", Some("running"), Found::Nothing, Status::Pending),
        ("running", Some("running"), Found::Stopped, Status::Stopped),
        ("running", None, Found::Stopped, Status::Stopped),
        ("running", Some("running"), Found::Terminated, Status::Terminated),
        ("running", Some("running"), Found::Vanished, Status::Terminated),
        ("running", Some("stopped"), Found::Running, Status::Stopping),
        ("running", Some("terminated"), Found::Running, Status::Terminating),
        ("provisioning", Some("running"), Found::Running, Status::Running),
        ("provisioning", Some("running"), Found::Terminated, Status::Failed),
        ("provisioning", Some("running"), Found::Vanished, Status::Failed),
        ("starting", Some("running"), Found::Running, Status::Running),
        ("starting", Some("running"), Found::Vanished, Status::Terminated),
        ("stopping", Some("stopped"), Found::Stopped, Status::Stopped),
        ("stopping", Some("stopped"), Found::Terminated, Status::Terminated),
        ("draining", Some("stopped"), Found::Stopped, Status::Stopped),
        ("draining", Some("stopped"), Found::Terminated, Status::Terminated),
        ("terminating", Some("terminated"), Found::Terminated, Status::Terminated),
        ("terminating", Some("terminated"), Found::Vanished, Status::Terminated),
        ("failed", Some("terminated"), Found::Stopped, Status::Terminating),
        ("failed", Some("terminated"), Found::Nothing, Status::Terminated),
        ("pending", Some("terminated"), Found::Nothing, Status::Terminated),
        ("pending", Some("running"), Found::Nothing, Status::Provisioning),
        ("unknown", Some("running"), Found::Running, Status::Running),
        ("unknown", None, Found::Vanished, Status::Terminated),
    ];
    let harness = Harness::with_manual_clock().await;
    let names: Vec<String> = (0..divergences.len()).map(|number| format!("w-{number:02}")).collect();
    let mut instances = Vec::new();
    for (name, (_, _, found, _)) in names.iter().zip(&divergences) {
        instances.push(match found {
            Found::Running | Found::Stopped | Found::Terminated => {
                Some(harness.cloud.run_instance(REGION, &[("lcm:worker_id", name)]).expect("it launches").id.clone())
            }
            Found::Vanished => Some(format!("i-0dead{:012x}", instances.len())),
            Found::Nothing => None,
        });
    }
    harness.cloud.advance(Duration::from_secs(60)).await;
    for ((name, (status, desired, found, _)), instance) in names.iter().zip(&divergences).zip(&instances) {
        match (found, instance) {
            (Found::Stopped, Some(id)) => drop(harness.cloud.stop_instance(REGION, id).expect("it stops")),
            (Found::Terminated, Some(id)) => drop(harness.cloud.terminate_instance(REGION, id).expect("it ends")),
            (Found::Running | Found::Vanished | Found::Nothing | Found::Stopped | Found::Terminated, _) => {}
        }
        harness.add_worker(
            name,
            json!({
                "status": status, "desired_status": desired, "ec2_instance_id": instance,
                "created_at": LONG_AGO, "launched_at": LONG_AGO, "is_idle_detection_enabled": false,
            }),
        );
    }
    harness.cloud.advance(Duration::from_secs(60)).await;

    let swept = harness.first_sweep().await;
    assert_eq!(swept.report.listed, divergences.len());
    assert!(swept.report.is_complete(), "{:?}", swept.report.unfinished);
    for (name, (status, desired, _, expected)) in names.iter().zip(&divergences) {
        let mut passes = swept.results.iter().filter(|pass| pass.worker_id.as_str() == name);
        let pass = passes.next().expect("it was looked at");
        let story = format!("{name}: {status}, wanted {desired:?}: {}", pass.reason);
        assert_eq!(pass.to_status, *expected, "{story}");
        let last = passes.next_back().unwrap_or(pass);
        assert_eq!(harness.status(name).await, last.to_status, "{story}");
    }

    // Nothing is left half way.
    for _ in 0..8 {
        harness.cloud.advance(Duration::from_secs(30)).await;
        assert!(harness.first_sweep().await.report.is_complete());
    }
    for (name, (status, desired, found, _)) in names.iter().zip(&divergences) {
        let end = match (*status, *desired, found) {
            ("provisioning", _, Found::Terminated | Found::Vanished) => "failed",
            (_, _, Found::Terminated | Found::Vanished) | (_, Some("terminated"), _) => "terminated",
            (_, Some(desired), _) => desired,
            (_, None, Found::Running) => "running",
            (_, None, Found::Stopped | Found::Nothing) => "stopped",
        };
        assert_eq!(
            harness.cloud.worker(name).expect("it exists").status(),
            end,
            "{name}: {status}, wanted {desired:?}"
        );
    }
    assert_eq!(harness.ec2_calls("RunInstances"), 2, "only for those that had nothing");
}

#[tokio::test]
async fn what_happens_while_the_controller_is_down_is_put_right_by_its_successor() {
    let harness = Harness::with_real_clock().await;
    let workers = ["w-paused", "w-killed", "w-rested", "w-doomed", "w-asleep", "w-awake"];
    workers.iter().for_each(|worker| harness.add_worker(worker, json!({"desired_status": "running"})));
    let first = harness.start_controller("first", |_| {});
    all_become(&harness, &workers.map(|worker| (worker, "running"))).await;
    for parked in ["w-asleep", "w-awake"] {
        harness.cloud.update_worker(parked, json!({"desired_status": "stopped"})).expect("a wish");
    }
    all_become(&harness, &[("w-asleep", "stopped"), ("w-awake", "stopped")]).await;
    first.crash();

    let instance =
        |worker: &str| harness.cloud.worker(worker).expect("it exists").instance_id().expect("it has one").to_owned();
    harness.cloud.stop_instance(REGION, &instance("w-paused")).expect("cost automation stops it");
    harness.cloud.terminate_instance(REGION, &instance("w-killed")).expect("somebody terminates it");
    harness.cloud.start_instance(REGION, &instance("w-awake")).expect("somebody starts it");
    harness.cloud.update_worker("w-awake", json!({"desired_status": null})).expect("nobody has an opinion");
    for (worker, desired) in [("w-rested", "stopped"), ("w-doomed", "terminated"), ("w-asleep", "running")] {
        harness.cloud.update_worker(worker, json!({"desired_status": desired})).expect("a wish");
    }

    let second = harness.start_controller("second", |_| {});
    let report = second.controller.ready().await;
    // Discovery does not wait for the sweep: on a busy machine it may have seen to the two that end before they are listed.
    assert!(report.is_complete() && (4..=6).contains(&report.listed), "{report:?}");
    all_become(
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
    assert_eq!(harness.ec2_calls("RunInstances"), 6, "nobody was launched anew");
}

#[tokio::test]
async fn a_thousand_stopped_workers_cost_a_describe_or_two_and_no_write() {
    let builder = FakeCloud::builder().pace(Pace::Manual).stop_while_pending(StopWhilePending::Allowed);
    let harness = Harness::start(builder).await;
    let image = fake_cloud::world::Catalog::for_region(REGION).images[3].id.clone();
    let thousand = LaunchRequest { min_count: 1000, max_count: 1000, ..LaunchRequest::new(image) };
    let instances = harness.cloud.world().console_launch(REGION, thousand).expect("they launch");
    for (number, instance) in instances.iter().enumerate() {
        harness.cloud.stop_instance(REGION, &instance.id).expect("it stops");
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

#[tokio::test]
async fn a_sweep_over_two_regions_describes_each_of_them_once() {
    let harness = Harness::with_manual_clock().await;
    for (region, number) in
        [REGION, "eu-west-1"].into_iter().flat_map(|region| (1..=5).map(move |number| (region, number)))
    {
        let instance = harness.cloud.run_instance(region, &[]).expect("it launches").id.clone();
        harness.add_worker(
            &format!("w-{region}-{number}"),
            json!({"status": "stopped", "aws_region": region, "ec2_instance_id": instance, "created_at": LONG_AGO}),
        );
    }
    harness.cloud.advance(Duration::from_secs(60)).await;
    let swept = harness.first_sweep().await;
    assert!(
        swept.results.iter().take(10).all(|pass| pass.to_status == Status::Running),
        "nobody is looked for where he is not"
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

#[tokio::test]
async fn a_sweep_that_ec2_does_not_answer_changes_nobody_and_the_next_one_does() {
    let harness = Harness::with_manual_clock().await;
    let ended = harness.add_running_worker("w-ended").await;
    harness.add_running_worker("w-alive").await;
    harness.cloud.terminate_instance(REGION, &ended).expect("it ends");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.inject(json!({"service": "ec2", "action": {"kind": "error", "code": "UnauthorizedOperation"}}));

    let blind = harness.first_sweep().await;
    assert_eq!(blind.report.outcomes.get("retry"), Some(&2), "{:?}", blind.report);
    assert!(blind.results.iter().all(|pass| pass.to_status == Status::Running && pass.error.is_some()));
    assert_eq!(harness.control_plane_writes(), 0);

    harness.cloud.clear_faults();
    assert!(harness.first_sweep().await.report.is_complete());
    assert_eq!(
        (harness.status("w-ended").await, harness.status("w-alive").await),
        (Status::Terminated, Status::Running)
    );
}

#[tokio::test]
async fn the_gate_opens_after_the_first_sweep_and_not_before() {
    let harness = Harness::with_real_clock().await;
    for number in 1..=8 {
        harness.add_worker(&format!("w-{number}"), json!({"desired_status": "running"}));
    }
    let mut leader = harness.start_controller("leader", |config| config.startup.delay = Duration::from_millis(300));
    assert_eq!(*leader.controller.readiness().borrow(), Readiness::Standby);
    let report = leader.controller.ready().await;
    assert_eq!((report.listed, report.is_complete()), (8, true));
    assert!(harness.cloud.workers().iter().all(|worker| worker.status() != "pending"), "all were looked at before");
    assert!(leader.telemetry.to_prometheus().contains("lcm_ready 1"));

    // Nobody to look at is a sweep, too; but a standby has not looked.
    let standby = harness.start_controller("standby", |_| {});
    assert_eq!(*standby.controller.readiness().borrow(), Readiness::Standby);
    leader.stop().await;
    leader = standby;
    assert_eq!(leader.controller.ready().await.listed, 8);
    leader.stop().await;
}

#[tokio::test]
async fn the_gate_opens_with_a_report_when_one_worker_hangs() {
    let harness = Harness::with_real_clock().await;
    let stuck = harness.add_running_worker("w-stuck").await;
    for number in 1..=4 {
        harness.add_worker(&format!("w-{number}"), json!({"desired_status": "running"}));
    }
    harness.inject(hang(&stuck));
    let actor = harness.start_controller("leader", |config| {
        // Long enough for the others on a busy machine, shorter than the patience with a CML.
        config.startup.limit = Some(Duration::from_secs(8));
        config.discovery = None;
    });
    let report = actor.controller.ready().await;
    assert_eq!((report.listed, &report.unfinished), (5, &vec!["w-stuck".to_owned()]));
    assert_eq!(report.outcomes.values().sum::<usize>(), 4);
    let others = [("w-1", "running"), ("w-2", "running"), ("w-3", "running"), ("w-4", "running")];
    all_become(&harness, &others).await;
    harness.cloud.clear_faults();
    actor.crash();
}

#[tokio::test]
async fn a_sweep_whose_listing_fails_is_tried_again_before_anybody_is_told_ready() {
    let harness = Harness::with_real_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    harness.inject(json!({
        "service": "control-plane", "operation": "list_workers", "times": 3, "action": {"kind": "error", "code": "500"},
    }));
    let actor = harness.start_controller("leader", |config| config.discovery = None);
    let report = actor.controller.ready().await;
    assert_eq!(report.listed, 1, "an empty report would have been a lie");
    assert_eq!(harness.faults_applied(), 3);
    all_become(&harness, &[("w-1", "running")]).await;
    actor.stop().await;
}

#[tokio::test]
async fn polling_asks_nothing_about_workers_at_rest() {
    let harness = Harness::with_real_clock().await;
    for number in 1..=5 {
        let id = harness.cloud.run_instance(REGION, &[]).expect("it launches").id.clone();
        harness.cloud.stop_instance(REGION, &id).expect("it stops");
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
    assert!(describes <= 2, "the sweep trusts no record, but asks for all at once: {describes}");

    let listings = || harness.cloud.count(Service::ControlPlane, "list_workers");
    let before = listings();
    eventually("several polling cycles have passed", async || listings() >= before + 8).await;
    assert_eq!(harness.ec2_calls("DescribeInstances"), describes);
    assert_eq!(harness.control_plane_writes(), 0);
    actor.stop().await;
}

#[tokio::test]
async fn polling_alone_converges_when_every_event_is_lost() {
    let harness = Harness::with_real_clock().await;
    harness.add_worker("w-1", json!({"desired_status": "running"}));
    let actor = harness.start_controller("leader", |config| config.discovery = None);
    all_become(&harness, &[("w-1", "running")]).await;
    harness.cloud.etcd().inject(Fault::WatchStall);

    for (desired, status) in [("stopped", "stopped"), ("running", "running"), ("terminated", "terminated")] {
        harness.cloud.update_worker("w-1", json!({"desired_status": desired})).expect("a wish nobody hears of");
        all_become(&harness, &[("w-1", status)]).await;
    }
    // One that is at rest and is wanted again is seen at the next listing.
    harness.add_worker("w-2", json!({"desired_status": "running"}));
    all_become(&harness, &[("w-2", "running")]).await;
    actor.stop().await;
}

async fn all_become(harness: &Harness, expected: &[(&str, &str)]) {
    let holds = async || {
        expected
            .iter()
            .all(|(worker, status)| harness.cloud.worker(worker).is_ok_and(|record| record.status() == *status))
    };
    eventually(&format!("{expected:?}"), holds).await;
}

fn hang(instance: &str) -> serde_json::Value {
    json!({"service": "cml", "instance": instance, "action": {"kind": "latency", "seconds": 600, "on": "real"}})
}
