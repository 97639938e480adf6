//! `CloudWatch` against the fake cloud, over sockets.

use std::time::Duration;

use async_trait::async_trait;
use chrono::TimeDelta;
use fake_cloud::world::metrics::{Datum, MetricKey, Summary};
use fake_cloud::world::{AgentDimensions, Catalog, Intent, LaunchRequest};
use fake_cloud::{FakeCloud, Pace, RequestFilter};
use lcm_sdk::conformance::metrics::{MetricsWorld, suite};
use lcm_sdk::lifecycle::{CloudMetrics, Lookup};
use lcm_sdk::ports::Metrics;
use lcm_sdk::providers::aws::{Account, CloudWatch, Tuning};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, FailureKind, InstanceId, Secret, Timestamp};
use serde_json::{Value, json};

const REGION: &str = "us-east-1";

struct Fixture {
    cloud: FakeCloud,
    cloudwatch: CloudWatch,
    silent: std::sync::atomic::AtomicUsize,
}

impl Fixture {
    async fn start(agent_dimensions: AgentDimensions) -> Self {
        let builder = FakeCloud::builder().pace(Pace::Manual).agent_dimensions(agent_dimensions);
        let cloud = builder.start().await.expect("started");
        let mut tuning = Tuning::default();
        tuning.attempt_timeout = Duration::from_secs(20);
        let url = &cloud.endpoints().aws_url;
        let account = Account::with_endpoint(url, "fake", &Secret::from("fake"), tuning, &Telemetry::default());
        Self { cloud, cloudwatch: CloudWatch::new(account), silent: Default::default() }
    }

    /// Instances that have been running for an hour.
    fn running(&self, count: usize) -> Vec<InstanceId> {
        let image = &Catalog::for_region(REGION).images[0].id;
        let request = LaunchRequest { min_count: count, max_count: count, ..LaunchRequest::new(image) };
        let launch = self.cloud.world().with_ec2(|ec2, now| ec2.launch(REGION, request, Intent::Execute, now));
        let ids = launch.expect("launched").instances.iter().map(|instance| instance.id.as_str().into()).collect();
        self.cloud.world().clock().advance(Duration::from_secs(3600));
        ids
    }

    async fn read(&self, ids: &[InstanceId]) -> Vec<Lookup<CloudMetrics>> {
        self.cloudwatch.utilization(REGION, ids, self.now()).await
    }

    fn fault(&self, rule: Value) {
        let rule = serde_json::from_value(rule).expect("a rule");
        self.cloud.world().faults().add(rule).expect("a valid rule");
    }

    fn request_count(&self, operation: &str) -> usize {
        let filter = RequestFilter { operation: Some(operation.to_owned()), ..RequestFilter::default() };
        self.cloud.world().request_log().find(&filter).len()
    }
}

fn is_complete(metrics: &CloudMetrics) -> bool {
    let utilization = [metrics.cpu_utilization, metrics.memory_utilization, metrics.disk_utilization];
    let network = [metrics.network_in_bytes, metrics.network_out_bytes];
    utilization.iter().all(|value| value.is_some_and(|percent| (0.0..=100.0).contains(&percent)))
        && network.iter().all(|value| value.is_some_and(|bytes| bytes > 0.0))
}

#[async_trait]
impl MetricsWorld for Fixture {
    fn metrics(&self) -> &dyn Metrics {
        &self.cloudwatch
    }

    fn region(&self) -> &str {
        REGION
    }

    fn now(&self) -> Timestamp {
        self.cloud.world().clock().now()
    }

    async fn silent_instances(&self, count: usize) -> Vec<InstanceId> {
        // CloudWatch accepts any instance ID; these instances do not exist, so they report nothing.
        let first = self.silent.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        (first..first + count).map(|number| format!("i-{number:017x}").into()).collect()
    }

