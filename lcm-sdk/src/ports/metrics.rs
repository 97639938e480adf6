use async_trait::async_trait;

use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CloudMetrics;
use crate::lifecycle::time::Timestamp;

/// CloudWatch metrics of instances.
///
/// # Promises
/// - The latest values are returned in request order.
/// - Missing values are `None`: an instance without data is `Found` with empty metrics.
/// - Later values are ignored: nothing newer than `until` is returned.
/// - Batches return one result per instance.
/// - Failed calls are [`Lookup::Unknown`], and failures are not cached.
#[async_trait]
pub trait Metrics: Send + Sync {
    /// Reads the latest utilization of instances up to a time. Returns one result per ID, in the order of the IDs.
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>>;
}
