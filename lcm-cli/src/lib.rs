//! The commands `lcm` and `worker-controller`.
//!
//! They are a library because `lcm` has two entry points: the binary, and the console script of the Python package. Both
//! call [`run`].

mod admin;
mod arguments;
mod commands;
mod context;
mod exit;
mod follow;
mod output;
mod progress;
mod summary;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};
use lcm_sdk::admin::Operation;

use self::arguments::{Arguments, Command, WorkerControllerArguments};
pub use self::exit::ExitStatus;
use self::exit::Failure;

/// Runs `lcm` and returns its exit status.
///
/// `arguments` exclude the name of the program; `program` is the name shown in help. Results are printed to standard
/// output, errors and logs to standard error. Needs a multi-threaded tokio runtime.
pub async fn run(program: &str, arguments: impl IntoIterator<Item = OsString>) -> ExitStatus {
    match parse::<Arguments>(program, arguments) {
        Ok(parsed) => {
            let status = finish("lcm", execute(program, parsed.command).await);
            context::finish_traces().await;
            status
        }
        Err(status) => status,
    }
}

/// Runs `worker-controller` and returns its exit status, as [`run`] does.
pub async fn run_worker_controller(program: &str, arguments: impl IntoIterator<Item = OsString>) -> ExitStatus {
    match parse::<WorkerControllerArguments>(program, arguments) {
        Ok(parsed) => finish("worker-controller", commands::controller::run(&parsed.controller).await),
        Err(status) => status,
    }
}

async fn execute(program: &str, command: Command) -> Result<ExitStatus, Failure> {
    match command {
        Command::Controller(arguments) => commands::controller::run(&arguments).await,
        Command::FakeCloud { arguments } => {
            let status = fake_cloud::command::run(&format!("{program} fake-cloud"), arguments).await;
            Ok(status.into())
        }
        Command::Workers(arguments) => commands::workers::run(&arguments).await,
        Command::Explain(arguments) => commands::explain::run(&arguments).await,
        Command::Reconcile(arguments) => commands::reconcile::run(&arguments).await,
        Command::Plan(arguments) => commands::plan::run(&arguments).await,
        Command::Drain(arguments) => commands::drain::run(&arguments, Operation::Drain).await,
        Command::CancelDrain(arguments) => commands::drain::run(&arguments, Operation::CancelDrain).await,
        Command::Sessions(arguments) => commands::sessions::run(&arguments).await,
        Command::Orphans(arguments) => commands::orphans::run(&arguments).await,
        Command::Leader(arguments) => commands::leader::run(&arguments).await,
        Command::Events(arguments) => commands::events::run(&arguments).await,
        Command::Doctor(arguments) => commands::doctor::run(&arguments).await,
        Command::Simulate(arguments) => commands::simulate::run(&arguments),
        Command::Replay(arguments) => commands::replay::run(&arguments),
        Command::Settings(arguments) => commands::settings::run(&arguments),
        Command::Completions { shell } => commands::completions::run(shell),
    }
}

/// Parses arguments. Help, the version and usage errors are printed, and returned as an exit status.
fn parse<A: CommandFactory + FromArgMatches>(
    program: &str,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, ExitStatus> {
    let mut command = A::command().bin_name(program).no_binary_name(true);
    let matches = command.try_get_matches_from_mut(arguments);
    matches.and_then(|matches| A::from_arg_matches(&matches)).map_err(|error| {
        // A reader that closes the pipe early is not an error.
        drop(error.print());
        if error.use_stderr() { ExitStatus::Usage } else { ExitStatus::Success }
    })
}

/// Prints a failure as one line.
fn finish(name: &str, result: Result<ExitStatus, Failure>) -> ExitStatus {
    result.unwrap_or_else(|failure| {
        if let Some(message) = &failure.message {
            eprintln!("{name}: {message}");
        }
        failure.status
    })
}
