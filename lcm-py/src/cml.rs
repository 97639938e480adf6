//! CML port written in Python. `lcm.ports` documents each method.

use async_trait::async_trait;
use lcm_sdk::lifecycle::{CmlMetrics, RegistrationStatus};
use lcm_sdk::ports::{Cml, CmlTarget};
use lcm_sdk::{CallFailure, Secret};
use pyo3::prelude::*;
use serde_json::Value;

use crate::bridge::Bridge;
use crate::convert::to_value;
use crate::observation::{read_cml_metrics, read_list, read_registration};
use crate::port_results::{nothing, tuple};
use crate::python::{cml_target_class, secret_class};

/// CML port written in Python.
pub(crate) struct PythonCml(pub(crate) Bridge);

impl PythonCml {
    async fn call<T: Send + 'static>(
        &self,
        method: &'static str,
        at: &CmlTarget,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, CallFailure> {
        let target = at.clone();
        let result = self.0.call(method, move |py| tuple(py, (target_to_python(py, &target)?,)), read).await;
        result.map_err(|failure| scrubbed(failure, &[&at.password]))
    }

    async fn submit(&self, method: &'static str, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        let (target, secret) = (at.clone(), token.clone());
        let secret = move |py: Python<'_>| secret_class(py)?.call1((secret.expose(),)).map(Bound::unbind);
        let result =
            self.0.call(method, move |py| tuple(py, (target_to_python(py, &target)?, secret(py)?)), nothing).await;
        result.map_err(|failure| scrubbed(failure, &[&at.password, token]))
    }
}

#[async_trait]
impl Cml for PythonCml {
    async fn system(&self, at: &CmlTarget) -> Result<CmlMetrics, CallFailure> {
        self.call("system", at, |result| read_cml_metrics(result, "system")).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Result<Vec<Value>, CallFailure> {
        self.call("telemetry", at, |result| read_list(result, "telemetry", to_value)).await
    }

    async fn registration(&self, at: &CmlTarget) -> Result<RegistrationStatus, CallFailure> {
        self.call("registration", at, |result| read_registration(result, "registration")).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit("register", at, token).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Result<(), CallFailure> {
        self.submit("reregister", at, token).await
    }

    async fn deregister(&self, at: &CmlTarget) -> Result<(), CallFailure> {
        self.call("deregister", at, nothing).await
    }
}

fn target_to_python<'py>(py: Python<'py>, at: &CmlTarget) -> PyResult<Bound<'py, PyAny>> {
    let password = secret_class(py)?.call1((at.password.expose(),))?;
    cml_target_class(py)?.call1((at.address.as_str(), at.username.as_str(), password))
}

/// Redacts secrets in the message: exceptions often repeat their arguments.
fn scrubbed(mut failure: CallFailure, secrets: &[&Secret]) -> CallFailure {
    for secret in secrets.iter().map(|secret| secret.expose()).filter(|secret| !secret.is_empty()) {
        failure.message = failure.message.replace(secret, "[redacted]");
    }
    failure
}
