//! Snapshots: the whole cloud as one JSON document, and back.
//!
//! The document holds EC2, CloudWatch, the records of the control plane, etcd, the CML servers, fault rules, the pending
//! steps of the scenario, the clock, and the state of every random number generator. The same actions after a restore
//! therefore have the same results. Connections are left out, and so are ports, keys and addresses of the program, and
//! the log of requests except for its count.

mod mask;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::mask::MaskedSecret;
use self::mask::Replacements;
pub(crate) use self::mask::is_secret;
use crate::admin::Services;
use crate::clock::ClockState;
use crate::cml::ServersState;
use crate::control_plane::{Generation, RecordsState};
use crate::etcd::{CheckedEtcd, EtcdState};
use crate::scenario::DueStep;
use crate::world::{World, WorldState};

/// Identifies the document.
const FORMAT: &str = "fake-cloud snapshot";

/// Version of the document that this program writes, and the only one that it reads.
const VERSION: u64 = 1;

/// Whether a snapshot holds passwords, tokens and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Secrets {
    /// They are replaced, so that the file can be shared. A restored cloud uses defaults in their place.
    #[default]
    Masked,
    /// They are part of the file.
    Included,
}

/// A cloud at one time. Clones share the document.
///
/// ```
/// use fake_cloud::{FakeCloud, Pace, Secrets, Snapshot};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cloud = FakeCloud::builder().pace(Pace::Manual).start().await?;
/// let instance = cloud.run_instance("us-east-1", &[("Name", "blue")])?;
/// let text = cloud.snapshot(Secrets::Masked)?.to_string();
///
/// let again = FakeCloud::builder().restore(Snapshot::parse(&text)?).start().await?;
/// assert_eq!(again.now(), cloud.now());
/// assert_eq!(again.run_instance("us-east-1", &[])?.id, cloud.run_instance("us-east-1", &[])?.id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq)]
pub struct Snapshot {
    document: Arc<Value>,
}

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Restored {
    /// Secrets that the snapshot does not hold, with the default in their place.
    pub masked: Vec<MaskedSecret>,
}

/// Error of a snapshot that cannot be taken or restored. The cloud stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("cannot read the snapshot {path}: {why}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Error of the system.
        why: String,
    },
    /// The text is not JSON.
    #[error("the snapshot is not JSON: {0}")]
    NotJson(String),
    /// The JSON is not a snapshot.
    #[error("not a snapshot: {0}; expected an object with \"format\": \"fake-cloud snapshot\"")]
    NotASnapshot(String),
    /// The snapshot has another version than this program reads.
    #[error("the snapshot has version {found}, written by fake-cloud {program}; this program reads version {VERSION}")]
    Version {
        /// Version of the snapshot.
        found: u64,
        /// Version of the program that wrote it.
        program: String,
    },
    /// A part of the snapshot is missing, unknown or invalid.
    #[error("the snapshot is invalid at {place}: {why}")]
    Invalid {
        /// Path of the part.
        place: String,
        /// The problem.
        why: String,
    },
    /// The running cloud has another generation of the control plane.
    #[error(
        "the snapshot has the control plane {found}, and this cloud has {running}; \
         start a new cloud from the snapshot instead"
    )]
    Generation {
        /// Generation in the snapshot.
        found: String,
        /// Generation of the running cloud.
        running: String,
    },
    /// The state cannot be written as JSON.
    #[error("cannot take a snapshot: {0}")]
    State(String),
}

/// Head of a document, by which its version is known before the rest is read.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
    #[serde(default)]
    program: Option<String>,
}

/// The document, as it is read. [`capture`] writes the same fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u64,
    #[serde(rename = "program")]
    _program: String,
    #[serde(rename = "masked")]
    _masked: BTreeMap<mask::Kind, u64>,
    world: WorldState,
    control_plane: ControlPlane,
    etcd: EtcdState,
    cml: ServersState,
    timeline: Vec<DueStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlPlane {
    generation: Generation,
    records: RecordsState,
}

/// A document that can be restored without an error.
pub(crate) struct CheckedSnapshot {
    world: WorldState,
    control_plane: ControlPlane,
    etcd: CheckedEtcd,
    cml: ServersState,
    timeline: Vec<DueStep>,
    restored: Restored,
}

