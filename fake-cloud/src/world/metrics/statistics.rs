//! Points, what they come to over a period, and what can be asked about that.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

/// More values than this in a period and percentiles are taken from the first ones.
const VALUES_KEPT: usize = 1500;

/// What was measured, in sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How many samples.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The least.
    pub minimum: f64,
    /// The greatest.
    pub maximum: f64,
    /// The values themselves where they are known, with how often each occurred; for percentiles.
    pub values: Vec<(f64, f64)>,
}

/// A point of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Datum {
    /// When.
    pub at: DateTime<Utc>,
    /// What.
    pub summary: Summary,
    /// In which unit.
    pub unit: String,
}

/// What can be asked about a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// How many samples.
    SampleCount,
    /// The mean.
    Average,
    /// The sum.
    Sum,
    /// The least.
    Minimum,
    /// The greatest.
    Maximum,
    /// The value below which this percentage lies.
    Percentile(f64),
}

impl Summary {
    /// One sample.
    pub fn of(value: f64) -> Self {
        Self::of_many(value, 1.0)
    }

    /// The same sample several times.
    pub fn of_many(value: f64, count: f64) -> Self {
        Self { count, sum: value * count, minimum: value, maximum: value, values: vec![(value, count)] }
    }

    /// Takes another one in.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        let room = VALUES_KEPT.saturating_sub(self.values.len());
        self.values.extend(other.values.iter().take(room));
    }

    /// Answers a question about it. A percentile has no answer when only sums were put.
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
        let mut passed = 0.0;
        values.iter().find_map(|(value, count)| {
            passed += count;
            (passed >= rank).then_some(*value)
        })
    }
}

impl Statistic {
    /// The statistic of this name: `Average`, `p99`…
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

/// Sums points up per period, by the beginning of the period. A unit, if given, leaves the points of others out.
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

/// The last multiple of `seconds` before a moment.
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
            summary: Summary::of(value),
            unit: "Percent".to_owned(),
        }
    }

    #[test]
    fn points_of_one_period_come_to_one_summary() {
        let periods = per_period(&[at(0, 1.0), at(59, 3.0), at(60, 10.0)], 60, None);
        let averages: Vec<_> = periods.values().map(|(summary, _)| summary.get(Statistic::Average)).collect();
        assert_eq!(averages, [Some(2.0), Some(10.0)]);
    }

    #[test]
    fn percentiles_count_every_occurrence() {
        let mut summary = Summary::of_many(1.0, 98.0);
        summary.add(&Summary::of_many(50.0, 2.0));
        assert_eq!(summary.get(Statistic::Percentile(50.0)), Some(1.0));
        assert_eq!(summary.get(Statistic::Percentile(99.0)), Some(50.0));
    }

    #[test]
    fn statistics_have_names_and_other_words_are_none() {
        assert_eq!(Statistic::parse("p99.9"), Some(Statistic::Percentile(99.9)));
        for bad in ["average", "p101", "p", "Mean", ""] {
            assert_eq!(Statistic::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn another_unit_is_another_series() {
        assert!(per_period(&[at(0, 1.0)], 60, Some("Bytes")).is_empty());
    }
}
