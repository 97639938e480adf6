use async_trait::async_trait;

use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::observation::{CloudMetrics, Lookup};
use crate::lifecycle::time::Timestamp;

/// CloudWatch, asked for many instances at once.
#[async_trait]
pub trait Metrics: Send + Sync {
    /// The latest utilisation of instances up to a moment: one answer for each id, in the order of the ids.
    ///
    /// An instance without any data point is `Found` with nothing in it; what the agent does not report is missing
    /// alone. [`Lookup::Unknown`] if CloudWatch could not be asked.
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>>;
}
