//! The worker controller: reads settings, builds ports, reconciles, and serves the admin API.

use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::admin::AdminServer;
use lcm_sdk::from_settings;
use lcm_sdk::otel;
use lcm_sdk::prelude::{Mode, Settings, Shutdown, WorkerController};

use crate::arguments::ControllerArguments;
use crate::exit::{ExitStatus, Failure};
use crate::output::{self, Format, Output};
use crate::progress::Progress;
use crate::summary;

pub(crate) async fn run(arguments: &ControllerArguments) -> Result<ExitStatus, Failure> {
    let settings = Settings::from_env()?;
    if arguments.print_settings {
        output::print(&summary::settings(&settings))?;
        return Ok(ExitStatus::Success);
    }
    let traces = otel::init(&settings.logs, "worker-controller")?;
    for warning in settings.warnings() {
        tracing::warn!(target: "lcm::settings", "{warning}");
    }
    let status = control(arguments, &settings).await;
    let ended = tokio::task::spawn_blocking(move || traces.shutdown()).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!(target: "lcm::traces", %error, "the last traces were not exported");
    }
    status
}

async fn control(arguments: &ControllerArguments, settings: &Settings) -> Result<ExitStatus, Failure> {
    let controller = from_settings::worker_controller(settings).await?;
    if arguments.once || arguments.dry_run {
        let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Real };
        sweep_once(&controller, mode, Duration::from_secs(arguments.wait_for_lead)).await
    } else {
        serve(controller, settings).await
    }
}

async fn sweep_once(controller: &WorkerController, mode: Mode, wait_for_lead: Duration) -> Result<ExitStatus, Failure> {
    let sweep = {
        let progress = Progress::sweep("workers reconciled");
        controller.sweep_once_with(mode, wait_for_lead, move |now| progress.note(now)).await?
    };
    let output = Output::new(Format::Table);
    output::print(&summary::table(&sweep, output.paint))?;
    Ok(if summary::needs_retry(&sweep) { ExitStatus::Retry } else { ExitStatus::Success })
}

async fn serve(controller: WorkerController, settings: &Settings) -> Result<ExitStatus, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(ExitStatus::Failure, error);
    let shutdown = Shutdown::new();
    shutdown.on_signals().map_err(|error| failed(&error))?;
    let admin = AdminServer::bind(from_settings::admin_options(settings)).await.map_err(|error| failed(&error))?;
    let telemetry = controller.reconciler().telemetry().clone();
    let serving = tokio::spawn(admin.run(Arc::new(controller.clone()), telemetry, shutdown.clone()));
    controller.run(&shutdown).await;
    shutdown.request();
    // The server logs its own errors; a panic in it does not change the exit code.
    let _ = serving.await;
    Ok(ExitStatus::Success)
}
