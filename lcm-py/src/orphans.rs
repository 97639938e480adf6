//! Discovery and garbage collection: blocking, or with a callback for asyncio.

use lcm_sdk::from_settings;
use lcm_sdk::reconciler::Mode;
use lcm_sdk::workers::{self, Discovery};
use pyo3::prelude::*;

use crate::clients::Clients;
use crate::logs::{caller_trace, within};
use crate::reconcile::{FLUSH_LIMIT, mode};
use crate::results::DiscoveryReport;
use crate::runtime::{Task, block_on, spawn};
use crate::timeout::{TimedOut, Timeout};

/// Runs discovery once and blocks until the report is there.
#[pyfunction]
#[pyo3(signature = (
    clients,
    policy: "lcm.policy.Policy | None",
    regions: "list[str] | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn collect_orphans<'py>(
    py: Python<'py>,
    clients: &Bound<'py, Clients>,
    policy: Option<&Bound<'py, PyAny>>,
    regions: Option<Vec<String>>,
    dry_run: bool,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, DiscoveryReport>> {
    let mode = mode(dry_run);
    let run = prepare(py, clients, policy, regions, mode, timeout)?;
    DiscoveryReport::from_sdk(py, &block_on(py, run)??, mode)
}

/// Starts one run of discovery. Calls `done(report, error)` at the end.
#[pyfunction]
#[pyo3(signature = (
    done: "Callable[[DiscoveryReport | None, BaseException | None], None]",
    clients,
    policy: "lcm.policy.Policy | None",
    regions: "list[str] | None",
    dry_run,
    timeout: "float | timedelta | None" = None,
))]
pub(crate) fn start_collect_orphans(
    py: Python<'_>,
    done: Py<PyAny>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    regions: Option<Vec<String>>,
    dry_run: bool,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Task> {
    let mode = mode(dry_run);
    let run = prepare(py, clients, policy, regions, mode, timeout)?;
    spawn(py, done, run, move |py, report| {
        DiscoveryReport::from_sdk(py, &report?, mode).map(|report| report.into_any().unbind())
    })
}

fn prepare(
    py: Python<'_>,
    clients: &Bound<'_, Clients>,
    policy: Option<&Bound<'_, PyAny>>,
    regions: Option<Vec<String>>,
    mode: Mode,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Future<Output = Result<workers::DiscoveryReport, TimedOut>> + Send + 'static> {
    let timeout = Timeout::from_python(timeout)?;
    let clients = clients.get();
    // Without a controller nothing reconciles the workers that were found: the report names them.
    let reconciler = clients.reconciler(py, policy)?;
    let discovery = Discovery::new(reconciler.clone(), from_settings::discovery_config(clients.settings()), |_| {});
    let discovery = match regions {
        None => discovery,
        Some(regions) => discovery.with_regions(regions),
    };
    let trace = caller_trace(py)?;
    Ok(async move {
        let report = match mode {
            Mode::Real => timeout.wait_for(within(trace, discovery.run_once())).await,
            Mode::DryRun => timeout.wait_for(within(trace, discovery.dry_run())).await,
        };
        reconciler.flush(FLUSH_LIMIT).await;
        report
    })
}
