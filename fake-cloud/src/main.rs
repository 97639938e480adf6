//! The command, as a program.

use std::process::ExitCode;

use fake_cloud::command;

#[tokio::main]
async fn main() -> ExitCode {
    command::run("fake-cloud", std::env::args_os().skip(1)).await.into()
}
