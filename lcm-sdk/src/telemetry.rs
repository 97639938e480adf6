//! Prometheus metrics of a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter as Count;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use crate::lifecycle::counters::{Counter, Counts};
use crate::lifecycle::outcome::Outcome;
use crate::lifecycle::status::WorkerStatus;
use crate::lifecycle::time::Timestamp;
use crate::lifecycle::wire_enum::vocabulary;
use crate::spans::TraceContext;

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
    table: Vec<MetricInfo>,
    reconciles: Family<ResultLabel, Count>,
    durations: Durations,
    active: Gauge,
    pending: Gauge,
    queue_depth: Family<LaneLabel, Gauge>,
    counters: Family<CounterLabel, Count>,
    running_workers: Gauge,
    workers: Family<StatusLabel, Gauge>,
    status_ages: Family<StatusLabel, Gauge<f64, AtomicU64>>,
    longest_in_status: Mutex<BTreeMap<&'static str, LongestInStatus>>,
    unreadable_records: Gauge,
    degraded_records: Gauge,
    breakers: Family<TargetLabel, Gauge>,
    leader: Gauge,
    lease_age: Gauge<f64, AtomicU64>,
    shards: Mutex<BTreeSet<u16>>,
    shards_held: Gauge,
    shard_lease_ages: Family<ShardLabel, Gauge<f64, AtomicU64>>,
    batch_sizes: BatchSizes,
    anomalies: Family<AnomalyLabel, Count>,
    discovery: DiscoveryMetrics,
    watch_connected: Gauge,
    ready: Gauge,
    untrusted_regions: Family<RegionLabel, Gauge>,
    times_to_running: TimesToRunning,
    costs: Family<StatusLabel, Gauge<f64, AtomicU64>>,
    without_cost: Gauge,
}

/// One metric, for documents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricInfo {
    /// Name with its prefix, as scraped: that of a counter ends in `_total`.
    pub name: String,
    /// Kind: counter, gauge or histogram.
    pub kind: &'static str,
    /// Label, if it has one.
    pub label: Option<&'static str>,
    /// Unit of its value.
    pub unit: Unit,
    /// How its values of several controllers are combined.
    pub across: Across,
    /// Meaning of its value.
    pub meaning: &'static str,
}

vocabulary! {
    /// How the values that several controllers serve are combined to one of the fleet.
    Across, "combination" {
        /// Each counts its own part: they are added.
        Sum = "sum",
        /// Each may serve the same value, or an older one: the largest counts.
        Max = "max",
        /// Each describes its own process: they are not combined.
        Each = "each",
    }
}

vocabulary! {
    /// Unit of a metric.
    Unit, "unit" {
        /// Seconds.
        Seconds = "seconds",
        /// Seconds since 1970.
        UnixSeconds = "seconds since 1970",
        /// US dollars per hour.
        DollarsPerHour = "USD per hour",
        /// One for yes, zero for no.
        Switch = "1 or 0",
        /// A number of workers.
        Workers = "workers",
        /// A number of reconciles.
        Reconciles = "reconciles",
        /// A number of lifecycle changes.
        Changes = "changes",
        /// A number of records.
        Records = "records",
        /// A number of instances.
        Instances = "instances",
        /// A number of shards.
        Shards = "shards",
        /// A number of faults.
        Faults = "faults",
    }
}

/// Registers metrics and notes each of them for the documents.
#[derive(Default)]
struct Table {
    registry: Registry,
    rows: Vec<MetricInfo>,
}

impl Table {
    fn prefixed<'a>(&'a mut self, prefix: &'a str) -> Rows<'a> {
        Rows { registry: self.registry.sub_registry_with_prefix(prefix), rows: &mut self.rows, prefix }
    }
}

struct Rows<'a> {
    registry: &'a mut Registry,
    rows: &'a mut Vec<MetricInfo>,
    prefix: &'a str,
}

