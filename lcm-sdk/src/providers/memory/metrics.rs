//! CloudWatch in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CloudMetrics;
use crate::lifecycle::time::Timestamp;
use crate::ports::Metrics;

/// A [`Metrics`] port in memory: reported values by instance and time.
///
/// ```
/// use lcm_sdk::providers::memory::MemoryMetrics;
/// use lcm_sdk::lifecycle::CloudMetrics;
/// use lcm_sdk::ports::Metrics;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let metrics = MemoryMetrics::default();
/// let noon = "2026-02-06T12:00:00Z".parse()?;
/// let busy = CloudMetrics { cpu_utilization: Some(97.0), ..CloudMetrics::default() };
/// metrics.report("us-east-1", &"i-1".into(), noon, busy);
/// let seen = metrics.utilization("us-east-1", &["i-1".into()], noon).await;
/// assert_eq!(seen[0].found(), Some(&busy));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Default)]
pub struct MemoryMetrics {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reports: HashMap<(String, InstanceId), BTreeMap<Timestamp, CloudMetrics>>,
    failures: VecDeque<CallFailure>,
    calls: Vec<(String, Vec<InstanceId>)>,
}

impl MemoryMetrics {
    /// Adds a report of an instance. Fields that are `None` are not reported.
    pub fn report(&self, region: &str, id: &InstanceId, at: Timestamp, metrics: CloudMetrics) {
        let mut state = self.state.lock();
        state.reports.entry((region.to_owned(), id.clone())).or_default().insert(at, metrics);
    }

    /// Fails the next call. Failures queue up, one per call.
    pub fn fail_next(&self, failure: CallFailure) {
        self.state.lock().failures.push_back(failure);
    }

    /// Discards queued failures.
    pub fn clear_failures(&self) {
        self.state.lock().failures.clear();
    }

    /// Region and instances of every call, oldest first.
    pub fn calls(&self) -> Vec<(String, Vec<InstanceId>)> {
        self.state.lock().calls.clone()
    }
}

#[async_trait]
impl Metrics for MemoryMetrics {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let mut state = self.state.lock();
        state.calls.push((region.to_owned(), ids.to_vec()));
        if let Some(failure) = state.failures.pop_front() {
            return vec![Lookup::Unknown(failure); ids.len()];
        }
        let latest = |id: &InstanceId| {
            let mut latest = CloudMetrics::default();
            let reports = state.reports.get(&(region.to_owned(), id.clone()));
            for (_, report) in reports.iter().flat_map(|reports| reports.range(..=until)) {
                latest.cpu_utilization = report.cpu_utilization.or(latest.cpu_utilization);
                latest.memory_utilization = report.memory_utilization.or(latest.memory_utilization);
                latest.disk_utilization = report.disk_utilization.or(latest.disk_utilization);
                latest.network_in_bytes = report.network_in_bytes.or(latest.network_in_bytes);
                latest.network_out_bytes = report.network_out_bytes.or(latest.network_out_bytes);
            }
            Lookup::Found(latest)
        };
        ids.iter().map(latest).collect()
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::conformance::metrics::{MetricsWorld, suite};

    #[derive(Default)]
    struct Fixture {
        metrics: MemoryMetrics,
        instances: std::sync::atomic::AtomicUsize,
    }

    #[async_trait]
    impl MetricsWorld for Fixture {
        fn metrics(&self) -> &dyn Metrics {
            &self.metrics
        }

        fn region(&self) -> &str {
            "us-east-1"
        }

        fn now(&self) -> Timestamp {
            "2026-02-06T08:00:00Z".parse().expect("a moment")
        }

        async fn silent_instances(&self, count: usize) -> Vec<InstanceId> {
            let first = self.instances.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            (first..first + count).map(|number| format!("i-{number:08x}").into()).collect()
        }

        async fn report(&self, id: &InstanceId, minutes_ago: i64, metrics: CloudMetrics) {
            self.metrics.report(self.region(), id, self.now() - TimeDelta::minutes(minutes_ago), metrics);
        }

        async fn fail(&self, failure: &CallFailure) {
            self.metrics.fail_next(failure.clone());
        }

        async fn recover(&self) {
            self.metrics.clear_failures();
        }
    }

    #[tokio::test]
    async fn memory_metrics_conform() {
        suite(&Fixture::default()).await;
    }
}
