//! The native half of the Python package `lcm`. Thin: it converts and calls, and decides nothing.

mod answers;
mod bridge;
mod clients;
mod cml;
mod command;
mod compute;
mod conformance;
mod control_plane;
mod controller;
mod convert;
mod coordination;
mod decision;
mod door;
mod events;
mod fake_cloud;
mod fleet;
mod limit;
mod logs;
mod metrics;
mod observation;
mod orphans;
mod policy;
mod pure;
mod python;
mod reconcile;
mod records;
mod resources;
mod worker;

use pyo3::prelude::*;

/// The module `lcm._lcm`.
#[pymodule]
fn _lcm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pure::register(module)?;
    module.add_class::<controller::Controller>()?;
    module.add_class::<resources::ResourceController>()?;
    module.add_class::<door::Task>()?;
    module.add_class::<fleet::Decisions>()?;
    module.add_class::<fake_cloud::FakeCloud>()?;
    module.add_class::<clients::Clients>()?;
    module.add_function(wrap_pyfunction!(command::fake_cloud_command, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::check_port, module)?)?;
    module.add_function(wrap_pyfunction!(fleet::decide_many, module)?)?;
    module.add_function(wrap_pyfunction!(orphans::collect_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(orphans::start_collect_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(reconcile::reconcile, module)?)?;
    module.add_function(wrap_pyfunction!(reconcile::start_reconcile, module)?)?;
    Ok(())
}
