//! Policies, parsed from Python once and used by many decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use lcm_sdk::lifecycle::{ExternalStopPolicy, OrphanPolicy, ScaleDownPolicy};
use lcm_sdk::{Backoff, RegionConfig, RegionConfigs};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::convert::to_value;
use crate::python::invalid_argument;

/// The parsed form of an `lcm.Policy`.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Policy {
    pub(crate) policy: lcm_sdk::Policy,
}

#[pymethods]
impl Policy {
    #[new]
    fn new(fields: &Bound<'_, PyAny>) -> PyResult<Self> {
        let value = to_value(fields, "policy")?;
        let fields: PolicyFields = serde_json::from_value(value).map_err(|error| invalid_argument("policy", &error))?;
        fields.read().map(|policy| Self { policy })
    }
}

/// The parsed form of an `lcm.Policy` argument.
///
/// # Errors
/// `TypeError` for any other object but None.
pub(crate) fn native_policy<'py>(policy: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Bound<'py, Policy>>> {
    let Some(policy) = policy else { return Ok(None) };
    let native = policy.getattr_opt(intern!(policy.py(), "_native"))?;
    if let Some(Ok(native)) = native.map(Bound::cast_into::<Policy>) {
        return Ok(Some(native));
    }
    let found = policy.get_type().name()?;
    Err(PyTypeError::new_err(format!("policy is a {found}; accepted: lcm.Policy or None")))
}

/// Returns the given policy, or the default policy.
pub(crate) fn policy_or_default(policy: Option<&Bound<'_, PyAny>>) -> PyResult<lcm_sdk::Policy> {
    Ok(native_policy(policy)?.map_or_else(lcm_sdk::Policy::default, |policy| policy.get().policy.clone()))
}

/// Fields of a policy; times in seconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFields {
    consistency_window: f64,
    provisioning_timeout: f64,
    external_stop_policy: ExternalStopPolicy,
    resurrect_terminated: bool,
    max_session_retries: u32,
    metrics_interval: f64,
    idle_detection_interval: f64,
    license_poll_interval: f64,
    scale_down: ScaleDownFields,
    orphans: OrphanFields,
    backoff: BackoffFields,
    default_region: Option<String>,
    regions: BTreeMap<String, RegionConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleDownFields {
    enabled: bool,
    min_workers: usize,
    cooldown: f64,
    look_ahead: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrphanFields {
    freeze_from_records: usize,
    max_terminations_per_pass: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackoffFields {
    base: f64,
    multiplier: f64,
    max: f64,
}

impl PolicyFields {
    fn read(self) -> PyResult<lcm_sdk::Policy> {
        let mut scale_down = ScaleDownPolicy::new(self.scale_down.min_workers)
            .with_cooldown(time("scale_down.cooldown", self.scale_down.cooldown)?)
            .with_look_ahead(time("scale_down.look_ahead", self.scale_down.look_ahead)?);
        scale_down.enabled = self.scale_down.enabled;
        let mut orphans = OrphanPolicy::default().with_freeze_from_records(self.orphans.freeze_from_records);
        orphans.max_terminations_per_pass = self.orphans.max_terminations_per_pass;
        let mut regions = RegionConfigs::default();
        regions.default_region = self.default_region;
        regions.regions = self.regions;
        Ok(lcm_sdk::Policy {
            consistency_window: time("consistency_window", self.consistency_window)?,
            provisioning_timeout: time("provisioning_timeout", self.provisioning_timeout)?,
            external_stop_policy: self.external_stop_policy,
            resurrect_terminated: self.resurrect_terminated,
            max_session_retries: self.max_session_retries,
            metrics_interval: time("metrics_interval", self.metrics_interval)?,
            idle_detection_interval: time("idle_detection_interval", self.idle_detection_interval)?,
            license_poll_interval: time("license_poll_interval", self.license_poll_interval)?,
            scale_down,
            orphans,
            backoff: Backoff {
                base: time("backoff.base", self.backoff.base)?,
                multiplier: self.backoff.multiplier,
                max: time("backoff.max", self.backoff.max)?,
            },
            regions,
        })
    }
}

fn time(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("policy.{name} is {seconds} s; accepted: a time from 0 up")))
}
