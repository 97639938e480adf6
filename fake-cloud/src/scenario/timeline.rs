//! Steps that a scenario takes after its start, each at its time on the clock of the world.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::duration::Span;
use super::{Scenario, ScenarioError};
use crate::control_plane::{Input, Records};
use crate::faults::Rule;
use crate::names::{self, Place};
use crate::suggest::did_you_mean;
use crate::world::metrics::{Datum, MetricKey, Summary};
use crate::world::{InstanceAction, World};

/// Entry of the list `timeline`: a time and one step.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimelineEntry {
    /// Time since the start.
    at: Span,
    #[serde(default)]
    start: Option<String>,
    #[serde(default)]
    stop: Option<String>,
    #[serde(default)]
    reboot: Option<String>,
    #[serde(default)]
    terminate: Option<String>,
    #[serde(default)]
    interrupt: Option<String>,
    #[serde(default)]
    drain: Option<String>,
    #[serde(default)]
    worker: Option<Map<String, Value>>,
    #[serde(default)]
    session: Option<Map<String, Value>>,
    #[serde(default)]
    metric: Option<MetricStep>,
    #[serde(default)]
    fault: Option<Rule>,
    #[serde(default)]
    heal: Option<Heal>,
}

/// Names of the steps, for errors.
const STEPS: &str = "start, stop, reboot, terminate, interrupt, drain, worker, session, metric, fault or heal";

/// Faults that a step removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Heal {
    /// All fault rules.
    All,
}

/// A value of a metric of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricStep {
    instance: String,
    name: String,
    value: f64,
    #[serde(default = "default_namespace")]
    namespace: String,
}

fn default_namespace() -> String {
    "AWS/EC2".to_owned()
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    Start(String),
    Stop(String),
    Reboot(String),
    Terminate(String),
    Interrupt(String),
    Drain(String),
    Worker(Map<String, Value>),
    Session(Map<String, Value>),
    Metric(MetricStep),
    Fault(Rule),
    Heal(Heal),
}

impl TimelineEntry {
    /// Returns the only step of the entry.
    fn step(&self) -> Result<Step, String> {
        let entry = self.clone();
        let steps = [
            entry.start.map(Step::Start),
            entry.stop.map(Step::Stop),
            entry.reboot.map(Step::Reboot),
            entry.terminate.map(Step::Terminate),
            entry.interrupt.map(Step::Interrupt),
            entry.drain.map(Step::Drain),
            entry.worker.map(Step::Worker),
            entry.session.map(Step::Session),
            entry.metric.map(Step::Metric),
            entry.fault.map(Step::Fault),
            entry.heal.map(Step::Heal),
        ];
        let mut steps = steps.into_iter().flatten();
        match (steps.next(), steps.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(format!("no step; accepted: one of {STEPS}")),
            (Some(_), Some(_)) => Err(format!("several steps; accepted: one of {STEPS} per entry")),
        }
    }

    /// Returns the step, checked against the names in the scenario.
    pub(super) fn check(&self, scenario: &Scenario, place: &str) -> Result<(), ScenarioError> {
        let error = |why: String| scenario.error(place.to_owned(), why);
        let step = self.step().map_err(error)?;
        if self.at.span() < chrono::TimeDelta::zero() {
            return Err(error("at is before the start; accepted: a time span such as 5m".to_owned()));
        }
        let script = &scenario.script;
        let fleet = script.fleet.iter().map(|machine| machine.name.as_str());
        let workers = || {
            let names = script.workers.iter().flat_map(|worker| [Some(worker.id.as_str()), worker.name.as_deref()]);
            names.flatten()
        };
        let sessions = script.sessions.iter().map(|session| session.id.as_str());
        let (kind, name, known): (&str, &str, Vec<&str>) = match &step {
            Step::Start(name)
            | Step::Stop(name)
            | Step::Reboot(name)
            | Step::Terminate(name)
            | Step::Interrupt(name) => ("instance", name, fleet.chain(workers()).collect()),
            Step::Metric(metric) => ("instance", &metric.instance, fleet.chain(workers()).collect()),
            Step::Drain(name) => ("worker", name, workers().collect()),
            Step::Worker(fields) => ("worker", id_of(fields).map_err(error)?, workers().collect()),
            Step::Session(fields) => ("session", id_of(fields).map_err(error)?, sessions.collect()),
            Step::Fault(rule) => return rule.check().map_err(|why| error(why.to_string())),
            Step::Heal(_) => return Ok(()),
        };
        if known.contains(&name) {
            return Ok(());
        }
        let hint = did_you_mean(name, known.iter().copied());
        Err(error(format!("no {kind} {name:?} in the scenario; accepted: {}{hint}", known.join(", "))))
    }
}

fn id_of(fields: &Map<String, Value>) -> Result<&str, String> {
    fields.get("id").and_then(Value::as_str).ok_or_else(|| "no id; accepted: {id: w-1, status: stopped}".to_owned())
}

/// A step that is due at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DueStep {
    at: DateTime<Utc>,
    step: Step,
}

impl DueStep {
    /// Returns the time at which the step is due.
    pub(crate) fn at(&self) -> DateTime<Utc> {
        self.at
    }

    /// Describes the step in a few words, without the fields that it sets.
    pub(crate) fn title(&self) -> String {
        let (verb, name) = match &self.step {
            Step::Start(name) => ("start", name.as_str()),
            Step::Stop(name) => ("stop", name.as_str()),
            Step::Reboot(name) => ("reboot", name.as_str()),
            Step::Terminate(name) => ("terminate", name.as_str()),
            Step::Interrupt(name) => ("interrupt", name.as_str()),
            Step::Drain(name) => ("drain", name.as_str()),
            Step::Worker(fields) => ("worker", id_of(fields).unwrap_or_default()),
            Step::Session(fields) => ("session", id_of(fields).unwrap_or_default()),
            Step::Metric(metric) => ("metric of", metric.instance.as_str()),
            Step::Fault(_) => ("fault", ""),
            Step::Heal(Heal::All) => ("heal", "all"),
        };
        format!("timeline: {verb} {name}").trim_end().to_owned()
    }
}

