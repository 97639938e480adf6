use async_trait::async_trait;

use crate::core::ids::InstanceId;
use crate::core::observation::{Answer, CloudMetrics};
use crate::core::time::Timestamp;

/// CloudWatch, asked for many instances at once.
#[async_trait]
pub trait Metrics: Send + Sync {
    /// The latest utilisation of instances up to a moment: one answer for each id, in the order of the ids.
    ///
    /// An instance without any data point is `Found` with nothing in it; what the agent does not report is missing
    /// alone. [`Answer::Unknown`] if CloudWatch could not be asked.
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Answer<CloudMetrics>>;
}
