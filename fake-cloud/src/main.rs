//! The `fake-cloud` binary.

use std::process::ExitCode;

use fake_cloud::command;

// Single-threaded: a request takes microseconds, less than moving it between threads.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    command::run("fake-cloud", std::env::args_os().skip(1)).await.into()
}
