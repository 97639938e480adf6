//! The fake cloud, called with the unmodified AWS SDKs for Rust.

use std::time::Duration;

use aws_sdk_cloudwatch::types::{Dimension, Metric, MetricDataQuery, MetricDatum, MetricStat};
use aws_sdk_ec2::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_ec2::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_ec2::operation::run_instances::RunInstancesError;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{Filter, InstanceStateName, InstanceType, ResourceType, Tag, TagSpecification};
use fake_cloud::faults::Rule;
use fake_cloud::{FakeCloud, Pace, RequestFilter};
use lcm_sdk::{FailureKind, providers};
use serde_json::json;

async fn start() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).start().await.expect("started")
}

fn ec2(cloud: &FakeCloud) -> aws_sdk_ec2::Client {
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(&cloud.endpoints().aws_url)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("fake", "fake", None, None, "test"))
        .build();
    aws_sdk_ec2::Client::from_conf(config)
}

fn cloudwatch(cloud: &FakeCloud) -> aws_sdk_cloudwatch::Client {
    let config = aws_sdk_cloudwatch::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(&cloud.endpoints().aws_url)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("fake", "fake", None, None, "test"))
        .build();
    aws_sdk_cloudwatch::Client::from_conf(config)
}

/// Launches an instance of the newest image with a token and a tag; returns its id.
async fn try_launch(ec2: &aws_sdk_ec2::Client, token: &str) -> Result<String, SdkError<RunInstancesError>> {
    let filter = Filter::builder().name("name").values("cisco-cml2.9*").build();
    let images = ec2.describe_images().filters(filter).send().await.expect("images");
    let newest = images.images().iter().max_by_key(|image| image.creation_date().map(str::to_owned)).expect("an image");
    let tags = TagSpecification::builder()
        .resource_type(ResourceType::Instance)
        .tags(Tag::builder().key("lcm:worker_id").value("w-1").build())
        .build();
    let run = ec2
        .run_instances()
        .image_id(newest.image_id().expect("an id"))
        .instance_type(InstanceType::M5znMetal)
        .min_count(1)
        .max_count(1)
        .client_token(token)
        .tag_specifications(tags)
        .send()
        .await?;
    Ok(run.instances()[0].instance_id().expect("an id").to_owned())
}

async fn launch(ec2: &aws_sdk_ec2::Client, token: &str) -> String {
    try_launch(ec2, token).await.expect("it launches")
}

async fn state(ec2: &aws_sdk_ec2::Client, id: &str) -> InstanceStateName {
    let described = ec2.describe_instances().instance_ids(id).send().await.expect("it is there");
    let instance = &described.reservations()[0].instances()[0];
    instance.state().and_then(|state| state.name()).cloned().expect("a state")
}

#[tokio::test]
async fn token_launches_one_instance() {
    let cloud = start().await;
    let ec2 = ec2(&cloud);
    let id = launch(&ec2, "once").await;
    assert_eq!(launch(&ec2, "once").await, id);
    assert_eq!(state(&ec2, &id).await, InstanceStateName::Pending);
    let advance = || cloud.world().clock().advance(Duration::from_secs(600));
    advance();
    assert_eq!(state(&ec2, &id).await, InstanceStateName::Running);
    ec2.stop_instances().instance_ids(&id).send().await.expect("it stops");
    advance();
    assert_eq!(state(&ec2, &id).await, InstanceStateName::Stopped);
    ec2.start_instances().instance_ids(&id).send().await.expect("it starts");
    advance();
    assert_eq!(state(&ec2, &id).await, InstanceStateName::Running);
    ec2.terminate_instances().instance_ids(&id).send().await.expect("it ends");
    advance();
    assert_eq!(state(&ec2, &id).await, InstanceStateName::Terminated);

    let tagged = Filter::builder().name("tag:lcm:worker_id").values("w-*").build();
    let mut pages = ec2.describe_instances().filters(tagged).into_paginator().items().send();
    assert!(pages.next().await.is_some_and(|found| found.is_ok()));
    assert!(pages.next().await.is_none());
    cloud.stop().await;
}

#[tokio::test]
async fn error_codes_map_to_failure_kinds() {
    let cloud = start().await;
    let ec2 = ec2(&cloud);
    let unknown = ec2.describe_instances().instance_ids("i-0123456789abcdef0").send().await.expect_err("not there");
    assert_eq!(unknown.code(), Some("InvalidInstanceID.NotFound"));
    let malformed = ec2.describe_instances().instance_ids("banana").send().await.expect_err("no id");
    assert_eq!(malformed.code(), Some("InvalidInstanceID.Malformed"));

    let id = launch(&ec2, "spent").await;
    cloud.world().clock().advance(Duration::from_secs(600));
    ec2.terminate_instances().instance_ids(&id).send().await.expect("it ends");
    cloud.world().clock().advance(Duration::from_secs(600));
    let again = providers::aws::failure(&try_launch(&ec2, "spent").await.expect_err("the token is spent"));
    assert_eq!((again.kind, again.code.as_deref()), (FailureKind::LaunchDied, Some("IdempotentInstanceTerminated")));
    cloud.stop().await;
}

