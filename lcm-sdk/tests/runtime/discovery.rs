//! Discovery between its runs: settings, reports that are not repeated, and the listings it needs.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::Shutdown;
use lcm_sdk::lifecycle::discovery::ForeignInstances;
use lcm_sdk::ports::{DiscoveryFilter, ScanSettings};
use lcm_sdk::providers::memory::{ComputeCall, ComputeOperation, Fault};
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_sdk::workers::{Discovery, DiscoveryConfig};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, Instance, WorkerStatus};
use parking_lot::Mutex;

use super::harness::{Harness, OTHER_REGION, REGION, pass_time, worker_id};

const FOREIGN: &str = "cml_worker.instance.foreign.v1";
const DUPLICATE: &str = "cml_worker.instance.duplicate.v1";

fn config() -> DiscoveryConfig {
    let filter = DiscoveryFilter::default().with_tag_key("lcm:worker_id");
    DiscoveryConfig::default().with_regions([REGION]).with_filter(filter)
}

fn discovery(harness: &Harness, config: DiscoveryConfig) -> Discovery {
    Discovery::new(harness.reconciler(), config, |_| {})
}

/// One worker whose instance is gone, and one whose instance runs.
fn harness_with_an_orphan() -> Harness {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Running, Ec2State::Running);
    harness.compute.remove(REGION, &"i-1".into());
    harness
}

fn put_instance(harness: &Harness, id: &str, owner: &str) {
    let mut instance = Instance::new(id, Ec2State::Running);
    instance.tags.insert("lcm:worker_id".to_owned(), owner.to_owned());
    harness.compute.put(REGION, instance);
}

fn unreachable() -> Fault {
    Fault::Fail(CallFailure::new(FailureKind::Unreachable, "unreachable"))
}

fn switched(enabled: Option<bool>) -> Option<ScanSettings> {
    Some(ScanSettings { enabled, ..ScanSettings::default() })
}

fn listings(harness: &Harness) -> Vec<String> {
    harness.control_plane.calls().into_iter().filter(|call| call.starts_with("workers ")).collect()
}

