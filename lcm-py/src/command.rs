//! The commands `lcm`, `worker-controller` and `fake-cloud` of the wheel.

use std::ffi::OsString;

use fake_cloud::command;
use pyo3::prelude::*;

use crate::logs;
use crate::runtime::block_on;

/// Runs the command until it ends or a stop signal arrives, and returns its exit code.
#[pyfunction]
#[pyo3(signature = (program, words: "Sequence[str]"))]
pub(crate) fn lcm_command(py: Python<'_>, program: &str, words: Vec<OsString>) -> PyResult<u8> {
    logs::leave_to_command();
    block_on(py, lcm_cli::run(program, words)).map(lcm_cli::ExitStatus::code)
}

/// Runs the controller until a stop signal, and returns its exit code.
#[pyfunction]
#[pyo3(signature = (program, words: "Sequence[str]"))]
pub(crate) fn worker_controller_command(py: Python<'_>, program: &str, words: Vec<OsString>) -> PyResult<u8> {
    logs::leave_to_command();
    block_on(py, lcm_cli::run_worker_controller(program, words)).map(lcm_cli::ExitStatus::code)
}

/// Runs the command until a stop signal, and returns its exit code.
#[pyfunction]
#[pyo3(signature = (program, words: "Sequence[str]"))]
pub(crate) fn fake_cloud_command(py: Python<'_>, program: &str, words: Vec<OsString>) -> PyResult<u8> {
    logs::leave_to_command();
    block_on(py, command::run(program, words)).map(command::ExitStatus::code)
}