/// The SDK makes three attempts for retryable errors, else one, as with the real EC2.
#[tokio::test]
async fn sdk_retries_retryable_errors() {
    let cloud = start().await;
    let ec2 = ec2(&cloud);
    for (code, status, attempts, kind) in [
        ("RequestLimitExceeded", 503, 3, FailureKind::Throttled),
        ("InsufficientInstanceCapacity", 500, 3, FailureKind::NoCapacity),
        ("InsufficientInstanceCapacity", 400, 1, FailureKind::NoCapacity),
        ("InternalError", 500, 3, FailureKind::Unclear),
        ("UnauthorizedOperation", 403, 1, FailureKind::Refused),
        ("AuthFailure", 401, 1, FailureKind::RefusedForNow),
    ] {
        let rule: Rule = serde_json::from_value(json!({
            "service": "ec2", "operation": "DescribeRegions",
            "action": {"kind": "error", "code": code, "status": status},
        }))
        .expect("a rule");
        let before = request_count(&cloud, "DescribeRegions");
        let id = cloud.world().faults().add(rule).expect("a valid rule");
        let error = ec2.describe_regions().send().await.expect_err("every attempt fails");
        cloud.world().faults().remove(id);
        assert_eq!(request_count(&cloud, "DescribeRegions") - before, attempts, "{code} at {status}");
        assert_eq!(providers::aws::failure(&error).kind, kind, "{code} at {status}");
    }
    cloud.stop().await;
}

fn request_count(cloud: &FakeCloud, operation: &str) -> usize {
    let filter = RequestFilter { operation: Some(operation.to_owned()), ..RequestFilter::default() };
    cloud.world().request_log().find(&filter).len()
}

#[tokio::test]
async fn lost_launch_response_leaves_one_instance() {
    let cloud = start().await;
    let ec2 = ec2(&cloud);
    let rule = json!({"service": "ec2", "operation": "RunInstances", "times": 1, "action": {"kind": "drop-response"}});
    cloud.world().faults().add(serde_json::from_value(rule).expect("a rule")).expect("a valid rule");
    let id = launch(&ec2, "lost").await;
    let all = ec2.describe_instances().send().await.expect("a list");
    let ids: Vec<_> = all.reservations().iter().flat_map(|r| r.instances()).filter_map(|i| i.instance_id()).collect();
    assert_eq!(ids, [id.as_str()]);
    cloud.stop().await;
}

#[tokio::test]
async fn metrics_use_the_protocol_of_the_sdk() {
    let cloud = start().await;
    let (ec2, cloudwatch) = (ec2(&cloud), cloudwatch(&cloud));
    let id = launch(&ec2, "measured").await;
    cloud.world().clock().advance(Duration::from_secs(3600));
    let now = cloud.world().clock().now().timestamp();
    let query = |metric: Metric| {
        let stat = MetricStat::builder().metric(metric).period(300).stat("Average").build();
        MetricDataQuery::builder().id("m0").metric_stat(stat).build()
    };
    let values = async |metric: Metric| {
        let response = cloudwatch
            .get_metric_data()
            .metric_data_queries(query(metric))
            .start_time(DateTime::from_secs(now - 3000))
            .end_time(DateTime::from_secs(now))
            .send()
            .await
            .expect("metrics");
        response.metric_data_results()[0].values().to_vec()
    };
    let dimension = Dimension::builder().name("InstanceId").value(&id).build();
    let cpu = Metric::builder().namespace("AWS/EC2").metric_name("CPUUtilization").dimensions(dimension).build();
    let found = values(cpu).await;
    assert!(!found.is_empty() && found.iter().all(|value| (0.0..=100.0).contains(value)), "{found:?}");

    // Large enough to be compressed.
    let datum = |value: u32| {
        let at = DateTime::from_secs(now - 600);
        MetricDatum::builder().metric_name("load").value(f64::from(value)).timestamp(at).build()
    };
    let put = cloudwatch.put_metric_data().namespace("Mine").set_metric_data(Some((0..400).map(datum).collect()));
    put.send().await.expect("accepted");
    let mine = values(Metric::builder().namespace("Mine").metric_name("load").build()).await;
    assert_eq!(mine, [199.5]);

    let error = cloudwatch
        .get_metric_data()
        .metric_data_queries(query(Metric::builder().namespace("Mine").metric_name("load").build()))
        .start_time(DateTime::from_secs(now))
        .end_time(DateTime::from_secs(now - 60))
        .send()
        .await
        .expect_err("the end is before the start");
    assert_eq!(error.code(), Some("ValidationError"));
    cloud.stop().await;
}
