//! Metrics port written in Python. `lcm.ports` documents each method.

use async_trait::async_trait;
use lcm_sdk::lifecycle::CloudMetrics;
use lcm_sdk::ports::Metrics;
use lcm_sdk::{InstanceId, Lookup, Timestamp};
use pyo3::prelude::*;

use crate::bridge::Bridge;
use crate::observation::read_cloud_metrics;
use crate::port_results::{by_id, tuple};

/// Metrics port written in Python.
pub(crate) struct PythonMetrics(pub(crate) Bridge);

#[async_trait]
impl Metrics for PythonMetrics {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let (region, names) = (region.to_owned(), ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        let wanted = names.clone();
        let read = move |result: &Bound<'_, PyAny>| by_id(result, &wanted, "utilization", read_cloud_metrics);
        let lookups = self.0.call("utilization", move |py| tuple(py, (region, names, until)), read).await;
        lookups.unwrap_or_else(|failure| vec![Lookup::Unknown(failure); ids.len()])
    }
}
