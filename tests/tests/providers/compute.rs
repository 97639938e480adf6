//! `Ec2` against the fake cloud, over sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fake_cloud::world::{ACCOUNT, Catalog, IMAGE_OWNER, Image, Intent, LaunchRequest, Sharing};
use fake_cloud::{FakeCloud, Pace, RequestFilter};
use futures_util::future::join_all;
use lcm_sdk::conformance::compute::{ComputeWorld, suite};
use lcm_sdk::lifecycle::discovery::Completeness;
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{ImageOwners, Lookup, WORKER_ID_TAG};
use lcm_sdk::ports::{Compute, DiscoveryFilter};
use lcm_sdk::providers::aws::{Account, Ec2, Tuning};
use lcm_sdk::resilience::{BatchSettings, BatchingCompute};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_sdk::{CallFailure, Ec2State, FailureKind, InstanceId, Secret};
use serde_json::{Value, json};

const REGION: &str = "us-east-1";

struct Fixture {
    cloud: FakeCloud,
    ec2: Arc<Ec2>,
    telemetry: Telemetry,
}

impl Fixture {
    async fn start() -> Self {
        // No effective rate limit, and timeouts long enough for a busy machine.
        let mut tuning = Tuning::default();
        tuning.rate_factor = 1000.0;
        tuning.attempt_timeout = Duration::from_secs(20);
        tuning.image_owners = ImageOwners::Named(vec!["self".to_owned(), IMAGE_OWNER.to_owned()]);
        Self::with_tuning(tuning).await
    }

    async fn with_tuning(tuning: Tuning) -> Self {
        let cloud = FakeCloud::builder().pace(Pace::Manual).start().await.expect("started");
        cloud.world().console_add_key_pair(REGION, "operators", ACCOUNT).expect("a key pair");
        let telemetry = Telemetry::default();
        let account =
            Account::with_endpoint(&cloud.endpoints().aws_url, "fake", &Secret::from("fake"), tuning, &telemetry);
        Self { cloud, ec2: Arc::new(Ec2::new(account)), telemetry }
    }

    fn fault(&self, rule: Value) -> u64 {
        let rule = serde_json::from_value(rule).expect("a rule");
        self.cloud.world().faults().add(rule).expect("a valid rule")
    }

    fn request_count(&self, operation: &str) -> usize {
        let filter = RequestFilter { operation: Some(operation.to_owned()), ..RequestFilter::default() };
        self.cloud.world().request_log().find(&filter).len()
    }

    fn advance(&self, time: Duration) {
        self.cloud.world().clock().advance(time);
    }

    fn plan_for(&self, worker: &str) -> LaunchPlan {
        let tags = BTreeMap::from([(WORKER_ID_TAG.to_owned(), worker.to_owned())]);
        LaunchPlan { tags, client_token: format!("token-{worker}"), ..self.plan() }
    }

    /// Launches many instances without API calls.
    fn populate(&self, count: usize, image_id: &str) -> Vec<InstanceId> {
        let request = LaunchRequest { min_count: count, max_count: count, ..LaunchRequest::new(image_id) };
        let launch = self.cloud.world().with_ec2(|ec2, now| ec2.launch(REGION, request, Intent::Execute, now));
        launch.expect("launched").instances.iter().map(|instance| instance.id.as_str().into()).collect()
    }
}

#[async_trait]
impl ComputeWorld for Fixture {
    fn compute(&self) -> &dyn Compute {
        &*self.ec2
    }

    fn region(&self) -> &str {
        REGION
    }

    fn other_region(&self) -> &str {
        "eu-west-1"
    }

    fn plan(&self) -> LaunchPlan {
        let catalog = Catalog::for_region(REGION);
        LaunchPlan {
            region: REGION.to_owned(),
            image_id: catalog.images[3].id.clone(),
            instance_type: "m5zn.metal".to_owned(),
            subnet_id: catalog.subnets[0].id.clone(),
            security_group_ids: vec![catalog.groups[0].id.clone()],
            key_name: Some("operators".to_owned()),
            tags: BTreeMap::new(),
            generation: 0,
            client_token: String::new(),
        }
    }

    fn image_pattern(&self) -> String {
        "cisco-cml2.9.?-*v0.1.7".to_owned()
    }

    async fn settle(&self) {
        self.advance(Duration::from_secs(60));
    }

    async fn forget_terminated(&self) {
        self.advance(Duration::from_secs(2 * 3600));
    }

    async fn fail(&self, failure: &CallFailure) {
        self.fault(json!({"service": "ec2", "action": {"kind": "error", "code": failure.code}}));
    }

    async fn recover(&self) {
        self.cloud.world().faults().clear();
    }
}

