//! Command line arguments and the texts of `--help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use lcm_sdk::lifecycle::{ReasonCode, time};
use lcm_sdk::reconciler::Mode;
use lcm_sdk::{Timestamp, WorkerStatus};

use crate::output::Format;

/// See a fleet of workers and steer it.
#[derive(Debug, Parser)]
#[command(name = "lcm", version, long_about = ABOUT, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Keep workers and their records in agreement; the same as worker-controller.
    #[command(after_help = CONTROLLER_EXAMPLES)]
    Controller(ControllerArguments),
    /// Run a cloud on this machine: EC2, CloudWatch, CML, etcd and a control plane.
    #[command(disable_help_flag = true)]
    FakeCloud {
        /// Options of fake-cloud; --help lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        arguments: Vec<OsString>,
    },
    /// List the workers, or follow their changes.
    #[command(after_help = WORKERS_EXAMPLES)]
    Workers(WorkersArguments),
    /// Explain one worker: its record, EC2, the decision and why, what would change it, and what happens next.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArguments),
    /// Reconcile one worker now, or request it of the controller that leads.
    #[command(after_help = RECONCILE_EXAMPLES)]
    Reconcile(ReconcileArguments),
    /// Print what a sweep over the whole fleet would change. Nothing is written.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArguments),
    /// Take a running worker out of placement, wait for its sessions and stop it.
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArguments),
    /// Put a draining worker back in service. Its sessions are not touched.
    #[command(after_help = CANCEL_DRAIN_EXAMPLES)]
    CancelDrain(DrainArguments),
    /// List the lab sessions of a worker.
    #[command(after_help = SESSIONS_EXAMPLES)]
    Sessions(SessionsArguments),
    /// Find records without an instance and instances without a record, once.
    #[command(after_help = ORPHANS_EXAMPLES)]
    Orphans(OrphansArguments),
    /// Print who leads the fleet, or each shard of it.
    #[command(after_help = LEADER_EXAMPLES)]
    Leader(LeaderArguments),
    /// Print the last reconciles of the controller, and follow what happens.
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArguments),
    /// Check credentials, regions, services and the clock, and tell how to mend them.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArguments),
    /// Simulate a fleet under one policy or several.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArguments),
    /// Decide a history again with this version, and print the decisions that differ.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArguments),
    /// Print every setting with its value and origin. Secrets are redacted.
    #[command(after_help = SETTINGS_EXAMPLES)]
    Settings(SettingsArguments),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell to write it for.
        shell: Shell,
    },
}

