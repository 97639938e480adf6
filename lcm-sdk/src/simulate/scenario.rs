//! Reads scenarios of the fake cloud.
//!
//! The format is that of `fake-cloud --scenario`. The reader is separate, because neither crate depends on the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use thiserror::Error;

use super::events::{
    ConsoleAction, ConsoleEvent, DesiredEvent, DrainAction, DrainEvent, Events, Fleet, Member, Outage, OutageFailure,
    PlannedSession,
};
use crate::lifecycle::session::{SessionPhase, SessionState};
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};

/// A fleet and its events, as a scenario of the fake cloud describes them.
///
/// ```
/// use lcm_sdk::simulate::Scenario;
///
/// let scenario = Scenario::from_json(lcm_sdk::serde_json::json!({
///     "seed": 7,
///     "fleet": [{"name": "blue", "state": "running"}],
///     "workers": [{"id": "w-blue", "status": "running", "instance": "blue"}],
///     "sessions": [{"id": "s-1", "worker": "w-blue", "status": "running", "began": "30m", "lasts": "2h"}],
///     "faults": [{"service": "etcd", "action": {"kind": "reset"}}],
///     "timeline": [{"at": "1h", "drain": "w-blue"}, {"at": "2h", "reboot": "blue"}],
/// }))?;
/// assert_eq!(scenario.fleet.members[0].id, "w-blue");
/// assert_eq!(scenario.events.sessions[0].lasts.as_secs(), 90 * 60);
/// assert_eq!(scenario.events.drains[0].at.as_secs(), 3600);
/// assert_eq!(
///     scenario.not_modeled,
///     [r#"faults[0]: {"action":{"kind":"reset"},"service":"etcd"}"#, "timeline[1]: reboot of blue"],
/// );
/// # Ok::<(), lcm_sdk::simulate::ScenarioError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Scenario {
    /// The workers with their instances.
    pub fleet: Fleet,
    /// Their sessions, the faults of EC2, and the steps of the timeline.
    pub events: Events,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Entries and fields that the simulation has no model for, by their place in the scenario.
    pub not_modeled: Vec<String>,
}

