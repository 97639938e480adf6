//! A worker, as on its record in the control plane.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::{InstanceId, WorkerId};
use super::json::FieldWarning;
use super::license::License;
use super::secret::Secret;
use super::status::{DesiredStatus, WorkerStatus};
use super::time::Timestamp;

/// A worker record. Read it from the control plane's JSON with serde, or build one with [`Worker::new`].
///
/// Fields that this version does not know are kept in [`Worker::extra`] and written back unchanged.
///
/// A record is unreadable only without a readable id, status or instance id. Any other unreadable value counts as absent
/// and is reported in [`Worker::warnings`].
///
/// ```
/// use lcm_sdk::{Worker, WorkerStatus};
///
/// let worker: Worker = serde_json::from_str(
///     r#"{"id": "w-1", "status": "RUNNING", "aws_instance_id": "i-1", "public_ip": "203.0.113.7", "rack": 9}"#,
/// )?;
/// assert_eq!(worker.status, WorkerStatus::Running);
/// assert_eq!(worker.ec2_instance_id, Some("i-1".into()));
/// assert_eq!(worker.address(), Some("203.0.113.7"));
/// assert_eq!(serde_json::to_value(&worker)?["rack"], 9);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Worker {
    /// Id of the record.
    pub id: WorkerId,
    /// Status on the record.
    pub status: WorkerStatus,
    /// Status desired by the owner; `None` is no opinion.
    pub desired_status: Option<DesiredStatus>,
    /// Its instance, once it has one (`ec2_instance_id`, else `aws_instance_id`, else `instance_id`).
    pub ec2_instance_id: Option<InstanceId>,
    /// The version of the record that was read; writes are conditional on it.
    pub version: Option<u64>,
    /// Display name for people.
    pub name: Option<String>,
    /// The AWS region of its instance.
    pub aws_region: Option<String>,
    /// The address that the control plane prefers.
    pub ip_address: Option<String>,
    /// Public address of the instance.
    pub public_ip: Option<String>,
    /// Private address within the VPC.
    pub private_ip: Option<String>,
    /// Name of its template.
    pub template_name: Option<String>,
    /// EC2 instance type, for a template that names none.
    pub instance_type: Option<String>,
    /// An AMI name or pattern of its own, which takes precedence over the template's.
    pub ami_name: Option<String>,
    /// Tags for its instance, which take precedence over the region's.
    pub aws_tags: BTreeMap<String, String>,
    /// User name for its CML; the configured default if `None`.
    pub cml_username: Option<String>,
    /// Password for its CML; the configured default if `None`.
    pub cml_password: Option<Secret>,
    /// State and pending operation of its license.
    pub license: License,
    /// Whether idle detection is enabled for it.
    pub is_idle_detection_enabled: bool,
    /// When the record was created.
    pub created_at: Option<Timestamp>,
    /// When the record was last written.
    pub updated_at: Option<Timestamp>,
    /// When it was terminated.
    pub terminated_at: Option<Timestamp>,
    /// When a start of its instance was last requested.
    pub start_initiated_at: Option<Timestamp>,
    /// When idle detection last checked it.
    pub last_activity_check_at: Option<Timestamp>,
    /// Fields that LCM itself keeps on the record.
    pub notes: Notes,
    /// Free-form data of the control plane.
    pub metadata: Map<String, Value>,
    /// Fields that this version does not know and values that it cannot read, kept as they are.
    pub extra: Map<String, Value>,
    /// Fields of the record that have no effect: unreadable values, and names that are probably misspelled.
    pub warnings: Vec<FieldWarning>,
}

/// Fields that LCM keeps on a record besides the control plane's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Notes {
    /// The notes that the server keeps in their own fields; the others are written to `metadata`.
    pub on_record: NotesOnRecord,
    /// The read of a notes store that they stem from; `None` if they stem from the record.
    pub reading: Option<NotesReading>,
    /// When the drain began.
    pub drain_started_at: Option<Timestamp>,
    /// The timeout that the template gave the drain, where it is not the default. An absent template keeps it.
    pub drain_timeout_seconds: Option<u64>,
    /// How often a session kept the worker from leaving the drain after its deadline, or after its instance stopped.
    pub drain_tries: u32,
    /// When the worker was last scaled down. The cooldown of the fleet counts from the latest of these.
    pub scaled_down_at: Option<Timestamp>,
    /// Number of ended launches of this worker; part of the launch token.
    pub launch_generation: u32,
    /// When its instance was launched.
    pub launched_at: Option<Timestamp>,
    /// CML's mark of the registration attempt before ours, and a fingerprint of our token.
    pub license_attempt: Option<String>,
    /// Since when CML has not finished the registration, and a fingerprint of our token.
    pub license_wait: Option<String>,
    /// The account that owned the instance when EC2 last showed it.
    pub ec2_account_id: Option<String>,
    /// The region in which EC2 last showed the instance, for a record that does not keep `aws_region`.
    pub ec2_region: Option<String>,
    /// The plan of a launch with an unknown outcome. It is repeated byte for byte, never planned again.
    pub launch_plan: Option<Box<LaunchPlan>>,
}

