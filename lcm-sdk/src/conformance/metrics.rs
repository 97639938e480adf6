//! Conformance suite of [`Metrics`].

use async_trait::async_trait;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CloudMetrics;
use crate::lifecycle::time::Timestamp;
use crate::ports::Metrics;

/// Fixture of the suite: a CloudWatch that instances report to.
#[async_trait]
pub trait MetricsWorld: Send + Sync {
    /// The port under test.
    fn metrics(&self) -> &dyn Metrics;

    /// Region of the instances.
    fn region(&self) -> &str;

    /// Current time of the service.
    fn now(&self) -> Timestamp;

    /// Creates instances without data.
    async fn silent_instances(&self, count: usize) -> Vec<InstanceId>;

    /// Adds a report of an instance, `minutes_ago` before now.
    async fn report(&self, id: &InstanceId, minutes_ago: i64, metrics: CloudMetrics);

    /// Fails every call with the code of `failure`, until [`MetricsWorld::recover`].
    async fn fail(&self, failure: &CallFailure);

    /// Ends the failures of [`MetricsWorld::fail`].
    async fn recover(&self);
}

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn MetricsWorld) {
    promise!(latest_values_are_returned_in_request_order(world));
    promise!(missing_values_are_none(world));
    promise!(later_values_are_ignored(world));
    promise!(batches_return_one_result_per_instance(world));
    promise!(failed_calls_are_unknown(world));
}

fn all(cpu: f64, memory: f64, disk: f64) -> CloudMetrics {
    CloudMetrics {
        cpu_utilization: Some(cpu),
        memory_utilization: Some(memory),
        disk_utilization: Some(disk),
        network_in_bytes: Some(cpu * 1000.0),
        network_out_bytes: Some(memory * 1000.0),
    }
}

async fn read(world: &dyn MetricsWorld, ids: &[InstanceId]) -> Vec<Lookup<CloudMetrics>> {
    world.metrics().utilization(world.region(), ids, world.now()).await
}

async fn latest_values_are_returned_in_request_order(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    world.report(&ids[0], 12, all(1.0, 2.0, 3.0)).await;
    world.report(&ids[0], 6, all(10.0, 20.0, 30.0)).await;
    world.report(&ids[1], 6, all(11.0, 21.0, 31.0)).await;
    let results = read(world, &[ids[1].clone(), ids[0].clone(), ids[1].clone()]).await;
    let [one, other] = [all(10.0, 20.0, 30.0), all(11.0, 21.0, 31.0)].map(Lookup::Found);
    assert_eq!(results, [other.clone(), one, other], "latest values in the order of the IDs");
    assert_eq!(read(world, &[]).await, [], "no IDs, no results");
}

async fn missing_values_are_none(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    let partly = CloudMetrics { cpu_utilization: Some(0.0), disk_utilization: Some(50.5), ..CloudMetrics::default() };
    world.report(&ids[0], 6, partly).await;
    let results = read(world, &ids).await;
    assert_eq!(results[0], Lookup::Found(partly), "zero is a value");
    assert_eq!(
        results[1],
        Lookup::Found(CloudMetrics::default()),
        "an instance without data is found with empty metrics"
    );
}

async fn later_values_are_ignored(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(1).await;
    world.report(&ids[0], 20, all(1.0, 1.0, 1.0)).await;
    world.report(&ids[0], 1, all(9.0, 9.0, 9.0)).await;
    let then = world.now() - chrono::TimeDelta::minutes(15);
    let results = world.metrics().utilization(world.region(), &ids, then).await;
    assert_eq!(results, [Lookup::Found(all(1.0, 1.0, 1.0))]);
}

async fn batches_return_one_result_per_instance(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(300).await;
    for (number, id) in ids.iter().enumerate() {
        let value = f64::from(u32::try_from(number).expect("small"));
        world.report(id, 6, CloudMetrics { cpu_utilization: Some(value), ..CloudMetrics::default() }).await;
    }
    let results = read(world, &ids).await;
    assert_eq!(results.len(), ids.len());
    for (number, result) in results.iter().enumerate() {
        let value = f64::from(u32::try_from(number).expect("small"));
        let cpu = result.found().and_then(|metrics| metrics.cpu_utilization);
        assert_eq!(cpu, Some(value), "result of instance {number}");
    }
}

async fn failed_calls_are_unknown(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    let denied = CallFailure::with_code(FailureKind::Refused, "AccessDenied", "denied");
    world.fail(&denied).await;
    for result in read(world, &ids).await {
        assert_eq!(result.failure().map(|failure| failure.kind), Some(denied.kind), "{result:?}");
    }
    world.recover().await;
    let results = read(world, &ids).await;
    assert!(results.iter().all(|result| result.found().is_some()), "failures are not cached");
}
