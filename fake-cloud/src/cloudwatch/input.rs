//! Inputs of the operations, deserialized from the tree of a request. Numbers may be strings, as the query protocol
//! sends them. Each member is honored or refused: an unknown one is refused, and
//! `tests/python/test_fake_cloudwatch_parameters.py` compares the names with the model of botocore.

use chrono::{DateTime, TimeDelta, Utc};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::suggest::with_suggestion;
use crate::world::AwsError;
use crate::world::metrics::MetricKey;

/// A timestamp: seconds since 1970, or a date in ISO 8601.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timestamp(pub(super) DateTime<Utc>);

/// A finite number or a string that contains one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number(pub(super) f64);

/// An integer or a string that contains one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Integer(pub(super) i64);

/// A boolean, or the string `true` or `false`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag(pub(super) bool);

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Dimension {
    pub(super) name: Option<String>,
    pub(super) value: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Metric {
    pub(super) namespace: Option<String>,
    pub(super) metric_name: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) dimensions: Vec<Dimension>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct MetricStat {
    pub(super) metric: Option<Metric>,
    pub(super) period: Option<Integer>,
    pub(super) stat: Option<String>,
    pub(super) unit: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct MetricDataQuery {
    pub(super) id: Option<String>,
    pub(super) metric_stat: Option<MetricStat>,
    pub(super) expression: Option<String>,
    pub(super) label: Option<String>,
    pub(super) period: Option<Integer>,
    pub(super) return_data: Option<Flag>,
    pub(super) account_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct GetMetricData {
    #[serde(default, deserialize_with = "list")]
    pub(super) metric_data_queries: Vec<MetricDataQuery>,
    pub(super) start_time: Option<Timestamp>,
    pub(super) end_time: Option<Timestamp>,
    pub(super) next_token: Option<String>,
    pub(super) scan_by: Option<String>,
    pub(super) max_datapoints: Option<Integer>,
    pub(super) label_options: Option<LabelOptions>,
}

/// Options of labels that show times.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct LabelOptions {
    pub(super) timezone: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct GetMetricStatistics {
    pub(super) namespace: Option<String>,
    pub(super) metric_name: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) dimensions: Vec<Dimension>,
    pub(super) start_time: Option<Timestamp>,
    pub(super) end_time: Option<Timestamp>,
    pub(super) period: Option<Integer>,
    #[serde(default, deserialize_with = "list")]
    pub(super) statistics: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) extended_statistics: Vec<String>,
    pub(super) unit: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct StatisticSet {
    pub(super) sample_count: Option<Number>,
    pub(super) sum: Option<Number>,
    pub(super) minimum: Option<Number>,
    pub(super) maximum: Option<Number>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct MetricDatum {
    pub(super) metric_name: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) dimensions: Vec<Dimension>,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) value: Option<Number>,
    pub(super) statistic_values: Option<StatisticSet>,
    #[serde(default, deserialize_with = "list")]
    pub(super) values: Vec<Number>,
    #[serde(default, deserialize_with = "list")]
    pub(super) counts: Vec<Number>,
    pub(super) unit: Option<String>,
    pub(super) storage_resolution: Option<Integer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct PutMetricData {
    pub(super) namespace: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) metric_data: Vec<MetricDatum>,
    #[serde(default, deserialize_with = "list")]
    pub(super) entity_metric_data: Vec<EntityMetricData>,
    pub(super) strict_entity_validation: Option<Flag>,
}

/// Data points of an entity. Entities are validated, and do not change the metrics.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct EntityMetricData {
    pub(super) entity: Option<Entity>,
    #[serde(default, deserialize_with = "list")]
    pub(super) metric_data: Vec<MetricDatum>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Entity {
    pub(super) key_attributes: Option<Value>,
    pub(super) attributes: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct ListMetrics {
    pub(super) namespace: Option<String>,
    pub(super) metric_name: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(super) dimensions: Vec<Dimension>,
    pub(super) next_token: Option<String>,
    pub(super) recently_active: Option<String>,
    pub(super) include_linked_accounts: Option<Flag>,
    pub(super) owning_account: Option<String>,
}

/// Deserializes an input.
pub(super) fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, AwsError> {
    T::deserialize(value).map_err(|error| AwsError::new("InvalidParameterValue", with_suggestion(error.to_string())))
}

/// Returns a required member.
pub(super) fn require<T>(member: Option<T>, name: &str) -> Result<T, AwsError> {
    member.ok_or_else(|| AwsError::new("MissingParameter", format!("The parameter {name} is required.")))
}

impl Metric {
    pub(super) fn key(&self) -> Result<MetricKey, AwsError> {
        let namespace = require(self.namespace.as_deref(), "Namespace")?;
        let name = require(self.metric_name.as_deref(), "MetricName")?;
        metric_key(namespace, name, &self.dimensions)
    }
}

pub(super) fn metric_key(namespace: &str, name: &str, dimensions: &[Dimension]) -> Result<MetricKey, AwsError> {
    if dimensions.len() > 30 {
        return Err(invalid("Dimensions", "there can be at most 30"));
    }
    let mut pairs = Vec::with_capacity(dimensions.len());
    for dimension in dimensions {
        pairs.push((require(dimension.name.as_deref(), "Name")?, require(dimension.value.as_deref(), "Value")?));
    }
    Ok(MetricKey::new(namespace, name, pairs))
}

/// Validates the form of an account id.
pub(super) fn check_account(id: &str) -> Result<(), AwsError> {
    let is_valid = id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit());
    if is_valid { Ok(()) } else { Err(invalid("AccountId", "it must have 12 digits")) }
}

pub(super) fn invalid(parameter: &str, reason: &str) -> AwsError {
    AwsError::new("InvalidParameterValue", format!("The value for parameter {parameter} is invalid: {reason}."))
}

/// Deserializes a list. The query protocol sends an empty list as an empty string.
fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        other => serde_json::from_value(other).map_err(D::Error::custom),
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        number.filter(|number| number.is_finite()).map(Self).ok_or_else(|| D::Error::custom("expected a finite number"))
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Number(number) = Number::deserialize(deserializer)?;
        if number.fract() == 0.0 && number.abs() < 1e15 {
            Ok(Self(number as i64))
        } else {
            Err(D::Error::custom("expected a whole number"))
        }
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(flag) => Ok(Self(flag)),
            Value::String(text) if text == "true" => Ok(Self(true)),
            Value::String(text) if text == "false" => Ok(Self(false)),
            _ => Err(D::Error::custom("expected true or false")),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let timestamp = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_f64().and_then(from_seconds),
            Value::String(text) => match DateTime::parse_from_rfc3339(&text) {
                Ok(timestamp) => Some(timestamp.to_utc()),
                Err(_) => text.parse().ok().and_then(from_seconds),
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        timestamp.map(Self).ok_or_else(|| D::Error::custom("expected a timestamp"))
    }
}

fn from_seconds(seconds: f64) -> Option<DateTime<Utc>> {
    // Years with four digits, so that arithmetic does not overflow.
    let millis = (seconds * 1000.0).round();
    ((-6.2e13..2.5e14).contains(&millis)).then(|| DateTime::<Utc>::UNIX_EPOCH + TimeDelta::milliseconds(millis as i64))
}
