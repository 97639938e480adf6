//! Reads scenarios of the fake cloud.
//!
//! The format is that of `fake-cloud --scenario`. The reader is separate, because neither crate depends on the other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::events::{Events, Fleet, Member, PlannedSession};
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
/// }))?;
/// assert_eq!(scenario.fleet.members[0].id, "w-blue");
/// assert_eq!(scenario.events.sessions[0].lasts.as_secs(), 90 * 60);
/// assert_eq!(scenario.not_modeled, [r#"fault {"action":{"kind":"reset"},"service":"etcd"}"#]);
/// # Ok::<(), lcm_sdk::serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Scenario {
    /// The workers with their instances.
    pub fleet: Fleet,
    /// Their sessions and faults.
    pub events: Events,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Entries that the simulation has no model for: faults of other services, sessions that have failed, instances
    /// without a worker.
    pub not_modeled: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Script {
    #[serde(rename = "about")]
    _about: Option<String>,
    #[serde(rename = "clock")]
    _clock: Option<String>,
    seed: Option<u64>,
    #[serde(rename = "control_plane")]
    _control_plane: Option<String>,
    fleet: Vec<InstanceEntry>,
    #[serde(rename = "templates")]
    _templates: Vec<Map<String, Value>>,
    workers: Vec<WorkerEntry>,
    sessions: Vec<SessionEntry>,
    faults: Vec<Value>,
}

#[derive(Deserialize)]
struct InstanceEntry {
    name: String,
    #[serde(default)]
    state: Option<Ec2State>,
}

#[derive(Deserialize)]
struct WorkerEntry {
    id: String,
    #[serde(default)]
    status: Option<WorkerStatus>,
    #[serde(default)]
    desired_status: Option<DesiredStatus>,
    #[serde(default)]
    instance: Option<String>,
    #[serde(default)]
    instance_id: Option<String>,
}

#[derive(Deserialize)]
struct SessionEntry {
    id: String,
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    began: Span,
    #[serde(default)]
    lasts: Option<Span>,
}

/// Seconds, negative for a time in the future.
#[derive(Clone, Copy, Default)]
struct Span(f64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let seconds = || {
            let unit = text.chars().last()?;
            let factor = match unit {
                's' => 1.0,
                'm' => 60.0,
                'h' => 3600.0,
                'd' => 86_400.0,
                _ => return None,
            };
            let count: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            count.is_finite().then_some(Self(count * factor))
        };
        let accepted = "accepted: 90s, 45m, 2h, 3d";
        seconds().ok_or_else(|| serde::de::Error::custom(format_args!("invalid time span {text:?}; {accepted}")))
    }
}

/// Duration of a session that names none.
const USUAL_SESSION: f64 = 7200.0;

impl Scenario {
    /// Reads a scenario. Its instances, workers, sessions and the errors of EC2 become a fleet and events.
    ///
    /// # Errors
    /// For a field that is unknown or has another type.
    pub fn from_json(scenario: Value) -> Result<Self, serde_json::Error> {
        let script: Script = serde_json::from_value(scenario)?;
        let mut not_modeled = Vec::new();
        let mut states: BTreeMap<String, Ec2State> = BTreeMap::new();
        for instance in script.fleet {
            states.insert(instance.name, instance.state.unwrap_or(Ec2State::Running));
        }
        let mut members = Vec::new();
        for worker in script.workers {
            let instance = worker.instance.as_ref().and_then(|name| states.remove(name));
            let status = worker.status.unwrap_or(WorkerStatus::Pending);
            let (desired, instance_id) = (worker.desired_status, worker.instance_id);
            members.push(Member { id: worker.id, status, desired, instance, instance_id });
        }
        not_modeled.extend(states.into_keys().map(|name| format!("instance {name} without a worker")));
        let (mut events, mut sessions) = (Events::default(), Vec::new());
        for session in script.sessions {
            let phase = SessionState::from_wire(session.status.as_deref().unwrap_or("pending")).phase();
            let left = session.lasts.map_or(USUAL_SESSION, |lasts| lasts.0) - session.began.0.max(0.0);
            match phase {
                SessionPhase::Waiting | SessionPhase::Active => sessions.push(PlannedSession {
                    at: Duration::ZERO,
                    lasts: time(left.max(1.0)),
                    lead: time((-session.began.0).max(0.0)),
                    worker: session.worker,
                }),
                SessionPhase::Failed => not_modeled.push(format!("session {}, which has failed", session.id)),
                SessionPhase::Over => {}
            }
        }
        events.sessions = sessions;
        for fault in script.faults {
            let is_ec2_error = fault["service"] == "ec2"
                && fault["action"]["kind"] == "error"
                && fault.as_object().is_some_and(|fields| {
                    fields.keys().all(|field| ["service", "probability", "action"].contains(&field.as_str()))
                });
            match fault["probability"].as_f64().filter(|_| is_ec2_error) {
                Some(probability) => events.fault_rate = events.fault_rate.max(probability),
                None => not_modeled.push(format!("fault {fault}")),
            }
        }
        let fleet = Fleet { members, ..Fleet::default() };
        Ok(Self { fleet, events, seed: script.seed.unwrap_or_default(), not_modeled })
    }
}

fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
