//! The worker controller: reads settings, builds ports, reconciles, and serves the admin API.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use lcm_sdk::admin::AdminServer;
use lcm_sdk::from_settings;
use lcm_sdk::logging;
use lcm_sdk::prelude::{Mode, Settings, Shutdown, WorkerController};
use lcm_sdk::workers::OneSweepError;

mod summary;

/// Keeps EC2 workers and their records in agreement.
///
/// Settings are environment variables; `--print-settings` lists them with their values and origins. To try it without a
/// cloud:
///
///   fake-cloud --ephemeral --scenario bad-day     prints `export …` lines; paste them, then
///   worker-controller --once --dry-run            reports what it would do
///   worker-controller --once                      reconciles every worker once
///   worker-controller                             keeps reconciling
///
/// Exit codes: 0 success; 1 failure; 2 invalid settings; 3 another controller leads; 4 a sweep left workers that have to
/// be retried.
#[derive(Debug, Parser)]
#[command(name = "worker-controller", version, verbatim_doc_comment)]
struct Arguments {
    /// Reconcile every worker once, print a summary and exit.
    #[arg(long)]
    once: bool,
    /// Report what would be done without doing it; implies --once.
    #[arg(long)]
    dry_run: bool,
    /// Print every setting with its value and origin, and exit.
    #[arg(long)]
    print_settings: bool,
    /// With --once: seconds to wait for the lead.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait_for_lead: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => return fail(2, &error),
    };
    if arguments.print_settings {
        return print(ExitCode::SUCCESS, &format!("{}\n", settings.report()));
    }
    if let Err(error) = logging::init(&settings.logs) {
        return fail(2, &error);
    }
    for warning in settings.warnings() {
        tracing::warn!(target: "lcm::settings", "{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error),
    };
    runtime.block_on(async {
        let controller = match from_settings::worker_controller(&settings).await {
            Ok(controller) => controller,
            Err(error) => return fail(2, &error),
        };
        if arguments.once || arguments.dry_run {
            let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Real };
            sweep_once(&controller, mode, Duration::from_secs(arguments.wait_for_lead)).await
        } else {
            serve(controller, &settings).await
        }
    })
}

async fn sweep_once(controller: &WorkerController, mode: Mode, wait_for_lead: Duration) -> ExitCode {
    match controller.sweep_once(mode, wait_for_lead).await {
        Ok(sweep) => {
            let code = if summary::needs_retry(&sweep) { ExitCode::from(4) } else { ExitCode::SUCCESS };
            print(code, &summary::table(&sweep))
        }
        Err(error @ OneSweepError::NotLeader(_)) => fail(3, &error),
        Err(error) => fail(1, &error),
    }
}

async fn serve(controller: WorkerController, settings: &Settings) -> ExitCode {
    let shutdown = Shutdown::new();
    if let Err(error) = shutdown.on_signals() {
        return fail(1, &error);
    }
    let admin = match AdminServer::bind(from_settings::admin_options(settings)).await {
        Ok(admin) => admin,
        Err(error) => return fail(1, &error),
    };
    let telemetry = controller.reconciler().telemetry().clone();
    let serving = tokio::spawn(admin.run(Arc::new(controller.clone()), telemetry, shutdown.clone()));
    controller.run(&shutdown).await;
    shutdown.request();
    // The server logs its own errors; a panic in it does not change the exit code.
    let _ = serving.await;
    ExitCode::SUCCESS
}

/// Prints to standard output. A closed pipe, as left by `head`, is not an error.
fn print(code: ExitCode, text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => fail(1, &error),
        Ok(()) | Err(_) => code,
    }
}

fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("worker-controller: {error}");
    ExitCode::from(code)
}
