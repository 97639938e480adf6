//! The command `fake-cloud` of the wheel.

use std::ffi::OsString;

use fake_cloud::command;
use pyo3::prelude::*;

use crate::runtime::block_on;

/// Runs the command until a stop signal, and returns its exit code.
#[pyfunction]
pub(crate) fn fake_cloud_command(py: Python<'_>, program: &str, words: Vec<OsString>) -> PyResult<u8> {
    block_on(py, command::run(program, words)).map(command::ExitStatus::code)
}
