//! Calls the methods of a world that is written in Python.

use std::panic::panic_any;

use lcm_sdk::CallFailure;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::Value;

use crate::bridge::Bridge;
use crate::convert::to_python;
use crate::port_results::{nothing, plain, tuple};
use crate::python::failure_to_python;

/// A failed call of the world. It is no result about the port.
pub(super) struct Unprepared(pub(super) CallFailure);

/// A world that is written in Python. A failed call ends the suite.
pub(super) struct World(pub(super) Bridge);

impl World {
    pub(super) async fn get<T, A, R>(&self, method: &'static str, arguments: A, read: R) -> T
    where
        T: Send + 'static,
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send + 'static,
        R: FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    {
        self.0.call(method, arguments, read).await.unwrap_or_else(|failure| panic_any(Unprepared(failure)))
    }

    pub(super) async fn call<A>(&self, method: &'static str, arguments: A)
    where
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send + 'static,
    {
        self.get(method, arguments, nothing).await;
    }

    pub(super) async fn command(&self, method: &'static str) {
        self.call(method, |py| Ok(PyTuple::empty(py))).await;
    }

    pub(super) async fn put(&self, method: &'static str, record: Value) {
        self.call(method, move |py| tuple(py, (to_python(py, &record)?,))).await;
    }

    pub(super) async fn text(&self, method: &'static str) -> String {
        self.get(method, |py| Ok(PyTuple::empty(py)), move |result| plain(result, method, "text")).await
    }

    pub(super) async fn fail(&self, failure: &CallFailure) {
        let failure = failure.clone();
        self.call("fail", move |py| tuple(py, (failure_to_python(py, &failure)?,))).await;
    }
}