impl Rows<'_> {
    /// Adds a counter or a histogram, whose values of several controllers add up.
    fn add<M: Labeled>(&mut self, name: &'static str, unit: Unit, meaning: &'static str, metric: M) {
        self.register(name, unit, Across::Sum, meaning, metric);
    }

    /// Adds a gauge.
    fn gauge<M: Labeled>(&mut self, name: &'static str, unit: Unit, across: Across, meaning: &'static str, metric: M) {
        self.register(name, unit, across, meaning, metric);
    }

    fn register<M: Labeled>(
        &mut self,
        name: &'static str,
        unit: Unit,
        across: Across,
        meaning: &'static str,
        metric: M,
    ) {
        let kind = match metric.metric_type() {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info | MetricType::Unknown => "unknown",
        };
        let total = if kind == "counter" { "_total" } else { "" };
        let name_in_text = format!("{}_{name}{total}", self.prefix);
        self.rows.push(MetricInfo { name: name_in_text, kind, label: M::LABEL, unit, across, meaning });
        self.registry.register(name, meaning, metric);
    }
}

/// A metric that knows its label.
trait Labeled: Metric {
    const LABEL: Option<&'static str> = None;
}

impl Labeled for Count {}
impl Labeled for Gauge {}
impl Labeled for Gauge<f64, AtomicU64> {}
impl Labeled for Histogram {}
impl Labeled for HistogramWithExemplars<TraceLabel> {}

impl<L: Label, M> Labeled for Family<L, M>
where
    Self: Metric,
{
    const LABEL: Option<&'static str> = Some(L::NAME);
}

/// A set of one label.
trait Label {
    const NAME: &'static str;
}

#[derive(Debug, Default)]
struct DiscoveryMetrics {
    found: Family<RegionLabel, Gauge>,
    foreign: Family<RegionLabel, Gauge>,
    imported: Family<RegionLabel, Count>,
    orphans: Family<RegionLabel, Count>,
    frozen: Family<RegionLabel, Gauge>,
    is_frozen: Family<RegionLabel, Gauge>,
    completed_at: Family<RegionLabel, Gauge>,
}

/// Figures of one scan of a region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanFigures {
    /// Number of instances found.
    pub found: usize,
    /// Number of those that another control plane manages.
    pub foreign: usize,
    /// Number of instances imported.
    pub imported: usize,
    /// Number of records marked terminated.
    pub orphans: usize,
    /// Number of records that were kept because the region is frozen.
    pub frozen: usize,
    /// Whether the region is frozen: an absence in it would not be believed.
    pub is_frozen: bool,
    /// Time at which the scan ended, if it was complete.
    pub completed_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Durations(HistogramWithExemplars<TraceLabel>);
impl Default for Durations {
    fn default() -> Self {
        Self(HistogramWithExemplars::new(exponential_buckets(0.001, 2.0, 16)))
    }
}

#[derive(Debug)]
struct TimesToRunning(Histogram);
impl Default for TimesToRunning {
    fn default() -> Self {
        Self(Histogram::new([5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0]))
    }
}

#[derive(Debug)]
struct BatchSizes(Histogram);
impl Default for BatchSizes {
    fn default() -> Self {
        Self(Histogram::new([1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0]))
    }
}

/// Label of an exemplar: the trace that a value was measured in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl Label for ResultLabel {
    const NAME: &'static str = "result";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

impl Label for LaneLabel {
    const NAME: &'static str = "lane";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CounterLabel {
    counter: &'static str,
}

