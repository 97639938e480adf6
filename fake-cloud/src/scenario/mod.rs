//! Scenarios: a world that something has already happened in, written down in YAML.
//!
//! [`Scenario::find`] takes the name of a ready one or the path of a file; [`Scenario::settle`] makes the world so.
//! Every mistake is named with its file, its place in the file, what stands there and what may stand there.

mod builtin;
mod duration;
mod error;
mod fleet;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::clock::Pace;
use crate::control_plane::{ApiVersion, Records};
use crate::faults::Rule;
use crate::world::World;
use crate::yaml;

pub use self::builtin::{BUILTIN, BuiltinScenario};
use self::duration::Span;
pub use self::error::ScenarioError;

/// A world that something has already happened in. Clones are cheap: they are the same script.
///
/// ```
/// use fake_cloud::scenario::Scenario;
///
/// let scenario = Scenario::parse("mine.yaml", "fleet: [{name: blue, region: us-east-1, state: running}]")?;
/// assert_eq!(scenario.pace(), None);
/// let error = Scenario::parse("mine.yaml", "fleet: [{name: blue, state: flying}]").unwrap_err().to_string();
/// assert!(error.starts_with("mine.yaml: fleet[0].state: "), "{error}");
/// # Ok::<(), fake_cloud::scenario::ScenarioError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Scenario {
    source: String,
    script: Arc<Script>,
}

/// What a file says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    /// One sentence about it.
    #[serde(default)]
    about: String,
    #[serde(default)]
    clock: Option<String>,
    #[serde(default)]
    seed: Option<u64>,
    /// Which control plane: `current` or `older`.
    #[serde(default)]
    control_plane: Option<ApiVersion>,
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
}

/// An instance.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceEntry {
    /// How workers refer to it; also its tag `Name`, unless the tags say otherwise.
    name: String,
    #[serde(default = "default_region")]
    region: String,
    #[serde(default)]
    state: InstanceState,
    #[serde(default, rename = "type")]
    instance_type: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// How long ago it was launched.
    #[serde(default)]
    age: Span,
}

/// The state an instance is in.
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

/// A worker's record.
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
    /// The instance of this name in the fleet…
    #[serde(default)]
    instance: Option<String>,
    /// …or any id, also one that nobody has.
    #[serde(default)]
    instance_id: Option<String>,
    /// How long ago the record was made.
    #[serde(default)]
    age: Option<Span>,
    /// Whatever else the record says.
    #[serde(default)]
    fields: Map<String, Value>,
}

/// A session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionEntry {
    id: String,
    /// The id of its worker.
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    status: Option<String>,
    /// How long ago it began; with a minus, how far ahead that is.
    #[serde(default)]
    began: Option<Span>,
    #[serde(default)]
    lasts: Option<Span>,
    /// Whatever else the record says.
    #[serde(default)]
    fields: Map<String, Value>,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

impl Scenario {
    /// A ready one by its name, or else the one in a file.
    ///
    /// # Errors
    /// A file that cannot be read, or says something that cannot be meant.
    pub fn find(name_or_path: &str) -> Result<Self, ScenarioError> {
        if let Some(ready) = BUILTIN.iter().find(|ready| ready.name == name_or_path) {
            return ready.scenario();
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|error| ScenarioError::unreadable(name_or_path, &error))?;
        Self::parse(name_or_path, &text)
    }

    /// Reads one from text; errors name it `source`.
    ///
    /// # Errors
    /// Text that is not YAML, or says something that cannot be meant.
    pub fn parse(source: &str, text: &str) -> Result<Self, ScenarioError> {
        yaml::check_depth(text.as_bytes()).map_err(|why| ScenarioError::new(source, "", why))?;
        let script: Script = serde_path_to_error::deserialize(serde_yaml_ng::Deserializer::from_str(text))
            .map_err(|error| ScenarioError::at(source, error.path(), error.inner()))?;
        let scenario = Self { source: source.to_owned(), script: Arc::new(script) };
        scenario.check()?;
        Ok(scenario)
    }

    /// Its one sentence.
    pub fn about(&self) -> &str {
        &self.script.about
    }

    /// How its clock goes, if it says so.
    pub fn pace(&self) -> Option<Pace> {
        // Checked when it was read.
        self.script.clock.as_deref().and_then(|pace| crate::admin::parse_pace(pace).ok())
    }

    /// Its seed, if it says so.
    pub fn seed(&self) -> Option<u64> {
        self.script.seed
    }

    /// Which control plane it needs, if it says so.
    pub fn api_version(&self) -> Option<ApiVersion> {
        self.script.control_plane
    }

    /// Makes the world so.
    ///
    /// # Errors
    /// What EC2 or the control plane refuses, named as everything else.
    pub fn settle(&self, world: &World, records: &Records) -> Result<(), ScenarioError> {
        let instances = fleet::launch(self, world)?;
        records::fill(self, records, &instances)?;
        for (index, rule) in self.script.faults.iter().enumerate() {
            world.faults().add(rule.clone()).map_err(|error| self.refuse(format!("faults[{index}]"), error))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ScenarioError> {
        if let Some(pace) = &self.script.clock {
            crate::admin::parse_pace(pace).map_err(|hint| self.refuse("clock".to_owned(), hint))?;
        }
        Ok(())
    }

    fn refuse(&self, place: String, why: impl std::fmt::Display) -> ScenarioError {
        ScenarioError::new(&self.source, &place, why)
    }
}
