//! The services that a command uses, built from the settings of the controller.

use std::sync::{Arc, OnceLock};

use lcm_sdk::controller::{Leader, Shutdown, leaders};
use lcm_sdk::from_settings;
use lcm_sdk::otel::{self, Traces};
use lcm_sdk::ports::{ControlPlane, Coordination};
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::settings::Settings;
use lcm_sdk::workers::WorkerController;
use lcm_sdk::{Worker, WorkerId};

use crate::admin::AdminClient;
use crate::arguments::{AdminArguments, CallArguments};
use crate::exit::{ExitStatus, Failure};
use crate::output::Output;

/// Name of the service in traces.
const SERVICE: &str = "lcm";

/// The traces of the command that this process runs.
static TRACES: OnceLock<Traces> = OnceLock::new();

/// Exports the traces that are left.
pub(crate) async fn finish_traces() {
    let Some(traces) = TRACES.get().filter(|traces| traces.is_on()).cloned() else { return };
    let ended = tokio::task::spawn_blocking(move || traces.shutdown()).await;
    if let Ok(Err(error)) = ended {
        eprintln!("lcm: the last traces were not exported: {error}");
    }
}

/// Settings and output of a command that calls services.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) output: Output,
}

impl Context {
    /// Reads the settings. Logs are off unless they are requested; traces are exported where the variables of
    /// OpenTelemetry say so.
    pub(crate) fn new(call: &CallArguments) -> Result<Self, Failure> {
        let settings = Settings::from_env()?;
        let traces = match call.verbose {
            true => otel::init(&settings.logs, SERVICE)?,
            false => otel::init_without_logs(SERVICE)?,
        };
        // A process runs one command.
        drop(TRACES.set(traces));
        Ok(Self { settings, output: Output::new(call.output) })
    }

    pub(crate) fn control_plane(&self) -> Result<Arc<dyn ControlPlane>, Failure> {
        Ok(from_settings::control_plane(&self.settings)?)
    }

    /// The etcd client; `None` where no endpoints are configured.
    pub(crate) fn coordination(&self) -> Result<Option<Arc<dyn Coordination>>, Failure> {
        Ok(from_settings::coordination(&self.settings)?)
    }

    /// A controller that does not run, for its reconciler and single sweeps.
    pub(crate) async fn controller(&self) -> Result<WorkerController, Failure> {
        Ok(from_settings::worker_controller(&self.settings).await?)
    }

    pub(crate) fn admin(&self, arguments: &AdminArguments) -> Result<AdminClient, Failure> {
        AdminClient::new(&self.settings, arguments.admin.as_deref())
    }

    /// The controllers that lead now; none where no endpoints of etcd are configured.
    pub(crate) async fn leaders(&self) -> Result<Vec<Leader>, Failure> {
        let Some(etcd) = self.coordination()? else { return Ok(Vec::new()) };
        let read = leaders(&*etcd, &self.settings.leader_key()).await;
        read.map_err(|failure| Failure::call("the leader could not be read from etcd", &failure))
    }
}

/// A shutdown that is requested by SIGINT or SIGTERM, with which commands that follow changes end.
pub(crate) fn stop_signals() -> Result<Shutdown, Failure> {
    let failed = |error| Failure::new(ExitStatus::Failure, &format!("signal handlers cannot be registered: {error}"));
    Shutdown::from_signals().map_err(failed)
}

/// Reads the record of a worker.
pub(crate) async fn read_worker(control_plane: &dyn ControlPlane, id: &str) -> Result<Worker, Failure> {
    let read = control_plane.worker(&WorkerId::from(id)).await;
    let read =
        read.map_err(|failure| Failure::call(&format!("the record of worker {id} could not be read"), &failure))?;
    read.ok_or_else(|| Failure::no_such_worker(id))
}

/// Gives events and audits a moment to be delivered.
pub(crate) async fn flush(reconciler: &Reconciler) {
    reconciler.flush(FLUSH_LIMIT).await;
}

/// Longest time for which a command waits for the delivery of events and audits.
const FLUSH_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
