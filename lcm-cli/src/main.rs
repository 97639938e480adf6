//! The command `lcm`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    lcm_cli::run("lcm", std::env::args_os().skip(1)).await.into()
}
