//! PutMetricData.

use chrono::{DateTime, TimeDelta, Utc};

use super::Asked;
use super::input::{MetricDatum, PutMetricData, invalid, metric_key, need};
use super::shape::Shape;
use crate::world::AwsError;
use crate::world::metrics::{Datum, MetricKey, Summary};

const MOST_DATA: usize = 1000;
const MOST_VALUES: usize = 150;

/// Puts all points or, if one is wrong, none.
pub(super) fn put_metric_data(asked: &Asked<'_>, input: &PutMetricData) -> Result<Shape, AwsError> {
    let namespace = need(input.namespace.as_deref().filter(|name| !name.is_empty()), "Namespace")?;
    if namespace.starts_with("AWS/") {
        return Err(invalid("Namespace", "names that begin with AWS/ are reserved"));
    }
    if input.metric_data.is_empty() {
        return Err(AwsError::new("MissingParameter", "The parameter MetricData is required."));
    }
    if input.metric_data.len() > MOST_DATA {
        return Err(invalid("MetricData", "there can be at most 1000"));
    }
    let now = asked.world.clock().now();
    let read = |datum| read_datum(namespace, datum, now);
    let data: Vec<(MetricKey, Datum)> = input.metric_data.iter().map(read).collect::<Result<_, _>>()?;
    for (key, datum) in data {
        if !asked.world.put_metric(asked.region, key, datum) {
            return Err(AwsError::new("LimitExceeded", "There are too many metrics."));
        }
    }
    Ok(Shape::Structure(Vec::new()))
}

fn read_datum(namespace: &str, datum: &MetricDatum, now: DateTime<Utc>) -> Result<(MetricKey, Datum), AwsError> {
    let name = need(datum.metric_name.as_deref().filter(|name| !name.is_empty()), "MetricData.member.N.MetricName")?;
    let key = metric_key(namespace, name, &datum.dimensions)?;
    let at = datum.timestamp.map_or(now, |moment| moment.0);
    if at < now - TimeDelta::days(14) || at > now + TimeDelta::hours(2) {
        return Err(invalid("Timestamp", "it must lie within the last two weeks or the next two hours"));
    }
    let unit = datum.unit.clone().unwrap_or_else(|| "None".to_owned());
    Ok((key, Datum { at, summary: read_summary(datum)?, unit }))
}

fn read_summary(datum: &MetricDatum) -> Result<Summary, AwsError> {
    match (&datum.value, &datum.statistic_values, &datum.values[..]) {
        (Some(value), None, []) => Ok(Summary::from_value(value.0)),
        (None, Some(set), []) => {
            let summary = Summary {
                count: need(set.sample_count, "StatisticValues.SampleCount")?.0,
                sum: need(set.sum, "StatisticValues.Sum")?.0,
                minimum: need(set.minimum, "StatisticValues.Minimum")?.0,
                maximum: need(set.maximum, "StatisticValues.Maximum")?.0,
                values: Vec::new(),
            };
            if summary.count <= 0.0 {
                return Err(invalid("StatisticValues.SampleCount", "it must be greater than 0"));
            }
            if summary.minimum > summary.maximum {
                return Err(invalid("StatisticValues", "Minimum must not be greater than Maximum"));
            }
            Ok(summary)
        }
        (None, None, []) => {
            Err(AwsError::new("MissingParameter", "At least one of Value, Values and StatisticValues is required."))
        }
        (None, None, values) => read_values(values.iter().map(|value| value.0), datum),
        (Some(_), ..) | (_, Some(_), _) => Err(AwsError::new(
            "InvalidParameterCombination",
            "Only one of Value, Values and StatisticValues may be specified.",
        )),
    }
}

fn read_values(values: impl ExactSizeIterator<Item = f64>, datum: &MetricDatum) -> Result<Summary, AwsError> {
    if values.len() > MOST_VALUES {
        return Err(invalid("Values", "there can be at most 150"));
    }
    if !datum.counts.is_empty() && datum.counts.len() != values.len() {
        let message = "The parameters Values and Counts must have the same number of members.";
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    if datum.counts.iter().any(|count| count.0 <= 0.0) {
        return Err(invalid("Counts", "each must be greater than 0"));
    }
    let count = |place: usize| datum.counts.get(place).map_or(1.0, |count| count.0);
    let summaries = values.enumerate().map(|(place, value)| Summary::from_repeated(value, count(place)));
    summaries
        .reduce(|mut sum, summary| {
            sum.add(&summary);
            sum
        })
        .ok_or_else(|| invalid("Values", "there are none"))
}
