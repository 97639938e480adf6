//! The command `worker-controller`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    lcm_cli::run_worker_controller("worker-controller", std::env::args_os().skip(1)).await.into()
}
