//! Worker templates: instance type, AMI and drain timeout.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::json::{FieldError, Fields, Raw};

/// The AMI name pattern of a template that names none.
pub const DEFAULT_AMI_PATTERN: &str = "cisco-cml2.9*";

/// The drain timeout of a worker without a template.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// Maximum drain timeout in hours, about a year. A larger value is a typing mistake.
const MAX_DRAIN_TIMEOUT_HOURS: f64 = 10_000.0;

/// A worker template, as the control plane keeps it.
///
/// ```
/// use lcm_sdk::Template;
///
/// let template: Template = serde_json::from_str(r#"{"name": "metal", "instance_type": "m5zn.metal"}"#)?;
/// assert_eq!(template.ami_name_pattern, "cisco-cml2.9*");
/// assert_eq!(template.drain_timeout.as_secs(), 4 * 3600);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Unique name of the template.
    pub name: String,
    /// EC2 instance type, such as `m5zn.metal`; `None` leaves it to the worker.
    pub instance_type: Option<String>,
    /// Which AMIs qualify; `*` and `?` are wildcards. The newest match is used.
    pub ami_name_pattern: String,
    /// How long a drain waits for sessions before it forces them.
    pub drain_timeout: Duration,
    /// Whether the control plane offers it for new workers. A record that exists is launched all the same.
    pub enabled: bool,
    /// Fields that this version does not know, kept as they are.
    pub extra: Map<String, Value>,
}

impl Template {
    /// A template with the defaults of the control plane.
    pub fn new(name: impl Into<String>, instance_type: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            instance_type: Some(instance_type.into()),
            ami_name_pattern: DEFAULT_AMI_PATTERN.to_owned(),
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            enabled: true,
            extra: Map::new(),
        }
    }
}

impl TryFrom<Value> for Template {
    type Error = FieldError;

    fn try_from(value: Value) -> Result<Self, FieldError> {
        Self::try_from(Raw::from(value))
    }
}

impl TryFrom<Raw<'_>> for Template {
    type Error = FieldError;

    fn try_from(record: Raw<'_>) -> Result<Self, FieldError> {
        let mut fields = Fields::open("worker template", record)?;
        let drain_timeout = match fields.number("drain_timeout_hours")? {
            None => DEFAULT_DRAIN_TIMEOUT,
            Some(hours) if (0.0..=MAX_DRAIN_TIMEOUT_HOURS).contains(&hours) => Duration::from_secs_f64(hours * 3600.0),
            Some(hours) => {
                return Err(fields.error("drain_timeout_hours", &Value::from(hours), "hours from 0 to 10000"));
            }
        };
        Ok(Self {
            name: fields.required_text("name")?,
            instance_type: fields.text("instance_type")?.filter(|name| !name.is_empty()),
            ami_name_pattern: fields.text("ami_name_pattern")?.unwrap_or_else(|| DEFAULT_AMI_PATTERN.to_owned()),
            drain_timeout,
            enabled: fields.switch("enabled")?.unwrap_or(true),
            extra: fields.rest(),
        })
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = self.extra.clone();
        map.insert("name".into(), self.name.as_str().into());
        map.insert("instance_type".into(), self.instance_type.as_deref().into());
        map.insert("ami_name_pattern".into(), self.ami_name_pattern.as_str().into());
        map.insert("drain_timeout_hours".into(), (self.drain_timeout.as_secs_f64() / 3600.0).into());
        map.insert("enabled".into(), self.enabled.into());
        map.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Raw::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_round_trip_with_unknown_fields() {
        let record = json!({
            "id": "t-1", "name": "metal", "instance_type": "m5zn.metal", "ami_name_pattern": "cml*",
            "drain_timeout_hours": 1.5, "enabled": false, "capacity": {"cpu_cores": 48}, "cost_per_hour_usd": 3.9641,
        });
        let template = Template::try_from(record.clone()).expect("valid");
        assert_eq!(template.drain_timeout, Duration::from_secs(5400));
        assert_eq!(serde_json::to_value(&template).expect("serializes"), record);
    }

    #[test]
    fn invalid_drain_timeouts_are_rejected() {
        for (hours, shown) in [(json!(-1), "-1.0"), (json!(1e9), "1000000000.0"), (json!("4h"), "\"4h\"")] {
            let record = json!({"name": "metal", "instance_type": "m", "drain_timeout_hours": hours});
            let error = Template::try_from(record).expect_err("makes no sense").to_string();
            let start = format!("worker template \"metal\": field `drain_timeout_hours` is {shown}; accepted: ");
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