impl fmt::Display for DueStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", json!(self.step))
    }
}

impl Scenario {
    /// Returns the steps of the timeline, for a start at this time.
    pub(crate) fn steps(&self, start: DateTime<Utc>) -> Vec<DueStep> {
        let due = |entry: &TimelineEntry| Some(DueStep { at: entry.at.after(start), step: entry.step().ok()? });
        let mut steps: Vec<DueStep> = self.script.timeline.iter().filter_map(due).collect();
        // Stable: steps of one time are taken in the order of the file.
        steps.sort_by_key(|step| step.at);
        steps
    }
}

/// Steps that are not taken yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Locked while a step is taken, so that the clock does not go on before it has taken effect.
    steps: Mutex<VecDeque<DueStep>>,
    changed: Notify,
}

impl Timeline {
    /// Replaces all steps.
    pub(crate) fn load(&self, steps: Vec<DueStep>) {
        *self.inner.steps.lock() = steps.into();
        self.inner.changed.notify_one();
    }

    /// Returns the next step.
    pub(crate) fn first(&self) -> Option<DueStep> {
        self.inner.steps.lock().front().cloned()
    }

    /// Returns the steps that are not taken yet.
    pub(crate) fn pending(&self) -> Vec<DueStep> {
        self.inner.steps.lock().iter().cloned().collect()
    }

    /// Runs `work` on the pending steps for a snapshot. No step is taken until it returns.
    pub(crate) fn capture<T>(&self, work: impl FnOnce(serde_json::Result<Value>) -> T) -> T {
        let steps = self.inner.steps.lock();
        work(serde_json::to_value(&*steps))
    }

    /// Advances the clock. Each step is taken at its time, before the clock goes on.
    pub(crate) fn advance(&self, world: &World, records: &Records, duration: Duration) {
        let mut left = duration;
        loop {
            self.take_due(world, records);
            let next = self.first().map(|step| step.at);
            let until = next.map(|at| (at - world.clock().now()).to_std().unwrap_or_default());
            match until.filter(|until| *until <= left) {
                Some(until) => {
                    world.clock().advance(until);
                    left -= until;
                }
                None => {
                    world.clock().advance(left);
                    return;
                }
            }
        }
    }

    /// Takes the steps that are due as the clock goes on by itself, until it is dropped.
    pub(crate) async fn run(&self, world: &World, records: &Records) {
        loop {
            self.take_due(world, records);
            let next = self.first().map(|step| step.at);
            let due = async {
                match next {
                    Some(at) => world.clock().sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.inner.changed.notified() => {}
            }
        }
    }

    fn take_due(&self, world: &World, records: &Records) {
        let mut steps = self.inner.steps.lock();
        while let Some(due) = steps.front().filter(|step| step.at <= world.clock().now()) {
            if let Err(why) = take(&due.step, world, records) {
                world.request_log().notify(world.clock().now(), format!("timeline: {due} failed: {why}"));
            }
            steps.pop_front();
        }
    }
}

fn take(step: &Step, world: &World, records: &Records) -> Result<(), String> {
    let find = |name: &str| names::find_instance(world, Some(records), None, name).map_err(|error| error.to_string());
    let order = |name: &str, action: InstanceAction| {
        let Place { region, id } = find(name)?;
        world.console_action(&region, &id, action).map(drop).map_err(|error| error.to_string())
    };
    let input = |fields: &Map<String, Value>| {
        let mut fields = fields.clone();
        fields.remove("id");
        Input::from_value(fields.into()).map_err(|error| error.to_string())
    };
    match step {
        Step::Start(name) => order(name, InstanceAction::Start),
        Step::Stop(name) => order(name, InstanceAction::Stop),
        Step::Reboot(name) => order(name, InstanceAction::Reboot),
        Step::Terminate(name) => order(name, InstanceAction::Terminate),
        Step::Interrupt(name) => {
            let Place { region, id } = find(name)?;
            world.console_interrupt_spot(&region, &id, None).map(drop).map_err(|error| error.to_string())
        }
        Step::Drain(name) => {
            let id = records.worker_id(name).map_err(|error| error.to_string())?;
            records.drain(&id, None, "timeline", "scenario").map(drop).map_err(|error| error.to_string())
        }
        Step::Worker(fields) => {
            let changed = records.change_worker(id_of(fields)?, input(fields)?);
            changed.map(drop).map_err(|error| error.to_string())
        }
        Step::Session(fields) => {
            let moved = records.transition_session(id_of(fields)?, &input(fields)?);
            moved.map(drop).map_err(|error| error.to_string())
        }
        Step::Metric(metric) => {
            let Place { region, id } = find(&metric.instance)?;
            let key = MetricKey::new(&metric.namespace, &metric.name, [("InstanceId", id.as_str())]);
            let summary = Summary::from_value(metric.value);
            let datum = Datum { at: world.clock().now(), summary, unit: "Percent".to_owned() };
            world.console_set_metric(&region, key, datum).map_err(|error| error.to_string())
        }
        Step::Fault(rule) => {
            let rule = rule.clone().resolve(world, Some(records));
            rule.and_then(|rule| world.faults().add(rule)).map(drop).map_err(|error| error.to_string())
        }
        Step::Heal(Heal::All) => {
            world.faults().clear();
            Ok(())
        }
    }
}
