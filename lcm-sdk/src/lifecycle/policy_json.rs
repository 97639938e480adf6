//! Converts policies from and to JSON, in which times are seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::Segment;
use thiserror::Error;

use super::backoff::Backoff;
use super::policy::{ExternalStopPolicy, OrphanPolicy, Policy, ScaleDownPolicy};
use super::region::{RegionConfig, RegionConfigs};

/// Fields that do not make a policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A time is negative, infinite or too long.
    #[error("policy.{field} is {seconds} s; accepted: a time from 0 up")]
    Time {
        /// Name of the field.
        field: &'static str,
        /// The value as given.
        seconds: String,
    },
    /// A field has a value of the wrong kind.
    #[error("policy.{field} is {value}; accepted: {accepted}")]
    Value {
        /// Path of the field.
        field: String,
        /// The value as given.
        value: String,
        /// The accepted values.
        accepted: String,
    },
    /// A field is unknown or missing, or there are no fields.
    #[error("policy{part}: {problem}")]
    Fields {
        /// Path of the object, after a dot; empty for the policy itself.
        part: String,
        /// The problem.
        problem: String,
    },
}

impl PolicyError {
    fn of_policy(problem: impl Into<String>) -> Self {
        Self::Fields { part: String::new(), problem: problem.into() }
    }

