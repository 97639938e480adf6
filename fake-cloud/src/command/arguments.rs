//! What can be said on the command line, and what `--help` teaches.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::admin::parse_pace;
use crate::clock::{Clock, Pace};
use crate::cloud::{Exposure, LeaseClock, Options, Ports, is_local};
use crate::cml::{self, Boot};
use crate::control_plane::ApiVersion;
use crate::scenario::{Scenario, ScenarioError};
use crate::world::{Delays, Settings};

/// A cloud on your laptop: EC2, CloudWatch, CML, etcd and the control plane, as real clients know them.
///
/// Start it, paste the `export` lines it prints, and use boto3, the aws command line, etcdctl or virl2_client as
/// always. Nothing leaves this machine, nothing costs anything, and all of it is gone when you press Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "fake-cloud", version, verbatim_doc_comment, after_long_help = EXAMPLES, after_help = "--help shows examples.")]
pub(super) struct Arguments {
    /// Take free ports instead of the usual ones.
    #[arg(long)]
    pub(super) ephemeral: bool,
    /// Print each request as it happens, to stderr.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// What has happened before it starts: the name of a ready scenario, or a YAML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) scenario: Option<String>,
    /// Print the ready scenarios with a sentence each, and end.
    #[arg(long)]
    pub(super) list_scenarios: bool,
    /// How time goes: real, manual, or a factor like x60 [default: the scenario's, or else real]
    #[arg(long, value_parser = parse_pace)]
    pub(super) clock: Option<Pace>,
    /// How long things take, in seconds on that clock: none, or what differs, as in starting=5,stopping=1.
    ///
    /// There are starting, stopping, terminating, terminated-visible, token-remembered and status-checks.
    #[arg(long, default_value = "")]
    pub(super) delays: Delays,
    /// Decides every random choice; the same seed makes the same world [default: the scenario's, or else 0]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// The address to listen on. Anything but loopback lets others in, and needs --expose.
    #[arg(long, default_value = "127.0.0.1")]
    pub(super) host: IpAddr,
    /// Let others than this machine in, by the address that --host says.
    ///
    /// Changes over the admin API then need a key, which is printed.
    #[arg(long)]
    pub(super) expose: bool,
    /// The port for EC2, CloudWatch and the admin API.
    #[arg(long, default_value_t = Ports::USUAL.aws)]
    pub(super) aws_port: u16,
    /// The port for etcd.
    #[arg(long, default_value_t = Ports::USUAL.etcd)]
    pub(super) etcd_port: u16,
    /// The port for the control plane.
    #[arg(long, default_value_t = Ports::USUAL.control_plane)]
    pub(super) control_plane_port: u16,
    /// The port of every CML, each on its instance's own address.
    #[arg(long, default_value_t = Ports::USUAL.cml)]
    pub(super) cml_port: u16,
    /// At most this many CMLs are on at the same time; each takes a socket.
    #[arg(long, default_value_t = Options::default().cml_limit)]
    pub(super) cml_limit: usize,
    /// How a CML boots: instant, or realistic, which takes four minutes.
    #[arg(long, default_value = "instant", value_parser = parse_boot)]
    pub(super) cml_boot: Boot,
    /// What etcd leases are counted on: world, wall, or sensible: the world's clock unless that is accelerated.
    #[arg(long, default_value = "sensible")]
    pub(super) leases: LeaseClock,
    /// Which control plane: current or older [default: the scenario's, or else current]
    ///
    /// The older one has no versions, no exclude_statuses and no terminate.
    #[arg(long)]
    pub(super) control_plane_api_version: Option<ApiVersion>,
}

impl Arguments {
    /// Reads what comes after the program's name; that name is what `--help` calls it.
    ///
    /// # Errors
    /// What clap has to say instead: the help, the version, or what is wrong.
    pub(super) fn read(program: &str, words: impl IntoIterator<Item = OsString>) -> clap::error::Result<Self> {
        let mut command = Self::command().bin_name(program).no_binary_name(true);
        let arguments = Self::from_arg_matches(&command.try_get_matches_from_mut(words)?)?;
        if !arguments.expose && !is_local(arguments.host) {
            let host = arguments.host;
            let problem = format!("--host {host} lets others than this machine in; --expose says that this is meant");
            return Err(command.error(ErrorKind::MissingRequiredArgument, problem));
        }
        Ok(arguments)
    }

    /// The cloud that is asked for.
    ///
    /// # Errors
    /// A scenario that is not there or cannot be read.
    pub(super) fn options(&self) -> Result<Options, ScenarioError> {
        let scenario = self.scenario.as_deref().map(Scenario::find).transpose()?;
        // What is said on the command line counts more than what a file says.
        let seed = self.seed.or_else(|| scenario.as_ref()?.seed()).unwrap_or_default();
        let pace = self.clock.or_else(|| scenario.as_ref()?.pace()).unwrap_or(Pace::Real);
        Ok(Options {
            host: self.host,
            exposure: if self.expose { Exposure::network() } else { Exposure::Loopback },
            ports: self.ports(),
            settings: Settings { seed, clock: Clock::new(pace), delays: self.delays, ..Settings::default() },
            cml: cml::Options { boot: self.cml_boot, ..cml::Options::default() },
            cml_limit: self.cml_limit,
            leases: self.leases,
            control_plane_api_version: self.control_plane_api_version,
            scenario,
            ..Options::default()
        })
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
        other => Err(format!("a CML boots 'instant' or 'realistic', not '{other}'")),
    }
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

While it runs, the admin API on the AWS port (for this machine, unless --expose):
  curl localhost:4566/_fake/                 all it can do
  curl localhost:4566/_fake/state            everything there is
  curl 'localhost:4566/_fake/requests?service=control-plane'
  curl localhost:4566/_fake/clock/advance -H 'content-type: application/json' -d '{\"seconds\": 3600}'
  curl localhost:4566/_fake/faults -H 'content-type: application/json' \\
    -d '{\"service\": \"ec2\", \"times\": 3, \"action\": {\"kind\": \"error\", \"code\": \"RequestLimitExceeded\"}}'

Exit codes: 0 stopped as asked, 1 could not start (a port in use, a scenario that cannot be meant), 2 wrong usage.";
