//! `lcm simulate`: a fleet under one policy or several.

use std::collections::BTreeMap;

use lcm_sdk::chrono::TimeDelta;
use lcm_sdk::lifecycle::PolicyError;
use lcm_sdk::simulate::{
    Comparison, Events, Figures, Fleet, History, Scenario, SimulationError, compare, run as simulate,
};
use lcm_sdk::{Policy, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::replay::fields;
use crate::arguments::SimulateArguments;
use crate::exit::{ExitStatus, Failure};
use crate::output::{Output, Paint, Table, printable};

/// The content of a simulation file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Simulation {
    fleet: Fleet,
    events: Events,
    /// Fields of the policy that differ from the default.
    policy: Option<Value>,
    /// The same for several policies, by name.
    policies: BTreeMap<String, Value>,
    hours: f64,
    seed: u64,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            fleet: Fleet::default(),
            events: Events::default(),
            policy: None,
            policies: BTreeMap::new(),
            hours: 24.0,
            seed: 0,
        }
    }
}

impl From<Scenario> for Simulation {
    fn from(scenario: Scenario) -> Self {
        for entry in &scenario.not_modeled {
            eprintln!("lcm: not simulated: {}", printable(entry));
        }
        Self { fleet: scenario.fleet, events: scenario.events, seed: scenario.seed, ..Self::default() }
    }
}

pub(crate) fn run(arguments: &SimulateArguments) -> Result<ExitStatus, Failure> {
    let file = &arguments.file;
    let invalid =
        |error: &dyn std::fmt::Display| Failure::new(ExitStatus::Usage, &format!("{}: {error}", file.display()));
    let read = fields(file)?;
    // Only a scenario of the fake cloud lists its workers.
    let read: Simulation = match read.get("workers") {
        Some(_) => Scenario::from_json(read).map(Simulation::from).map_err(|error| invalid(&error))?,
        None => serde_json::from_value(read).map_err(|error| invalid(&error))?,
    };
    let (seed, hours) = (arguments.seed.unwrap_or(read.seed), arguments.hours.unwrap_or(read.hours));
    let policy = |fields: &Value| Policy::default().with_fields(fields).map_err(|error: PolicyError| invalid(&error));
    let output = Output::new(arguments.output);
    let refused = |error: SimulationError| invalid(&error);
    if read.policies.is_empty() {
        let mut policy = read.policy.as_ref().map_or_else(|| Ok(Policy::default()), policy)?;
        if let Some(file) = &arguments.policy {
            policy = policy
                .with_fields(&fields(file)?)
                .map_err(|error| Failure::new(ExitStatus::Usage, &format!("{}: {error}", file.display())))?;
        }
        let history = simulate(&read.fleet, &read.events, &policy, hours, seed).map_err(refused)?;
        let chain =
            arguments.why.as_deref().map(|worker| why(&history, worker, arguments.at.as_deref())).transpose()?;
        let names = history.workers.iter().map(|worker| worker.to_string()).collect::<Vec<_>>();
        let provenance = history.inputs.digest();
        output.print(&history, names, |paint| match &chain {
            Some(chain) => chain.clone(),
            None => figures(&[("", &history.figures)], &provenance, hours, seed, paint),
        })?;
        return Ok(ExitStatus::Success);
    }
    let refused_with_policies = |option| {
        let why = format!("{option} needs one policy, and {} compares {}", file.display(), read.policies.len());
        Failure::new(ExitStatus::Usage, &why)
    };
    if arguments.policy.is_some() {
        return Err(refused_with_policies("--policy"));
    }
    if arguments.why.is_some() {
        return Err(refused_with_policies("--why"));
    }
    let policies = read.policies.iter().map(|(name, fields)| Ok((name.as_str(), policy(fields)?)));
    let policies = policies.collect::<Result<Vec<_>, Failure>>()?;
    let policies = policies.iter().map(|(name, policy)| (*name, policy));
    let compared: Comparison = compare(policies, &read.fleet, &read.events, hours, seed).map_err(refused)?;
    let columns: Vec<(&str, &Figures)> = compared.rows.iter().map(|(name, figures)| (name.as_str(), figures)).collect();
    let names = columns.iter().map(|(name, _)| *name);
    output.print(&compared, names, |paint| figures(&columns, &compared.digest, hours, seed, paint))?;
    Ok(ExitStatus::Success)
}

/// The steps that led to the status of a worker at a time, by default the end.
fn why(history: &History, worker: &str, at: Option<&str>) -> Result<String, Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::new(ExitStatus::Usage, error);
    let at = at.map_or(Ok(Timestamp::MAX_UTC), |at| moment(history.started_at, at)).map_err(|error| usage(&error))?;
    let chain = history.why(worker, at).map_err(|error| usage(&error))?;
    if chain.is_empty() {
        let status = history.status(worker, at).map_err(|error| usage(&error))?;
        return Ok(format!("{worker} has been {status} since the start: no step has changed it\n"));
    }
    Ok(chain.iter().map(|step| format!("{step}\n")).collect())
}

/// A time of the simulation: RFC 3339, or a time since the start such as `90m`.
fn moment(start: Timestamp, text: &str) -> Result<Timestamp, String> {
    let invalid = || {
        let example = start.to_rfc3339_opts(lcm_sdk::chrono::SecondsFormat::Secs, true);
        format!("invalid time '{text}': expected a time since the start such as 90m or 12h, or one such as {example}")
    };
    let since_start = || {
        let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let milliseconds = count.parse::<f64>().ok()? * seconds * 1000.0;
        let is_time = (0.0..1e14).contains(&milliseconds);
        is_time.then(|| start + TimeDelta::milliseconds(milliseconds as i64))
    };
    since_start().or_else(|| text.parse().ok()).ok_or_else(invalid)
}

/// One line per policy, and what is needed to repeat them.
fn figures(rows: &[(&str, &Figures)], inputs: &str, hours: f64, seed: u64, paint: Paint) -> String {
    let mut table = Table::new([
        "POLICY",
        "SESSIONS",
        "SERVED",
        "DELAYED",
        "LOST",
        "CUT SHORT",
        "MEAN DELAY",
        "TO RUNNING",
        "HOURS",
        "COST",
    ]);
    for (name, figures) in rows {
        let sessions = &figures.sessions;
        let to_running = figures.mean_time_to_running.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.0} s"));
        table.row([
            (if name.is_empty() { "-" } else { name }).into(),
            sessions.requested.to_string().into(),
            sessions.served.to_string().into(),
            sessions.delayed.to_string().into(),
            sessions.lost().to_string().into(),
            sessions.cut_short.to_string().into(),
            format!("{:.0} s", sessions.mean_delay).into(),
            to_running.into(),
            format!("{:.1}", figures.instance_hours).into(),
            format!("{:.2}", figures.cost).into(),
        ]);
    }
    let version = env!("CARGO_PKG_VERSION");
    format!("{}{hours} h, seed {seed}, version {version}, inputs {inputs}\n", table.render(paint))
}