impl Label for CounterLabel {
    const NAME: &'static str = "counter";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

impl Label for StatusLabel {
    const NAME: &'static str = "status";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TargetLabel {
    target: String,
}

impl Label for TargetLabel {
    const NAME: &'static str = "target";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RegionLabel {
    region: String,
}

impl Label for RegionLabel {
    const NAME: &'static str = "region";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardLabel {
    shard: u16,
}

impl Label for ShardLabel {
    const NAME: &'static str = "shard";
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnomalyLabel {
    kind: &'static str,
}

impl Label for AnomalyLabel {
    const NAME: &'static str = "kind";
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
    /// A field of a record was written, and the next read did not show it.
    WriteNotKept,
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
    /// Absences in a region were not believed any more, because nothing proves the account of the credentials.
    RegionNotTrusted,
    /// A live instance was found whose record is terminated.
    Resurrection,
    /// A live instance was found that another control plane manages.
    ForeignInstance,
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
            Self::WriteNotKept => "write_not_kept",
            Self::EventUndelivered => "event_undelivered",
            Self::AuditUndelivered => "audit_undelivered",
            Self::WatchRelisted => "watch_relisted",
            Self::WatchGivenUp => "watch_given_up",
            Self::LeadershipLost => "leadership_lost",
            Self::RegionNotTrusted => "region_not_trusted",
            Self::Resurrection => "resurrection",
            Self::ForeignInstance => "foreign_instance",
            Self::ScanFailed => "scan_failed",
            Self::Throttled => "throttled",
        }
    }
}

/// The worker that has a status for the longest time.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LongestInStatus {
    /// Id of the worker.
    pub resource_id: String,
    /// Time in the status, in seconds.
    pub seconds: f64,
}

/// State of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls are sent.
    Closed,
    /// Calls fail at once, because the last ones all failed.
    Open,
}

const REFERENCE_PREFACE: &str = "\
# Metrics

A controller serves its metrics at `/metrics` of the admin server, in the text format of Prometheus or, if the scraper
accepts it, in the OpenMetrics format.

- A controller that does not lead serves no gauge about the fleet: they end with its term, so that no alert fires from
  the numbers of a former leader. Counters and histograms go on.
- The column *across* tells how the values of several controllers are combined: `sum` adds the parts of the fleet that
  each of them leads, `max` takes the largest of values about the same thing, and `each` describes one process.
