//! What [`Metrics`] promises.

use async_trait::async_trait;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::observation::{CloudMetrics, Lookup};
use crate::lifecycle::time::Timestamp;
use crate::ports::Metrics;

/// A far side that the suite can use.
#[async_trait]
pub trait MetricsWorld: Send + Sync {
    /// The implementation.
    fn metrics(&self) -> &dyn Metrics;

    /// The region in which everything happens.
    fn region(&self) -> &str;

    /// What time it is there.
    fn now(&self) -> Timestamp;

    /// Instances about which nothing was ever reported.
    async fn silent_instances(&self, count: usize) -> Vec<InstanceId>;

    /// Reports something about an instance, some minutes ago.
    async fn report(&self, id: &InstanceId, minutes_ago: i64, metrics: CloudMetrics);

    /// Makes every call fail with this failure's code until [`MetricsWorld::recover`].
    async fn fail(&self, failure: &CallFailure);

    /// Ends [`MetricsWorld::fail`].
    async fn recover(&self);
}

/// Checks every promise of the port, one after the other, in one world.
///
/// # Panics
/// With the promise that was broken.
pub async fn suite(world: &dyn MetricsWorld) {
    promise!(the_latest_values_come_in_the_order_of_the_ids(world));
    promise!(what_is_not_reported_is_missing_alone(world));
    promise!(nothing_from_after_the_moment_is_told(world));
    promise!(many_instances_are_asked_for_at_once(world));
    promise!(no_answer_is_never_taken_for_one(world));
}

fn all(cpu: f64, memory: f64, disk: f64) -> CloudMetrics {
    CloudMetrics { cpu_utilization: Some(cpu), memory_utilization: Some(memory), disk_utilization: Some(disk) }
}

async fn ask(world: &dyn MetricsWorld, ids: &[InstanceId]) -> Vec<Lookup<CloudMetrics>> {
    world.metrics().utilization(world.region(), ids, world.now()).await
}

async fn the_latest_values_come_in_the_order_of_the_ids(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    world.report(&ids[0], 12, all(1.0, 2.0, 3.0)).await;
    world.report(&ids[0], 6, all(10.0, 20.0, 30.0)).await;
    world.report(&ids[1], 6, all(11.0, 21.0, 31.0)).await;
    let answers = ask(world, &[ids[1].clone(), ids[0].clone(), ids[1].clone()]).await;
    let [one, other] = [all(10.0, 20.0, 30.0), all(11.0, 21.0, 31.0)].map(Lookup::Found);
    assert_eq!(answers, [other.clone(), one, other], "the latest of each, in the order of the ids");
    assert_eq!(ask(world, &[]).await, [], "no question, no answer");
}

async fn what_is_not_reported_is_missing_alone(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    let partly = CloudMetrics { cpu_utilization: Some(0.0), disk_utilization: Some(50.5), ..CloudMetrics::default() };
    world.report(&ids[0], 6, partly).await;
    let answers = ask(world, &ids).await;
    assert_eq!(answers[0], Lookup::Found(partly), "nought is a value, silence is none");
    assert_eq!(answers[1], Lookup::Found(CloudMetrics::default()), "an instance without data is found, and empty");
}

async fn nothing_from_after_the_moment_is_told(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(1).await;
    world.report(&ids[0], 20, all(1.0, 1.0, 1.0)).await;
    world.report(&ids[0], 1, all(9.0, 9.0, 9.0)).await;
    let then = world.now() - chrono::TimeDelta::minutes(15);
    let answers = world.metrics().utilization(world.region(), &ids, then).await;
    assert_eq!(answers, [Lookup::Found(all(1.0, 1.0, 1.0))]);
}

async fn many_instances_are_asked_for_at_once(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(300).await;
    for (number, id) in ids.iter().enumerate() {
        let value = f64::from(u32::try_from(number).expect("small"));
        world.report(id, 6, CloudMetrics { cpu_utilization: Some(value), ..CloudMetrics::default() }).await;
    }
    let answers = ask(world, &ids).await;
    assert_eq!(answers.len(), ids.len());
    for (number, answer) in answers.iter().enumerate() {
        let value = f64::from(u32::try_from(number).expect("small"));
        let cpu = answer.found().and_then(|metrics| metrics.cpu_utilization);
        assert_eq!(cpu, Some(value), "instance {number} has its own answer");
    }
}

async fn no_answer_is_never_taken_for_one(world: &dyn MetricsWorld) {
    let ids = world.silent_instances(2).await;
    let denied = CallFailure::coded(FailureKind::Refused, "AccessDenied", "not for you");
    world.fail(&denied).await;
    for answer in ask(world, &ids).await {
        assert_eq!(answer.failure().map(|failure| failure.kind), Some(denied.kind), "{answer:?}");
    }
    world.recover().await;
    let answers = ask(world, &ids).await;
    assert!(answers.iter().all(|answer| answer.found().is_some()), "a failure is not remembered");
}
