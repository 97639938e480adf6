//! Native half of the Python package `lcm`. It converts arguments and results and calls `lcm-sdk`; it decides nothing.

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
mod decide_many;
mod decisions;
mod events;
mod fake_cloud;
mod input;
mod logs;
mod metrics;
mod observation;
mod orphans;
mod policy;
mod port_results;
mod python;
mod reconcile;
mod resources;
mod results;
mod runtime;
mod timeout;
mod worker;

use pyo3::prelude::*;

/// The module `lcm._lcm`.
#[pymodule]
fn _lcm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    decisions::register(module)?;
    results::register(module)?;
    module.add_class::<controller::Controller>()?;
    module.add_class::<resources::ResourceController>()?;
    module.add_class::<runtime::Task>()?;
    module.add_class::<decide_many::Decisions>()?;
    module.add_class::<fake_cloud::FakeCloud>()?;
    module.add_class::<clients::Clients>()?;
    module.add_function(wrap_pyfunction!(command::fake_cloud_command, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::check_port, module)?)?;
    module.add_function(wrap_pyfunction!(decide_many::decide_many, module)?)?;
    module.add_function(wrap_pyfunction!(orphans::collect_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(orphans::start_collect_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(reconcile::reconcile, module)?)?;
    module.add_function(wrap_pyfunction!(reconcile::start_reconcile, module)?)?;
    Ok(())
}
