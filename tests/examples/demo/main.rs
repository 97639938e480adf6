//! Demo: controllers keep records and EC2 in agreement on a fake cloud while faults occur.
//!
//! All clients are the real ones: AWS, etcd, HTTP and TLS, election and watch. The output is a live table on a terminal
//! and lines in a pipe. Exit codes: 0 success, 1 an expectation failed, 130 interrupted.

mod controller;
mod fleet;
mod screen;
mod story;
mod summary;
mod table;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use fake_cloud::control_plane::Generation;
use lcm_sdk::controller::Shutdown;

use crate::screen::Screen;

/// Error that ends the demo.
type Problem = Box<dyn std::error::Error>;

/// Controllers keep records and EC2 in agreement on a fake cloud while faults occur.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Generation of the control plane: original, the deployed server, or extended, which also keeps notes and versions
    #[arg(long, default_value = "original")]
    control_plane: Generation,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut screen = Screen::on_stdout();
    let interruption = Shutdown::new();
    let result = match interruption.on_signals() {
        Ok(()) => tokio::select! {
            result = story::run(arguments.control_plane, &mut screen) => Some(result),
            () = interruption.requested() => None,
        },
        Err(error) => Some(Err(error.into())),
    };
    // Restore the terminal before the process prints or ends.
    screen.leave();
    match result {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(problem)) if is_closed_pipe(&*problem) => ExitCode::SUCCESS,
        Some(Err(problem)) => {
            eprintln!("\nThe demo failed: {problem}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("\nInterrupted; no process is left running.");
            ExitCode::from(130)
        }
    }
}

/// Whether the reader closed the pipe, which is not an error.
fn is_closed_pipe(problem: &(dyn std::error::Error + 'static)) -> bool {
    problem.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
