//! Absences in the wrong account or region: nothing is written, and the region is reported once.

use std::time::Duration;

use lcm_sdk::controller::Shutdown;
use lcm_sdk::lifecycle::ReasonCode;
use lcm_sdk::ports::DiscoveryFilter;
use lcm_sdk::providers::memory::ComputeCall;
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::simulate::ACCOUNT_ID;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::workers::{Discovery, DiscoveryConfig, WorkerController, WorkerControllerConfig};
use lcm_sdk::{DesiredStatus, Ec2State, Image, Instance, Outcome, RegionConfigs, WorkerStatus};

use super::harness::{Harness, OTHER_REGION, REGION, pass_time, worker_id};

const OTHER_ACCOUNT: &str = "210987654321";
const NOT_TRUSTED: &str = "cml_worker.region.not_trusted.v1";

fn discovery_config() -> DiscoveryConfig {
    let filter = DiscoveryFilter::default().with_tag_key("Name");
    DiscoveryConfig::default().with_regions([REGION]).with_filter(filter)
}

/// A foreign instance that the filter of discovery matches.
fn foreign() -> Instance {
    let mut instance = Instance::new("i-foreign", Ec2State::Running);
    instance.tags.insert("Name".to_owned(), "staging".to_owned());
    instance
}

fn running_workers(harness: &Harness, count: u8) {
    for number in 1..=count {
        harness.worker(number, WorkerStatus::Running, Ec2State::Running);
        harness.control_plane.edit(&worker_id(number), |worker| worker.is_idle_detection_enabled = false);
    }
}

fn distrusted(harness: &Harness) -> usize {
    harness.events.kinds().into_iter().filter(|kind| *kind == NOT_TRUSTED).count()
}

fn statuses(harness: &Harness, count: u8) -> Vec<WorkerStatus> {
    (1..=count).map(|number| harness.record(number).status).collect()
}

