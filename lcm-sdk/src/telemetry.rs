//! What the runtime counts and measures, as Prometheus metrics.

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

/// All metrics of one runtime. Clones share them; every runtime has its own, so that many can live in one process.
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
    mishaps: Family<MishapLabel, Count>,
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
struct MishapLabel {
    kind: &'static str,
}

/// Things that go wrong beside the outcomes of passes, each counted under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// A reconcile panicked.
    Panic,
    /// A reconcile took too long.
    TimedOut,
    /// A write met a record that had changed.
    Conflict,
    /// An event could not be delivered.
    EventUndelivered,
    /// An audit entry could not be written.
    AuditUndelivered,
    /// The watch had to list everything again.
    WatchRelisted,
    /// The watch gave up for now; polling carries on.
    WatchGivenUp,
    /// The lease was lost while leading.
    LeadershipLost,
    /// A region was frozen by garbage collection.
    RegionFrozen,
    /// A live instance was found whose record says terminated.
    Resurrection,
    /// A scan could not be completed.
    ScanFailed,
    /// AWS asked us to slow down.
    Throttled,
}

impl Anomaly {
    /// The label.
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

/// Whether calls to a target are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// They are.
    Closed,
    /// They fail at once, because the last ones all did.
    Open,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new("reconciliation")
    }
}

impl Telemetry {
    /// Fresh metrics. The prefix is that of the reconcile metrics; the others begin with `lcm`.
    pub fn new(prefix: &str) -> Self {
        let mut metrics = Metrics::default();
        let mut registry = Registry::default();
        let reconcile = registry.sub_registry_with_prefix(prefix);
        reconcile.register("reconcile", "Reconciliations by result", metrics.reconciles.clone());
        reconcile.register("reconcile_duration_seconds", "Duration of a reconciliation", metrics.durations.0.clone());
        reconcile.register("active_reconciles", "Reconciliations in progress", metrics.active.clone());
        reconcile.register("resources_pending", "Resources awaiting reconciliation", metrics.pending.clone());
        let lcm = registry.sub_registry_with_prefix("lcm");
        lcm.register("queue_depth", "Resources waiting in a lane of the queue", metrics.queue_depth.clone());
        lcm.register("lifecycle", "What happened to workers, by counter", metrics.counters.clone());
        lcm.register("running_workers", "Workers in service", metrics.running_workers.clone());
        lcm.register("workers", "Workers by status at the last listing", metrics.workers.clone());
        lcm.register("unreadable_records", "Records that could not be read", metrics.unreadable_records.clone());
        lcm.register("breaker_open", "Whether calls to a target are held back", metrics.breakers.clone());
        lcm.register("leader", "Whether this controller leads", metrics.leader.clone());
        lcm.register("lease_age_seconds", "Time since the lease was last renewed", metrics.lease_age.clone());
        lcm.register("shards_held", "Shards that this controller leads", metrics.shards_held.clone());
        lcm.register(
            "shard_lease_age_seconds",
            "Time since the lease of a shard that this controller leads was last renewed",
            metrics.shard_lease_ages.clone(),
        );
        lcm.register("describe_batch_size", "Instances asked for in one describe", metrics.batch_sizes.0.clone());
        lcm.register("mishaps", "Things that went wrong, by kind", metrics.mishaps.clone());
        lcm.register("watch_connected", "Whether the watch is connected", metrics.watch_connected.clone());
        lcm.register("ready", "Whether the first sweep is done", metrics.ready.clone());
        metrics.registry = registry;
        Self { metrics: Arc::new(metrics) }
    }

