//! Prometheus metrics of a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter as Count;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::status::WorkerStatus;

/// All metrics of one controller. Clones share their values. There is no global registry, so a process can run several
/// controllers.
///
/// ```
/// use lcm_sdk::telemetry::Telemetry;
/// use lcm_sdk::Outcome;
///
/// let telemetry = Telemetry::new("reconciliation");
/// telemetry.reconciled(Outcome::Success, std::time::Duration::from_millis(3));
/// assert!(telemetry.to_prometheus().contains("reconciliation_reconcile_total{result=\"success\"} 1"));
/// ```
#[derive(Debug, Clone)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Metrics {
    registry: Registry,
    reconciles: Family<ResultLabel, Count>,
    durations: Durations,
    active: Gauge,
    pending: Gauge,
    queue_depth: Family<LaneLabel, Gauge>,
    counters: Family<CounterLabel, Count>,
    running_workers: Gauge,
    workers: Family<StatusLabel, Gauge>,
    unreadable_records: Gauge,
    breakers: Family<TargetLabel, Gauge>,
    leader: Gauge,
    lease_age: Gauge<f64, AtomicU64>,
    shards: Mutex<BTreeSet<u16>>,
    shards_held: Gauge,
    shard_lease_ages: Family<ShardLabel, Gauge<f64, AtomicU64>>,
    batch_sizes: BatchSizes,
    anomalies: Family<AnomalyLabel, Count>,
    watch_connected: Gauge,
    ready: Gauge,
}

#[derive(Debug)]
struct Durations(Histogram);
impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.001, 2.0, 16)))
    }
}

