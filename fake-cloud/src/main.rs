//! The command, as a program.

use std::process::ExitCode;

use fake_cloud::command;

// One thread: a request takes microseconds, and handing it from thread to thread takes longer than answering it.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    command::run("fake-cloud", std::env::args_os().skip(1)).await.into()
}