#[tokio::test(start_paused = true)]
async fn credentials_of_another_account_write_nothing() {
    let harness = Harness::new();
    running_workers(&harness, 6);
    harness.session("s-1", "running", 1);
    harness.compute.use_account(OTHER_ACCOUNT);
    harness.compute.put(REGION, foreign());
    let telemetry = Telemetry::default();
    let config = WorkerControllerConfig::default().with_discovery(discovery_config());
    let controller =
        WorkerController::new(harness.ports(), harness.policy.clone(), None, config, telemetry.clone()).expect("valid");
    let before: Vec<_> = (1..=6).map(|number| harness.record(number)).collect();
    let (running, shutdown) = (controller.clone(), Shutdown::new());
    let run = tokio::spawn(async move { running.run(&shutdown).await });
    pass_time(400).await;
    assert_eq!((1..=6).map(|number| harness.record(number)).collect::<Vec<_>>(), before, "nothing is written");
    assert_eq!(harness.session_state("s-1"), "running");
    assert_eq!(distrusted(&harness), 1, "{:?}", harness.events.kinds());
    assert!(telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 1"));
    let untrusted = controller.reconciler().untrusted_regions();
    assert_eq!(untrusted.iter().map(|region| region.region.as_str()).collect::<Vec<_>>(), [REGION]);
    assert!(untrusted[0].doubt.contains(OTHER_ACCOUNT), "{}", untrusted[0].doubt);

    harness.compute.use_account(ACCOUNT_ID);
    pass_time(100).await;
    assert!(telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 0"));
    assert_eq!(controller.reconciler().untrusted_regions(), []);
    harness.compute.remove(REGION, &"i-1".into());
    pass_time(100).await;
    let expected = [&[WorkerStatus::Terminated][..], &[WorkerStatus::Running; 5]].concat();
    assert_eq!(statuses(&harness, 6), expected, "a proved absence is believed");
    assert_eq!(distrusted(&harness), 1);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn changed_default_region_writes_nothing() {
    let mut harness = Harness::new();
    running_workers(&harness, 4);
    for number in 1..=4 {
        let id = worker_id(number);
        harness.control_plane.edit(&id, |worker| worker.aws_region = None);
    }
    let regions = std::mem::take(&mut harness.policy.regions.regions);
    harness.policy.regions = RegionConfigs::default().with_default_region(OTHER_REGION);
    harness.policy.regions.regions = regions;
    harness.policy.aws_account_id = Some(ACCOUNT_ID.to_owned());
    let reconciler = harness.reconciler();
    for number in 1..=4 {
        let result = harness.reconcile(&reconciler, number).await;
        assert_eq!((result.outcome, result.reason.code), (Outcome::Retry, ReasonCode::RegionUnknown));
    }
    let discovery = Discovery::new(reconciler, discovery_config().with_regions([OTHER_REGION]), |_| {});
    assert_eq!(discovery.run_once().await.orphans_terminated(), 0);
    assert_eq!(statuses(&harness, 4), [WorkerStatus::Running; 4]);
}

#[tokio::test(start_paused = true)]
async fn region_found_by_this_process_is_remembered() {
    let harness = Harness::new();
    running_workers(&harness, 2);
    harness.control_plane.edit(&worker_id(1), |worker| worker.aws_region = None);
    let reconciler = harness.reconciler();
    let first = harness.reconcile(&reconciler, 1).await;
    assert_eq!(first.to_status, WorkerStatus::Running);
    harness.compute.remove(REGION, &"i-1".into());
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!((result.reason.code, result.to_status), (ReasonCode::Gone, WorkerStatus::Terminated));
}

#[tokio::test(start_paused = true)]
async fn foreign_instance_does_not_lift_the_freeze() {
    let harness = Harness::new();
    running_workers(&harness, 10);
    harness.compute.use_account(OTHER_ACCOUNT);
    harness.compute.put(REGION, foreign());
    let reconciler = harness.reconciler();
    let discovery = Discovery::new(reconciler.clone(), discovery_config(), |_| {});
    for _ in 0..3 {
        let report = discovery.run_once().await;
        assert_eq!((report.orphans_terminated(), report.regions[0].imported), (0, 0));
        assert!(report.regions[0].verdicts.iter().all(|verdict| verdict.conclusion.as_str() == "frozen"), "{report:?}");
    }
    assert_eq!((distrusted(&harness), reconciler.untrusted_regions().len()), (1, 1));
    harness.compute.use_account(ACCOUNT_ID);
    discovery.run_once().await.regions.iter().for_each(|region| assert_eq!(region.error, None));
    assert_eq!(statuses(&harness, 10), [WorkerStatus::Running; 10]);
    assert_eq!(reconciler.untrusted_regions(), []);
}

#[tokio::test(start_paused = true)]
async fn ten_of_thirteen_are_terminated_in_one_round() {
    let harness = Harness::new();
    running_workers(&harness, 13);
    for number in 4..=13 {
        harness.compute.remove(REGION, &format!("i-{number}").into());
    }
    let filter = DiscoveryFilter::default().with_tag_key("lcm:worker_id");
    let discovery = Discovery::new(harness.reconciler(), discovery_config().with_filter(filter), |_| {});
    assert_eq!(discovery.run_once().await.orphans_terminated(), 10);
    assert_eq!(statuses(&harness, 3), [WorkerStatus::Running; 3]);
    assert_eq!(distrusted(&harness), 0);
}

#[tokio::test(start_paused = true)]
async fn search_for_proof_is_limited_per_region() {
    let harness = Harness::new();
    running_workers(&harness, 12);
    for number in 1..=12 {
        harness.compute.remove(REGION, &format!("i-{number}").into());
    }
    let reconciler = harness.reconciler();
    let not_trusted = async || {
        let mut codes = Vec::new();
        for number in 1..=12 {
            codes.push(harness.reconcile(&reconciler, number).await.reason.code);
        }
        codes.iter().all(|code| *code == ReasonCode::RegionNotTrusted)
    };
    let searches = || {
        let calls = harness.compute.calls();
        let largest = calls.iter().filter_map(|call| match call {
            ComputeCall::Instances { ids, .. } => Some(ids.len()),
            _ => None,
        });
        let subnets = calls.iter().filter(|call| matches!(call, ComputeCall::SubnetOwner { .. })).count();
        (largest.max(), subnets)
    };
    assert!(not_trusted().await && not_trusted().await);
    assert_eq!(searches(), (Some(10), 1));
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(not_trusted().await);
    assert_eq!(searches(), (Some(10), 2));
    // The subnet belongs to the account, so the instances are gone.
    harness.compute.put_subnet(REGION, "subnet-1");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(!not_trusted().await);
    assert_eq!(statuses(&harness, 12), [WorkerStatus::Terminated; 12]);
    assert_eq!(distrusted(&harness), 1);
}

#[tokio::test(start_paused = true)]
async fn dry_run_reports_the_doubt_and_announces_nothing() {
    let harness = Harness::new();
    running_workers(&harness, 1);
    harness.compute.use_account(OTHER_ACCOUNT);
    let reconciler = harness.reconciler();
    let plan = reconciler.dry_run(&harness.record(1)).await;
    assert_eq!((plan.outcome, plan.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted));
    assert_eq!((distrusted(&harness), reconciler.untrusted_regions()), (0, Vec::new()));
}

/// The instance of one record is visible in the other account, as after a copied record.
#[tokio::test(start_paused = true)]
async fn overlap_of_one_keeps_the_region_untrusted() {
    let harness = Harness::new();
    running_workers(&harness, 3);
    let reconciler = harness.reconciler();
    for number in 1..=3 {
        let _ = harness.reconcile(&reconciler, number).await;
    }
    harness.compute.use_account(OTHER_ACCOUNT);
    harness.compute.put(REGION, Instance::new("i-3", Ec2State::Running));
    for _ in 0..2 {
        for number in [1, 3, 2, 3] {
            let result = harness.reconcile(&reconciler, number).await;
            let is_doubted = result.reason.code == ReasonCode::RegionNotTrusted;
            assert_eq!(is_doubted, number != 3, "{result:?}");
            assert_eq!(reconciler.untrusted_regions().len(), 1, "w-3 proves nothing about the others");
        }
    }
    assert_eq!((distrusted(&harness), statuses(&harness, 3)), (1, vec![WorkerStatus::Running; 3]));
    harness.compute.use_account(ACCOUNT_ID);
    let _ = harness.reconcile(&reconciler, 1).await;
    assert_eq!(reconciler.untrusted_regions().len(), 1, "w-2 is still in doubt");
    let _ = harness.reconcile(&reconciler, 2).await;
    assert_eq!(reconciler.untrusted_regions(), []);
}

/// Runs a controller in the account of others until it distrusts the region.
async fn distrusting_controller(
    harness: &Harness,
    telemetry: &Telemetry,
) -> (WorkerController, Shutdown, tokio::task::JoinHandle<()>) {
    let config = WorkerControllerConfig::default().without_discovery();
    let controller =
        WorkerController::new(harness.ports(), harness.policy.clone(), None, config, telemetry.clone()).expect("valid");
    let (running, shutdown) = (controller.clone(), Shutdown::new());
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { running.run(&stop).await });
    pass_time(60).await;
    assert!(telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 1"));
    (controller, shutdown, run)
}

#[tokio::test(start_paused = true)]
async fn former_leader_distrusts_no_region() {
    let harness = Harness::new();
    running_workers(&harness, 2);
    harness.compute.use_account(OTHER_ACCOUNT);
    let telemetry = Telemetry::default();
    let (controller, shutdown, run) = distrusting_controller(&harness, &telemetry).await;
    shutdown.request();
    run.await.expect("it stops");
    assert!(!telemetry.to_prometheus().contains("lcm_region_untrusted{"));
    assert_eq!(controller.reconciler().untrusted_regions(), []);
}

#[tokio::test(start_paused = true)]
async fn region_without_records_is_not_distrusted() {
    let harness = Harness::new();
    running_workers(&harness, 2);
    harness.compute.use_account(OTHER_ACCOUNT);
    let telemetry = Telemetry::default();
    let (controller, shutdown, run) = distrusting_controller(&harness, &telemetry).await;
    for number in 1..=2 {
        harness.control_plane.edit(&worker_id(number), |worker| worker.status = WorkerStatus::Terminated);
    }
    pass_time(60).await;
    assert!(telemetry.to_prometheus().contains("lcm_region_untrusted{region=\"us-east-1\"} 0"));
    assert_eq!(controller.reconciler().untrusted_regions(), []);
    shutdown.request();
    run.await.expect("it stops");
}

/// As `lcm.reconcile` and `lcm.Controller` on the same clients.
#[tokio::test(start_paused = true)]
async fn reconcilers_share_their_guards() {
    let harness = Harness::new();
    running_workers(&harness, 2);
    let config = WorkerControllerConfig::default();
    let guards = config.guards.clone();
    let controller = WorkerController::new(harness.ports(), harness.policy.clone(), None, config, Telemetry::default())
        .expect("valid");
    let single = Reconciler::builder(harness.ports(), harness.policy.clone())
        .guards(&guards)
        .build()
        .expect("a supported policy");

    // The account in which one of them found the instance is known to the other.
    let _ = harness.reconcile(controller.reconciler(), 1).await;
    harness.compute.use_account(OTHER_ACCOUNT);
    let doubted = harness.reconcile(&single, 1).await;
    assert!(doubted.reason.to_string().contains("last found in account"), "{}", doubted.reason);
    assert_eq!(controller.reconciler().untrusted_regions(), single.untrusted_regions());
    assert_eq!((distrusted(&harness), single.untrusted_regions().len()), (1, 1));
    let _ = harness.reconcile(controller.reconciler(), 1).await;
    assert_eq!(distrusted(&harness), 1, "the region is announced once");

    // A worker is reconciled by one of them at a time.
    harness.compute.use_account(ACCOUNT_ID);
    harness.control_plane.edit(&worker_id(2), |worker| worker.desired_status = Some(DesiredStatus::Stopped));
    let record = harness.record(2);
    let (one, other) = tokio::join!(controller.reconciler().reconcile(&record), single.reconcile(&record));
    assert_eq!(
        (one.from_status, other.from_status),
        (WorkerStatus::Running, WorkerStatus::Stopping),
        "{one:?} {other:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn region_of_another_policy_is_no_place_to_look() {
    let mut harness = Harness::new();
    running_workers(&harness, 1);
    harness.control_plane.edit(&worker_id(1), |worker| worker.aws_region = None);
    let here = harness.reconciler();
    assert_eq!(harness.reconcile(&here, 1).await.to_status, WorkerStatus::Running);
    harness.policy.regions = RegionConfigs::default().with_default_region(OTHER_REGION);
    let elsewhere = Reconciler::builder(harness.ports(), harness.policy.clone())
        .guards(here.guards())
        .build()
        .expect("a supported policy");
    let result = harness.reconcile(&elsewhere, 1).await;
    assert_eq!((result.outcome, result.reason.code), (Outcome::Retry, ReasonCode::RegionUnknown));
}

#[tokio::test(start_paused = true)]
async fn refused_launch_distrusts_a_region_without_proof() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Pending, Ec2State::Terminated);
    harness.control_plane.edit(&worker_id(1), |worker| {
        worker.ec2_instance_id = None;
        worker.notes.launched_at = None;
    });
    // The region has an AMI, and not the configured subnet.
    let image = Image { id: "ami-1".into(), name: "cisco-cml2.9".into(), creation_date: "2026-01-01".into() };
    harness.compute.put_image(REGION, image);
    let reconciler = harness.reconciler();
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!((result.to_status, result.reason.code), (WorkerStatus::Pending, ReasonCode::RegionNotTrusted));
    assert_eq!((distrusted(&harness), reconciler.untrusted_regions().len()), (1, 1));

    // A recorded instance that EC2 shows proves the account, and the refusal is believed.
    running_workers_from(&harness, 2);
    let _ = harness.reconcile(&reconciler, 2).await;
    assert_eq!(reconciler.untrusted_regions(), []);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(harness.reconcile(&reconciler, 1).await.to_status, WorkerStatus::Failed);
}

fn running_workers_from(harness: &Harness, number: u8) {
    harness.worker(number, WorkerStatus::Running, Ec2State::Running);
    harness.control_plane.edit(&worker_id(number), |worker| worker.is_idle_detection_enabled = false);
}
