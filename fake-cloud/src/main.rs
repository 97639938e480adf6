//! The command: starts a fake cloud and says where it is.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use fake_cloud::admin::parse_pace;
use fake_cloud::clock::{Clock, Pace};
use fake_cloud::cloud::{Endpoints, FakeCloud, LeaseClock, Options, Ports};
use fake_cloud::cml::{self, Boot};
use fake_cloud::control_plane::Generation;
use fake_cloud::scenario::{READY, Scenario};
use fake_cloud::world::{Delays, Settings};

/// A cloud on your laptop: EC2, CloudWatch, CML, etcd and the control plane, as real clients know them.
///
/// Start it, paste the `export` lines it prints, and use boto3, the aws command line, etcdctl or virl2_client as
/// always. Nothing leaves this machine, nothing costs anything, and all of it is gone when you press Ctrl-C.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment, after_long_help = EXAMPLES, after_help = "--help shows examples.")]
struct Arguments {
    /// Take free ports instead of the usual ones.
    #[arg(long)]
    ephemeral: bool,
    /// Print each request as it happens, to stderr.
    #[arg(short, long)]
    verbose: bool,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// What has happened before it starts: the name of a ready scenario, or a YAML file.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,
    /// Print the ready scenarios with a sentence each, and end.
    #[arg(long)]
    list_scenarios: bool,
    /// How time goes: real, manual, or a factor like x60 [default: the scenario's, or else real]
    #[arg(long, value_parser = parse_pace)]
    clock: Option<Pace>,
    /// How long things take, in seconds on that clock: none, or what differs, as in starting=5,stopping=1.
    ///
    /// There are starting, stopping, terminating, terminated-visible, token-remembered and status-checks.
    #[arg(long, default_value = "")]
    delays: Delays,
    /// Decides every random choice; the same seed makes the same world [default: the scenario's, or else 0]
    #[arg(long)]
    seed: Option<u64>,
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
    /// At most this many CMLs are on at the same time; each takes a socket.
    #[arg(long, default_value_t = Options::default().cml_limit)]
    cml_limit: usize,
    /// How a CML boots: instant, or realistic, which takes four minutes.
    #[arg(long, default_value = "instant", value_parser = parse_boot)]
    cml_boot: Boot,
    /// What etcd leases are counted on: world, wall, or sensible: the world's clock unless that is accelerated.
    #[arg(long, default_value = "sensible")]
    leases: LeaseClock,
    /// Which control plane: current or older [default: the scenario's, or else current]
    ///
    /// The older one has no versions, no exclude_statuses and no terminate.
    #[arg(long)]
    control_plane_generation: Option<Generation>,
}

/// What `--help` ends with.
const EXAMPLES: &str = "\
First steps:
  fake-cloud                                 everything on its usual port
  fake-cloud --ephemeral --json              free ports, and one line of JSON that says which
  aws ec2 describe-images --filters 'Name=name,Values=cisco-cml2.9*'
  etcdctl get --prefix /lcm/workers/

A controller that keeps this cloud's fleet honest, in another window with the same exports:
  worker-controller --once --dry-run         what it would do
  worker-controller                          doing it

Time, and what has happened already:
  fake-cloud --clock x60                     an hour takes a minute
  fake-cloud --clock manual                  time stands still until you move it
  fake-cloud --list-scenarios                worlds that are ready to use
  fake-cloud --scenario drain -v             one of them, with every request shown as it happens
  fake-cloud --scenario mine.yaml            one of your own

A scenario of your own is a file like this; every part may be left out:
  clock: x60
  control_plane: older
  fleet:     [{name: blue, region: us-east-1, state: running, age: 2h, tags: {team: a}}]
  templates: [{name: huge, instance_type: m5zn.metal}]
  workers:   [{id: w-1, status: running, desired_status: running, template: huge, instance: blue}]
  sessions:  [{id: s-1, worker: w-1, status: running, began: 30m, lasts: 2h}]
  faults:    [{service: ec2, probability: 0.1, action: {kind: error, code: RequestLimitExceeded}}]

While it runs, the admin API on the AWS port (loopback only):
  curl localhost:4566/_fake/                 all it can do
  curl localhost:4566/_fake/state            everything there is
  curl 'localhost:4566/_fake/requests?service=control-plane'
  curl localhost:4566/_fake/clock/advance -H 'content-type: application/json' -d '{\"seconds\": 3600}'
  curl localhost:4566/_fake/faults -H 'content-type: application/json' \\
    -d '{\"service\": \"ec2\", \"times\": 3, \"action\": {\"kind\": \"error\", \"code\": \"RequestLimitExceeded\"}}'

Exit codes: 0 stopped as asked, 1 could not start (a port in use, a scenario that cannot be meant), 2 wrong usage.";

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
    if arguments.list_scenarios {
        return list_scenarios();
    }
    let scenario = arguments.scenario.as_deref().map(Scenario::find).transpose().map_err(|error| error.to_string())?;
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
    // What is said on the command line counts more than what a file says.
    let seed = arguments.seed.or_else(|| scenario.as_ref()?.seed()).unwrap_or_default();
    let pace = arguments.clock.or_else(|| scenario.as_ref()?.pace()).unwrap_or(Pace::Real);
    let settings = Settings { seed, clock: Clock::new(pace), delays: arguments.delays, ..Settings::default() };
    let options = Options {
        host: arguments.host,
        ports,
        settings,
        cml: cml::Options { boot: arguments.cml_boot, ..cml::Options::default() },
        cml_limit: arguments.cml_limit,
        leases: arguments.leases,
        control_plane_generation: arguments.control_plane_generation,
        scenario,
        ..Options::default()
    };
    let cloud = FakeCloud::start(options).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => format!("{error}; choose another port (see --help) or use --ephemeral"),
        _ => error.to_string(),
    })?;
    // Asked for or not: what cannot be reached is easily taken for a bug of whoever tries.
    cloud.world().recorder().listen_to_notices(|notice| drop(writeln!(std::io::stderr(), "{notice}")));
    if arguments.verbose {
        // To stderr, so that whoever reads the endpoints from stdout reads nothing else there.
        // Whoever reads the log may stop reading; the cloud goes on.
        cloud.world().recorder().listen(|record| drop(writeln!(std::io::stderr(), "{record}")));
    }
    announce(cloud.endpoints(), arguments.json).map_err(|error| error.to_string())?;
    stop_signal().await;
    cloud.stop().await;
    Ok(())
}

fn parse_boot(text: &str) -> Result<Boot, String> {
    match text {
        "instant" => Ok(Boot::INSTANT),
        "realistic" => Ok(Boot::REALISTIC),
        other => Err(format!("a CML boots 'instant' or 'realistic', not '{other}'")),
    }
}

fn list_scenarios() -> Result<(), String> {
    for ready in READY {
        let scenario = ready.scenario().map_err(|error| error.to_string())?;
        println!("{:<9}  {}", ready.name, scenario.about());
    }
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
        println!("export {name}={}", quoted(value.as_str().unwrap_or_default()));
    }
    println!("\nCtrl-C stops it.");
    Ok(())
}

/// A value as a shell takes it.
fn quoted(value: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:/".contains(letter);
    if value.chars().all(plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
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
