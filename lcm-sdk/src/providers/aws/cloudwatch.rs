//! [`Metrics`] with CloudWatch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{
    Dimension, Metric, MetricDataQuery, MetricDataResult, MetricStat, RecentlyActive, ScanBy, StatusCode,
};
use chrono::TimeDelta;
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::account::{Account, ClientCache};
use super::api::{Api, Caller};
use super::describe::{is_plausible, malformed};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::CloudMetrics;
use crate::lifecycle::time::Timestamp;
use crate::ports::Metrics;

/// Maximum number of queries per call.
const MAX_QUERIES: usize = 500;
/// Maximum number of instances per call.
const MAX_INSTANCES: usize = MAX_QUERIES / Measure::ALL.len();
/// Maximum number of concurrent calls.
const CONCURRENCY: usize = 4;
/// Maximum number of pages, which 500 queries do not fill. More mean that the tokens repeat.
const MAX_PAGES: usize = 50;
/// Maximum age of a value: two periods of basic monitoring plus the delay of CloudWatch.
const WINDOW: TimeDelta = TimeDelta::minutes(15);

/// Time to live of the metric list of a region. A new agent is found after at most this time.
const LIST_TTL: Duration = Duration::from_secs(600);
/// Maximum number of pages of 500 metrics.
const MAX_LIST_PAGES: usize = 100;
/// Path of the reported file system.
const ROOT: &str = "/";

/// Name of the instance dimension.
const INSTANCE_ID: &str = "InstanceId";
/// Namespace of the CloudWatch agent.
const AGENT: &str = "CWAgent";

/// A [`Metrics`] port to CloudWatch, with one client per region.
///
/// # Flow
/// Five queries per instance, 100 instances per call. Memory and disk come from the CloudWatch agent, whose metrics have
/// configurable dimensions. They are read with the dimension `InstanceId` first (`aggregation_dimensions` of the agent),
/// then with the dimensions that CloudWatch lists.
///
/// # Guarantees
/// Those of [`Metrics`]. A failed call affects only its own instances.
#[derive(Debug)]
pub struct CloudWatch {
    account: Account,
    clients: ClientCache<Client>,
    agents: AgentMetricsCache,
}

impl CloudWatch {
    /// Creates a port to CloudWatch in an account. Makes no call.
    pub fn new(account: Account) -> Self {
        Self { account, clients: ClientCache::default(), agents: AgentMetricsCache::default() }
    }

    /// Reads the latest value of each query, by the ID of the query. Takes at most 500 queries.
    async fn latest(
        &self,
        region: &str,
        queries: &[MetricDataQuery],
        until: Timestamp,
    ) -> Result<HashMap<String, Latest>, CallFailure> {
        let client = self.clients.get(region, || self.account.cloudwatch(region));
        let (from, to) = (date_time(until - WINDOW), date_time(until));
        let mut latest: HashMap<String, Latest> = HashMap::new();
        let mut token = None;
        for _ in 0..MAX_PAGES {
            let call = || {
                client
                    .get_metric_data()
                    .set_metric_data_queries(Some(queries.to_vec()))
                    .start_time(from)
                    .end_time(to)
                    .scan_by(ScanBy::TimestampDescending)
                    .set_next_token(token.clone())
                    .send()
            };
            let page = self.account.caller().call(Api::GetMetricData, region, call).await?;
            for result in page.metric_data_results() {
                latest.entry(result.id().unwrap_or_default().to_owned()).or_default().add(result);
            }
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(latest);
            }
        }
        let message = format!("GetMetricData in {region} returned more than {MAX_PAGES} pages");
        Err(CallFailure::new(FailureKind::Unparsable, message))
    }

    async fn batch(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let queries: Vec<MetricDataQuery> = ids
            .iter()
            .enumerate()
            .flat_map(|(place, id)| Measure::ALL.map(|measure| query(place, measure, measure.instance_metric(id))))
            .collect();
        let latest = match self.latest(region, &queries, until).await {
            Ok(latest) => latest,
            Err(failure) => return vec![Lookup::Unknown(failure); ids.len()],
        };
        let mut lookups: Vec<_> = (0..ids.len()).map(|place| lookup(place, &latest)).collect();
        self.add_agent_metrics(region, ids, until, &mut lookups).await;
        lookups
    }

    /// Adds metrics that agents report with other dimensions.
    async fn add_agent_metrics(
        &self,
        region: &str,
        ids: &[InstanceId],
        until: Timestamp,
        lookups: &mut [Lookup<CloudMetrics>],
    ) {
        let is_missing = |lookup: &Lookup<CloudMetrics>, measure: Measure| {
            lookup.found().is_some_and(|found| found.cpu_utilization.is_some() && measure.get(found).is_none())
        };
        if !lookups.iter().any(|lookup| Measure::FROM_AGENT.iter().any(|measure| is_missing(lookup, *measure))) {
            return;
        }
        let client = self.clients.get(region, || self.account.cloudwatch(region));
        let listed = match self.agents.listed(region, &client, self.account.caller()).await {
            Ok(listed) => listed,
            Err(failure) => {
                // CPU utilization is known nevertheless; the rest is missing, as without an agent.
                tracing::warn!(target: "lcm::aws", region, %failure, "cannot list agent metrics");
                return;
            }
        };
        let mut queries = Vec::new();
        for (place, (id, lookup)) in ids.iter().zip(lookups.iter()).enumerate() {
            for measure in Measure::FROM_AGENT.into_iter().filter(|measure| is_missing(lookup, *measure)) {
                queries.extend(listed.get(&(measure, id.clone())).map(|metric| query(place, measure, metric.clone())));
            }
        }
        if queries.is_empty() {
            return;
        }
        match self.latest(region, &queries, until).await {
            Ok(latest) => {
                for (place, lookup) in lookups.iter_mut().enumerate() {
                    if let Lookup::Found(found) = lookup {
                        for measure in Measure::FROM_AGENT {
                            let value = latest.get(&name(place, measure)).and_then(Latest::value);
                            measure.fill(found, value);
                        }
                    }
                }
            }
            Err(failure) => tracing::warn!(target: "lcm::aws", region, %failure, "cannot read agent metrics"),
        }
    }
}

