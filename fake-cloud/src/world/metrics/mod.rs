//! State of CloudWatch: data points put by clients, and data points reported by instances.

mod generated;
mod statistics;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};

pub use self::statistics::{Datum, Statistic, Summary, per_period, round_down};
use super::World;
use super::instance::Instance;
use super::settings::AgentDimensions;

/// Maximum number of timestamps per metric; the oldest is dropped.
const MAX_POINTS: usize = 50_000;
/// Maximum number of units per timestamp; further units are dropped.
const MAX_UNITS: usize = 32;
/// Maximum number of metrics per region; further metrics are rejected.
const MAX_METRICS: usize = 50_000;

/// Identity of a metric. Queries must match all dimensions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct MetricKey {
    /// Namespace, such as `AWS/EC2`.
    pub namespace: String,
    /// Metric name, such as `CPUUtilization`.
    pub name: String,
    /// Names and values of the dimensions, sorted.
    pub dimensions: Vec<(String, String)>,
}

impl MetricKey {
    /// Creates a key. The dimensions may be in any order.
    pub fn new<'a>(namespace: &str, name: &str, dimensions: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut dimensions: Vec<_> =
            dimensions.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        dimensions.sort();
        Self { namespace: namespace.to_owned(), name: name.to_owned(), dimensions }
    }

    fn dimension(&self, name: &str) -> Option<&str> {
        self.dimensions.iter().find(|dimension| dimension.0 == name).map(|dimension| dimension.1.as_str())
    }
}

/// Parameters of ListMetrics.
#[derive(Debug, Clone, Default)]
pub struct MetricFilter {
    /// Required namespace; `None` accepts any.
    pub namespace: Option<String>,
    /// Required metric name; `None` accepts any.
    pub name: Option<String>,
    /// Required dimensions; `None` accepts any value. Metrics may have further dimensions.
    pub dimensions: Vec<(String, Option<String>)>,
}

impl MetricFilter {
    fn passes(&self, key: &MetricKey) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
            && self.dimensions.iter().all(|(name, wanted)| {
                key.dimension(name).is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
            })
    }
}

/// Metrics of all regions.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Metrics {
    seed: u64,
    agent: AgentDimensions,
    put: BTreeMap<String, RegionMetrics>,
}

/// Data points of a region by metric and second.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct RegionMetrics {
    #[serde(with = "crate::serial::pairs")]
    by_key: HashMap<MetricKey, BTreeMap<i64, Vec<Datum>>>,
}

impl Metrics {
    pub(super) fn new(seed: u64, agent: AgentDimensions) -> Self {
        Self { seed, agent, put: BTreeMap::new() }
    }

    fn put(&mut self, region: &str, key: MetricKey, datum: Datum) -> bool {
        let metrics = &mut self.put.entry(region.to_owned()).or_default().by_key;
        if metrics.len() >= MAX_METRICS && !metrics.contains_key(&key) {
            return false;
        }
        let points = metrics.entry(key).or_default();
        let second = points.entry(datum.at.timestamp()).or_default();
        // Repeated puts at one timestamp are merged, so that memory stays bounded.
        if let Some(known) = second.iter_mut().find(|known| known.unit == datum.unit) {
            known.summary.add(&datum.summary);
        } else if second.len() < MAX_UNITS {
            second.push(datum);
        }
        if points.len() > MAX_POINTS {
            points.pop_first();
        }
        true
    }

    fn remove(&mut self, region: &str, key: &MetricKey, at: DateTime<Utc>) {
        if let Some(points) = self.put.get_mut(region).and_then(|metrics| metrics.by_key.get_mut(key)) {
            points.remove(&at.timestamp());
        }
    }

    fn points(&self, region: &str, key: &MetricKey, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<Datum> {
        let (from, to) = (from.timestamp(), to.timestamp());
        let Some(points) = self.put.get(region).and_then(|metrics| metrics.by_key.get(key)).filter(|_| from < to)
        else {
            return Vec::new();
        };
        points.range(from..to).flat_map(|(_, data)| data.iter().cloned()).collect()
    }
}

impl World {
    /// Adds a data point. Returns `false` if the region has too many metrics.
    pub fn put_metric(&self, region: &str, key: MetricKey, datum: Datum) -> bool {
        self.metrics.lock().put(region, key, datum)
    }

    /// Replaces the data points at the timestamp of `datum`.
    pub fn set_metric(&self, region: &str, key: MetricKey, datum: Datum) {
        let mut metrics = self.metrics.lock();
        metrics.remove(region, &key, datum.at);
        metrics.put(region, key, datum);
    }

    /// Returns the data points of a metric in `from..to`, ordered by time. A put data point replaces the data point that
    /// the instance reports for the same interval.
    pub fn metric_points(&self, region: &str, key: &MetricKey, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<Datum> {
        let (instance, now) = self.with_ec2(|ec2, now| {
            let instance = key
                .dimension("InstanceId")
                .and_then(|id| ec2.region(region, now).ok().and_then(|region| region.find(id).map(Arc::clone)));
            (instance, now)
        });
        let (mut points, seed, agent) = {
            let metrics = self.metrics.lock();
            (metrics.points(region, key, from, to), metrics.seed, metrics.agent)
        };
        let Some(instance) = instance.filter(|instance| generated::keys(instance, agent).contains(key)) else {
            return points;
        };
        let interval = generated::interval(&instance, key);
        let covered: Vec<i64> = points.iter().map(|point| point.at.timestamp().div_euclid(interval)).collect();
        let reported = generated::points(seed, &instance, key, from, to, now);
        let is_free = |point: &Datum| covered.binary_search(&point.at.timestamp().div_euclid(interval)).is_err();
        points.extend(reported.into_iter().filter(is_free));
        points.sort_by_key(|point| point.at);
        points
    }

    /// Returns the matching metrics, sorted.
    pub fn list_metrics(&self, region: &str, filter: &MetricFilter) -> Vec<MetricKey> {
        let only = filter.dimensions.iter().find(|dimension| dimension.0 == "InstanceId").and_then(|one| one.1.clone());
        let instances: Vec<Arc<Instance>> = self.with_ec2(|ec2, now| match ec2.region(region, now) {
            Ok(region) => {
                let is_selected = |instance: &&Arc<Instance>| {
                    instance.has_run(now) && only.as_ref().is_none_or(|id| *id == instance.id)
                };
                region.instances().filter(is_selected).cloned().collect()
            }
            Err(_) => Vec::new(),
        });
        let metrics = self.metrics.lock();
        let mut keys: Vec<MetricKey> =
            instances.iter().flat_map(|instance| generated::keys(instance, metrics.agent)).collect();
        keys.extend(metrics.put.get(region).into_iter().flat_map(|put| put.by_key.keys().cloned()));
        drop(metrics);
        keys.retain(|key| filter.passes(key));
        keys.sort();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests;
