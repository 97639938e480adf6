//! Tests of instance metrics on a manual clock.

use std::time::Duration;

use super::*;
use crate::clock::{Clock, Pace};
use crate::world::{InstanceAction, Intent, LaunchRequest, Monitoring, Settings};

const HERE: &str = "us-east-1";

fn world(agent_dimensions: AgentDimensions) -> (World, Arc<Instance>) {
    let moment = DateTime::from_timestamp(1_767_225_600, 0).expect("a moment");
    let clock = Clock::with_start(Pace::Manual, moment);
    let world = World::new(Settings { clock, agent_dimensions, ..Settings::default() });
    let launch = world.with_ec2(|ec2, now| {
        let image = ec2.region(HERE, now)?.catalog.images[0].id.clone();
        let request = LaunchRequest { monitoring: Monitoring::Detailed, ..LaunchRequest::new(image) };
        ec2.launch(HERE, request, Intent::Execute, now)
    });
    let instance = Arc::clone(&launch.expect("it launches").instances[0]);
    (world, instance)
}

fn points(world: &World, key: &MetricKey) -> Vec<Datum> {
    let now = world.clock().now();
    world.metric_points(HERE, key, now - chrono::TimeDelta::days(1), now)
}

fn cpu(instance: &Instance) -> MetricKey {
    MetricKey::new("AWS/EC2", "CPUUtilization", [("InstanceId", instance.id.as_str())])
}

#[test]
fn points_exist_only_while_the_instance_runs() {
    let (world, instance) = world(AgentDimensions::Aggregated);
    assert!(points(&world, &cpu(&instance)).is_empty());
    world.clock().advance(Duration::from_secs(600));
    let while_running = points(&world, &cpu(&instance));
    assert_eq!(while_running.len(), 9);
    world.console_action(HERE, &instance.id, InstanceAction::Stop).expect("it stops");
    world.clock().advance(Duration::from_secs(3600));
    assert!((9..=10).contains(&points(&world, &cpu(&instance)).len()));
}

#[test]
fn values_are_reproducible() {
    let (world, instance) = world(AgentDimensions::Aggregated);
    world.clock().advance(Duration::from_secs(7200));
    let first = points(&world, &cpu(&instance));
    assert_eq!(first, points(&world, &cpu(&instance)));
    assert!(first.iter().all(|point| (0.0..=100.0).contains(&point.summary.sum)));
    assert!(first.windows(2).any(|pair| pair[0].summary != pair[1].summary));
}

#[test]
fn all_dimensions_must_match() {
    for (agent, found) in [(AgentDimensions::Aggregated, true), (AgentDimensions::Appended, false)] {
        let (world, instance) = world(agent);
        world.clock().advance(Duration::from_secs(600));
        let alone = MetricKey::new("CWAgent", "mem_used_percent", [("InstanceId", instance.id.as_str())]);
        assert_eq!(!points(&world, &alone).is_empty(), found);
        let all = MetricKey::new(
            "CWAgent",
            "mem_used_percent",
            [
                ("InstanceType", &*instance.instance_type),
                ("InstanceId", instance.id.as_str()),
                ("ImageId", &*instance.image_id),
            ],
        );
        assert!(!points(&world, &all).is_empty());
        let one_more = MetricKey::new("AWS/EC2", "CPUUtilization", [("InstanceId", &*instance.id), ("path", "/")]);
        assert!(points(&world, &one_more).is_empty());
    }
}

#[test]
fn set_point_replaces_the_reported_point() {
    let (world, instance) = world(AgentDimensions::Aggregated);
    world.clock().advance(Duration::from_secs(600));
    let before = points(&world, &cpu(&instance));
    let at = before[3].at + chrono::TimeDelta::seconds(7);
    let datum = Datum { at, summary: Summary::from_value(99.0), unit: "Percent".to_owned() };
    world.console_set_metric(HERE, cpu(&instance), datum).expect("it is set");
    let after = points(&world, &cpu(&instance));
    assert_eq!(after.len(), before.len());
    assert_eq!(after[3].summary, Summary::from_value(99.0));
    assert_eq!(after[4], before[4]);
}

#[test]
fn list_filters_by_namespace_name_and_dimensions() {
    let (world, instance) = world(AgentDimensions::Aggregated);
    assert!(world.list_metrics(HERE, &MetricFilter::default()).is_empty());
    world.clock().advance(Duration::from_secs(60));
    assert_eq!(world.list_metrics(HERE, &MetricFilter::default()).len(), 16);
    let disk = MetricFilter {
        namespace: Some("CWAgent".to_owned()),
        name: Some("disk_used_percent".to_owned()),
        dimensions: vec![("path".to_owned(), None), ("InstanceId".to_owned(), Some(instance.id.clone()))],
    };
    assert_eq!(world.list_metrics(HERE, &disk).len(), 1);
    assert!(world.list_metrics("eu-west-1", &MetricFilter::default()).is_empty());
}

#[test]
fn instance_that_never_ran_has_no_metrics() {
    let (world, instance) = world(AgentDimensions::Aggregated);
    world.clock().advance(Duration::from_secs(5));
    world.console_action(HERE, &instance.id, InstanceAction::Terminate).expect("it ends");
    world.clock().advance(Duration::from_secs(600));
    assert!(points(&world, &cpu(&instance)).is_empty());
    assert!(world.list_metrics(HERE, &MetricFilter::default()).is_empty());
}

#[test]
fn repeated_puts_are_merged_in_bounded_memory() {
    let (world, _) = world(AgentDimensions::Aggregated);
    let key = MetricKey::new("Mine", "load", [("host", "a")]);
    let at = world.clock().now();
    world.clock().advance(Duration::from_secs(1));
    let datum = |value| Datum { at, summary: Summary::from_value(value), unit: "None".to_owned() };
    for value in 0..10_000 {
        assert!(world.put_metric("us-east-1", key.clone(), datum(f64::from(value))));
    }
    let found = points(&world, &key);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].summary.count, found[0].summary.maximum), (10_000.0, 9_999.0));
    assert!(found[0].summary.values.len() < 2_000);
    world.set_metric("us-east-1", key.clone(), datum(7.0));
    assert_eq!(points(&world, &key)[0].summary, Summary::from_value(7.0));
}
