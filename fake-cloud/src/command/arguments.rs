//! Command line arguments and the text of `--help`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::admin::parse_pace;
use crate::clock::Pace;
use crate::cloud::{DEFAULT_CML_LIMIT, Exposure, FakeCloud, FakeCloudBuilder, LeaseClock, Ports, is_loopback};
use crate::cml::Boot;
use crate::control_plane::Generation;
use crate::scenario::Scenario;
use crate::snapshot::Snapshot;
use crate::world::Delays;

/// Local fakes of EC2, CloudWatch, CML, etcd and the control plane, compatible with their real clients.
///
/// Start it, paste the `export` lines it prints, then use boto3, the AWS CLI, etcdctl or virl2_client as usual.
/// All state is in memory and is lost when the process stops.
#[derive(Debug, Parser)]
#[command(name = "fake-cloud", version, verbatim_doc_comment, after_long_help = EXAMPLES, after_help = "--help shows examples.")]
pub(super) struct Arguments {
    /// Use free ports instead of the default ports.
    #[arg(long)]
    pub(super) ephemeral: bool,
    /// Log each request to stderr.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Initial state: the name of a built-in scenario, or a YAML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) scenario: Option<String>,
    /// Initial state: a snapshot, with its clock, seed and delays.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "clock", "seed", "control_plane", "delays", "cml_boot"])]
    pub(super) restore: Option<PathBuf>,
    /// List the built-in scenarios and exit.
    #[arg(long)]
    pub(super) list_scenarios: bool,
    /// Clock pace: real, manual, or a factor such as x60 [default: the scenario's, or real]
    #[arg(long, value_parser = parse_pace)]
    pub(super) clock: Option<Pace>,
    /// Delays in seconds of that clock: none, or a list of overrides such as starting=5,stopping=1.
    ///
    /// Names: starting, stopping, terminating, terminated-visible, token-remembered and status-checks.
    #[arg(long, default_value = "")]
    pub(super) delays: Delays,
    /// Seed of all random choices; equal seeds give equal worlds [default: the scenario's, or 0]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Address to listen on; an address that is not loopback requires --expose.
    #[arg(long, default_value = "127.0.0.1")]
    pub(super) host: IpAddr,
    /// Allow remote access on the address given by --host.
    ///
    /// Changes over the admin API then require a key, which is printed at startup.
    #[arg(long)]
    pub(super) expose: bool,
    /// Port of EC2, CloudWatch and the admin API.
    #[arg(long, default_value_t = Ports::WELL_KNOWN.aws)]
    pub(super) aws_port: u16,
    /// Port of the etcd API.
    #[arg(long, default_value_t = Ports::WELL_KNOWN.etcd)]
    pub(super) etcd_port: u16,
    /// Port of the control plane.
    #[arg(long, default_value_t = Ports::WELL_KNOWN.control_plane)]
    pub(super) control_plane_port: u16,
    /// Port of the CML servers; each listens on the address of its instance.
    #[arg(long, default_value_t = Ports::WELL_KNOWN.cml)]
    pub(super) cml_port: u16,
    /// Maximum number of CML servers that run at the same time; each needs a socket.
    #[arg(long, default_value_t = DEFAULT_CML_LIMIT)]
    pub(super) cml_limit: usize,
    /// Boot time of CML servers: instant, or realistic (four minutes).
    #[arg(long, default_value = "instant", value_parser = parse_boot)]
    pub(super) cml_boot: Boot,
    /// Clock of etcd leases: world, wall, or auto (the world's clock unless it is accelerated).
    #[arg(long, default_value = "auto")]
    pub(super) leases: LeaseClock,
    /// Generation of the control plane: original or extended [default: the scenario's, or original]
    ///
    /// Original is the deployed server; extended adds record versions, notes on records, cancel-drain and more.
    #[arg(long)]
    pub(super) control_plane: Option<Generation>,
}