    /// Names the field of an error.
    fn at(given: &Value, error: &serde_path_to_error::Error<serde_json::Error>) -> Self {
        let (mut value, mut field) = (Some(given), String::new());
        for segment in error.path() {
            match segment {
                Segment::Map { key } => {
                    value = value.and_then(|value| value.get(key));
                    field = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
                }
                Segment::Seq { index } => {
                    value = value.and_then(|value| value.get(index));
                    field = format!("{field}[{index}]");
                }
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        let problem = error.inner().to_string();
        // The problem of an object names a field within.
        let scalar = value.filter(|value| !value.is_object() || problem.starts_with("invalid type"));
        let accepted = [", expected ", "; accepted: "].iter().find_map(|before| problem.split_once(before));
        match (scalar, accepted) {
            (Some(value), Some((found, accepted))) if !field.is_empty() && !found.starts_with("unknown field") => {
                Self::Value { field, value: value.to_string(), accepted: in_words(accepted).to_owned() }
            }
            (_, _) if field.is_empty() => Self::of_policy(problem),
            (_, _) => Self::Fields { part: format!(".{field}"), problem },
        }
    }
}

/// The accepted values, for a name of a type in Rust.
fn in_words(expected: &str) -> &str {
    match expected {
        "usize" | "u32" => "a whole number from 0 up",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text",
        "a map" => "an object",
        part if part.starts_with("struct ") => "an object",
        other => other,
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFields {
    consistency_window: f64,
    provisioning_timeout: f64,
    external_stop_policy: ExternalStopPolicy,
    resurrect_terminated: bool,
    max_session_retries: u32,
    drain_settle: f64,
    max_drain_tries: u32,
    metrics_interval: f64,
    idle_detection_interval: f64,
    license_poll_interval: f64,
    license_timeout: f64,
    scale_down: ScaleDownFields,
    orphans: OrphanFields,
    backoff: BackoffFields,
    default_region: Option<String>,
    regions: BTreeMap<String, RegionConfig>,
    aws_account_id: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleDownFields {
    enabled: bool,
    min_workers: usize,
    cooldown: f64,
    look_ahead: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrphanFields {
    max_terminations_per_pass: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackoffFields {
    base: f64,
    multiplier: f64,
    max: f64,
}

impl Policy {
    /// Reads a policy of which every field is given, times in seconds.
    ///
    /// # Errors
    /// For a missing or unknown field, a value of the wrong kind, and a time that is none.
    ///
    /// ```
    /// use lcm_sdk::Policy;
    ///
    /// let policy = lcm_sdk::serde_json::to_value(Policy::default())?;
    /// assert_eq!(policy["scale_down"]["cooldown"], 600.0);
    /// assert_eq!(Policy::from_json(policy)?, Policy::default());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_json(fields: Value) -> Result<Self, PolicyError> {
        let read: Result<PolicyFields, _> = serde_path_to_error::deserialize(&fields);
        read.map_err(|error| PolicyError::at(&fields, &error))?.read()
    }

    /// The same policy with some fields replaced. Nested objects are merged.
    ///
    /// # Errors
    /// For an unknown field, a value of the wrong kind, and a time that is none.
    ///
    /// ```
    /// use lcm_sdk::{Policy, serde_json::json};
    ///
    /// let patient = Policy::default().with_fields(&json!({"scale_down": {"cooldown": 3600}}))?;
    /// assert_eq!(patient.scale_down.cooldown.as_secs(), 3600);
    /// assert_eq!(patient.drain_settle, Policy::default().drain_settle);
    /// let error = Policy::default().with_fields(&json!({"drain_setle": 1})).unwrap_err();
    /// assert!(error.to_string().starts_with("policy.drain_setle: unknown field `drain_setle`"));
    /// # Ok::<(), lcm_sdk::lifecycle::PolicyError>(())
    /// ```
    pub fn with_fields(&self, fields: &Value) -> Result<Self, PolicyError> {
        let Value::Object(_) = fields else {
            return Err(PolicyError::of_policy(format!("expected an object of fields, found {fields}")));
        };
        let mut merged = serde_json::to_value(self).map_err(|error| PolicyError::of_policy(error.to_string()))?;
        merge(&mut merged, fields);
        Self::from_json(merged)
    }
}

impl Policy {
    /// Reads a policy that another version wrote: fields that are not given keep their defaults, and unknown ones are
    /// skipped. Returns their names as well.
    ///
    /// # Errors
    /// For a value of the wrong kind, and a time that is none.
    pub(crate) fn of_another_version(mut fields: Value) -> Result<(Self, Vec<String>), PolicyError> {
        let known = serde_json::to_value(Self::default()).map_err(|error| PolicyError::of_policy(error.to_string()))?;
        let mut unknown = Vec::new();
        skip_unknown(&mut fields, &known, "", &mut unknown);
        Ok((Self::default().with_fields(&fields)?, unknown))
    }
}

/// Removes the fields that the known ones lack. The regions are named by the configuration.
fn skip_unknown(fields: &mut Value, known: &Value, prefix: &str, unknown: &mut Vec<String>) {
    let (Value::Object(fields), Value::Object(known)) = (fields, known) else { return };
    fields.retain(|name, value| match known.get(name) {
        Some(_) if name == "regions" => true,
        Some(known) => {
            skip_unknown(value, known, &format!("{prefix}{name}."), unknown);
            true
        }
        None => {
            unknown.push(format!("{prefix}{name}"));
            false
        }
    });
}

fn merge(target: &mut Value, fields: &Value) {
    match (target, fields) {
        (Value::Object(target), Value::Object(fields)) => {
            for (name, value) in fields {
                merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (target, value) => target.clone_from(value),
    }
}

impl PolicyFields {
    fn read(self) -> Result<Policy, PolicyError> {
        Ok(Policy {
            consistency_window: time("consistency_window", self.consistency_window)?,
            provisioning_timeout: time("provisioning_timeout", self.provisioning_timeout)?,
            external_stop_policy: self.external_stop_policy,
            resurrect_terminated: self.resurrect_terminated,
            max_session_retries: self.max_session_retries,
            drain_settle: time("drain_settle", self.drain_settle)?,
            max_drain_tries: self.max_drain_tries,
            metrics_interval: time("metrics_interval", self.metrics_interval)?,
            idle_detection_interval: time("idle_detection_interval", self.idle_detection_interval)?,
            license_poll_interval: time("license_poll_interval", self.license_poll_interval)?,
            license_timeout: time("license_timeout", self.license_timeout)?,
            scale_down: ScaleDownPolicy {
                enabled: self.scale_down.enabled,
                min_workers: self.scale_down.min_workers,
                cooldown: time("scale_down.cooldown", self.scale_down.cooldown)?,
                look_ahead: time("scale_down.look_ahead", self.scale_down.look_ahead)?,
            },
            orphans: OrphanPolicy { max_terminations_per_pass: self.orphans.max_terminations_per_pass },
            backoff: Backoff {
                base: time("backoff.base", self.backoff.base)?,
                multiplier: self.backoff.multiplier,
                max: time("backoff.max", self.backoff.max)?,
            },
            regions: RegionConfigs { default_region: self.default_region, regions: self.regions },
            aws_account_id: self.aws_account_id,
        })
    }
}

impl From<&Policy> for PolicyFields {
    fn from(policy: &Policy) -> Self {
        Self {
            consistency_window: policy.consistency_window.as_secs_f64(),
            provisioning_timeout: policy.provisioning_timeout.as_secs_f64(),
            external_stop_policy: policy.external_stop_policy,
            resurrect_terminated: policy.resurrect_terminated,
            max_session_retries: policy.max_session_retries,
            drain_settle: policy.drain_settle.as_secs_f64(),
            max_drain_tries: policy.max_drain_tries,
            metrics_interval: policy.metrics_interval.as_secs_f64(),
            idle_detection_interval: policy.idle_detection_interval.as_secs_f64(),
            license_poll_interval: policy.license_poll_interval.as_secs_f64(),
            license_timeout: policy.license_timeout.as_secs_f64(),
            scale_down: ScaleDownFields {
                enabled: policy.scale_down.enabled,
                min_workers: policy.scale_down.min_workers,
                cooldown: policy.scale_down.cooldown.as_secs_f64(),
                look_ahead: policy.scale_down.look_ahead.as_secs_f64(),
            },
            orphans: OrphanFields { max_terminations_per_pass: policy.orphans.max_terminations_per_pass },
            backoff: BackoffFields {
                base: policy.backoff.base.as_secs_f64(),
                multiplier: policy.backoff.multiplier,
                max: policy.backoff.max.as_secs_f64(),
            },
            default_region: policy.regions.default_region.clone(),
            regions: policy.regions.regions.clone(),
            aws_account_id: policy.aws_account_id.clone(),
        }
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PolicyFields::from(self).serialize(serializer)
    }
}

/// Fields that are not given keep their defaults.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Value::deserialize(deserializer)?;
        Self::default().with_fields(&fields).map_err(serde::de::Error::custom)
    }
}

fn time(field: &'static str, seconds: f64) -> Result<Duration, PolicyError> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PolicyError::Time { field, seconds: seconds.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_field_and_the_accepted_values() {
        for (fields, message) in [
            (
                json!({"scale_down": {"min_workers": -1}}),
                "policy.scale_down.min_workers is -1; accepted: a whole number from 0 up",
            ),
            (json!({"drain_settle": "10s"}), "policy.drain_settle is \"10s\"; accepted: a number"),
            (json!({"drain_settle": -1}), "policy.drain_settle is -1 s; accepted: a time from 0 up"),
            (json!({"scale_down": {"enabled": 1}}), "policy.scale_down.enabled is 1; accepted: true or false"),
            (json!({"scale_down": 5}), "policy.scale_down is 5; accepted: an object"),
            (json!({"default_region": 5}), "policy.default_region is 5; accepted: text"),
            (
                json!({"external_stop_policy": "ask"}),
                "policy.external_stop_policy is \"ask\"; accepted: restart, respect",
            ),
        ] {
            let error = Policy::default().with_fields(&fields).expect_err("refused");
            assert_eq!(error.to_string(), message);
        }
        let region = json!({"regions": {"us-east-1": {"subnet_id": "s", "security_group_ids": "sg"}}});
        let region = Policy::default().with_fields(&region).expect_err("refused").to_string();
        assert!(
            region.starts_with("policy.regions.us-east-1: ") && region.contains("`security_group_ids` is"),
            "{region}"
        );
        let nested = Policy::default().with_fields(&json!({"backoff": {"bass": 1}})).expect_err("refused").to_string();
        assert!(nested.starts_with("policy.backoff.bass: unknown field `bass`, expected one of "), "{nested}");
    }
}
