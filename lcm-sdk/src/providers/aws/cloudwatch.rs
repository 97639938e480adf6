//! CloudWatch.

use std::collections::HashMap;

use async_trait::async_trait;
use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Metric, MetricDataQuery, MetricDataResult, MetricStat, ScanBy, StatusCode};
use chrono::TimeDelta;
use futures_util::stream::{self, StreamExt as _};

use super::account::Account;
use super::agent_metrics::Agents;
use super::call_policy::Api;
use super::clients::Clients;
use super::describe::{is_plausible, malformed};
use super::metric_names::Measure;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::observation::{CloudMetrics, Lookup};
use crate::lifecycle::time::Timestamp;
use crate::ports::Metrics;

/// CloudWatch takes so many queries in one call.
const MOST_QUERIES: usize = 500;
/// So many instances go into one call.
const MOST_INSTANCES: usize = MOST_QUERIES / Measure::ALL.len();
/// So many calls are under way at once.
const AT_ONCE: usize = 4;
/// More pages than 500 queries can fill: the token leads in circles.
const MOST_PAGES: usize = 50;
/// How far back the latest value may lie: two periods of basic monitoring, and what CloudWatch takes to show them.
const WINDOW: TimeDelta = TimeDelta::minutes(15);

/// CloudWatch, with one client per region.
///
/// # Flow
/// Three queries per instance, 166 instances per call. An agent reports under dimensions of its own choice: it is
/// asked for under `InstanceId` alone first (`aggregation_dimensions` in its configuration), and under the dimensions
/// that CloudWatch lists if nothing is found there.
///
/// # Guarantees
/// Those of [`Metrics`]. A call that fails leaves the instances of the other calls alone.
#[derive(Debug)]
pub struct CloudWatch {
    account: Account,
    clients: Clients<Client>,
    agents: Agents,
}

impl CloudWatch {
    /// CloudWatch in an account.
    pub fn new(account: Account) -> Self {
        Self { account, clients: Clients::default(), agents: Agents::default() }
    }

    /// Asks for metrics, at most 500: the latest value of each, by the name of its query.
    async fn latest(
        &self,
        region: &str,
        queries: &[MetricDataQuery],
        until: Timestamp,
    ) -> Result<HashMap<String, Latest>, CallFailure> {
        let client = self.clients.get(region, || self.account.cloudwatch(region));
        let (from, to) = (moment(until - WINDOW), moment(until));
        let mut latest: HashMap<String, Latest> = HashMap::new();
        let mut token = None;
        for _ in 0..MOST_PAGES {
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
            let page = self.account.guard().call(Api::GetMetricData, region, call).await?;
            for result in page.metric_data_results() {
                latest.entry(result.id().unwrap_or_default().to_owned()).or_default().add(result);
            }
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(latest);
            }
        }
        let message = format!("GetMetricData in {region} went on for {MOST_PAGES} pages without an end");
        Err(CallFailure::new(FailureKind::Unparsable, message))
    }

    async fn batch(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let queries: Vec<MetricDataQuery> = ids
            .iter()
            .enumerate()
            .flat_map(|(place, id)| Measure::ALL.map(|measure| query(place, measure, measure.of_instance(id))))
            .collect();
        let latest = match self.latest(region, &queries, until).await {
            Ok(latest) => latest,
            Err(failure) => return vec![Lookup::Unknown(failure); ids.len()],
        };
        let mut answers: Vec<_> = (0..ids.len()).map(|place| answer(place, &latest)).collect();
        self.ask_agents(region, ids, until, &mut answers).await;
        answers
    }

    /// Looks for what the agents of running instances report under dimensions of their own.
    async fn ask_agents(
        &self,
        region: &str,
        ids: &[InstanceId],
        until: Timestamp,
        answers: &mut [Lookup<CloudMetrics>],
    ) {
        let is_missing = |answer: &Lookup<CloudMetrics>, measure: Measure| {
            answer.found().is_some_and(|found| found.cpu_utilization.is_some() && measure.get(found).is_none())
        };
        if !answers.iter().any(|answer| Measure::OF_AGENT.iter().any(|measure| is_missing(answer, *measure))) {
            return;
        }
        let client = self.clients.get(region, || self.account.cloudwatch(region));
        let listed = match self.agents.listed(region, &client, self.account.guard()).await {
            Ok(listed) => listed,
            Err(failure) => {
                // The processor's utilisation is known all the same; the rest is missing as if no agent ran.
                tracing::warn!(target: "lcm::aws", region, %failure, "cannot list what agents report");
                return;
            }
        };
        let mut queries = Vec::new();
        for (place, (id, answer)) in ids.iter().zip(answers.iter()).enumerate() {
            for measure in Measure::OF_AGENT.into_iter().filter(|measure| is_missing(answer, *measure)) {
                queries.extend(listed.get(&(measure, id.clone())).map(|metric| query(place, measure, metric.clone())));
            }
        }
        if queries.is_empty() {
            return;
        }
        match self.latest(region, &queries, until).await {
            Ok(latest) => {
                for (place, answer) in answers.iter_mut().enumerate() {
                    if let Lookup::Found(found) = answer {
                        for measure in Measure::OF_AGENT {
                            let value = latest.get(&name(place, measure)).and_then(Latest::value);
                            measure.fill(found, value);
                        }
                    }
                }
            }
            Err(failure) => tracing::warn!(target: "lcm::aws", region, %failure, "cannot ask for what agents report"),
        }
    }
}

