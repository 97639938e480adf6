//! A service that runs the worker controller.
//!
//! Settings are environment variables; `worker-controller --print-settings` lists them. To run it on a laptop, start
//! `fake-cloud --ephemeral` and export the variables that it prints.

use lcm_sdk::from_settings;
use lcm_sdk::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let controller = from_settings::worker_controller(&Settings::from_env()?).await?;
    let shutdown = Shutdown::new();
    shutdown.on_signals()?;
    tokio::spawn({
        let controller = controller.clone();
        async move { println!("ready: {:?}", controller.ready().await) }
    });
    controller.run(&shutdown).await;
    Ok(())
}