#[async_trait]
impl Metrics for CloudWatch {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let mut valid: Vec<InstanceId> = ids.iter().filter(|id| is_plausible(id)).cloned().collect();
        valid.sort_unstable();
        valid.dedup();
        let batches: Vec<Vec<InstanceId>> = valid.chunks(MAX_INSTANCES).map(<[_]>::to_vec).collect();
        let read = |batch: Vec<InstanceId>| async move { self.batch(region, &batch, until).await };
        let lookups: Vec<_> = stream::iter(batches).map(read).buffered(CONCURRENCY).collect().await;
        let lookups: HashMap<&InstanceId, Lookup<CloudMetrics>> =
            valid.iter().zip(lookups.into_iter().flatten()).collect();
        let lookup = |id: &InstanceId| lookups.get(id).cloned().unwrap_or_else(|| Lookup::Unknown(malformed(id)));
        ids.iter().map(lookup).collect()
    }
}

/// Latest value of one query.
#[derive(Debug, Default)]
struct Latest {
    value: Option<(DateTime, f64)>,
    failure: Option<FailureKind>,
}

impl Latest {
    fn add(&mut self, result: &MetricDataResult) {
        self.failure = match result.status_code() {
            Some(StatusCode::Forbidden) => Some(FailureKind::Refused),
            Some(StatusCode::InternalError) => Some(FailureKind::Unclear),
            // Partial data continues on the next page.
            _ => self.failure,
        };
        for (at, value) in result.timestamps().iter().zip(result.values()) {
            if value.is_finite() && self.value.is_none_or(|(latest, _)| *at > latest) {
                self.value = Some((*at, *value));
            }
        }
    }

    fn value(&self) -> Option<f64> {
        self.value.map(|(_, value)| value)
    }
}

fn lookup(place: usize, latest: &HashMap<String, Latest>) -> Lookup<CloudMetrics> {
    let mut found = CloudMetrics::default();
    for measure in Measure::ALL {
        let Some(latest) = latest.get(&name(place, measure)) else { continue };
        if let Some(kind) = latest.failure {
            let message = format!("CloudWatch cannot read {}", measure.metric_name());
            return Lookup::Unknown(CallFailure::new(kind, message));
        }
        measure.fill(&mut found, latest.value());
    }
    Lookup::Found(found)
}

fn query(place: usize, measure: Measure, metric: Metric) -> MetricDataQuery {
    let stat = MetricStat::builder().metric(metric).period(measure.period()).stat(measure.statistic()).build();
    MetricDataQuery::builder().id(name(place, measure)).metric_stat(stat).build()
}

fn name(place: usize, measure: Measure) -> String {
    format!("{}_{place}", measure.short_name())
}

fn date_time(at: Timestamp) -> DateTime {
    DateTime::from_secs(at.timestamp())
}

/// Metrics of agents with all dimensions, by measure and instance.
type AgentMetrics = Arc<HashMap<(Measure, InstanceId), Metric>>;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, AgentMetrics)>>>;

/// Cached agent metrics by region.
#[derive(Debug, Default)]
struct AgentMetricsCache {
    regions: Mutex<HashMap<String, Slot>>,
}

