//! Policies, parsed from Python once and used by many decisions.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::convert::to_value;

/// The parsed form of an `lcm.Policy`.
#[pyclass(frozen, module = "lcm._lcm")]
pub(crate) struct Policy {
    pub(crate) policy: lcm_sdk::Policy,
}

#[pymethods]
impl Policy {
    #[new]
    #[pyo3(signature = (fields: "Mapping[str, Any]"))]
    fn new(fields: &Bound<'_, PyAny>) -> PyResult<Self> {
        let value = to_value(fields, "policy")?;
        let policy = lcm_sdk::Policy::from_json(value).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { policy })
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
