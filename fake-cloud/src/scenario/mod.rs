//! Initial states of a cloud, described in YAML.
//!
//! [`Scenario::find`] loads a built-in scenario by name or a file by path. [`Scenario::settle`] applies it to a world.
//! Errors name the file, the position in it, the value found and the values accepted.

mod builtin;
mod duration;
mod error;
mod fleet;
mod records;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::clock::Pace;
use crate::control_plane::{Generation, Records};
use crate::faults::Rule;
use crate::world::World;
use crate::yaml;

pub use self::builtin::{BUILTIN, BuiltinScenario};
use self::duration::Span;
pub use self::error::ScenarioError;
use self::timeline::TimelineEntry;
pub(crate) use self::timeline::{DueStep, Timeline};

/// Initial state of a cloud. Clones share the parsed document.
///
/// ```
/// use fake_cloud::Scenario;
///
/// let scenario = Scenario::parse("mine.yaml", "fleet: [{name: blue, region: us-east-1, state: running}]")?;
/// assert_eq!(scenario.pace(), None);
/// let error = Scenario::parse("mine.yaml", "fleet: [{name: blue, state: flying}]").unwrap_err().to_string();
/// assert!(error.starts_with("mine.yaml: fleet[0].state: "), "{error}");
/// # Ok::<(), fake_cloud::ScenarioError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Scenario {
    source: String,
    script: Arc<Script>,
}

/// Content of a scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    /// Description in one sentence, shown by `--list-scenarios`.
    #[serde(default)]
    about: String,
    #[serde(default)]
    clock: Option<String>,
    #[serde(default)]
    seed: Option<u64>,
    /// Generation of the control plane: `original` or `extended`.
    #[serde(default)]
    control_plane: Option<Generation>,
    #[serde(default)]
    fleet: Vec<InstanceEntry>,
    #[serde(default)]
    templates: Vec<Map<String, Value>>,
    #[serde(default)]
    workers: Vec<WorkerEntry>,
    #[serde(default)]
    sessions: Vec<SessionEntry>,
    #[serde(default)]
    faults: Vec<Rule>,
    #[serde(default)]
    timeline: Vec<TimelineEntry>,
}

/// EC2 instance in the fleet.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceEntry {
    /// Name that workers refer to; also the default of the `Name` tag.
    name: String,
    #[serde(default = "default_region")]
    region: String,
    #[serde(default)]
    state: InstanceState,
    #[serde(default, rename = "type")]
    instance_type: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Time since the launch.
    #[serde(default)]
    age: Span,
}

/// EC2 state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum InstanceState {
    Pending,
    #[default]
    Running,
    Stopping,
    Stopped,
    ShuttingDown,
    Terminated,
}

/// Entry of the list `workers`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerEntry {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    desired_status: Option<String>,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    template: Option<String>,
    /// Name of an instance in the fleet.
    #[serde(default)]
    instance: Option<String>,
    /// Literal instance id, which need not exist. Takes precedence over `instance`.
    #[serde(default)]
    instance_id: Option<String>,
    /// Time since the record was created.
    #[serde(default)]
    age: Option<Span>,
    /// Additional fields of the record.
    #[serde(default)]
    fields: Map<String, Value>,
}

/// Entry of the list `sessions`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionEntry {
    id: String,
    /// Id of the worker that runs the session.
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    status: Option<String>,
    /// Time since the start; negative for a start in the future.
    #[serde(default)]
    began: Option<Span>,
    #[serde(default)]
    lasts: Option<Span>,
    /// Additional fields of the record.
    #[serde(default)]
    fields: Map<String, Value>,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

impl Scenario {
    /// Loads a built-in scenario by name, or else the file at this path.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn find(name_or_path: &str) -> Result<Self, ScenarioError> {
        if let Some(builtin) = BUILTIN.iter().find(|builtin| builtin.name == name_or_path) {
            return builtin.load();
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|error| ScenarioError::unreadable(name_or_path, &error))?;
        Self::parse(name_or_path, &text)
    }

    /// Parses a scenario; `source` names it in errors.
    ///
    /// # Errors
    /// The text is not YAML or has invalid fields.
    pub fn parse(source: &str, text: &str) -> Result<Self, ScenarioError> {
        yaml::check_depth(text.as_bytes()).map_err(|why| ScenarioError::new(source, "", why))?;
        let script: Script = serde_path_to_error::deserialize(serde_yaml_ng::Deserializer::from_str(text))
            .map_err(|error| ScenarioError::from_yaml(source, error.path(), error.inner()))?;
        let scenario = Self { source: source.to_owned(), script: Arc::new(script) };
        scenario.check()?;
        Ok(scenario)
    }

    /// One-sentence description; empty if the file has none.
    pub fn about(&self) -> &str {
        &self.script.about
    }

    /// Clock pace, if set.
    pub fn pace(&self) -> Option<Pace> {
        // Validated when the file was parsed.
        self.script.clock.as_deref().and_then(|pace| crate::admin::parse_pace(pace).ok())
    }

    /// Seed of the random choices, if set.
    pub fn seed(&self) -> Option<u64> {
        self.script.seed
    }

    /// Generation of the control plane, if set.
    pub fn generation(&self) -> Option<Generation> {
        self.script.control_plane
    }

    /// Applies the scenario: launches instances, creates records and adds fault rules.
    ///
    /// # Errors
    /// EC2 or the control plane rejects an entry.
    pub fn settle(&self, world: &World, records: &Records) -> Result<(), ScenarioError> {
        let instances = fleet::launch(self, world)?;
        records::create(self, records, &instances)?;
        for (index, rule) in self.script.faults.iter().enumerate() {
            let rule = rule.clone().resolve(world, Some(records));
            let added = rule.and_then(|rule| world.faults().add(rule));
            added.map_err(|error| self.error(format!("faults[{index}]"), error))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ScenarioError> {
        if let Some(pace) = &self.script.clock {
            crate::admin::parse_pace(pace).map_err(|hint| self.error("clock".to_owned(), hint))?;
        }
        for (index, entry) in self.script.timeline.iter().enumerate() {
            entry.check(self, &format!("timeline[{index}]"))?;
        }
        Ok(())
    }

    fn error(&self, place: String, why: impl std::fmt::Display) -> ScenarioError {
        ScenarioError::new(&self.source, &place, why)
    }
}