/// A scenario that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A field is unknown or has another type.
    #[error("{0}")]
    Field(#[from] serde_json::Error),
    /// The text is no YAML.
    #[cfg(feature = "runtime")]
    #[error("{0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// An entry contradicts the rest of the scenario.
    #[error("{place}: {why}")]
    Entry {
        /// Place of the entry, such as `timeline[2]`.
        place: String,
        /// The error, and the accepted values.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Script {
    #[serde(rename = "about")]
    _about: Option<String>,
    // The pace of a clock does not change what happens.
    #[serde(rename = "clock")]
    _clock: Option<String>,
    seed: Option<u64>,
    control_plane: Option<String>,
    fleet: Vec<InstanceEntry>,
    templates: Vec<Map<String, Value>>,
    workers: Vec<WorkerEntry>,
    sessions: Vec<SessionEntry>,
    faults: Vec<Value>,
    timeline: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceEntry {
    name: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    state: Option<Ec2State>,
    #[serde(default, rename = "type")]
    instance_type: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    age: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerEntry {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    status: Option<WorkerStatus>,
    #[serde(default)]
    desired_status: Option<DesiredStatus>,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    template: Option<String>,
    #[serde(default)]
    instance: Option<String>,
    #[serde(default)]
    instance_id: Option<String>,
    #[serde(default)]
    age: Option<Span>,
    #[serde(default)]
    fields: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionEntry {
    id: String,
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    began: Option<Span>,
    #[serde(default)]
    lasts: Option<Span>,
    #[serde(default)]
    fields: Map<String, Value>,
}

/// Seconds, negative for a time in the future. The default is that of the fake cloud: one hour.
#[derive(Clone, Copy)]
struct Span(i64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let seconds = || {
            let unit = text.chars().last()?;
            let factor = match unit {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                'd' => 86_400,
                _ => return None,
            };
            let seconds = text.strip_suffix(unit)?.trim().parse::<i64>().ok()?.checked_mul(factor)?;
            (seconds.abs() <= TEN_YEARS).then_some(Self(seconds))
        };
        let accepted = "accepted: 90s, 45m, 2h, 3d";
        seconds().ok_or_else(|| serde::de::Error::custom(format_args!("invalid time span {text:?}; {accepted}")))
    }
}

impl Span {
    /// A time that has passed.
    fn passed(self) -> Duration {
        Duration::from_secs(u64::try_from(self.0).unwrap_or_default())
    }
}

const TEN_YEARS: i64 = 315_360_000;

/// Duration of a session that names none.
const USUAL_SESSION: Duration = Duration::from_secs(7200);

/// Age of an instance that names none.
const USUAL_AGE: Duration = Duration::from_secs(3600);

/// The end of a fault that is not healed: longer than every simulation.
const NEVER: Duration = Duration::from_secs(366 * 86_400);

/// Codes of EC2 for a call that it did not carry out for now.
const UNAVAILABLE: [&str; 4] = ["InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"];

/// Names of the steps, for errors.
const STEPS: &str = "start, stop, reboot, terminate, interrupt, drain, worker, session, metric, fault or heal";

impl Scenario {
    /// Reads the text of a scenario, which is YAML.
    ///
    /// # Errors
    /// For a text that is no YAML, and those of [`Scenario::from_json`].
    #[cfg(feature = "runtime")]
    pub fn from_yaml(text: &str) -> Result<Self, ScenarioError> {
        Self::from_json(serde_yaml_ng::from_str(text)?)
    }

    /// Reads a scenario: its instances, workers and sessions, the errors of EC2, and the timeline.
    ///
    /// # Errors
    /// For a field that is unknown or has another type, and for an entry that names what the scenario does not have.
    pub fn from_json(scenario: Value) -> Result<Self, ScenarioError> {
        let script: Script = serde_json::from_value(scenario)?;
        let mut reader = Reader::default();
        reader.read_fleet(&script)?;
        reader.read_sessions(&script.sessions)?;
        for (index, fault) in script.faults.iter().enumerate() {
            reader.read_fault(Duration::ZERO, fault, format!("faults[{index}]"));
        }
        reader.read_timeline(&script.timeline)?;
        let Reader { members, mut events, sessions, not_modeled, .. } = reader;
        events.sessions = sessions.into_iter().map(|(_, session)| session).collect();
        let fleet = Fleet { members, ..Fleet::default() };
        Ok(Self { fleet, events, seed: script.seed.unwrap_or_default(), not_modeled })
    }
}

#[derive(Default)]
struct Reader {
    members: Vec<Member>,
    /// Ids of the workers by their own id, their name, and the name of their instance.
    workers: BTreeMap<String, String>,
    /// Names of the instances that no worker has.
    unused: BTreeSet<String>,
    sessions: Vec<(String, PlannedSession)>,
    /// Sessions of the scenario that are not simulated, because they are over or have failed.
    past_sessions: Vec<String>,
    events: Events,
    not_modeled: Vec<String>,
}

impl Reader {
    fn read_fleet(&mut self, script: &Script) -> Result<(), ScenarioError> {
        if let Some(generation) = script.control_plane.as_deref().filter(|generation| *generation != "extended") {
            self.not_modeled.push(format!("control_plane: {generation}"));
        }
        let mut drain_timeouts = BTreeMap::new();
        for (index, template) in script.templates.iter().enumerate() {
            let name = template.get("name").and_then(Value::as_str).unwrap_or_default();
            for (field, value) in template {
                match (field.as_str(), value.as_f64()) {
                    ("name", _) => {}
                    ("drain_timeout_hours", Some(hours)) => {
                        let timeout = Duration::try_from_secs_f64(hours * 3600.0).map_err(|_| {
                            let why = format!("drain_timeout_hours is {hours}; accepted: hours from 0 up");
                            entry_error(format!("templates[{index}]"), why)
                        })?;
                        drain_timeouts.insert(name, timeout);
                    }
                    _ => self.not_modeled.push(format!("templates[{index}]: field {field}")),
                }
            }
        }
        let mut instances: BTreeMap<&str, &InstanceEntry> = BTreeMap::new();
        for (index, instance) in script.fleet.iter().enumerate() {
            if instances.insert(&instance.name, instance).is_some() {
                let why = format!("duplicate instance name {:?}; accepted: a unique name", instance.name);
                return Err(entry_error(format!("fleet[{index}]"), why));
            }
        }
        for (index, worker) in script.workers.iter().enumerate() {
            let place = || format!("workers[{index}]");
            let mut member = Member::new(worker.id.as_str(), worker.status.unwrap_or(WorkerStatus::Pending));
            let instance = match worker.instance.as_deref() {
                None => None,
                Some(name) => Some(instances.get(name).copied().ok_or_else(|| {
                    let names = script.fleet.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
                    entry_error(place(), format!("no instance {name:?} in the fleet; accepted: {names}"))
                })?),
            };
            if let Some(entry) = instance {
                if self.workers.insert(entry.name.clone(), worker.id.clone()).is_some() {
                    self.not_modeled.push(format!("{}: instance {} of several workers", place(), entry.name));
                }
                member.instance = Some(entry.state.unwrap_or(Ec2State::Running));
                member.instance_type.clone_from(&entry.instance_type);
                member.instance_age = entry.age.map_or(USUAL_AGE, Span::passed);
                member.tags.clone_from(&entry.tags);
            }
            let region = worker.region.as_ref().or_else(|| instance.and_then(|entry| entry.region.as_ref()));
            member.region = region.cloned();
            member.name.clone_from(&worker.name);
            member.desired = worker.desired_status;
            member.instance_id.clone_from(&worker.instance_id);
            member.age = worker.age.map_or(Duration::ZERO, Span::passed);
            member.drain_timeout = worker.template.as_deref().and_then(|name| drain_timeouts.get(name)).copied();
            self.not_modeled.extend(worker.fields.keys().map(|field| format!("{}: field {field}", place())));
            for name in [Some(&worker.id), worker.name.as_ref()].into_iter().flatten() {
                self.workers.insert(name.clone(), worker.id.clone());
            }
            self.members.push(member);
        }
        for (index, instance) in script.fleet.iter().enumerate() {
            if !script.workers.iter().any(|worker| worker.instance.as_ref() == Some(&instance.name)) {
                self.not_modeled.push(format!("fleet[{index}]: instance {} without a worker", instance.name));
                self.unused.insert(instance.name.clone());
            }
        }
        Ok(())
    }

    fn read_sessions(&mut self, sessions: &[SessionEntry]) -> Result<(), ScenarioError> {
        for (index, session) in sessions.iter().enumerate() {
            let place = || format!("sessions[{index}]");
            let worker = match session.worker.as_deref() {
                None => None,
                Some(name) => Some(self.worker(name, place())?),
            };
            self.not_modeled.extend(session.fields.keys().map(|field| format!("{}: field {field}", place())));
            let phase = SessionState::from_wire(session.status.as_deref().unwrap_or("pending")).phase();
            let began = session.began.map_or(0, |span| span.0);
            let passed = Duration::from_secs(u64::try_from(began).unwrap_or_default());
            let lasts = session.lasts.map_or(USUAL_SESSION, Span::passed).saturating_sub(passed);
            match phase {
                SessionPhase::Waiting | SessionPhase::Active => {
                    let planned = PlannedSession {
                        at: Duration::ZERO,
                        lasts: lasts.max(Duration::from_secs(1)),
                        lead: Duration::from_secs(u64::try_from(-began).unwrap_or_default()),
                        worker,
                    };
                    self.sessions.push((session.id.clone(), planned));
                }
                SessionPhase::Failed => {
                    self.past_sessions.push(session.id.clone());
                    self.not_modeled.push(format!("{}: {}, which has failed", place(), session.id));
                }
                SessionPhase::Over => self.past_sessions.push(session.id.clone()),
            }
        }
        Ok(())
    }

    /// An error of EC2 is an outage or throttling, from now on.
    fn read_fault(&mut self, from: Duration, fault: &Value, place: String) {
        let known = ["service", "probability", "action", "per"];
        let is_plain =
            fault.as_object().is_some_and(|fields| fields.keys().all(|field| known.contains(&field.as_str())));
        let share = fault.get("probability").map_or(Some(1.0), Value::as_f64);
        let action = &fault["action"];
        let failure = match (action["kind"].as_str(), action["code"].as_str()) {
            (Some("reset"), _) => Some(OutageFailure::Unreachable),
            (Some("error"), Some("RequestLimitExceeded" | "Throttling")) => Some(OutageFailure::Throttled),
            (Some("error"), Some(code)) if UNAVAILABLE.contains(&code) => Some(OutageFailure::Unreachable),
            _ => None,
        };
        match (failure, share) {
            (Some(failure), Some(share)) if is_plain && fault["service"] == "ec2" => {
                self.events.outages.push(Outage { from, to: NEVER, share, failure });
            }
            _ => self.not_modeled.push(format!("{place}: {fault}")),
        }
    }

    fn read_timeline(&mut self, timeline: &[Map<String, Value>]) -> Result<(), ScenarioError> {
        let mut steps = Vec::new();
        for (index, entry) in timeline.iter().enumerate() {
            let place = format!("timeline[{index}]");
            let error = |why: String| entry_error(place.clone(), why);
            let at = entry.get("at").ok_or_else(|| error("no time; accepted: at: 5m".to_owned()))?;
            let at: Span = serde_json::from_value(at.clone()).map_err(|why| error(why.to_string()))?;
            if at.0 < 0 {
                return Err(error("at is before the start; accepted: a time span such as 5m".to_owned()));
            }
            let mut named = entry.iter().filter(|(name, _)| *name != "at");
            match (named.next(), named.next()) {
                (Some((step, value)), None) => steps.push((at.passed(), step.as_str(), value, place)),
                (None, _) => return Err(error(format!("no step; accepted: one of {STEPS}"))),
                (Some(_), Some(_)) => return Err(error(format!("several steps; accepted: one of {STEPS} per entry"))),
            }
        }
        // Stable: steps of one time are taken in the order of the file.
        steps.sort_by_key(|(at, ..)| *at);
        for (at, step, value, place) in steps {
            self.read_step(at, step, value, place)?;
        }
        Ok(())
    }

    fn read_step(&mut self, at: Duration, step: &str, value: &Value, place: String) -> Result<(), ScenarioError> {
        let name =
            || value.as_str().ok_or_else(|| entry_error(place.clone(), format!("{step} is {value}; accepted: a name")));
        match step {
            "start" => self.read_console(at, ConsoleAction::Start, name()?, place)?,
            "stop" => self.read_console(at, ConsoleAction::Stop, name()?, place)?,
            "terminate" => self.read_console(at, ConsoleAction::Terminate, name()?, place)?,
            "drain" => {
                let worker = self.worker(name()?, place)?;
                self.events.drains.push(DrainEvent { at, worker, action: DrainAction::Begin });
            }
            "reboot" | "interrupt" => {
                let name = name()?;
                self.not_modeled.push(format!("{place}: {step} of {name}"));
            }
            "metric" => self.not_modeled.push(format!("{place}: metric {value}")),
            "worker" => self.read_change(at, value, &place)?,
            "session" => self.read_move(at, value, &place)?,
            "fault" => self.read_fault(at, value, place),
            "heal" if value == "all" => {
                for outage in self.events.outages.iter_mut().filter(|outage| outage.to == NEVER) {
                    outage.to = at;
                }
            }
            "heal" => return Err(entry_error(place, format!("heal is {value}; accepted: all"))),
            _ => return Err(entry_error(place, format!("unknown step {step:?}; accepted: {STEPS}"))),
        }
        Ok(())
    }

    fn read_console(
        &mut self,
        at: Duration,
        action: ConsoleAction,
        name: &str,
        place: String,
    ) -> Result<(), ScenarioError> {
        if self.unused.contains(name) {
            self.not_modeled.push(format!("{place}: {} of {name}, which has no worker", action.as_str()));
            return Ok(());
        }
        let worker = self.worker(name, place)?;
        self.events.console.push(ConsoleEvent { at, worker, action });
        Ok(())
    }

    /// A change of the record of a worker.
    fn read_change(&mut self, at: Duration, value: &Value, place: &str) -> Result<(), ScenarioError> {
        let fields = fields_of(value, place)?;
        let worker = self.worker(id_of(fields, place)?, place.to_owned())?;
        for (field, value) in fields {
            match field.as_str() {
                "id" => {}
                "desired_status" => {
                    let desired = serde_json::from_value(value.clone())
                        .map_err(|why| entry_error(place.to_owned(), format!("desired_status: {why}")))?;
                    self.events.desired.push(DesiredEvent { at, worker: worker.clone(), desired });
                }
                _ => self.not_modeled.push(format!("{place}: field {field} of {worker}")),
            }
        }
        Ok(())
    }

    /// A session that begins, or that ends before its time.
    fn read_move(&mut self, at: Duration, value: &Value, place: &str) -> Result<(), ScenarioError> {
        let fields = fields_of(value, place)?;
        let id = id_of(fields, place)?;
        let status = fields.get("status").and_then(Value::as_str);
        let known =
            self.sessions.iter().map(|(id, _)| id.as_str()).chain(self.past_sessions.iter().map(String::as_str));
        let known: Vec<&str> = known.collect();
        if !known.contains(&id) {
            let why = format!("no session {id:?} in the scenario; accepted: {}", known.join(", "));
            return Err(entry_error(place.to_owned(), why));
        }
        let planned = self.sessions.iter_mut().find(|(known, _)| known == id).map(|(_, session)| session);
        let is_plain = fields.keys().all(|field| ["id", "status"].contains(&field.as_str()));
        match (planned, status.map(|status| SessionState::from_wire(status).phase())) {
            (Some(session), Some(SessionPhase::Over)) if is_plain && at > session.lead => {
                session.lasts = session.lasts.min(at - session.lead);
            }
            (Some(session), Some(SessionPhase::Active)) if is_plain && !session.lead.is_zero() => session.lead = at,
            _ => self.not_modeled.push(format!("{place}: session {value}")),
        }
        Ok(())
    }

    fn worker(&self, name: &str, place: String) -> Result<String, ScenarioError> {
        self.workers.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.workers.keys().map(String::as_str).collect();
            entry_error(
                place,
                format!("no worker or instance {name:?} in the scenario; accepted: {}", known.join(", ")),
            )
        })
    }
}

fn fields_of<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, ScenarioError> {
    let error = || entry_error(place.to_owned(), format!("found {value}; accepted: {{id: w-1, status: stopped}}"));
    value.as_object().ok_or_else(error)
}

fn id_of<'a>(fields: &'a Map<String, Value>, place: &str) -> Result<&'a str, ScenarioError> {
    let error = || entry_error(place.to_owned(), "no id; accepted: {id: w-1, status: stopped}".to_owned());
    fields.get("id").and_then(Value::as_str).ok_or_else(error)
}

fn entry_error(place: String, why: String) -> ScenarioError {
    ScenarioError::Entry { place, why }
}
