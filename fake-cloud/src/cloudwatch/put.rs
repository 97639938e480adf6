//! PutMetricData: stores data points.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::Context;
use super::input::{MetricDatum, PutMetricData, invalid, metric_key, require};
use super::shape::Shape;
use crate::world::AwsError;
use crate::world::metrics::{Datum, MetricKey, Summary, round_down};

const MAX_DATA: usize = 1000;
const MAX_VALUES: usize = 150;

/// Stores all data points, or none of them if one is invalid.
pub(super) fn put_metric_data(context: &Context<'_>, input: &PutMetricData) -> Result<Shape, AwsError> {
    let namespace = require(input.namespace.as_deref().filter(|name| !name.is_empty()), "Namespace")?;
    if namespace.starts_with("AWS/") {
        return Err(invalid("Namespace", "names that begin with AWS/ are reserved"));
    }
    let mut of_entities: Vec<&MetricDatum> = Vec::new();
    for group in &input.entity_metric_data {
        let names = group.entity.as_ref().and_then(|entity| entity.key_attributes.as_ref());
        let is_described = names.is_some_and(|names| match names {
            Value::Object(names) => !names.is_empty(),
            Value::Array(entries) => !entries.is_empty(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        });
        // Without strict validation, CloudWatch drops an invalid entity and keeps its data points.
        if !is_described && input.strict_entity_validation.is_some_and(|flag| flag.0) {
            return Err(invalid("EntityMetricData", "an entity needs key attributes"));
        }
        // Attributes describe an entity further; no operation that is served shows them.
        let attributes = group.entity.as_ref().and_then(|entity| entity.attributes.as_ref());
        if attributes.is_some_and(|attributes| !(attributes.is_object() || attributes.is_array())) {
            return Err(invalid("EntityMetricData", "the attributes of an entity are names and values"));
        }
        of_entities.extend(&group.metric_data);
    }
    let sent: Vec<&MetricDatum> = input.metric_data.iter().chain(of_entities).collect();
    if sent.is_empty() {
        return Err(AwsError::new("MissingParameter", "The parameter MetricData is required."));
    }
    if sent.len() > MAX_DATA {
        return Err(invalid("MetricData", "there can be at most 1000"));
    }
    let now = context.world.clock().now();
    let read = |datum| parse_datum(namespace, datum, now);
    let data: Vec<(MetricKey, Datum)> = sent.into_iter().map(read).collect::<Result<_, _>>()?;
    for (key, datum) in data {
        if !context.world.put_metric(context.region, key, datum) {
            return Err(AwsError::new("LimitExceeded", "There are too many metrics."));
        }
    }
    Ok(Shape::Structure(Vec::new()))
}

fn parse_datum(namespace: &str, datum: &MetricDatum, now: DateTime<Utc>) -> Result<(MetricKey, Datum), AwsError> {
    let name = require(datum.metric_name.as_deref().filter(|name| !name.is_empty()), "MetricData.member.N.MetricName")?;
    let key = metric_key(namespace, name, &datum.dimensions)?;
    let at = datum.timestamp.map_or(now, |timestamp| timestamp.0);
    if at < now - TimeDelta::days(14) || at > now + TimeDelta::hours(2) {
        return Err(invalid("Timestamp", "it must lie within the last two weeks or the next two hours"));
    }
    // Standard resolution keeps minutes.
    let at = match datum.storage_resolution.map_or(60, |resolution| resolution.0) {
        1 => at,
        60 => round_down(at, 60).unwrap_or(at),
        _ => return Err(invalid("StorageResolution", "it must be 1 or 60")),
    };
    let unit = datum.unit.clone().unwrap_or_else(|| "None".to_owned());
    Ok((key, Datum { at, summary: parse_summary(datum)?, unit }))
}

fn parse_summary(datum: &MetricDatum) -> Result<Summary, AwsError> {
    match (&datum.value, &datum.statistic_values, &datum.values[..]) {
        (Some(value), None, []) => Ok(Summary::from_value(value.0)),
        (None, Some(set), []) => {
            let summary = Summary {
                count: require(set.sample_count, "StatisticValues.SampleCount")?.0,
                sum: require(set.sum, "StatisticValues.Sum")?.0,
                minimum: require(set.minimum, "StatisticValues.Minimum")?.0,
                maximum: require(set.maximum, "StatisticValues.Maximum")?.0,
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
        (None, None, values) => parse_values(values.iter().map(|value| value.0), datum),
        (Some(_), ..) | (_, Some(_), _) => Err(AwsError::new(
            "InvalidParameterCombination",
            "Only one of Value, Values and StatisticValues may be specified.",
        )),
    }
}

fn parse_values(values: impl ExactSizeIterator<Item = f64>, datum: &MetricDatum) -> Result<Summary, AwsError> {
    if values.len() > MAX_VALUES {
        return Err(invalid("Values", "there can be at most 150"));
    }
    if !datum.counts.is_empty() && datum.counts.len() != values.len() {
        let message = "The parameters Values and Counts must have the same number of members.";
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    if datum.counts.iter().any(|count| count.0 <= 0.0) {
        return Err(invalid("Counts", "each must be greater than 0"));
    }
    let count = |index: usize| datum.counts.get(index).map_or(1.0, |count| count.0);
    let summaries = values.enumerate().map(|(index, value)| Summary::from_repeated(value, count(index)));
    summaries
        .reduce(|mut sum, summary| {
            sum.add(&summary);
            sum
        })
        .ok_or_else(|| invalid("Values", "there are none"))
}