#[derive(Debug)]
struct BatchSizes(Histogram);
impl Default for BatchSizes {
    fn default() -> Self {
        Self(Histogram::new([1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CounterLabel {
    counter: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TargetLabel {
    target: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardLabel {
    shard: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnomalyLabel {
    kind: &'static str,
}

/// Faults that are counted apart from the outcomes of reconciles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Anomaly {
    /// A reconcile panicked.
    Panic,
    /// A reconcile exceeded its timeout.
    TimedOut,
    /// A write was rejected because the record had changed.
    Conflict,
    /// An event could not be delivered.
    EventUndelivered,
    /// An audit entry could not be written.
    AuditUndelivered,
    /// The watch had to list all keys again.
    WatchRelisted,
    /// The watch paused after too many failed reconnects. Polling continues.
    WatchGivenUp,
    /// The lease was lost while leading.
    LeadershipLost,
    /// A region was frozen by garbage collection.
    RegionFrozen,
    /// A live instance was found whose record is terminated.
    Resurrection,
    /// A scan could not be completed.
    ScanFailed,
    /// AWS throttled a request.
    Throttled,
}

impl Anomaly {
    /// Returns the value of the metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::TimedOut => "timed_out",
            Self::Conflict => "conflict",
            Self::EventUndelivered => "event_undelivered",
            Self::AuditUndelivered => "audit_undelivered",
            Self::WatchRelisted => "watch_relisted",
            Self::WatchGivenUp => "watch_given_up",
            Self::LeadershipLost => "leadership_lost",
            Self::RegionFrozen => "region_frozen",
            Self::Resurrection => "resurrection",
            Self::ScanFailed => "scan_failed",
            Self::Throttled => "throttled",
        }
    }
}

/// State of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls are sent.
    Closed,
    /// Calls fail at once, because the last ones all failed.
    Open,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new("reconciliation")
    }
}

impl Telemetry {
    /// Creates metrics with all values at zero. `prefix` is the prefix of the reconcile metrics; the others start with
    /// `lcm`.
    pub fn new(prefix: &str) -> Self {
        let mut metrics = Metrics::default();
        let mut registry = Registry::default();
        let reconcile = registry.sub_registry_with_prefix(prefix);
        reconcile.register("reconcile", "Reconciliations by result", metrics.reconciles.clone());
        reconcile.register("reconcile_duration_seconds", "Duration of a reconciliation", metrics.durations.0.clone());
        reconcile.register("active_reconciles", "Reconciliations in progress", metrics.active.clone());
        reconcile.register("resources_pending", "Resources awaiting reconciliation", metrics.pending.clone());
        let lcm = registry.sub_registry_with_prefix("lcm");
        lcm.register("queue_depth", "Waiting resources by lane of the queue", metrics.queue_depth.clone());
        lcm.register("lifecycle", "Lifecycle changes of workers, by counter", metrics.counters.clone());
        lcm.register("running_workers", "Workers in service", metrics.running_workers.clone());
        lcm.register("workers", "Workers by status at the last listing", metrics.workers.clone());
        lcm.register("unreadable_records", "Records that could not be read", metrics.unreadable_records.clone());
        lcm.register("breaker_open", "Whether the circuit breaker of a target is open", metrics.breakers.clone());
        lcm.register("leader", "Whether this controller leads", metrics.leader.clone());
        lcm.register("lease_age_seconds", "Time since the lease was last renewed", metrics.lease_age.clone());
        lcm.register("shards_held", "Shards that this controller leads", metrics.shards_held.clone());
        lcm.register(
            "shard_lease_age_seconds",
            "Time since the lease of a shard that this controller leads was last renewed",
            metrics.shard_lease_ages.clone(),
        );
        lcm.register("describe_batch_size", "Instances per describe call", metrics.batch_sizes.0.clone());
        lcm.register("anomalies", "Anomalies by kind", metrics.anomalies.clone());
        lcm.register("watch_connected", "Whether the watch is connected", metrics.watch_connected.clone());
        lcm.register("ready", "Whether the first sweep is done", metrics.ready.clone());
        metrics.registry = registry;
        Self { metrics: Arc::new(metrics) }
    }

    /// Counts a reconcile and its duration.
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.metrics.reconciles.get_or_create(&ResultLabel { result: outcome.as_str() }).inc();
        self.metrics.durations.0.observe(took.as_secs_f64());
    }

    /// Raises lifecycle counters.
    pub fn count(&self, counts: Counts) {
        for counter in counts.iter() {
            self.metrics.counters.get_or_create(&CounterLabel { counter: counter.as_str() }).inc();
        }
    }

    /// Counts a fault.
    pub fn count_anomaly(&self, anomaly: Anomaly) {
        self.metrics.anomalies.get_or_create(&AnomalyLabel { kind: anomaly.as_str() }).inc();
    }

    /// Returns how often a fault was counted.
    pub fn anomalies(&self, anomaly: Anomaly) -> u64 {
        self.metrics.anomalies.get_or_create(&AnomalyLabel { kind: anomaly.as_str() }).get()
    }

    /// Sets the number of reconciles in progress and the number of waiting resources by lane.
    pub fn set_queue_depth(&self, active: usize, waiting: [(&'static str, usize); 3]) {
        self.metrics.active.set(to_i64(active));
        self.metrics.pending.set(to_i64(waiting.iter().map(|(_, depth)| depth).sum()));
        for (lane, depth) in waiting {
            self.metrics.queue_depth.get_or_create(&LaneLabel { lane }).set(to_i64(depth));
        }
    }

    /// Sets the number of workers by status, of running workers and of unreadable records.
    pub fn set_fleet(&self, statuses: impl IntoIterator<Item = WorkerStatus>, running: usize, unreadable: usize) {
        let mut by_status: BTreeMap<WorkerStatus, usize> = BTreeMap::new();
        for status in statuses {
            *by_status.entry(status).or_default() += 1;
        }
        for status in WorkerStatus::ALL {
            let count = by_status.get(status).copied().unwrap_or_default();
            self.metrics.workers.get_or_create(&StatusLabel { status: status.as_str() }).set(to_i64(count));
        }
        self.metrics.running_workers.set(to_i64(running));
        self.metrics.unreadable_records.set(to_i64(unreadable));
    }

    /// Observes the number of instances in a describe call.
    pub fn observe_batch(&self, size: usize) {
        self.metrics.batch_sizes.0.observe(to_i64(size) as f64);
    }

    /// Sets the state of the circuit breaker of a target, such as `ec2/us-east-1`.
    pub fn set_breaker(&self, target: &str, state: BreakerState) {
        let open = match state {
            BreakerState::Closed => 0,
            BreakerState::Open => 1,
        };
        self.metrics.breakers.get_or_create(&TargetLabel { target: target.to_owned() }).set(open);
    }

    /// Sets the time since the lease was renewed; `None` if this controller does not lead.
    pub fn set_lease_age(&self, age: Option<Duration>) {
        self.metrics.leader.set(age.is_some().into());
        self.metrics.lease_age.set(age.unwrap_or_default().as_secs_f64());
    }

    /// Sets the time since the lease of a shard was renewed; `None` if this controller does not lead it. A controller
    /// that leads a shard is a leader.
    pub fn set_shard_lease_age(&self, shard: u16, age: Option<Duration>) {
        let mut shards = self.metrics.shards.lock();
        let label = ShardLabel { shard };
        match age {
            Some(age) => {
                shards.insert(shard);
                self.metrics.shard_lease_ages.get_or_create(&label).set(age.as_secs_f64());
            }
            None => {
                shards.remove(&shard);
                self.metrics.shard_lease_ages.remove(&label);
            }
        }
        self.metrics.shards_held.set(to_i64(shards.len()));
        self.metrics.leader.set((!shards.is_empty()).into());
    }

    /// Marks the watch as connected.
    pub fn set_watch_connected(&self) {
        self.metrics.watch_connected.set(1);
    }

    /// Marks the watch as disconnected.
    pub fn set_watch_disconnected(&self) {
        self.metrics.watch_connected.set(0);
    }

    /// Marks the first sweep as done.
    pub fn set_ready(&self) {
        self.metrics.ready.set(1);
    }

    /// Returns the twelve counters of the admin API by name: eleven that only rise, and the number of running workers.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let rising = Counter::ALL.iter().map(|counter| {
            let name = counter.as_str();
            (name, self.metrics.counters.get_or_create(&CounterLabel { counter: name }).get())
        });
        let running = u64::try_from(self.metrics.running_workers.get()).unwrap_or_default();
        rising.chain([("running_worker_count", running)]).collect()
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.metrics.registry);
        text
    }
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_start_at_zero() {
        let telemetry = Telemetry::default();
        assert_eq!(telemetry.counters().len(), 12);
        assert!(telemetry.counters().values().all(|count| *count == 0));
        telemetry.count(Counts::default().and(Counter::Provisioned).and(Counter::OrphansTerminated));
        assert_eq!(telemetry.counters()["provisioned_count"], 1);
        assert_eq!(telemetry.counters()["orphans_terminated_count"], 1);
    }