impl Snapshot {
    /// Reads a snapshot from a text. Its parts are checked when it is restored.
    ///
    /// # Errors
    /// The text is not JSON, not a snapshot, or one of another version.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        Self::from_json(serde_json::from_str(text).map_err(|error| SnapshotError::NotJson(error.to_string()))?)
    }

    /// Reads a snapshot from a file. Its parts are checked when it is restored.
    ///
    /// # Errors
    /// The file cannot be read, and the errors of [`Snapshot::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let unreadable =
            |error: io::Error| SnapshotError::Unreadable { path: path.display().to_string(), why: error.to_string() };
        Self::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads a snapshot from JSON. Its parts are checked when it is restored.
    ///
    /// # Errors
    /// The JSON is not a snapshot, or one of another version.
    pub fn from_json(document: Value) -> Result<Self, SnapshotError> {
        if !document.is_object() {
            return Err(SnapshotError::NotASnapshot("it is no object".to_owned()));
        }
        let head = Head::deserialize(&document).map_err(|error| SnapshotError::NotASnapshot(error.to_string()))?;
        match (head.format.as_deref(), head.version) {
            (Some(FORMAT), Some(VERSION)) => Ok(Self { document: Arc::new(document) }),
            (Some(FORMAT), Some(found)) => {
                Err(SnapshotError::Version { found, program: head.program.unwrap_or_else(|| "unknown".to_owned()) })
            }
            (Some(FORMAT), None) => Err(SnapshotError::NotASnapshot("it has no version".to_owned())),
            (Some(other), _) => Err(SnapshotError::NotASnapshot(format!("its format is {other:?}"))),
            (None, _) => Err(SnapshotError::NotASnapshot("it has no format".to_owned())),
        }
    }

    /// Returns the document.
    pub fn as_json(&self) -> &Value {
        &self.document
    }

    /// Returns the secrets that the snapshot does not hold, with the default that a restore puts in their place.
    pub fn masked(&self) -> Vec<MaskedSecret> {
        mask::list(&self.document)
    }

    /// Returns the generation of the control plane, for a cloud that starts with the snapshot.
    pub(crate) fn generation(&self) -> Option<Generation> {
        Generation::deserialize(&self.document["control_plane"]["generation"]).ok()
    }

    /// Returns the clock, for a cloud that starts with the snapshot.
    pub(crate) fn clock(&self) -> Option<ClockState> {
        ClockState::deserialize(&self.document["world"]["clock"]).ok()
    }

    /// Reads all parts, with defaults in the place of masked secrets.
    fn check(&self, replacements: &Replacements) -> Result<CheckedSnapshot, SnapshotError> {
        let invalid = |place: String, why: String| SnapshotError::Invalid { place, why };
        let mut document = Value::clone(&self.document);
        let masked = self.masked();
        if !masked.is_empty() {
            mask::replace(&mut document, replacements);
        }
        let document: Document = serde_path_to_error::deserialize(document)
            .map_err(|error| invalid(error.path().to_string(), error.inner().to_string()))?;
        let Document { world, control_plane, etcd, cml, timeline, .. } = document;
        let etcd = etcd.check().map_err(|why| invalid("etcd.store".to_owned(), why))?;
        Ok(CheckedSnapshot { world, control_plane, etcd, cml, timeline, restored: Restored { masked } })
    }
}

/// Shows no state, which may hold secrets.
impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("masked", &self.masked()).finish_non_exhaustive()
    }
}

/// The document as one line of JSON.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.document)
    }
}

impl Services {
    /// Takes a snapshot. No service changes its state until it is taken.
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub(crate) fn snapshot(&self, world: &World, secrets: Secrets) -> Result<Snapshot, SnapshotError> {
        // Without `..`, so that a new field is either captured or left out on purpose.
        let Self { records, etcd, cml_servers, scenario: _, start: _, timeline, branches: _, origin: _ } = self;
        let generation = records.settings().generation;
        // In the order in which requests take the locks: the timeline changes records, records are mirrored into etcd.
        let document = timeline.capture(|steps| {
            records.capture(|records| {
                etcd.capture(|etcd| {
                    world.capture(|world| {
                        Ok::<_, serde_json::Error>(json!({
                            "format": FORMAT,
                            "version": VERSION,
                            "program": env!("CARGO_PKG_VERSION"),
                            "masked": {},
                            "world": world?,
                            "control_plane": {"generation": generation, "records": records?},
                            "etcd": etcd?,
                            "cml": cml_servers.capture()?,
                            "timeline": steps?,
                        }))
                    })
                })
            })
        });
        let mut document = document.map_err(|error| SnapshotError::State(error.to_string()))?;
        match secrets {
            Secrets::Masked => mask::hide(&mut document),
            Secrets::Included => {}
        }
        Ok(Snapshot { document: Arc::new(document) })
    }

    /// Replaces the state of every service, with the time and the pace of the clock.
    ///
    /// # Errors
    /// The snapshot is invalid, or has another generation of the control plane. Then nothing changes.
    pub(crate) fn restore(&self, world: &World, snapshot: &Snapshot) -> Result<Restored, SnapshotError> {
        let checked = snapshot.check(&Replacements { cml_password: self.cml_servers.options().password })?;
        let (found, running) = (checked.control_plane.generation, self.records.settings().generation);
        if found != running {
            let name = |generation: Generation| format!("{generation:?}").to_lowercase();
            return Err(SnapshotError::Generation { found: name(found), running: name(running) });
        }
        let CheckedSnapshot { world: world_state, control_plane, etcd, cml, timeline, restored } = checked;
        let shares_clock = self.etcd.clock().is_same(world.clock());
        let leases_at = if shares_clock { world_state.clock.now } else { self.etcd.clock().now() };
        self.timeline.load(Vec::new());
        self.records.restore(control_plane.records);
        self.etcd.restore(etcd, leases_at);
        self.cml_servers.restore(cml, world.clock());
        // Last, because it moves the clock, and wakes the task that supervises the CML servers.
        world.restore(world_state);
        self.timeline.load(timeline);
        Ok(restored)
    }
}