impl Arguments {
    /// Parses the arguments that follow the program name; `program` is the name shown in `--help`.
    ///
    /// # Errors
    /// A clap error, which also carries requested help and version output.
    pub(super) fn parse_from(program: &str, args: impl IntoIterator<Item = OsString>) -> clap::error::Result<Self> {
        let mut command = Self::command().bin_name(program).no_binary_name(true);
        let arguments = Self::from_arg_matches(&command.try_get_matches_from_mut(args)?)?;
        if !arguments.expose && !is_loopback(arguments.host) {
            let host = arguments.host;
            let message = format!("--host {host} is not a loopback address; pass --expose to allow remote access");
            return Err(command.error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(arguments)
    }

    /// Options of the cloud to start.
    ///
    /// # Errors
    /// The scenario or the snapshot does not exist or is invalid.
    pub(super) fn builder(&self) -> Result<FakeCloudBuilder, String> {
        let scenario = self.scenario.as_deref().map(Scenario::find).transpose().map_err(|error| error.to_string())?;
        let snapshot = self.restore.as_deref().map(Snapshot::read).transpose().map_err(|error| error.to_string())?;
        // Arguments override the scenario.
        let seed = self.seed.or_else(|| scenario.as_ref()?.seed()).unwrap_or_default();
        let pace = self.clock.or_else(|| scenario.as_ref()?.pace()).unwrap_or(Pace::Real);
        let exposure = if self.expose { Exposure::network() } else { Exposure::Loopback };
        Ok(FakeCloud::builder()
            .host(self.host)
            .exposure(exposure)
            .ports(self.ports())
            .seed(seed)
            .pace(pace)
            .delays(self.delays)
            .cml(|cml| cml.boot = self.cml_boot)
            .cml_limit(self.cml_limit)
            .lease_clock(self.leases)
            .control_plane(self.control_plane)
            .scenario(scenario)
            .restore(snapshot))
    }

    fn ports(&self) -> Ports {
        if self.ephemeral {
            return Ports::default();
        }
        Ports { aws: self.aws_port, etcd: self.etcd_port, control_plane: self.control_plane_port, cml: self.cml_port }
    }
}

fn parse_boot(text: &str) -> Result<Boot, String> {
    match text {
        "instant" => Ok(Boot::INSTANT),
        "realistic" => Ok(Boot::REALISTIC),
        other => Err(format!("invalid CML boot mode '{other}': expected 'instant' or 'realistic'")),
    }
}

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
First steps:
  fake-cloud                                 all services on their default ports
  fake-cloud --ephemeral --json              free ports, endpoints as one line of JSON
  aws ec2 describe-images --filters 'Name=name,Values=cisco-cml2.9*'
  etcdctl get --prefix /lcm/workers/
  fake-cloud etcd --help                     the fake etcd alone, without the other services

Run a controller against this cloud, in another shell with the same exports:
  worker-controller --once --dry-run         print the plan without changes
  worker-controller                          run the controller

Clock and scenarios:
  fake-cloud --clock x60                     one hour takes one minute
  fake-cloud --clock manual                  time moves only over the admin API
  fake-cloud --list-scenarios                list the built-in scenarios
  fake-cloud --scenario drain -v             start one, with a request log
  fake-cloud --scenario mine.yaml            start your own

Snapshots of the whole cloud, without its passwords and tokens:
  curl -X POST localhost:4566/_fake/snapshot > cloud.json
  fake-cloud --restore cloud.json            go on from there

Format of a scenario file; every part is optional:
  clock: x60
  control_plane: extended
  fleet:     [{name: blue, region: us-east-1, state: running, age: 2h, tags: {team: a}}]
  templates: [{name: huge, instance_type: m5zn.metal}]
  workers:   [{id: w-1, status: running, desired_status: running, template: huge, instance: blue}]
  sessions:  [{id: s-1, worker: w-1, status: running, began: 30m, lasts: 2h}]
  faults:    [{service: ec2, probability: 0.1, action: {kind: error, code: RequestLimitExceeded}}]
  timeline:  [{at: 5m, stop: blue}, {at: 10m, worker: {id: w-1, desired_status: stopped}}, {at: 1h, heal: all}]

Admin API on the AWS port (this machine only, unless --expose):
  curl localhost:4566/_fake/                 list of all requests
  curl localhost:4566/_fake/state            state of every service
  curl 'localhost:4566/_fake/requests?service=control-plane'
  curl localhost:4566/_fake/clock/advance -H 'content-type: application/json' -d '{\"seconds\": 3600}'
  curl localhost:4566/_fake/faults -H 'content-type: application/json' \\
    -d '{\"service\": \"ec2\", \"times\": 3, \"action\": {\"kind\": \"error\", \"code\": \"RequestLimitExceeded\"}}'

Exit codes: 0 stopped by a signal, 1 could not start (a port in use, an invalid scenario), 2 invalid arguments.";