/// One read of a worker's notes from a notes store. A write of notes is conditional on it.
#[derive(Debug, Clone, Copy)]
pub struct NotesReading {
    /// Version of the stored notes; 0 if the worker had none.
    pub version: u64,
    /// Number of the read. The clones of a worker share it, so that the writes of one reconcile can follow each other.
    pub number: u64,
}

/// Equal if nothing was written between the two reads.
impl PartialEq for NotesReading {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Eq for NotesReading {}

/// The notes that a server keeps in their own fields, by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotesOnRecord(u16);

impl NotesOnRecord {
    /// The names of all notes.
    pub const FIELDS: [&'static str; 11] = [
        "drain_started_at",
        "drain_timeout_seconds",
        "drain_tries",
        "scaled_down_at",
        "launch_generation",
        "launched_at",
        "launch_plan",
        "license_attempt",
        "license_wait",
        "ec2_account_id",
        "ec2_region",
    ];

    /// The notes for which `has` returns true, including null fields.
    pub(crate) fn from_fn(has: impl Fn(&str) -> bool) -> Self {
        let bits = Self::FIELDS.iter().enumerate().filter(|(_, field)| has(field));
        Self(bits.fold(0, |set, (bit, _)| set | 1 << bit))
    }

    /// Whether the server keeps this note in its own field.
    pub fn contains(self, field: &str) -> bool {
        Self::FIELDS.iter().position(|known| *known == field).is_some_and(|bit| self.0 & (1 << bit) != 0)
    }
}

/// All parameters of a launch, down to the token. Equal plans are equal bytes on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// AWS region of the instance.
    pub region: String,
    /// Id of the AMI.
    pub image_id: String,
    /// The instance type.
    pub instance_type: String,
    /// Id of the subnet.
    pub subnet_id: String,
    /// The security groups.
    pub security_group_ids: Vec<String>,
    /// The key pair, if any.
    pub key_name: Option<String>,
    /// Tags, set by the launch call itself so that no instance exists without its owner's name.
    pub tags: BTreeMap<String, String>,
    /// Number of ended launches of this worker before this one.
    pub generation: u32,
    /// EC2's idempotency token: at most 64 ASCII characters.
    pub client_token: String,
}

impl Worker {
    /// The names of the control plane's own fields.
    const OWN_FIELDS: [&'static str; 24] = [
        "id",
        "status",
        "desired_status",
        "ec2_instance_id",
        "version",
        "name",
        "aws_region",
        "ip_address",
        "public_ip",
        "private_ip",
        "template_name",
        "instance_type",
        "ami_name",
        "aws_tags",
        "cml_username",
        "cml_password",
        "license",
        "is_idle_detection_enabled",
        "created_at",
        "updated_at",
        "terminated_at",
        "start_initiated_at",
        "last_activity_check_at",
        "metadata",
    ];