    /// Counts a reconciliation.
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.metrics.reconciles.get_or_create(&ResultLabel { result: outcome.as_str() }).inc();
        self.metrics.durations.0.observe(took.as_secs_f64());
    }

    /// Counts what was recorded.
    pub fn count(&self, counts: Counts) {
        for counter in counts.iter() {
            self.metrics.counters.get_or_create(&CounterLabel { counter: counter.as_str() }).inc();
        }
    }

    /// Counts something that went wrong.
    pub fn count_anomaly(&self, count_anomaly: Anomaly) {
        self.metrics.mishaps.get_or_create(&MishapLabel { kind: count_anomaly.as_str() }).inc();
    }

    /// How often something went wrong.
    pub fn mishaps(&self, count_anomaly: Anomaly) -> u64 {
        self.metrics.mishaps.get_or_create(&MishapLabel { kind: count_anomaly.as_str() }).get()
    }

    /// Notes how busy the queue is.
    pub fn queue(&self, active: usize, waiting: [(&'static str, usize); 3]) {
        self.metrics.active.set(whole(active));
        self.metrics.pending.set(whole(waiting.iter().map(|(_, depth)| depth).sum()));
        for (lane, depth) in waiting {
            self.metrics.queue_depth.get_or_create(&LaneLabel { lane }).set(whole(depth));
        }
    }

    /// Notes what a listing showed.
    pub fn fleet(&self, statuses: impl IntoIterator<Item = WorkerStatus>, running: usize, unreadable: usize) {
        let mut by_status: BTreeMap<WorkerStatus, usize> = BTreeMap::new();
        for status in statuses {
            *by_status.entry(status).or_default() += 1;
        }
        for status in WorkerStatus::ALL {
            let count = by_status.get(status).copied().unwrap_or_default();
            self.metrics.workers.get_or_create(&StatusLabel { status: status.as_str() }).set(whole(count));
        }
        self.metrics.running_workers.set(whole(running));
        self.metrics.unreadable_records.set(whole(unreadable));
    }

    /// Notes the size of a describe.
    pub fn batch(&self, size: usize) {
        self.metrics.batch_sizes.0.observe(whole(size) as f64);
    }

    /// Notes whether calls to a target, such as `ec2/us-east-1`, are let through.
    pub fn breaker(&self, target: &str, state: BreakerState) {
        let open = match state {
            BreakerState::Closed => 0,
            BreakerState::Open => 1,
        };
        self.metrics.breakers.get_or_create(&TargetLabel { target: target.to_owned() }).set(open);
    }

    /// Notes how old the lease is; `None` if this controller does not lead.
    pub fn lease(&self, age: Option<Duration>) {
        self.metrics.leader.set(age.is_some().into());
        self.metrics.lease_age.set(age.unwrap_or_default().as_secs_f64());
    }

    /// Notes how old the lease of a shard is; `None` if this controller does not lead it. Whoever leads one leads.
    pub fn shard(&self, shard: u16, age: Option<Duration>) {
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
        self.metrics.shards_held.set(whole(shards.len()));
        self.metrics.leader.set((!shards.is_empty()).into());
    }

    /// Notes that the watch is connected.
    pub fn watch_connected(&self) {
        self.metrics.watch_connected.set(1);
    }

    /// Notes that the watch is not connected.
    pub fn watch_disconnected(&self) {
        self.metrics.watch_connected.set(0);
    }

    /// Notes that the first sweep is done.
    pub fn ready(&self) {
        self.metrics.ready.set(1);
    }

    /// The twelve counters by name: eleven that only rise, and the workers in service.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let rising = Counter::ALL.iter().map(|counter| {
            let name = counter.as_str();
            (name, self.metrics.counters.get_or_create(&CounterLabel { counter: name }).get())
        });
        let running = u64::try_from(self.metrics.running_workers.get()).unwrap_or_default();
        rising.chain([("running_worker_count", running)]).collect()
    }

    /// Everything in the text format of Prometheus.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.metrics.registry);
        text
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_counters_are_there_from_the_start() {
        let telemetry = Telemetry::default();
        assert_eq!(telemetry.counters().len(), 12);
        assert!(telemetry.counters().values().all(|count| *count == 0));
        telemetry.count(Counts::default().and(Counter::Provisioned).and(Counter::OrphansTerminated));
        assert_eq!(telemetry.counters()["provisioned_count"], 1);
        assert_eq!(telemetry.counters()["orphans_terminated_count"], 1);
    }

    #[test]
    fn the_names_of_the_documents_are_in_the_text() {
        let telemetry = Telemetry::default();
        telemetry.reconciled(Outcome::Retry, Duration::from_millis(20));
        telemetry.queue(2, [("changed", 1), ("due", 2), ("resync", 3)]);
        telemetry.fleet([WorkerStatus::Running, WorkerStatus::Stopped], 1, 0);
        telemetry.breaker("ec2/us-east-1", BreakerState::Open);
        telemetry.batch(1000);
        telemetry.lease(Some(Duration::from_secs(3)));
        telemetry.shard(7, Some(Duration::from_secs(2)));
        telemetry.shard(8, Some(Duration::from_secs(1)));
        telemetry.shard(8, None);
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
        assert!(!text.contains("shard=\"8\""), "what is not held is not shown");
    }
}