#[tokio::test]
async fn ec2_conforms() {
    let fixture = Fixture::start().await;
    suite(&fixture).await;
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn throttled_call_is_retried_and_slowed_down() {
    let fixture = Fixture::start().await;
    let throttle = |times: u64| {
        json!({"service": "ec2", "operation": "DescribeSubnets", "times": times,
               "action": {"kind": "error", "code": "RequestLimitExceeded"}})
    };
    let subnet = fixture.plan().subnet_id;
    fixture.fault(throttle(2));
    assert!(fixture.ec2.subnet_owner(REGION, &subnet).await.is_ok_and(|owner| owner.is_some()));
    assert_eq!(fixture.request_count("DescribeSubnets"), 3);
    fixture.fault(throttle(3));
    let failure = fixture.ec2.subnet_owner(REGION, &subnet).await.expect_err("throttled three times");
    assert_eq!(failure.kind, FailureKind::Throttled);
    assert_eq!(fixture.telemetry.anomalies(Anomaly::Throttled), 5);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn lost_launch_response_leaves_one_instance() {
    let fixture = Fixture::start().await;
    fixture.fault(json!({"service": "ec2", "operation": "RunInstances", "times": 1,
                         "action": {"kind": "drop-response"}}));
    let plan = fixture.plan_for("w-1");
    let id = fixture.ec2.launch(&plan).await.expect("the second attempt finds it");
    assert_eq!(fixture.request_count("RunInstances"), 2);
    let tagged = fixture.ec2.tagged(REGION, &"w-1".into()).await.expect("a list");
    assert_eq!(tagged.iter().map(|instance| &instance.id).collect::<Vec<_>>(), [&id]);

    // If every response is lost, the same plan finds the instance later.
    let rule = fixture.fault(json!({"service": "ec2", "operation": "RunInstances",
                                    "action": {"kind": "drop-response"}}));
    let plan = fixture.plan_for("w-2");
    let failure = fixture.ec2.launch(&plan).await.expect_err("every response is lost");
    assert_eq!(failure.kind, FailureKind::Unclear, "{failure}");
    fixture.cloud.world().faults().remove(rule);
    let id = fixture.ec2.launch(&plan).await.expect("the existing instance");
    let tagged = fixture.ec2.tagged(REGION, &"w-2".into()).await.expect("a list");
    assert_eq!(tagged.iter().map(|instance| &instance.id).collect::<Vec<_>>(), [&id]);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn missing_capacity_is_not_retried() {
    let fixture = Fixture::start().await;
    fixture.fault(json!({"service": "ec2", "operation": "RunInstances",
                         "action": {"kind": "error", "code": "InsufficientInstanceCapacity"}}));
    let failure = fixture.ec2.launch(&fixture.plan_for("w-1")).await.expect_err("no capacity");
    assert_eq!(failure.kind, FailureKind::NoCapacity);
    assert_eq!(fixture.request_count("RunInstances"), 1);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn new_instance_is_absent_until_visible() {
    let fixture = Fixture::start().await;
    fixture.fault(json!({"service": "ec2", "action": {"kind": "visibility-lag", "seconds": 30.0}}));
    let id = fixture.ec2.launch(&fixture.plan_for("w-1")).await.expect("launched");
    assert_eq!(fixture.ec2.instance(REGION, &id).await, Lookup::Absent);
    assert_eq!(fixture.ec2.tagged(REGION, &"w-1".into()).await, Ok(Vec::new()));
    fixture.advance(Duration::from_secs(31));
    let found = fixture.ec2.instance(REGION, &id).await;
    assert_eq!(found.found().map(|instance| instance.state), Some(Ec2State::Running));
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn invalid_ids_do_not_affect_a_large_batch() {
    let fixture = Fixture::start().await;
    let mut ids = fixture.populate(1000, &fixture.plan().image_id);
    ids.extend(fixture.populate(200, &fixture.plan().image_id));
    let real = ids.clone();
    for (place, bad) in [(3, "i-0123456789abcdef0"), (777, "banana"), (400, "i-deadbeef"), (1100, "i-xyz")] {
        ids.insert(place, bad.into());
    }
    let lookups = fixture.ec2.instances(REGION, &ids).await;
    let mut found = Vec::new();
    for (id, lookup) in ids.iter().zip(&lookups) {
        match id.as_str() {
            "banana" | "i-xyz" => {
                assert_eq!(lookup.failure().map(|failure| failure.kind), Some(FailureKind::Refused), "{id}");
            }
            "i-0123456789abcdef0" | "i-deadbeef" => assert_eq!(*lookup, Lookup::Absent, "{id}"),
            _ => found.extend(lookup.found().map(|instance| instance.id.clone())),
        }
    }
    assert_eq!(found, real);
    // Two batches, each repeated without the unknown IDs.
    assert_eq!(fixture.request_count("DescribeInstances"), 4);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn describe_calls_are_batched_on_the_wire() {
    let fixture = Fixture::start().await;
    let mut ids = fixture.populate(1000, &fixture.plan().image_id);
    ids.extend(fixture.populate(500, &fixture.plan().image_id));
    let window = Duration::from_millis(500);
    let mut settings = BatchSettings::default();
    settings.window = window;
    let inner: Arc<dyn Compute> = Arc::clone(&fixture.ec2) as _;
    let batched = BatchingCompute::new(inner, settings, fixture.telemetry.clone());
    let lookups = join_all(ids.iter().map(|id| batched.instance(REGION, id))).await;
    assert!(lookups.iter().zip(&ids).all(|(lookup, id)| lookup.found().is_some_and(|found| found.id == *id)));
    assert_eq!(fixture.request_count("DescribeInstances"), 2);
    assert!(fixture.telemetry.to_prometheus().contains("lcm_describe_batch_size_sum 1500.0"));
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn failed_page_makes_a_scan_partial() {
    let fixture = Fixture::start().await;
    let all: Vec<InstanceId> = (0..3).flat_map(|_| fixture.populate(1000, &fixture.plan().image_id)).collect();
    let filter = DiscoveryFilter::default().with_ami_name_pattern("cisco-cml2.9*");
    let scan = fixture.ec2.scan(REGION, &filter).await;
    assert_eq!(scan.completeness, Completeness::Complete);
    assert_eq!(scan.instances.len(), all.len());
    assert_eq!(fixture.request_count("DescribeInstances"), 3);

    fixture.fault(json!({"service": "ec2", "operation": "DescribeInstances", "after": 1,
                         "action": {"kind": "error", "code": "UnauthorizedOperation"}}));
    let scan = fixture.ec2.scan(REGION, &filter).await;
    assert_eq!(scan.instances.len(), 1000, "the scan keeps the pages it read");
    match scan.completeness {
        Completeness::Partial(failure) => assert_eq!(failure.kind, FailureKind::Refused),
        Completeness::Complete => panic!("two pages are missing"),
    }
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn scan_with_many_images_finds_each_instance_once() {
    let fixture = Fixture::start().await;
    let image = |number: usize| Image {
        id: format!("ami-{number:08x}"),
        name: format!("many-{number}"),
        description: String::new(),
        creation_date: "2026-01-01T00:00:00.000Z".to_owned(),
        owner: "123456789012".to_owned(),
        sharing: Default::default(),
        tags: Default::default(),
    };
    for number in 0..450 {
        fixture.cloud.world().console_put_image(REGION, image(number)).expect("a region");
    }
    let mut expected: Vec<InstanceId> =
        [0, 199, 200, 449].iter().flat_map(|number| fixture.populate(2, &image(*number).id)).collect();
    let filter = DiscoveryFilter::default().with_ami_name_pattern("many-*");
    let scan = fixture.ec2.scan(REGION, &filter).await;
    assert_eq!(scan.completeness, Completeness::Complete);
    let mut found: Vec<InstanceId> = scan.instances.into_iter().map(|instance| instance.id).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn unknown_region_is_a_failure() {
    let fixture = Fixture::start().await;
    let id = fixture.ec2.launch(&fixture.plan_for("w-1")).await.expect("launched");
    for region in ["mars-1", "", "us-east-1.example.com"] {
        let lookup = fixture.ec2.instance(region, &id).await;
        let kind = lookup.failure().map(|failure| failure.kind);
        assert!(matches!(kind, Some(FailureKind::Refused | FailureKind::RefusedForNow)), "{region}: {lookup:?}");
    }
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn images_are_cached_and_failures_are_not() {
    let fixture = Fixture::start().await;
    fixture.fault(json!({"service": "ec2", "operation": "DescribeImages", "times": 1,
                         "action": {"kind": "error", "code": "UnauthorizedOperation"}}));
    fixture.ec2.images(REGION, "cisco*").await.expect_err("denied once");
    for _ in 0..10 {
        assert_eq!(fixture.ec2.images(REGION, "cisco*").await.expect("images").len(), 4);
    }
    assert_eq!(fixture.request_count("DescribeImages"), 2);
    fixture.cloud.stop().await;
}

#[tokio::test]
async fn hanging_ec2_opens_the_circuit_breaker() {
    let mut tuning = Tuning::default();
    tuning.attempt_timeout = Duration::from_secs(1);
    let fixture = Fixture::with_tuning(tuning).await;
    fixture.fault(json!({"service": "ec2", "region": REGION,
                         "action": {"kind": "latency", "seconds": 3600.0, "on": "real"}}));
    let id = InstanceId::from("i-0123456789abcdef0");
    for (kind, requests) in [(FailureKind::Unclear, 3), (FailureKind::Unclear, 5), (FailureKind::Unreachable, 5)] {
        let lookup = fixture.ec2.instance(REGION, &id).await;
        assert_eq!(lookup.failure().map(|failure| failure.kind), Some(kind), "{lookup:?}");
        // The request log omits abandoned requests, but the fault rule counts them.
        assert_eq!(fixture.cloud.world().faults().list()[0].matched, requests);
    }
    assert!(fixture.telemetry.to_prometheus().contains("lcm_breaker_open{target=\"ec2/us-east-1\"} 1"));
    assert_eq!(fixture.ec2.instance("eu-west-1", &id).await, Lookup::Absent, "another region has its own breaker");
}

/// Every account may publish a newer image with a matching name.
#[tokio::test]
async fn images_of_other_owners_are_not_listed() {
    for (owners, listed) in [
        (ImageOwners::Named(vec![IMAGE_OWNER.to_owned()]), vec![IMAGE_OWNER]),
        (ImageOwners::Any, vec![IMAGE_OWNER, "666666666666"]),
        (ImageOwners::default(), vec![]),
    ] {
        let fixture = Fixture::with_tuning(Tuning::default().with_image_owners(owners.clone())).await;
        let image = Image {
            id: "ami-0666666666666".to_owned(),
            name: "cisco-cml2.9-zzz".to_owned(),
            description: String::new(),
            creation_date: "2030-01-01T00:00:00.000Z".to_owned(),
            owner: "666666666666".to_owned(),
            sharing: Sharing::Public,
            tags: Default::default(),
        };
        fixture.cloud.world().console_put_image(REGION, image).expect("published");
        let images = fixture.ec2.images(REGION, "cisco-cml2.9*").await.expect("listed");
        let is_theirs = images.iter().any(|image| image.id == "ami-0666666666666");
        assert_eq!(is_theirs, listed.contains(&"666666666666"), "{owners}");
        assert_eq!(
            images.iter().any(|image| image.id != "ami-0666666666666"),
            listed.contains(&IMAGE_OWNER),
            "{owners}"
        );
    }
}

#[tokio::test]
async fn refused_connection_is_unreachable() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let telemetry = Telemetry::default();
    let secret = Secret::from("never-to-be-seen");
    let account = Account::with_endpoint(&format!("http://{free}"), "fake", &secret, Tuning::default(), &telemetry);
    let failure = Ec2::new(account.clone()).subnet_owner(REGION, "subnet-1").await.expect_err("connection refused");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{failure}");
    assert!(!format!("{failure:?} {account:?}").contains("never-to-be-seen"));
}

/// Set in the child process of the environment test; its value is the instance to look for.
const LOOK_FOR: &str = "LCM_TEST_LOOK_FOR";

#[tokio::test]
async fn standard_environment_configures_ec2() {
    if let Ok(id) = std::env::var(LOOK_FOR) {
        let account = Account::from_environment(Tuning::default(), &Telemetry::default()).await;
        let lookup = Ec2::new(account).instance(REGION, &id.as_str().into()).await;
        assert!(lookup.found().is_some(), "{lookup:?}");
        return;
    }
    let fixture = Fixture::start().await;
    let id = fixture.populate(1, &fixture.plan().image_id).remove(0);
    let url = fixture.cloud.endpoints().aws_url.clone();
    // The endpoint of a service has precedence.
    let closed = "http://127.0.0.1:1".to_owned();
    for endpoints in
        [vec![("AWS_ENDPOINT_URL", &url)], vec![("AWS_ENDPOINT_URL", &closed), ("AWS_ENDPOINT_URL_EC2", &url)]]
    {
        // Variables can be set safely only for a new process, so the test starts itself.
        let mut itself = std::process::Command::new(std::env::current_exe().expect("this test"));
        itself
            .args(["--exact", "compute::standard_environment_configures_ec2"])
            .env(LOOK_FOR, id.as_str())
            .env("AWS_ACCESS_KEY_ID", "fake")
            .env("AWS_SECRET_ACCESS_KEY", "fake")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env_remove("AWS_PROFILE")
            .envs(endpoints);
        let output = tokio::task::spawn_blocking(move || itself.output()).await.expect("no panic").expect("started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(fixture.request_count("DescribeInstances"), 2);
    fixture.cloud.stop().await;
}