    /// The names of all fields in the control plane's JSON: its own, then the notes.
    pub fn fields() -> impl Iterator<Item = &'static str> {
        Self::OWN_FIELDS.into_iter().chain(NotesOnRecord::FIELDS)
    }

    /// A record with an id and a status, and every other field empty.
    pub fn new(id: impl Into<WorkerId>, status: WorkerStatus) -> Self {
        Self {
            id: id.into(),
            status,
            desired_status: None,
            ec2_instance_id: None,
            version: None,
            name: None,
            aws_region: None,
            ip_address: None,
            public_ip: None,
            private_ip: None,
            template_name: None,
            instance_type: None,
            ami_name: None,
            aws_tags: BTreeMap::new(),
            cml_username: None,
            cml_password: None,
            license: License::default(),
            is_idle_detection_enabled: true,
            created_at: None,
            updated_at: None,
            terminated_at: None,
            start_initiated_at: None,
            last_activity_check_at: None,
            notes: Notes::default(),
            metadata: Map::new(),
            extra: Map::new(),
            warnings: Vec::new(),
        }
    }

    /// The address to reach it at: `ip_address`, else public, else private.
    pub fn address(&self) -> Option<&str> {
        self.ip_address.as_deref().or(self.public_ip.as_deref()).or(self.private_ip.as_deref())
    }

    /// The region that the record names for its instance: its own, that of the launch under way, or that in which the
    /// instance was last found. `None` if it relies on the default region.
    pub fn known_region(&self) -> Option<&str> {
        let planned = || self.notes.launch_plan.as_deref().map(|plan| plan.region.as_str());
        self.aws_region.as_deref().or_else(planned).or(self.notes.ec2_region.as_deref())
    }

    /// The best known time of its launch or last start; `None` if its age is unknown.
    ///
    /// Without our own note, the last write is the best guess until the worker is up, because the record may be hours
    /// older than the launch. After that every metrics report counts as a write, and the creation of the record is the
    /// better guess.
    pub fn launch_time(&self) -> Option<Timestamp> {
        let noted = self.notes.launched_at.max(self.start_initiated_at);
        let guessed = match self.status {
            WorkerStatus::Pending | WorkerStatus::Provisioning => self.updated_at.or(self.created_at),
            WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Terminated
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => self.created_at.or(self.updated_at),
        };
        noted.or(guessed)
    }

    /// Whether nothing happens until the record or the cloud changes: the status is final or parked and the desired
    /// status agrees. Polling may skip it; the start-up sweep does not.
    pub fn is_at_rest(&self) -> bool {
        match self.status {
            WorkerStatus::Terminated => true,
            WorkerStatus::Stopped => match self.desired_status {
                None | Some(DesiredStatus::Stopped) => true,
                Some(DesiredStatus::Running | DesiredStatus::Terminated) => false,
            },
            WorkerStatus::Failed => self.desired_status != Some(DesiredStatus::Terminated),
            WorkerStatus::Pending
            | WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Terminating
            | WorkerStatus::Unknown => false,
        }
    }
}

/// Id, status, desired status and instance, in one line.
///
/// ```
/// use lcm_sdk::{DesiredStatus, Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Running);
/// assert_eq!(worker.to_string(), "w-1: running, no instance");
/// worker.desired_status = Some(DesiredStatus::Stopped);
/// worker.ec2_instance_id = Some("i-1".into());
/// assert_eq!(worker.to_string(), "w-1: running (desired stopped), i-1");
/// ```
impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.status)?;
        if let Some(desired) = self.desired_status {
            write!(f, " (desired {desired})")?;
        }
        match &self.ec2_instance_id {
            Some(instance) => write!(f, ", {instance}"),
            None => f.write_str(", no instance"),
        }
    }
}

/// Omits secrets and free-form data, which may hold one.
impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("desired_status", &self.desired_status)
            .field("ec2_instance_id", &self.ec2_instance_id)
            .field("aws_region", &self.aws_region)
            .field("address", &self.address())
            .field("template_name", &self.template_name)
            .field("version", &self.version)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_workers_are_at_rest() {
        let at_rest = |status, desired| {
            let mut worker = Worker::new("w", status);
            worker.desired_status = desired;
            worker.is_at_rest()
        };
        use DesiredStatus as Desired;
        use WorkerStatus as Status;
        assert!(at_rest(Status::Stopped, Some(Desired::Stopped)));
        assert!(at_rest(Status::Stopped, None));
        assert!(!at_rest(Status::Stopped, Some(Desired::Running)));
        assert!(!at_rest(Status::Stopped, Some(Desired::Terminated)));
        assert!(at_rest(Status::Failed, Some(Desired::Running)));
        assert!(!at_rest(Status::Failed, Some(Desired::Terminated)));
        assert!(at_rest(Status::Terminated, Some(Desired::Running)));
        assert!(!at_rest(Status::Running, Some(Desired::Running)));
        assert!(!at_rest(Status::Unknown, None));
    }

    #[test]
    fn debug_output_omits_secrets() {
        let worker = Worker::try_from(serde_json::json!({
            "id": "w-1", "status": "running", "cml_password": "hunter2", "license_token": "t0ken",
            "license": {"pending_token": "p3nding"}, "metadata": {"note": "s3cret"}, "api_key": "k3y",
        }))
        .expect("valid");
        let shown = format!("{worker:?} {:?}", worker.license);
        for secret in ["hunter2", "t0ken", "p3nding", "s3cret", "k3y"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
