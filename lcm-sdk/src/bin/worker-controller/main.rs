//! The worker controller: settings → adapters → runtime → admin server.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use lcm_sdk::admin::AdminServer;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::from_settings;
use lcm_sdk::logging;
use lcm_sdk::reconciler::Mode;
use lcm_sdk::settings::Settings;
use lcm_sdk::workers::controller::WorkerController;

mod summary;

/// Keeps a fleet of CML workers honest: makes what the records say and what EC2 runs converge.
///
/// Everything is set by environment variables; `--print-settings` shows them all, with their values and where each came
/// from. Try it without a cloud:
///
///   fake-cloud --ephemeral --scenario bad-day     prints `export …` lines; paste them, then
///   worker-controller --once --dry-run            shows what it would do
///   worker-controller --once                      does it, once
///   worker-controller                             goes on doing it
///
/// Exit codes: 0 all is well; 1 it could not work; 2 a setting is wrong; 3 another controller leads; 4 a sweep left
/// workers that need another look.
#[derive(Debug, Parser)]
#[command(name = "worker-controller", version, verbatim_doc_comment)]
struct Arguments {
    /// Look at every worker once, print a summary and exit.
    #[arg(long)]
    once: bool,
    /// Show what would be done and do nothing; implies --once.
    #[arg(long)]
    dry_run: bool,
    /// Print every setting with its value and where it came from, and exit.
    #[arg(long)]
    print_settings: bool,
    /// With --once: how many seconds to wait for the lead.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait_for_lead: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => return failed(2, &error),
    };
    if arguments.print_settings {
        return shown(ExitCode::SUCCESS, &format!("{}\n", settings.report()));
    }
    if let Err(error) = logging::init(&settings.logs) {
        return failed(2, &error);
    }
    for warning in settings.warnings() {
        tracing::warn!(target: "lcm::settings", "{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(1, &error),
    };
    runtime.block_on(async {
        let controller = match from_settings::worker_controller(&settings).await {
            Ok(controller) => controller,
            Err(error) => return failed(2, &error),
        };
        if arguments.once || arguments.dry_run {
            let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Real };
            once(&controller, mode, Duration::from_secs(arguments.wait_for_lead)).await
        } else {
            serve(controller, &settings).await
        }
    })
}

async fn once(controller: &WorkerController, mode: Mode, patience: Duration) -> ExitCode {
    use lcm_sdk::workers::controller::OneSweepError;
    match controller.sweep_once(mode, patience).await {
        Ok(sweep) => {
            let code = if summary::needs_another_look(&sweep) { ExitCode::from(4) } else { ExitCode::SUCCESS };
            shown(code, &summary::table(&sweep))
        }
        Err(error @ OneSweepError::NotLeader(_)) => failed(3, &error),
        Err(error) => failed(1, &error),
    }
}

async fn serve(controller: WorkerController, settings: &Settings) -> ExitCode {
    let shutdown = Shutdown::new();
    if let Err(error) = shutdown.on_signals() {
        return failed(1, &error);
    }
    let admin = match AdminServer::bind(from_settings::admin_options(settings)).await {
        Ok(admin) => admin,
        Err(error) => return failed(1, &error),
    };
    let telemetry = controller.reconciler().telemetry().clone();
    let serving = tokio::spawn(admin.run(Arc::new(controller.clone()), telemetry, shutdown.clone()));
    controller.run(&shutdown).await;
    shutdown.request();
    // What it had to say was said; it stops with the controller.
    let _ = serving.await;
    ExitCode::SUCCESS
}

/// Shows what was asked for. Whoever reads only the first lines of it has seen enough.
fn shown(code: ExitCode, text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => failed(1, &error),
        Ok(()) | Err(_) => code,
    }
}

fn failed(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("worker-controller: {error}");
    ExitCode::from(code)
}
