//! The command: starts a fake cloud and says where it is.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use fake_cloud::admin::parse_pace;
use fake_cloud::clock::{Clock, Pace};
use fake_cloud::cloud::{Endpoints, FakeCloud, Options, Ports};
use fake_cloud::world::{Delays, Settings};

/// A cloud on your laptop: EC2, CloudWatch, CML, etcd and the control plane, as real clients know them.
///
/// Start it, export what it prints, and use boto3, the aws command line, etcdctl or virl2_client as always:
///
///   fake-cloud --clock x60
///   aws ec2 describe-images --filters Name=name,Values='cisco-cml2.9*'
///   etcdctl get --prefix /lcm/workers/
///
/// GET /_fake/ on the AWS port lists what the admin API can do: move the clock, inject faults, look at requests,
/// stop and terminate instances as if from the console.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
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
    /// The address to listen on. Anything but loopback lets others in.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port for EC2, CloudWatch and the admin API.
    #[arg(long, default_value_t = Ports::USUAL.aws)]
    aws_port: u16,
    /// The port for etcd.
    #[arg(long, default_value_t = Ports::USUAL.etcd)]
    etcd_port: u16,
    /// The port for the control plane.
    #[arg(long, default_value_t = Ports::USUAL.control_plane)]
    control_plane_port: u16,
    /// The port of every CML, each on its instance's own address.
    #[arg(long, default_value_t = Ports::USUAL.cml)]
    cml_port: u16,
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
    let ports = if arguments.ephemeral {
        Ports::default()
    } else {
        Ports {
            aws: arguments.aws_port,
            etcd: arguments.etcd_port,
            control_plane: arguments.control_plane_port,
            cml: arguments.cml_port,
        }
    };
    let settings = Settings {
        seed: arguments.seed,
        clock: Clock::new(arguments.clock),
        delays: arguments.delays,
        ..Settings::default()
    };
    let options = Options { host: arguments.host, ports, settings, ..Options::default() };
    let cloud = FakeCloud::start(options)
        .await
        .map_err(|error| format!("{error}; choose another port (see --help) or use --ephemeral"))?;
    announce(cloud.endpoints(), arguments.json).map_err(|error| error.to_string())?;
    stop_signal().await;
    cloud.stop().await;
    Ok(())
}

fn announce(endpoints: &Endpoints, as_json: bool) -> serde_json::Result<()> {
    let environment = endpoints.environment();
    if as_json {
        let mut line = serde_json::to_value(endpoints)?;
        line["env"] = environment;
        println!("{line}");
        return Ok(());
    }
    println!("EC2, CloudWatch  {}", endpoints.aws_url);
    println!("admin API        {}", endpoints.admin_url);
    println!("etcd             {}", endpoints.etcd_endpoint);
    println!("control plane    {}", endpoints.control_plane_url);
    println!("CML              https://<public address of an instance>:{}", endpoints.cml_port);
    println!("CML's authority  {}\n", endpoints.cml_ca_file.display());
    for (name, value) in environment.as_object().into_iter().flatten() {
        println!("export {name}={}", value.as_str().unwrap_or_default());
    }
    println!("\nCtrl-C stops it.");
    Ok(())
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