impl AgentMetricsCache {
    /// Returns the agent metrics of a region. Concurrent callers share one load.
    ///
    /// # Errors
    /// The failure of the call. A permanent failure, such as a missing permission, is returned once and then cached as an
    /// empty list, which saves calls and log lines.
    async fn listed(&self, region: &str, client: &Client, caller: &Caller) -> Result<AgentMetrics, CallFailure> {
        let slot = Arc::clone(self.regions.lock().entry(region.to_owned()).or_default());
        let mut cached = slot.lock().await;
        if let Some((at, listed)) = &*cached
            && at.elapsed() < LIST_TTL
        {
            return Ok(Arc::clone(listed));
        }
        let mut listed = HashMap::new();
        for measure in Measure::FROM_AGENT {
            if let Err(failure) = list(region, client, caller, measure, &mut listed).await {
                *cached = failure.kind.is_permanent().then(|| (Instant::now(), AgentMetrics::default()));
                return Err(failure);
            }
        }
        let listed = Arc::new(listed);
        *cached = Some((Instant::now(), Arc::clone(&listed)));
        Ok(listed)
    }
}

async fn list(
    region: &str,
    client: &Client,
    caller: &Caller,
    measure: Measure,
    listed: &mut HashMap<(Measure, InstanceId), Metric>,
) -> Result<(), CallFailure> {
    let mut token = None;
    for _ in 0..MAX_LIST_PAGES {
        let call = || {
            client
                .list_metrics()
                .namespace(AGENT)
                .metric_name(measure.metric_name())
                .recently_active(RecentlyActive::Pt3H)
                .set_next_token(token.clone())
                .send()
        };
        let page = caller.call(Api::ListMetrics, region, call).await?;
        for metric in page.metrics() {
            let Some(id) = dimension(metric, INSTANCE_ID).filter(|_| is_of_interest(metric)) else { continue };
            listed.entry((measure, id.into())).or_insert_with(|| metric.clone());
        }
        token = page.next_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(());
        }
    }
    let message = format!("ListMetrics in {region} returned more than {MAX_LIST_PAGES} pages");
    Err(CallFailure::new(FailureKind::Unparsable, message))
}

/// Whether a metric has more dimensions than `InstanceId`, which was read before, and is not about another file system
/// than the root.
fn is_of_interest(metric: &Metric) -> bool {
    metric.dimensions().len() > 1 && dimension(metric, "path").is_none_or(|path| path == ROOT)
}

fn dimension<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    metric.dimensions().iter().find(|dimension| dimension.name() == Some(name))?.value()
}

/// A measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Measure {
    Processor,
    Memory,
    Disk,
    NetworkIn,
    NetworkOut,
}

impl Measure {
    const ALL: [Self; 5] = [Self::Processor, Self::Memory, Self::Disk, Self::NetworkIn, Self::NetworkOut];
    /// Values that the agent on the instance reports.
    const FROM_AGENT: [Self; 2] = [Self::Memory, Self::Disk];

    const fn metric_name(self) -> &'static str {
        match self {
            Self::Processor => "CPUUtilization",
            Self::Memory => "mem_used_percent",
            Self::Disk => "disk_used_percent",
            Self::NetworkIn => "NetworkIn",
            Self::NetworkOut => "NetworkOut",
        }
    }

    const fn short_name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::NetworkIn => "received",
            Self::NetworkOut => "sent",
        }
    }

    const fn namespace(self) -> &'static str {
        match self {
            Self::Processor | Self::NetworkIn | Self::NetworkOut => "AWS/EC2",
            Self::Memory | Self::Disk => AGENT,
        }
    }

    /// Period in seconds: 5 min for the hypervisor, 1 min for the agent.
    const fn period(self) -> i32 {
        match self {
            Self::Processor | Self::NetworkIn | Self::NetworkOut => 300,
            Self::Memory | Self::Disk => 60,
        }
    }

    /// Statistic over one period. Bytes are summed up, so that the figure does not depend on detailed monitoring.
    const fn statistic(self) -> &'static str {
        match self {
            Self::Processor | Self::Memory | Self::Disk => "Average",
            Self::NetworkIn | Self::NetworkOut => "Sum",
        }
    }

    /// The metric of an instance with no other dimension.
    fn instance_metric(self, id: &InstanceId) -> Metric {
        let dimension = Dimension::builder().name(INSTANCE_ID).value(id.as_str()).build();
        Metric::builder().namespace(self.namespace()).metric_name(self.metric_name()).dimensions(dimension).build()
    }

    const fn get(self, metrics: &CloudMetrics) -> Option<f64> {
        match self {
            Self::Processor => metrics.cpu_utilization,
            Self::Memory => metrics.memory_utilization,
            Self::Disk => metrics.disk_utilization,
            Self::NetworkIn => metrics.network_in_bytes,
            Self::NetworkOut => metrics.network_out_bytes,
        }
    }

    /// Sets a value that is still missing.
    fn fill(self, metrics: &mut CloudMetrics, value: Option<f64>) {
        let place = match self {
            Self::Processor => &mut metrics.cpu_utilization,
            Self::Memory => &mut metrics.memory_utilization,
            Self::Disk => &mut metrics.disk_utilization,
            Self::NetworkIn => &mut metrics.network_in_bytes,
            Self::NetworkOut => &mut metrics.network_out_bytes,
        };
        *place = place.or(value);
    }
}