    #[test]
    fn metric_names_are_stable() {
        let telemetry = Telemetry::default();
        telemetry.reconciled(Outcome::Retry, Duration::from_millis(20));
        telemetry.set_queue_depth(2, [("changed", 1), ("due", 2), ("resync", 3)]);
        telemetry.set_fleet([WorkerStatus::Running, WorkerStatus::Stopped], 1, 0);
        telemetry.set_breaker("ec2/us-east-1", BreakerState::Open);
        telemetry.observe_batch(1000);
        telemetry.set_lease_age(Some(Duration::from_secs(3)));
        telemetry.set_shard_lease_age(7, Some(Duration::from_secs(2)));
        telemetry.set_shard_lease_age(8, Some(Duration::from_secs(1)));
        telemetry.set_shard_lease_age(8, None);
        let text = telemetry.to_prometheus();
        for line in [
            "reconciliation_reconcile_total{result=\"retry\"} 1",
            "reconciliation_reconcile_duration_seconds_count 1",
            "reconciliation_active_reconciles 2",
            "reconciliation_resources_pending 6",
            "lcm_queue_depth{lane=\"due\"} 2",
            "lcm_workers{status=\"stopped\"} 1",
            "lcm_breaker_open{target=\"ec2/us-east-1\"} 1",
            "lcm_describe_batch_size_sum 1000.0",
            "lcm_lease_age_seconds 3.0",
            "lcm_shards_held 1",
            "lcm_shard_lease_age_seconds{shard=\"7\"} 2.0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("shard=\"8\""), "a shard that is not held has no age");
    }
}
