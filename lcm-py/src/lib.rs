//! The native half of the Python package `lcm`. Thin: it converts and calls, and decides nothing.

use std::collections::BTreeMap;

use lcm_sdk::Backoff;
use lcm_sdk::core::transition;
use pyo3::prelude::*;

/// The transition table: one `(from, to, kind, when)` for each legal edge.
#[pyfunction]
fn transitions() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    transition::TABLE.iter().map(|edge| (edge.from.as_str(), edge.to.as_str(), edge.kind.as_str(), edge.when)).collect()
}

/// The table drawn: format name to text.
#[pyfunction]
fn diagrams() -> BTreeMap<&'static str, String> {
    BTreeMap::from([("mermaid", transition::mermaid()), ("dot", transition::dot())])
}

/// Seconds to wait before a retry, counted from zero.
#[pyfunction]
fn backoff_seconds(retries: u32) -> f64 {
    Backoff::default().delay(retries).as_secs_f64()
}

/// The module `lcm._lcm`.
#[pymodule]
fn _lcm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(transitions, module)?)?;
    module.add_function(wrap_pyfunction!(diagrams, module)?)?;
    module.add_function(wrap_pyfunction!(backoff_seconds, module)?)?;
    Ok(())
}
