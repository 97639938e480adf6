//! A service that keeps a fleet honest, in a few lines.
//!
//! Everything comes from the environment; `worker-controller --print-settings` lists it. On a laptop:
//! `fake-cloud --ephemeral` prints the variables to export.

use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::from_settings;
use lcm_sdk::settings::Settings;

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