/// Keeps EC2 workers and their records in agreement.
///
/// Settings are environment variables; `--print-settings` lists them with their values and origins. To try it without a
/// cloud:
///
///   fake-cloud --ephemeral --scenario bad-day     prints `export …` lines; paste them, then
///   worker-controller --once --dry-run            reports what it would do
///   worker-controller --once                      reconciles every worker once
///   worker-controller                             keeps reconciling
///
/// Exit codes: 0 success; 1 failure; 2 invalid settings; 3 another controller leads; 4 a sweep left workers that have to
/// be retried.
#[derive(Debug, Parser)]
#[command(name = "worker-controller", version, verbatim_doc_comment)]
pub(crate) struct WorkerControllerArguments {
    #[command(flatten)]
    pub(crate) controller: ControllerArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArguments {
    /// Reconcile every worker once, print a summary and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Report what would be done without doing it; implies --once.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print every setting with its value and origin, and exit. Warnings follow the table.
    #[arg(long)]
    pub(crate) print_settings: bool,
    /// With --once: seconds to wait for the lead.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) wait_for_lead: u64,
}

/// Options of every command that calls a service.
#[derive(Debug, Args)]
pub(crate) struct CallArguments {
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Log calls and their failures to standard error, as LCM_LOG_LEVEL and RUST_LOG say.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of a command that may request something of the running controller.
#[derive(Debug, Args)]
pub(crate) struct AdminArguments {
    /// URL of the admin server of the controller that leads [default: http://ADMIN_HOST:ADMIN_PORT]
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkersArguments {
    /// Keep running, and print each worker again when its record changes.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Only workers of this region.
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Only workers with this status.
    #[arg(long)]
    pub(crate) status: Option<WorkerStatus>,
    /// Terminated workers as well.
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Id of the worker.
    pub(crate) worker: String,
    /// Explain the status at this time instead: the reconciles that led to it, from the files in LCM_HISTORY_DIR, else
    /// from the controller.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) at: Option<Timestamp>,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArguments {
    /// Id of the worker.
    pub(crate) worker: String,
    /// Print what would be done without doing it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not wait for the result, if the controller that leads reconciles the worker.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) author: AuthorArguments,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

/// Author and reason of an operation.
#[derive(Debug, Args)]
pub(crate) struct AuthorArguments {
    /// Reason, for the log of the controller and the audit of the control plane.
    #[arg(long, value_name = "TEXT", default_value = "operator")]
    pub(crate) reason: String,
    /// Requester, for the same [default: the user of this process]
    #[arg(long, value_name = "NAME")]
    pub(crate) requested_by: Option<String>,
}

impl AuthorArguments {
    /// The requester: as given, or the user of this process.
    pub(crate) fn requested_by(&self) -> String {
        let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
        self.requested_by.clone().or_else(user).unwrap_or_else(|| "lcm".to_owned())
    }
}

impl ReconcileArguments {
    pub(crate) const fn mode(&self) -> Mode {
        if self.dry_run { Mode::DryRun } else { Mode::Real }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Exit with 5 if something would change.
    #[arg(long)]
    pub(crate) exit_code: bool,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArguments {
    /// Id of the worker.
    pub(crate) worker: String,
    #[command(flatten)]
    pub(crate) author: AuthorArguments,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsArguments {
    /// Id of the worker.
    pub(crate) worker: String,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct OrphansArguments {
    /// Print the verdicts without marking or importing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct LeaderArguments {
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    /// Keep running: print reconciles, changes of records and changes of the lead as they happen.
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) call: CallArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArguments {
    /// YAML file with the fleet, its events and the policies, or a scenario of the fake cloud.
    pub(crate) file: PathBuf,
    /// Duration in hours, in place of that of the file.
    #[arg(long)]
    pub(crate) hours: Option<f64>,
    /// Seed of the random numbers, in place of that of the file.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// YAML file with fields of the policy that replace those of the file; times in seconds.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Print the steps that led to the status of this worker, at the end or at the time of --at.
    #[arg(long, value_name = "WORKER")]
    pub(crate) why: Option<String>,
    /// Time since the start, such as 90m or 12h, or a time of the simulation such as 2026-01-05T12:00:00Z.
    #[arg(long, value_name = "TIME", requires = "why")]
    pub(crate) at: Option<String>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// Files, or directories that LCM_HISTORY_DIR named.
    #[arg(required = true)]
    pub(crate) history: Vec<PathBuf>,
    /// YAML file with fields of the policy that replace the recorded ones; times in seconds.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Exit with 0 although decisions differ, whichever they are.
    #[arg(long)]
    pub(crate) expect_changes: bool,
    /// Reason code of the recorded or of the new decision of differences that are expected. Can be repeated.
    #[arg(long, value_name = "CODE", value_parser = reason)]
    pub(crate) expect_reason: Vec<ReasonCode>,
    /// Worker whose differences are expected. Can be repeated.
    #[arg(long, value_name = "WORKER")]
    pub(crate) expect_worker: Vec<String>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsArguments {
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// Reads a time.
fn moment(text: &str) -> Result<Timestamp, String> {
    time::parse(text).ok_or_else(|| "expected a time such as 2026-02-06T08:00:00Z; UTC without an offset".to_owned())
}

/// Reads a reason code.
fn reason(code: &str) -> Result<ReasonCode, String> {
    let known = ReasonCode::ALL.iter().copied().find(|known| known.as_str() == code);
    known.ok_or_else(|| "this version has no such reason code; docs/reference/reasons.md lists all".to_owned())
}

/// Time for which a command waits for the lead where no controller leads.
pub(crate) const LEAD_PATIENCE: Duration = Duration::from_secs(5);

const ABOUT: &str = "\
See a fleet of workers and steer it.

Settings are the environment variables of worker-controller; `lcm settings` lists them. To try it without a cloud:

  lcm fake-cloud --ephemeral --scenario bad-day    prints `export …` lines; paste them in another shell, then
  lcm workers                                      lists the workers
  lcm plan                                         prints what a controller would change
  lcm explain w-01                                 explains one worker
  lcm controller                                   keeps the fleet in order";

const EXIT_CODES: &str = "\
Every command but `controller` and `fake-cloud` prints tables, or with -o json, yaml or name text for scripts. Colors and
progress appear on a terminal only, and never with NO_COLOR.

Exit codes:
  0  success
  1  a service could not be reached or refused a call, a check of `doctor` failed, or no controller leads (`leader`)
  2  the command line or a setting is invalid; nothing was called
  3  another controller leads, and could not be requested to act
  4  a worker has to be retried, or was not reconciled in time
  5  plan --exit-code: something would change; replay: a decision differs
  6  the worker does not exist
  7  the status of the worker does not allow the operation, or the control plane lacks it";

const CONTROLLER_EXAMPLES: &str = "\
Examples:
  lcm controller                    run until SIGTERM
  lcm controller --once --dry-run   print the decision about every worker
  lcm controller --once             reconcile every worker once";

const WORKERS_EXAMPLES: &str = "\
Examples:
  lcm workers                       the table
  lcm workers --status running -o name | xargs -n1 lcm sessions
  lcm workers --watch               a line for each change, until Ctrl-C
  lcm workers -o json | jq '.[] | select(.desired_status == null).id'";

const EXPLAIN_EXAMPLES: &str = "\
Every read is performed and nothing is written. The history comes from the admin server of the controller, if it can be
reached.

Examples:
  lcm explain w-1
  lcm explain w-1 --at 2026-02-06T08:00:00Z    what led to the status at that time
  lcm explain w-1 -o json | jq -r .plan.reason.code";

const RECONCILE_EXAMPLES: &str = "\
While a controller leads, it is requested to reconcile the worker, over its admin server, and this command waits for the
result. Otherwise this command takes the lead for the moment.

Examples:
  lcm reconcile w-1 --dry-run       print what would be done
  lcm reconcile w-1                 do it
  lcm reconcile w-1 --no-wait --reason 'new image' --requested-by ada";

const PLAN_EXAMPLES: &str = "\
Workers that would stay as they are, and reports of metrics, are left out.

Examples:
  lcm plan                          what would change, and why
  lcm plan --exit-code              exit code 5 if something would change, for CI
  lcm plan -o name                  ids of the workers that would change";

const DRAIN_EXAMPLES: &str = "\
The reconciles that follow wait for the sessions, hand back those that have not begun, and stop the worker. While a
controller leads, it is requested to begin the drain; otherwise this command takes the lead for the moment.

Examples:
  lcm drain w-1 --reason maintenance
  lcm sessions w-1                  what the drain waits for
  lcm cancel-drain w-1              call it off";

const CANCEL_DRAIN_EXAMPLES: &str = "\
Examples:
  lcm cancel-drain w-1";

const SESSIONS_EXAMPLES: &str = "\
Examples:
  lcm sessions w-1
  lcm sessions w-1 -o json | jq '.[] | select(.status == \"running\").id'";

const ORPHANS_EXAMPLES: &str = "\
A record is marked terminated only with proof that its instance is gone. A controller does this by itself; the command is
for fleets without one, and with --dry-run for a look at the verdicts.

Examples:
  lcm orphans --dry-run             the verdicts, and why
  lcm orphans                       mark orphans terminated, import unknown instances";

const LEADER_EXAMPLES: &str = "\
Examples:
  lcm leader                        the controller that leads, and its fencing token
  lcm leader -o name || echo none";

const EVENTS_EXAMPLES: &str = "\
Reconciles come from the admin server of the controller, records and the lead from the control plane and etcd.

Examples:
  lcm events                        the reconciles that the controller remembers
  lcm events -f                     those, and everything that follows, until Ctrl-C
  lcm events -f -o json | jq -c 'select(.source == \"leader\")'";

const DOCTOR_EXAMPLES: &str = "\
Every check is ok, warn or FAIL, with what was found and how to mend it. Nothing is written. The exit code is 1 if a check
failed.

Examples:
  lcm doctor
  lcm doctor -o json | jq '.[] | select(.verdict != \"ok\")'";

const SIMULATE_EXAMPLES: &str = "\
The file has the keys fleet, events, policy or policies, hours and seed, with times in seconds; or it is a scenario of the
fake cloud, of which the parts without a model are printed. No service is called.

Examples:
  lcm simulate fleet.yaml           the figures of each policy
  lcm simulate bad-day.yaml --policy new.yaml
  lcm simulate fleet.yaml --why w-1 --at 12h
                                    the steps that led to the status of a worker
  lcm simulate fleet.yaml -o json | jq .inputs > same.json
                                    the inputs, which `lcm simulate same.json` repeats";

const REPLAY_EXAMPLES: &str = "\
Exit code 5 if a decision differs or cannot be made again, for upgrades and changes of the policy. No service is called.

Examples:
  lcm replay history/               this version against the one that recorded
  lcm replay history/ --policy new.yaml --expect-reason external_stop --expect-worker w-7
  lcm replay history/ --policy new.yaml --expect-changes
  lcm replay /var/lib/lcm-a /var/lib/lcm-b
  lcm replay history/ -o name       ids of the workers with differences";

const SETTINGS_EXAMPLES: &str = "\
Examples:
  lcm settings                      every setting, its value and origin, and warnings
  lcm settings -o json | jq '.[] | select(.origin != \"default\") | {name, value}'";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(lcm completions bash)
  lcm completions zsh > \"${fpath[1]}/_lcm\"
  lcm completions fish > ~/.config/fish/completions/lcm.fish";