fn scans(harness: &Harness) -> usize {
    harness.compute.calls().iter().filter(|call| matches!(call, ComputeCall::Scan { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn discovery_stays_off_until_it_is_switched_on() {
    let harness = harness_with_an_orphan();
    let discovery = discovery(&harness, config());
    harness.control_plane.set_discovery(switched(Some(false)));
    assert!(discovery.run_once().await.error.is_some());
    harness.control_plane.plan("discovery_settings", unreachable());
    assert!(discovery.run_once().await.error.is_some(), "the settings could not be read");
    harness.control_plane.set_discovery(switched(None));
    assert!(discovery.run_once().await.error.is_some(), "the settings leave the switch open");
    harness.control_plane.set_discovery(None);
    assert!(discovery.run_once().await.error.is_some(), "the settings are gone");
    assert_eq!((scans(&harness), harness.record(1).status), (0, WorkerStatus::Running));

    harness.control_plane.set_discovery(switched(Some(true)));
    assert_eq!(discovery.run_once().await.regions[0].terminated, [worker_id(1)]);
}

#[tokio::test(start_paused = true)]
async fn missing_settings_leave_the_configuration() {
    let harness = harness_with_an_orphan();
    harness.control_plane.set_discovery(None);
    let discovery = discovery(&harness, config());
    assert_eq!(discovery.run_once().await.regions[0].terminated, [worker_id(1)]);
    harness.control_plane.plan("discovery_settings", unreachable());
    assert!(discovery.run_once().await.error.is_none(), "the last answer counts");
}

/// A leader that takes over during an outage does not know whether discovery is switched off.
#[tokio::test(start_paused = true)]
async fn discovery_waits_for_the_first_settings() {
    let harness = harness_with_an_orphan();
    harness.control_plane.set_discovery(switched(Some(false)));
    for _ in 0..4 {
        harness.control_plane.plan("discovery_settings", unreachable());
    }
    let discovery = discovery(&harness, config());
    let report = discovery.run_once().await;
    assert!(report.error.is_some_and(|error| error.to_string().contains("could not be read")));
    let running = discovery.clone();
    let run = tokio::spawn(async move { running.run(&Shutdown::new()).await });
    pass_time(60).await;
    assert_eq!((scans(&harness), harness.record(1).status), (0, WorkerStatus::Running));
    let reads = harness.control_plane.calls().iter().filter(|call| call.starts_with("discovery_settings")).count();
    assert_eq!(reads, 5, "read again every ten seconds until the first answer");
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn scan_interval_is_at_least_ten_seconds() {
    let harness = Harness::new();
    let interval = ScanSettings { scan_interval: Some(Duration::ZERO), ..ScanSettings::default() };
    harness.control_plane.set_discovery(Some(interval));
    let discovery = discovery(&harness, config());
    let run = tokio::spawn(async move { discovery.run(&Shutdown::new()).await });
    pass_time(66).await;
    run.abort();
    assert!((6..=7).contains(&scans(&harness)), "{} scans in 66 s", scans(&harness));
}

#[tokio::test(start_paused = true)]
async fn unfiltered_discovery_verifies_records_by_id() {
    let harness = harness_with_an_orphan();
    harness.worker(3, WorkerStatus::Stopped, Ec2State::Running);
    put_instance(&harness, "i-99", "w-99");
    let demanded: Arc<Mutex<Vec<String>>> = Arc::default();
    let discovery = Discovery::new(harness.reconciler(), config().with_filter(DiscoveryFilter::default()), {
        let demanded = Arc::clone(&demanded);
        move |worker| demanded.lock().push(worker.to_string())
    });
    let report = discovery.run_once().await;
    assert_eq!((report.error, scans(&harness)), (None, 0));
    let region = &report.regions[0];
    assert_eq!((region.seen, region.imported, region.is_complete), (2, 0, true), "{region:?}");
    assert_eq!(region.terminated, [worker_id(1)]);
    assert_eq!(*demanded.lock(), ["w-3"], "drift is found as well");
    assert!(discovery.stats().last_complete_scan_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn failed_describe_by_id_is_not_a_complete_scan() {
    let harness = harness_with_an_orphan();
    // The describe in place of a scan, and the one that verifies.
    for _ in 0..2 {
        let throttled = CallFailure::new(FailureKind::Throttled, "slow down");
        harness.compute.fail_next(ComputeOperation::Instances, throttled);
    }
    let discovery = discovery(&harness, config().with_filter(DiscoveryFilter::default()));
    let report = discovery.run_once().await;
    assert_eq!((report.orphans_terminated(), report.regions[0].is_complete), (0, false));
    assert_eq!(discovery.stats().last_complete_scan_at, None);
}

#[tokio::test(start_paused = true)]
async fn foreign_instance_is_reported_once() {
    let harness = Harness::new();
    put_instance(&harness, "i-99", "w-of-staging");
    let telemetry = Telemetry::default();
    let reconciler = Reconciler::builder(harness.ports(), harness.policy.clone())
        .telemetry(telemetry.clone())
        .build()
        .expect("a supported policy");
    let discovery = Discovery::new(reconciler, config(), |_| {});
    for _ in 0..3 {
        let report = discovery.run_once().await;
        assert_eq!((report.regions[0].imported, report.regions[0].foreign.len()), (0, 1));
    }
    pass_time(1).await;
    assert_eq!(harness.events.kinds(), [FOREIGN]);
    assert_eq!(telemetry.anomalies(Anomaly::ForeignInstance), 1);
    assert_eq!(discovery.stats().regions[REGION].foreign, 1);

    harness.compute.remove(REGION, &"i-99".into());
    assert_eq!(discovery.run_once().await.regions[0].foreign, []);
    put_instance(&harness, "i-99", "w-of-staging");
    assert_eq!(discovery.run_once().await.regions[0].foreign.len(), 1);
    pass_time(1).await;
    assert_eq!(harness.events.kinds(), [FOREIGN, FOREIGN], "it came back");
}

#[tokio::test(start_paused = true)]
async fn foreign_instance_is_imported_on_request() {
    let harness = Harness::new();
    put_instance(&harness, "i-99", "w-of-staging");
    let report = discovery(&harness, config().with_foreign(ForeignInstances::Import)).run_once().await;
    assert_eq!((report.regions[0].imported, report.regions[0].foreign.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn duplicate_instance_is_reported_once() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    put_instance(&harness, "i-99", "w-1");
    let discovery = discovery(&harness, config());
    for _ in 0..3 {
        assert_eq!(discovery.run_once().await.regions[0].handed_over, [worker_id(1)]);
    }
    pass_time(1).await;
    assert_eq!(harness.events.kinds(), [DUPLICATE]);
}

#[tokio::test(start_paused = true)]
async fn terminated_records_are_listed_for_unknown_instances() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Terminated, Ec2State::Terminated);
    let discovery = discovery(&harness, config().with_regions([REGION, OTHER_REGION]));
    assert_eq!(discovery.run_once().await.error, None);
    assert_eq!(listings(&harness), ["workers *"]);

    put_instance(&harness, "i-98", "w-2");
    harness.worker_in(OTHER_REGION, 3, WorkerStatus::Terminated, Ec2State::Running);
    let report = discovery.run_once().await;
    let resurrected: Vec<_> = report.regions.iter().flat_map(|region| &region.resurrected).collect();
    assert_eq!(resurrected, [&worker_id(2), &worker_id(3)]);
    assert_eq!(listings(&harness)[1..], ["workers *", "workers * with terminated"], "once for all regions");
}

#[tokio::test(start_paused = true)]
async fn unlisted_terminated_records_stop_imports_only() {
    let harness = harness_with_an_orphan();
    put_instance(&harness, "i-99", "w-99");
    let discovery = discovery(&harness, config().with_foreign(ForeignInstances::Import));
    harness.control_plane.plan("workers * with terminated", unreachable());
    let report = discovery.run_once().await;
    assert!(report.error.is_some());
    assert_eq!((report.regions[0].imported, report.regions[0].terminated.clone()), (0, vec![worker_id(1)]));
    assert_eq!(discovery.run_once().await.regions[0].imported, 1);
}

#[tokio::test(start_paused = true)]
async fn found_instance_is_handed_over_with_the_demand() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Provisioning, Ec2State::Running);
    harness.control_plane.edit(&worker_id(1), |worker| worker.ec2_instance_id = None);
    let reconciler = harness.reconciler();
    let report = Discovery::new(reconciler.clone(), config(), |_| {}).run_once().await;
    assert_eq!(report.regions[0].handed_over, [worker_id(1)]);
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(harness.record(1).ec2_instance_id, Some("i-1".into()), "{}", result.reason);
    let searched = harness.compute.calls().iter().any(|call| matches!(call, ComputeCall::Tagged { .. }));
    assert!(!searched, "the scan has found it already");
}
