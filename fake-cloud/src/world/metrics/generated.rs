//! Metrics that instances report. Values are a function of the seed, the instance and the time.

use chrono::{DateTime, TimeDelta, Utc};

use super::{MetricKey, statistics::Datum, statistics::Summary};
use crate::world::instance::{Instance, Monitoring};
use crate::world::rng::{hash_text, mix, to_fraction};
use crate::world::settings::AgentDimensions;

/// Retention of one-minute data points.
const RETENTION: TimeDelta = TimeDelta::days(15);

/// A metric that instances report.
#[derive(Debug, Clone, Copy)]
struct Reported {
    name: &'static str,
    unit: &'static str,
    /// Lowest value; equal to `high` for a constant metric.
    low: f64,
    high: f64,
}

const HYPERVISOR: [Reported; 12] = [
    Reported { name: "CPUUtilization", unit: "Percent", low: 4.0, high: 55.0 },
    Reported { name: "NetworkIn", unit: "Bytes", low: 2.0e5, high: 8.0e6 },
    Reported { name: "NetworkOut", unit: "Bytes", low: 1.0e5, high: 6.0e6 },
    Reported { name: "NetworkPacketsIn", unit: "Count", low: 300.0, high: 9000.0 },
    Reported { name: "NetworkPacketsOut", unit: "Count", low: 200.0, high: 8000.0 },
    Reported { name: "DiskReadBytes", unit: "Bytes", low: 0.0, high: 4.0e6 },
    Reported { name: "DiskWriteBytes", unit: "Bytes", low: 1.0e5, high: 9.0e6 },
    Reported { name: "DiskReadOps", unit: "Count", low: 0.0, high: 400.0 },
    Reported { name: "DiskWriteOps", unit: "Count", low: 20.0, high: 900.0 },
    Reported { name: "StatusCheckFailed", unit: "Count", low: 0.0, high: 0.0 },
    Reported { name: "StatusCheckFailed_Instance", unit: "Count", low: 0.0, high: 0.0 },
    Reported { name: "StatusCheckFailed_System", unit: "Count", low: 0.0, high: 0.0 },
];

const MEMORY: Reported = Reported { name: "mem_used_percent", unit: "Percent", low: 20.0, high: 75.0 };
const DISK: Reported = Reported { name: "disk_used_percent", unit: "Percent", low: 25.0, high: 60.0 };

/// Returns the keys of all metrics of an instance.
pub(super) fn keys(instance: &Instance, agent: AgentDimensions) -> Vec<MetricKey> {
    let own = [("InstanceId", instance.id.as_str())];
    let appended = [own[0], ("ImageId", &*instance.image_id), ("InstanceType", &*instance.instance_type)];
    let mounted = [("path", "/"), ("device", "nvme0n1p1"), ("fstype", "ext4")];
    let mut keys: Vec<_> = HYPERVISOR.iter().map(|reported| MetricKey::new("AWS/EC2", reported.name, own)).collect();
    keys.push(MetricKey::new("CWAgent", MEMORY.name, appended));
    keys.push(MetricKey::new("CWAgent", DISK.name, appended.into_iter().chain(mounted)));
    match agent {
        AgentDimensions::Aggregated => {
            keys.push(MetricKey::new("CWAgent", MEMORY.name, own));
            keys.push(MetricKey::new("CWAgent", DISK.name, own));
        }
        AgentDimensions::Appended => {}
    }
    keys
}

/// Returns the data points of a metric in `from..to` whose interval has ended by `now`.
pub(super) fn points(
    seed: u64,
    instance: &Instance,
    key: &MetricKey,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Vec<Datum> {
    let Some(reported) = HYPERVISOR.iter().chain([&MEMORY, &DISK]).find(|reported| reported.name == key.name) else {
        return Vec::new();
    };
    let interval = interval(instance, key);
    let source = mix(seed ^ hash_text(&instance.id)) ^ hash_text(reported.name);
    let mut points = Vec::new();
    for run in &instance.runs {
        let begin = from.max(run.from).max(now - RETENTION).timestamp();
        // A data point is published at the end of its interval.
        let end = to.min(run.until.unwrap_or(now)).min(now - TimeDelta::seconds(interval - 1)).timestamp();
        let mut stamp = begin + (interval - begin.rem_euclid(interval)) % interval;
        while stamp < end {
            if let Some(at) = DateTime::from_timestamp(stamp, 0) {
                points.push(Datum {
                    at,
                    summary: Summary::from_value(value(source, reported, stamp)),
                    unit: reported.unit.to_owned(),
                });
            }
            stamp += interval;
        }
    }
    points
}

/// Returns the reporting interval of a metric, in seconds.
pub(super) fn interval(instance: &Instance, key: &MetricKey) -> i64 {
    match (key.namespace.as_str(), instance.monitoring) {
        ("AWS/EC2", Monitoring::Basic) => 300,
        ("AWS/EC2", Monitoring::Detailed) | (_, Monitoring::Basic | Monitoring::Detailed) => 60,
    }
}

/// Returns a base level per metric plus an hourly wave and noise, clamped to the bounds of the metric.
fn value(source: u64, reported: &Reported, stamp: i64) -> f64 {
    let level = to_fraction(mix(source));
    let phase = to_fraction(mix(source ^ 1)) * std::f64::consts::TAU;
    let wave = (stamp as f64 / 3600.0 * std::f64::consts::TAU + phase).sin();
    let noise = to_fraction(mix(source ^ mix(stamp as u64))) - 0.5;
    let share = (0.15 + 0.7 * level + 0.1 * wave + 0.1 * noise).clamp(0.0, 1.0);
    reported.low + (reported.high - reported.low) * share
}
