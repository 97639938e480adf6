//! `lcm simulate`: a fleet under one policy or several.

use std::collections::BTreeMap;

use lcm_sdk::Policy;
use lcm_sdk::lifecycle::PolicyError;
use lcm_sdk::simulate::{Comparison, Events, Figures, Fleet, Scenario, SimulationError, compare, run as simulate};
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
        Some(_) => Scenario::from_json(read).map(Simulation::from),
        None => serde_json::from_value(read),
    }
    .map_err(|error| invalid(&error))?;
    let (seed, hours) = (arguments.seed.unwrap_or(read.seed), arguments.hours.unwrap_or(read.hours));
    let policy = |fields: &Value| Policy::default().with_fields(fields).map_err(|error: PolicyError| invalid(&error));
    let output = Output::new(arguments.output);
    let refused = |error: SimulationError| invalid(&error);
    if read.policies.is_empty() {
        let policy = read.policy.as_ref().map_or_else(|| Ok(Policy::default()), policy)?;
        let history = simulate(&read.fleet, &read.events, &policy, hours, seed).map_err(refused)?;
        let names = history.workers.iter().map(|worker| worker.to_string()).collect::<Vec<_>>();
        output.print(&history, names, |paint| match &arguments.why {
            Some(worker) => {
                history.why(worker, lcm_sdk::Timestamp::MAX_UTC).iter().map(|step| format!("{step}\n")).collect()
            }
            None => figures(&[("", &history.figures)], paint),
        })?;
        return Ok(ExitStatus::Success);
    }
    let policies = read.policies.iter().map(|(name, fields)| Ok((name.as_str(), policy(fields)?)));
    let policies = policies.collect::<Result<Vec<_>, Failure>>()?;
    let policies = policies.iter().map(|(name, policy)| (*name, policy));
    let compared: Comparison = compare(policies, &read.fleet, &read.events, hours, seed).map_err(refused)?;
    let columns: Vec<(&str, &Figures)> = compared.rows.iter().map(|(name, figures)| (name.as_str(), figures)).collect();
    output.print(&compared, columns.iter().map(|(name, _)| *name), |paint| figures(&columns, paint))?;
    Ok(ExitStatus::Success)
}

/// One line per policy.
fn figures(rows: &[(&str, &Figures)], paint: Paint) -> String {
    let mut table = Table::new(["POLICY", "SESSIONS", "SERVED", "DELAYED", "LOST", "MEAN DELAY", "HOURS", "COST"]);
    for (name, figures) in rows {
        let sessions = &figures.sessions;
        table.row([
            (if name.is_empty() { "-" } else { name }).into(),
            sessions.requested.to_string().into(),
            sessions.served.to_string().into(),
            sessions.delayed.to_string().into(),
            sessions.lost().to_string().into(),
            format!("{:.0} s", sessions.mean_delay).into(),
            format!("{:.1}", figures.instance_hours).into(),
            format!("{:.2}", figures.cost).into(),
        ]);
    }
    table.render(paint)
}
