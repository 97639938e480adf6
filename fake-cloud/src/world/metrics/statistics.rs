//! Aggregation of data points into statistics per period.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

/// Maximum number of values retained for percentiles; further values are ignored.
const MAX_VALUES: usize = 1500;

/// Aggregate of samples.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: f64,
    /// Sum of the samples.
    pub sum: f64,
    /// Smallest of the samples.
    pub minimum: f64,
    /// Largest of the samples.
    pub maximum: f64,
    /// Known values with their counts, for percentiles.
    pub values: Vec<(f64, f64)>,
}

/// A data point of a metric.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Datum {
    /// Time of the samples.
    pub at: DateTime<Utc>,
    /// Samples at this timestamp.
    pub summary: Summary,
    /// CloudWatch unit, such as `Percent`.
    pub unit: String,
}

/// A statistic of CloudWatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// Number of samples.
    SampleCount,
    /// Mean of the samples.
    Average,
    /// Sum of the samples.
    Sum,
    /// Smallest of the samples.
    Minimum,
    /// Largest of the samples.
    Maximum,
    /// Smallest value that is not exceeded by this percentage of samples.
    Percentile(f64),
}

impl Summary {
    /// Creates the aggregate of one sample.
    pub fn from_value(value: f64) -> Self {
        Self::from_repeated(value, 1.0)
    }

    /// Creates the aggregate of `count` equal samples.
    pub fn from_repeated(value: f64, count: f64) -> Self {
        Self { count, sum: value * count, minimum: value, maximum: value, values: vec![(value, count)] }
    }

    /// Merges another aggregate into this one.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        let capacity = MAX_VALUES.saturating_sub(self.values.len());
        self.values.extend(other.values.iter().take(capacity));
    }

    /// Returns a statistic. A percentile is `None` if no values are known.
    pub fn get(&self, statistic: Statistic) -> Option<f64> {
        match statistic {
            Statistic::SampleCount => Some(self.count),
            Statistic::Average => (self.count > 0.0).then(|| self.sum / self.count),
            Statistic::Sum => Some(self.sum),
            Statistic::Minimum => Some(self.minimum),
            Statistic::Maximum => Some(self.maximum),
            Statistic::Percentile(percent) => self.percentile(percent),
        }
    }

    fn percentile(&self, percent: f64) -> Option<f64> {
        let mut values = self.values.clone();
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        let rank = values.iter().map(|(_, count)| count).sum::<f64>() * percent / 100.0;
        let mut cumulative = 0.0;
        values.iter().find_map(|(value, count)| {
            cumulative += count;
            (cumulative >= rank).then_some(*value)
        })
    }
}

impl Statistic {
    /// Parses a statistic name, such as `Average` or `p99`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "SampleCount" => Self::SampleCount,
            "Average" => Self::Average,
            "Sum" => Self::Sum,
            "Minimum" => Self::Minimum,
            "Maximum" => Self::Maximum,
            name => {
                let percent = name.strip_prefix('p')?.parse::<f64>().ok()?;
                (0.0..=100.0).contains(&percent).then_some(Self::Percentile(percent))?
            }
        })
    }
}

/// Aggregates data points by the start of their period. A given unit excludes data points of other units.
pub fn per_period(points: &[Datum], period: i64, unit: Option<&str>) -> BTreeMap<DateTime<Utc>, (Summary, String)> {
    let mut periods: BTreeMap<DateTime<Utc>, (Summary, String)> = BTreeMap::new();
    for point in points.iter().filter(|point| unit.is_none_or(|unit| unit == point.unit)) {
        let Some(start) = round_down(point.at, period) else { continue };
        periods
            .entry(start)
            .and_modify(|(summary, _)| summary.add(&point.summary))
            .or_insert_with(|| (point.summary.clone(), point.unit.clone()));
    }
    periods
}

/// Rounds a time down to a multiple of `seconds`.
pub fn round_down(moment: DateTime<Utc>, seconds: i64) -> Option<DateTime<Utc>> {
    let stamp = moment.timestamp();
    DateTime::from_timestamp(stamp - stamp.rem_euclid(seconds.max(1)), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, value: f64) -> Datum {
        Datum {
            at: DateTime::from_timestamp(seconds, 0).expect("a moment"),
            summary: Summary::from_value(value),
            unit: "Percent".to_owned(),
        }
    }

    #[test]
    fn points_of_one_period_are_aggregated() {
        let periods = per_period(&[at(0, 1.0), at(59, 3.0), at(60, 10.0)], 60, None);
        let averages: Vec<_> = periods.values().map(|(summary, _)| summary.get(Statistic::Average)).collect();
        assert_eq!(averages, [Some(2.0), Some(10.0)]);
    }

    #[test]
    fn percentiles_count_repeated_values() {
        let mut summary = Summary::from_repeated(1.0, 98.0);
        summary.add(&Summary::from_repeated(50.0, 2.0));
        assert_eq!(summary.get(Statistic::Percentile(50.0)), Some(1.0));
        assert_eq!(summary.get(Statistic::Percentile(99.0)), Some(50.0));
    }

    #[test]
    fn unknown_statistic_names_are_rejected() {
        assert_eq!(Statistic::parse("p99.9"), Some(Statistic::Percentile(99.9)));
        for bad in ["average", "p101", "p", "Mean", ""] {
            assert_eq!(Statistic::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn points_of_other_units_are_excluded() {
        assert!(per_period(&[at(0, 1.0)], 60, Some("Bytes")).is_empty());
    }
}
