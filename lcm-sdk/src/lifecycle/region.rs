//! Launch configuration of each AWS region.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::json::{FieldError, Fields};
use super::worker::Worker;

/// Launch configuration of one region.
///
/// ```
/// use lcm_sdk::{RegionConfig, RegionConfigs};
///
/// let config = RegionConfig::new("subnet-1", ["sg-1"]).with_default_tags([("team", "labs")]);
/// let regions = RegionConfigs::default().with_region("us-east-1", config).with_default_region("us-east-1");
/// assert_eq!(regions.regions["us-east-1"].subnet_id, "subnet-1");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionConfig {
    /// Security groups of the instance; at least one.
    pub security_group_ids: Vec<String>,
    /// The subnet to launch in.
    pub subnet_id: String,
    /// The key pair, if instances get one.
    pub key_name: Option<String>,
    /// Tags for every instance of the region; a worker's own tags win over these.
    pub default_tags: BTreeMap<String, String>,
}

impl RegionConfig {
    /// The configuration for a subnet and its security groups, without key pair and tags.
    pub fn new<G: Into<String>>(subnet_id: impl Into<String>, security_group_ids: impl IntoIterator<Item = G>) -> Self {
        Self {
            subnet_id: subnet_id.into(),
            security_group_ids: security_group_ids.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Sets the key pair of the instances.
    #[must_use]
    pub fn with_key_name(self, key_name: impl Into<String>) -> Self {
        Self { key_name: Some(key_name.into()), ..self }
    }

    /// Sets the tags of every instance of the region.
    #[must_use]
    pub fn with_default_tags<K: Into<String>, V: Into<String>>(self, tags: impl IntoIterator<Item = (K, V)>) -> Self {
        Self { default_tags: tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect(), ..self }
    }
}

impl TryFrom<Value> for RegionConfig {
    type Error = FieldError;

    fn try_from(value: Value) -> Result<Self, FieldError> {
        let mut fields = Fields::open("region configuration", value)?;
        Ok(Self {
            security_group_ids: fields.texts("security_group_ids")?,
            subnet_id: fields.text("subnet_id")?.unwrap_or_default(),
            key_name: fields.text("key_name")?,
            default_tags: fields.text_map("default_tags")?,
        })
    }
}

impl<'de> Deserialize<'de> for RegionConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// All configured regions, and the one for workers that name none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RegionConfigs {
    /// The region of a worker that names none.
    pub default_region: Option<String>,
    /// Configuration by region name.
    pub regions: BTreeMap<String, RegionConfig>,
}

/// Why a worker cannot be launched in any region. Permanent until the configuration changes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Neither the worker nor the settings name a region.
    #[error("the worker names no region and no default region is configured")]
    NoRegion,
    /// The region has no configuration.
    #[error("region {region} is not configured; configured: {}", listed(.configured))]
    NotConfigured {
        /// The region that was requested.
        region: String,
        /// The configured regions.
        configured: Vec<String>,
    },
    /// The region's configuration lacks something a launch needs.
    #[error("the configuration of region {region} has no {missing}")]
    Incomplete {
        /// Name of the region.
        region: String,
        /// Names of the missing settings: `subnet_id`, `security_group_ids`.
        missing: &'static str,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl RegionConfigs {
    /// Sets the region of workers that name none.
    #[must_use]
    pub fn with_default_region(self, region: impl Into<String>) -> Self {
        Self { default_region: Some(region.into()), ..self }
    }

    /// Adds a region, or replaces its configuration.
    #[must_use]
    pub fn with_region(mut self, region: impl Into<String>, config: RegionConfig) -> Self {
        self.regions.insert(region.into(), config);
        self
    }

    /// The region of a worker: the one it [names](Worker::known_region), else the default. Its instance is only looked up
    /// there.
    pub fn region_of<'a>(&'a self, worker: &'a Worker) -> Option<&'a str> {
        worker.known_region().or(self.default_region.as_deref())
    }

    /// The region and its complete configuration.
    ///
    /// # Errors
    /// If no region is named, configured, or complete.
    ///
    /// ```
    /// use lcm_sdk::{RegionConfigs, Worker, WorkerStatus};
    ///
    /// let worker = Worker::new("w-1", WorkerStatus::Pending);
    /// let error = RegionConfigs::default().resolve(&worker).unwrap_err();
    /// assert_eq!(error.to_string(), "the worker names no region and no default region is configured");
    /// ```
    pub fn resolve<'a>(&'a self, worker: &'a Worker) -> Result<(&'a str, &'a RegionConfig), RegionError> {
        let region = self.region_of(worker).ok_or(RegionError::NoRegion)?;
        let config = self.regions.get(region).ok_or_else(|| RegionError::NotConfigured {
            region: region.to_owned(),
            configured: self.regions.keys().cloned().collect(),
        })?;
        let incomplete = |missing| RegionError::Incomplete { region: region.to_owned(), missing };
        if config.subnet_id.is_empty() {
            return Err(incomplete("subnet_id"));
        }
        if config.security_group_ids.is_empty() {
            return Err(incomplete("security_group_ids"));
        }
        Ok((region, config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::WorkerStatus;

    fn configs(json: &str) -> RegionConfigs {
        serde_json::from_str(json).expect("valid configuration")
    }

    #[test]
    fn worker_region_wins_over_the_default() {
        let both = configs(
            r#"{"default_region": "us-east-1", "regions": {
                "us-east-1": {"subnet_id": "subnet-1", "security_group_ids": ["sg-1"]},
                "eu-west-1": {"subnet_id": "subnet-2", "security_group_ids": ["sg-2"]},
                "eu-west-2": {"security_group_ids": ["sg-3"]},
                "eu-west-3": {"subnet_id": "subnet-4"}}}"#,
        );
        let mut worker = Worker::new("w-1", WorkerStatus::Pending);
        assert_eq!(both.resolve(&worker).expect("default").0, "us-east-1");
        worker.aws_region = Some("eu-west-1".into());
        assert_eq!(both.resolve(&worker).expect("own").1.subnet_id, "subnet-2");

        let mut error = |region: &str| {
            worker.aws_region = Some(region.into());
            both.resolve(&worker).expect_err("incomplete").to_string()
        };
        assert_eq!(error("eu-west-2"), "the configuration of region eu-west-2 has no subnet_id");
        assert_eq!(error("eu-west-3"), "the configuration of region eu-west-3 has no security_group_ids");
        // A worker that names a region is never launched in another one.
        assert_eq!(
            error("mars-1"),
            "region mars-1 is not configured; configured: eu-west-1, eu-west-2, eu-west-3, us-east-1"
        );
    }
}
