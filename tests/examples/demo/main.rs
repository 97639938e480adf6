//! The main job in a minute: controllers keep a fleet honest on a fake cloud, while things go wrong behind their backs.
//!
//! Everything is real but the cloud: the AWS clients, etcd's client, HTTP and TLS, the election, the watch. On a terminal
//! it is a table that lives; in a pipe, lines. Exit codes: 0 everything came true, 1 something did not, 130 interrupted.

mod controller;
mod screen;
mod stage;
mod story;
mod summary;
mod table;
mod view;

use std::io;
use std::process::ExitCode;

use lcm_sdk::controller::Shutdown;

use crate::screen::Screen;

/// Why the story ended before its end.
type Problem = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    let mut screen = Screen::on_stdout();
    let interruption = Shutdown::new();
    let told = match interruption.on_signals() {
        Ok(()) => tokio::select! {
            told = story::tell(&mut screen) => Some(told),
            () = interruption.requested() => None,
        },
        Err(error) => Some(Err(error.into())),
    };
    // Before anything is said below the table, and before the process ends by whatever way.
    screen.leave();
    match told {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(problem)) if is_closed_pipe(&*problem) => ExitCode::SUCCESS,
        Some(Err(problem)) => {
            eprintln!("\nThe demo did not come true: {problem}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("\nStopped in the middle of the story; nothing is left running.");
            ExitCode::from(130)
        }
    }
}

/// Whoever reads only the first lines has seen enough, and hears no complaint.
fn is_closed_pipe(problem: &(dyn std::error::Error + 'static)) -> bool {
    problem.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