- `reconciliation` is the default of the setting `metric_prefix`.
- A histogram has the series `_bucket`, `_sum` and `_count`.
- With traces on, the buckets of `reconciliation_reconcile_duration_seconds` have exemplars in the OpenMetrics format: the
  trace id of a reconcile. See [traces](README.md#traces).
- Alert rules are in [alerts.yml](alerts.yml), a dashboard for Grafana in [dashboard.json](dashboard.json).

This page is generated from the table in `lcm-sdk/src/telemetry.rs`; a test fails while the two differ.

| metric | kind | label | unit | across | meaning |
|---|---|---|---|---|---|
";

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
        let mut table = Table::default();
        let mut reconcile = table.prefixed(prefix);
        reconcile.add(
            "reconcile",
            Unit::Reconciles,
            "Reconciles since the start, by result",
            metrics.reconciles.clone(),
        );
        reconcile.add(
            "reconcile_duration_seconds",
            Unit::Seconds,
            "Duration of a reconcile",
            metrics.durations.0.clone(),
        );
        reconcile.gauge(
            "active_reconciles",
            Unit::Reconciles,
            Across::Sum,
            "Reconciles in progress",
            metrics.active.clone(),
        );
        reconcile.gauge(
            "resources_pending",
            Unit::Workers,
            Across::Sum,
            "Resources awaiting reconciliation",
            metrics.pending.clone(),
        );
        let mut lcm = table.prefixed("lcm");
        lcm.gauge(
            "queue_depth",
            Unit::Workers,
            Across::Sum,
            "Waiting resources by lane of the queue",
            metrics.queue_depth.clone(),
        );
        lcm.add("lifecycle", Unit::Changes, "Lifecycle changes of workers, by counter", metrics.counters.clone());
        lcm.gauge("running_workers", Unit::Workers, Across::Sum, "Workers in service", metrics.running_workers.clone());
        lcm.gauge(
            "workers",
            Unit::Workers,
            Across::Sum,
            "Workers by status at the last listing",
            metrics.workers.clone(),
        );
        lcm.gauge(
            "worker_status_age_seconds",
            Unit::Seconds,
            Across::Max,
            "Longest time that a worker has its status, by status at the last listing",
            metrics.status_ages.clone(),
        );
        lcm.add(
            "time_to_running_seconds",
            Unit::Seconds,
            "Time from the launch or start of an instance to its worker being in service",
            metrics.times_to_running.0.clone(),
        );
        lcm.gauge(
            "cost_per_hour_usd",
            Unit::DollarsPerHour,
            Across::Sum,
            "Cost of the workers by status, as far as their templates name one (cost_per_hour_usd)",
            metrics.costs.clone(),
        );
        lcm.gauge(
            "workers_without_cost",
            Unit::Workers,
            Across::Sum,
            "Workers whose template names no cost, and which are not part of it",
            metrics.without_cost.clone(),
        );
        lcm.gauge(
            "unreadable_records",
            Unit::Records,
            Across::Max,
            "Records that could not be read",
            metrics.unreadable_records.clone(),
        );
        lcm.gauge(
            "degraded_records",
            Unit::Records,
            Across::Sum,
            "Records with a field that could not be read or is probably misspelled",
            metrics.degraded_records.clone(),
        );
        lcm.gauge(
            "breaker_open",
            Unit::Switch,
            Across::Max,
            "Whether the circuit breaker of a target is open",
            metrics.breakers.clone(),
        );
        lcm.gauge("leader", Unit::Switch, Across::Max, "Whether this controller leads", metrics.leader.clone());
        lcm.gauge(
            "lease_age_seconds",
            Unit::Seconds,
            Across::Each,
            "Time since the lease was last renewed",
            metrics.lease_age.clone(),
        );
        lcm.gauge(
            "shards_held",
            Unit::Shards,
            Across::Each,
            "Shards that this controller leads",
            metrics.shards_held.clone(),
        );
        lcm.gauge(
            "shard_lease_age_seconds",
            Unit::Seconds,
            Across::Max,
            "Time since the lease of a shard that this controller leads was last renewed",
            metrics.shard_lease_ages.clone(),
        );
        lcm.add("describe_batch_size", Unit::Instances, "Instances per describe call", metrics.batch_sizes.0.clone());
        lcm.add("anomalies", Unit::Faults, "Anomalies by kind", metrics.anomalies.clone());
        let discovery = &metrics.discovery;
        lcm.gauge(
            "discovery_found",
            Unit::Instances,
            Across::Max,
            "Instances that the last scan found",
            discovery.found.clone(),
        );
        lcm.gauge(
            "discovery_foreign",
            Unit::Instances,
            Across::Max,
            "Instances of the last scan that another control plane manages",
            discovery.foreign.clone(),
        );
        lcm.add("discovery_imported", Unit::Instances, "Instances imported", discovery.imported.clone());
        lcm.add("discovery_orphans", Unit::Records, "Records marked terminated", discovery.orphans.clone());
        lcm.gauge(
            "discovery_frozen",
            Unit::Records,
            Across::Max,
            "Records kept because their region is frozen",
            discovery.frozen.clone(),
        );
        lcm.gauge(
            "region_frozen",
            Unit::Switch,
            Across::Max,
            "Whether no record of a region is marked terminated, because nothing proves the account of the last scan",
            discovery.is_frozen.clone(),
        );
        lcm.gauge(
            "discovery_last_complete_scan_timestamp_seconds",
            Unit::UnixSeconds,
            Across::Max,
            "Time of the last complete scan",
            discovery.completed_at.clone(),
        );
        lcm.gauge(
            "watch_connected",
            Unit::Switch,
            Across::Each,
            "Whether the watch is connected",
            metrics.watch_connected.clone(),
        );
        lcm.gauge("ready", Unit::Switch, Across::Each, "Whether the first sweep is done", metrics.ready.clone());
        lcm.gauge(
            "region_untrusted",
            Unit::Switch,
            Across::Max,
            "Whether absences in a region are not believed, because nothing proves the account",
            metrics.untrusted_regions.clone(),
        );
        (metrics.registry, metrics.table) = (table.registry, table.rows);
        Self { metrics: Arc::new(metrics) }
    }

    /// Counts a reconcile and its duration. Within a trace that is exported, the duration gets it as exemplar.
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.metrics.reconciles.get_or_create(&ResultLabel { result: outcome.as_str() }).inc();
        let trace = TraceContext::current().filter(TraceContext::is_sampled);
        let label = trace.map(|trace| TraceLabel { trace_id: trace.trace_id() });
        self.metrics.durations.0.observe(took.as_secs_f64(), label, None);
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

    /// Counts a scan of a region.
    pub fn scanned(&self, region: &str, figures: &ScanFigures) {
        let (metrics, label) = (&self.metrics.discovery, RegionLabel { region: region.to_owned() });
        metrics.found.get_or_create(&label).set(to_i64(figures.found));
        metrics.foreign.get_or_create(&label).set(to_i64(figures.foreign));
        metrics.imported.get_or_create(&label).inc_by(figures.imported as u64);
        metrics.orphans.get_or_create(&label).inc_by(figures.orphans as u64);
        metrics.frozen.get_or_create(&label).set(to_i64(figures.frozen));
        metrics.is_frozen.get_or_create(&label).set(figures.is_frozen.into());
        if let Some(at) = figures.completed_at {
            metrics.completed_at.get_or_create(&label).set(at.timestamp());
        }
    }

    /// Sets the number of reconciles in progress and the number of waiting resources by lane.
    pub fn set_queue_depth(&self, active: usize, waiting: [(&'static str, usize); 3]) {
        self.metrics.active.set(to_i64(active));
        self.metrics.pending.set(to_i64(waiting.iter().map(|(_, depth)| depth).sum()));
        for (lane, depth) in waiting {
            self.metrics.queue_depth.get_or_create(&LaneLabel { lane }).set(to_i64(depth));
        }
    }

    /// Sets the number of unreadable records, and of readable ones with a field that has no effect.
    pub fn set_records(&self, unreadable: usize, degraded: usize) {
        self.metrics.unreadable_records.set(to_i64(unreadable));
        self.metrics.degraded_records.set(to_i64(degraded));
    }

    /// Sets the number of workers by status and of running workers.
    pub fn set_fleet(&self, statuses: impl IntoIterator<Item = WorkerStatus>, running: usize) {
        let mut by_status: BTreeMap<WorkerStatus, usize> = BTreeMap::new();
        for status in statuses {
            *by_status.entry(status).or_default() += 1;
        }
        for status in WorkerStatus::ALL {
            let count = by_status.get(status).copied().unwrap_or_default();
            self.metrics.workers.get_or_create(&StatusLabel { status: status.as_str() }).set(to_i64(count));
        }
        self.metrics.running_workers.set(to_i64(running));
    }

    /// Sets since when workers have their status: a worker that is stuck in stopping or terminating shows by its age.
    pub fn set_status_ages<'a>(&self, ages: impl IntoIterator<Item = (WorkerStatus, &'a str, Duration)>) {
        let mut longest: BTreeMap<WorkerStatus, (&str, Duration)> = BTreeMap::new();
        for (status, id, age) in ages {
            let entry = longest.entry(status).or_insert((id, age));
            if age > entry.1 {
                *entry = (id, age);
            }
        }
        for status in WorkerStatus::ALL {
            let age = longest.get(status).map(|(_, age)| *age).unwrap_or_default();
            self.metrics.status_ages.get_or_create(&StatusLabel { status: status.as_str() }).set(age.as_secs_f64());
        }
        let shown = longest.into_iter().map(|(status, (id, age))| {
            (status.as_str(), LongestInStatus { resource_id: id.to_owned(), seconds: age.as_secs_f64() })
        });
        *self.metrics.longest_in_status.lock() = shown.collect();
    }

    /// Returns the worker that has each status for the longest time, at the last listing.
    pub fn longest_in_status(&self) -> BTreeMap<&'static str, LongestInStatus> {
        self.metrics.longest_in_status.lock().clone()
    }

    /// Observes the time from the launch or start of an instance to its worker being in service.
    pub fn observe_time_to_running(&self, took: Duration) {
        self.metrics.times_to_running.0.observe(took.as_secs_f64());
    }

    /// Sets the cost per hour by status, from the status and the cost of every worker; `None` where it is not known.
    pub fn set_costs(&self, costs: impl IntoIterator<Item = (WorkerStatus, Option<f64>)>) {
        let mut by_status: BTreeMap<WorkerStatus, f64> = BTreeMap::new();
        let mut without_cost = 0;
        for (status, cost) in costs {
            match cost {
                Some(cost) => *by_status.entry(status).or_default() += cost,
                None => without_cost += 1,
            }
        }
        for status in WorkerStatus::ALL {
            let cost = by_status.get(status).copied().unwrap_or_default();
            self.metrics.costs.get_or_create(&StatusLabel { status: status.as_str() }).set(cost);
        }
        self.metrics.without_cost.set(to_i64(without_cost));
    }

    /// Returns every metric, for documents.
    pub fn table(&self) -> &[MetricInfo] {
        &self.metrics.table
    }

    /// Returns the reference of all metrics in Markdown, as in `docs/operations/metrics.md`.
    pub fn reference() -> String {
        let mut text = String::from(REFERENCE_PREFACE);
        for MetricInfo { name, kind, label, unit, across, meaning } in Self::default().table() {
            let label = label.map(|label| format!("`{label}`")).unwrap_or_default();
            text += &format!("| `{name}` | {kind} | {label} | {unit} | {across} | {meaning}. |\n");
        }
        text
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

    /// Marks a region whose absences are not believed.
    pub fn set_region_untrusted(&self, region: &str) {
        self.metrics.untrusted_regions.get_or_create(&RegionLabel { region: region.to_owned() }).set(1);
    }

    /// Marks a region whose absences are believed again.
    pub fn set_region_trusted(&self, region: &str) {
        self.metrics.untrusted_regions.get_or_create(&RegionLabel { region: region.to_owned() }).set(0);
    }

    /// Ends what is known about the fleet, because the term has ended: another controller leads it, and counts it now.
    /// Counters and histograms go on, and so do the gauges of the process.
    pub fn end_term(&self) {
        let metrics = &*self.metrics;
        let DiscoveryMetrics { found, foreign, imported: _, orphans: _, frozen, is_frozen, completed_at } =
            &metrics.discovery;
        for family in [found, foreign, frozen, is_frozen, completed_at, &metrics.untrusted_regions] {
            family.clear();
        }
        metrics.workers.clear();
        for family in [&metrics.status_ages, &metrics.costs] {
            family.clear();
        }
        metrics.queue_depth.clear();
        metrics.longest_in_status.lock().clear();
        for gauge in [
            &metrics.active,
            &metrics.pending,
            &metrics.running_workers,
            &metrics.without_cost,
            &metrics.unreadable_records,
            &metrics.degraded_records,
            &metrics.watch_connected,
            &metrics.ready,
        ] {
            gauge.set(0);
        }
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

    /// Returns all metrics in the text format of Prometheus, version 0.0.4, which every scraper reads.
    pub fn to_prometheus_text(&self) -> String {
        let open_metrics = self.to_prometheus();
        let mut counters = std::collections::HashSet::new();
        for line in open_metrics.lines() {
            counters.extend(line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")));
        }
        let mut text = String::with_capacity(open_metrics.len());
        for line in open_metrics.lines().filter(|line| !line.starts_with("# EOF") && !line.starts_with("# UNIT ")) {
            let head = ["# HELP ", "# TYPE "].into_iter().find_map(|head| Some((head, line.strip_prefix(head)?)));
            match head.and_then(|(head, rest)| Some((head, rest.split_once(' ')?))) {
                // The samples of a counter end in `_total`, and here its family does as well.
                Some((head, (family, rest))) if counters.contains(family) => {
                    text.extend([head, family, "_total ", rest, "\n"]);
                }
                // This format has no exemplars.
                Some(_) | None => {
                    let sample = line.split_once(" # {trace_id=").map_or(line, |(sample, _)| sample);
                    text.extend([sample, "\n"]);
                }
            }
        }
        text
    }

    /// Content type of [`Self::to_prometheus`].
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    fn prefix_names_the_reconcile_metrics() {
        let telemetry = Telemetry::new("scheduling");
        telemetry.reconciled(Outcome::Success, Duration::from_millis(20));
        let text = telemetry.to_prometheus();
        for line in [
            "scheduling_reconcile_total{result=\"success\"} 1",
            "scheduling_reconcile_duration_seconds_count 1",
            "scheduling_active_reconciles 0",
            "scheduling_resources_pending 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("reconciliation_"), "{text}");
    }

    #[test]
    fn metric_names_are_stable() {
        let telemetry = Telemetry::default();
        telemetry.reconciled(Outcome::Retry, Duration::from_millis(20));
        telemetry.count(Counts::default().and(Counter::Provisioned));
        telemetry.set_queue_depth(2, [("changed", 1), ("due", 2), ("resync", 3)]);
        telemetry.set_fleet([WorkerStatus::Running, WorkerStatus::Stopped], 1);
        let age = Duration::from_secs;
        telemetry.set_status_ages([
            (WorkerStatus::Stopping, "w-1", age(60)),
            (WorkerStatus::Stopping, "w-2", age(7200)),
            (WorkerStatus::Running, "w-3", age(5)),
        ]);
        assert_eq!(telemetry.longest_in_status()["stopping"].resource_id, "w-2");
        telemetry.set_breaker("ec2/us-east-1", BreakerState::Open);
        telemetry.set_region_untrusted("us-east-1");
        telemetry.observe_batch(1000);
        telemetry.set_lease_age(Some(Duration::from_secs(3)));
        telemetry.set_shard_lease_age(7, Some(Duration::from_secs(2)));
        telemetry.set_shard_lease_age(8, Some(Duration::from_secs(1)));
        telemetry.set_shard_lease_age(8, None);
        let completed_at = crate::lifecycle::time::parse("2026-02-06T08:00:00Z");
        let figures =
            ScanFigures { found: 5, foreign: 1, imported: 2, orphans: 3, frozen: 4, is_frozen: true, completed_at };
        telemetry.scanned("us-east-1", &figures);
        telemetry.scanned("us-east-1", &ScanFigures { completed_at: None, ..figures });
        let text = telemetry.to_prometheus();
        for line in [
            "lcm_discovery_found{region=\"us-east-1\"} 5",
            "lcm_discovery_foreign{region=\"us-east-1\"} 1",
            "lcm_discovery_imported_total{region=\"us-east-1\"} 4",
            "lcm_discovery_orphans_total{region=\"us-east-1\"} 6",
            "lcm_discovery_frozen{region=\"us-east-1\"} 4",
            "lcm_discovery_last_complete_scan_timestamp_seconds{region=\"us-east-1\"} 1770364800",
            "reconciliation_reconcile_total{result=\"retry\"} 1",
            "reconciliation_reconcile_duration_seconds_count 1",
            "reconciliation_active_reconciles 2",
            "reconciliation_resources_pending 6",
            "lcm_queue_depth{lane=\"due\"} 2",
            "lcm_lifecycle_total{counter=\"provisioned_count\"} 1",
            "lcm_running_workers 1",
            "lcm_workers{status=\"stopped\"} 1",
            "lcm_worker_status_age_seconds{status=\"stopping\"} 7200.0",
            "lcm_worker_status_age_seconds{status=\"terminating\"} 0.0",
            "lcm_breaker_open{target=\"ec2/us-east-1\"} 1",
            "lcm_region_untrusted{region=\"us-east-1\"} 1",
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