#[async_trait]
impl Metrics for CloudWatch {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let mut askable: Vec<InstanceId> = ids.iter().filter(|id| is_plausible(id)).cloned().collect();
        askable.sort_unstable();
        askable.dedup();
        let batches: Vec<Vec<InstanceId>> = askable.chunks(MOST_INSTANCES).map(<[_]>::to_vec).collect();
        let ask = |batch: Vec<InstanceId>| async move { self.batch(region, &batch, until).await };
        let answers: Vec<_> = stream::iter(batches).map(ask).buffered(AT_ONCE).collect().await;
        let answers: HashMap<&InstanceId, Lookup<CloudMetrics>> =
            askable.iter().zip(answers.into_iter().flatten()).collect();
        let answer = |id: &InstanceId| answers.get(id).cloned().unwrap_or_else(|| Lookup::Unknown(malformed(id)));
        ids.iter().map(answer).collect()
    }
}

/// The latest value of one query so far.
#[derive(Debug, Default)]
struct Latest {
    value: Option<(DateTime, f64)>,
    trouble: Option<FailureKind>,
}

impl Latest {
    fn add(&mut self, result: &MetricDataResult) {
        self.trouble = match result.status_code() {
            Some(StatusCode::Forbidden) => Some(FailureKind::Refused),
            Some(StatusCode::InternalError) => Some(FailureKind::Unclear),
            // Partial data: the rest is on the next page.
            _ => self.trouble,
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

fn answer(place: usize, latest: &HashMap<String, Latest>) -> Lookup<CloudMetrics> {
    let mut found = CloudMetrics::default();
    for measure in Measure::ALL {
        let Some(latest) = latest.get(&name(place, measure)) else { continue };
        if let Some(kind) = latest.trouble {
            let message = format!("CloudWatch could not read {}", measure.metric_name());
            return Lookup::Unknown(CallFailure::new(kind, message));
        }
        measure.fill(&mut found, latest.value());
    }
    Lookup::Found(found)
}

fn query(place: usize, measure: Measure, metric: Metric) -> MetricDataQuery {
    let stat = MetricStat::builder().metric(metric).period(measure.period()).stat("Average").build();
    MetricDataQuery::builder().id(name(place, measure)).metric_stat(stat).build()
}

fn name(place: usize, measure: Measure) -> String {
    format!("{}_{place}", measure.short_name())
}

fn moment(at: Timestamp) -> DateTime {
    DateTime::from_secs(at.timestamp())
}
