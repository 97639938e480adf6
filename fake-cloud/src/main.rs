//! The command: starts a fake cloud and says where it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use fake_cloud::admin::parse_pace;
use fake_cloud::aws;
use fake_cloud::clock::{Clock, Pace};
use fake_cloud::world::{Delays, Settings, World};
use serde_json::json;
use tokio::net::TcpListener;

/// A cloud on your laptop: EC2 and CloudWatch that real clients can't tell apart.
///
/// Start it, export what it prints, and use boto3, the aws command line or any AWS SDK as always.
/// GET /_fake/ on the same port lists what the admin API can do.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Take free ports instead of the usual ones.
    #[arg(long)]
    ephemeral: bool,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// How time goes: real, manual (POST /_fake/clock/advance moves it), or a factor like x60.
    #[arg(long, default_value = "real", value_parser = parse_pace)]
    clock: Pace,
    /// How long things take, in seconds on that clock: none, or what differs, as in starting=5,stopping=1.
    ///
    /// There are starting, stopping, terminating, terminated-visible, token-remembered and status-checks.
    #[arg(long, default_value = "")]
    delays: Delays,
    /// Decides every random choice; the same seed makes the same world.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port for AWS and the admin API.
    #[arg(long, default_value_t = 4566)]
    aws_port: u16,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fake-cloud: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let port = if arguments.ephemeral { 0 } else { arguments.aws_port };
    let listener = TcpListener::bind((arguments.host, port)).await.map_err(|error| {
        format!("cannot listen on {}:{port}: {error}; try --aws-port or --ephemeral", arguments.host)
    })?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let settings = Settings {
        seed: arguments.seed,
        clock: Clock::new(arguments.clock),
        delays: arguments.delays,
        ..Settings::default()
    };
    let world = Arc::new(World::new(settings));
    let url = format!("http://{}", reachable(address));
    if arguments.json {
        println!("{}", json!({"aws_url": url, "admin_url": format!("{url}/_fake/")}));
    } else {
        println!("AWS    {url}\nadmin  {url}/_fake/\n");
        println!("export AWS_ENDPOINT_URL={url}");
        println!("export AWS_ACCESS_KEY_ID=fake AWS_SECRET_ACCESS_KEY=fake");
        // SDKs read the first, boto3 and the command line the second.
        println!("export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1");
    }
    aws::serve(listener, world, stop_signal()).await.map_err(|error| error.to_string())
}

/// Whoever listens everywhere is reached on this machine by its loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

/// Completes when somebody presses Ctrl-C or asks the process to end.
async fn stop_signal() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupted => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    // Without a signal handler the process ends the hard way, which leaves nothing behind either.
    let _ = interrupted.await;
}