    async fn report(&self, id: &InstanceId, minutes_ago: i64, metrics: CloudMetrics) {
        let at = self.now() - TimeDelta::minutes(minutes_ago);
        for (namespace, name, value) in [
            ("AWS/EC2", "CPUUtilization", metrics.cpu_utilization),
            ("CWAgent", "mem_used_percent", metrics.memory_utilization),
            ("CWAgent", "disk_used_percent", metrics.disk_utilization),
            ("AWS/EC2", "NetworkIn", metrics.network_in_bytes),
            ("AWS/EC2", "NetworkOut", metrics.network_out_bytes),
        ] {
            let Some(value) = value else { continue };
            let key = MetricKey::new(namespace, name, [("InstanceId", id.as_str())]);
            let unit = if name.starts_with("Network") { "Bytes" } else { "Percent" };
            let datum = Datum { at, summary: Summary::from_value(value), unit: unit.to_owned() };
            self.cloud.world().console_set_metric(REGION, key, datum).expect("a region");
        }
    }

    async fn fail(&self, failure: &CallFailure) {
        self.fault(json!({"service": "cloudwatch", "action": {"kind": "error", "code": failure.code}}));
    }

    async fn recover(&self) {
        self.cloud.world().faults().clear();
    }
}

#[tokio::test]
async fn cloudwatch_conforms() {
    let fixture = Fixture::start(AgentDimensions::Aggregated).await;
    suite(&fixture).await;
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn instances_are_batched() {
    let fixture = Fixture::start(AgentDimensions::Aggregated).await;
    let ids = fixture.running(300);
    let lookups = fixture.read(&ids).await;
    assert!(lookups.iter().all(|lookup| lookup.found().is_some_and(is_complete)), "{lookups:?}");
    assert_eq!(fixture.request_count("GetMetricData"), 3);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn failed_call_affects_its_own_instances_only() {
    let fixture = Fixture::start(AgentDimensions::Aggregated).await;
    let ids = fixture.running(300);
    fixture.fault(json!({"service": "cloudwatch", "operation": "GetMetricData", "times": 1,
                         "action": {"kind": "error", "code": "AccessDenied"}}));
    let lookups = fixture.read(&ids).await;
    let unknown = lookups.iter().filter(|lookup| lookup.failure().is_some()).count();
    let found = lookups.iter().filter(|lookup| lookup.found().is_some_and(is_complete)).count();
    assert!(unknown > 0 && found > 0 && unknown + found == 300, "{unknown} unknown, {found} found");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn agent_dimensions_are_listed_once() {
    let fixture = Fixture::start(AgentDimensions::Appended).await;
    let ids = fixture.running(20);
    for _ in 0..3 {
        let lookups = fixture.read(&ids).await;
        assert!(lookups.iter().all(|lookup| lookup.found().is_some_and(is_complete)), "{lookups:?}");
    }
    assert_eq!(fixture.request_count("ListMetrics"), 2);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn missing_list_permission_keeps_other_metrics() {
    let fixture = Fixture::start(AgentDimensions::Appended).await;
    let ids = fixture.running(2);
    fixture.fault(json!({"service": "cloudwatch", "operation": "ListMetrics",
                         "action": {"kind": "error", "code": "AccessDenied"}}));
    for _ in 0..3 {
        for lookup in fixture.read(&ids).await {
            let found = lookup.found().expect("a response of CloudWatch");
            assert!(found.cpu_utilization.is_some() && found.memory_utilization.is_none(), "{found:?}");
        }
    }
    assert_eq!(fixture.request_count("ListMetrics"), 1, "a denied call is not repeated");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn invalid_id_does_not_affect_others() {
    let fixture = Fixture::start(AgentDimensions::Aggregated).await;
    let mut ids = fixture.running(2);
    ids.insert(1, "".into());
    let lookups = fixture.read(&ids).await;
    assert_eq!(lookups[1].failure().map(|failure| failure.kind), Some(FailureKind::Refused));
    assert!([0, 2].iter().all(|place| lookups[*place].found().is_some_and(is_complete)), "{lookups:?}");
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn throttled_call_is_retried() {
    let fixture = Fixture::start(AgentDimensions::Aggregated).await;
    let ids = fixture.running(2);
    fixture.fault(json!({"service": "cloudwatch", "operation": "GetMetricData", "times": 2,
                         "action": {"kind": "error", "code": "ThrottlingException"}}));
    let lookups = fixture.read(&ids).await;
    assert!(lookups.iter().all(|lookup| lookup.found().is_some_and(is_complete)), "{lookups:?}");
    fixture.cloud.stop().await;
}
