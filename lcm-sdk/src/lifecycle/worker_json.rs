//! Converts worker records from and to the control plane's JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::ids::{InstanceId, WorkerId};
use super::json::{FieldError, Fields, Raw};
use super::license::License;
use super::time::Timestamp;
use super::worker::LaunchPlan;
use super::worker::{Notes, NotesOnRecord, Worker};

impl TryFrom<Value> for Worker {
    type Error = FieldError;

    fn try_from(value: Value) -> Result<Self, FieldError> {
        Self::from_fields(Fields::open("worker", value)?)
    }
}

impl Worker {
    fn from_fields(mut fields: Fields<'_>) -> Result<Self, FieldError> {
        let id = WorkerId::from(fields.required_text("id")?);
        let status = fields.required_word("status")?;
        let alias = fields.text("aws_instance_id")?;
        let mut metadata = fields.nested("metadata", "metadata.")?.unwrap_or_else(|| fields.empty("metadata."));
        let notes = take_notes(&mut fields, &mut metadata)?;
        Ok(Self {
            id,
            status,
            desired_status: fields.word("desired_status")?,
            ec2_instance_id: fields.text("ec2_instance_id")?.or(alias).map(InstanceId::from),
            version: fields.integer("version")?,
            name: fields.text("name")?,
            aws_region: fields.text("aws_region")?,
            ip_address: fields.text("ip_address")?,
            public_ip: fields.text("public_ip")?,
            private_ip: fields.text("private_ip")?,
            template_name: fields.text("template_name")?,
            instance_type: fields.text("instance_type")?,
            ami_name: fields.text("ami_name")?,
            aws_tags: fields.text_map("aws_tags")?,
            cml_username: fields.text("cml_username")?,
            cml_password: fields.secret("cml_password")?,
            license: License::take(&mut fields)?,
            is_idle_detection_enabled: fields.switch("is_idle_detection_enabled", true)?,
            created_at: fields.timestamp("created_at")?,
            updated_at: fields.timestamp("updated_at")?,
            terminated_at: fields.timestamp("terminated_at")?,
            start_initiated_at: fields.timestamp("start_initiated_at")?,
            last_activity_check_at: fields.timestamp("last_activity_check_at")?,
            notes,
            metadata: metadata.rest(),
            extra: fields.rest(),
        })
    }
}

/// Reads each note from its own field if the server has it, else from the metadata.
fn take_notes<'a>(record: &mut Fields<'a>, metadata: &mut Fields<'a>) -> Result<Notes, FieldError> {
    struct Homes<'h, 'a> {
        on_record: NotesOnRecord,
        record: &'h mut Fields<'a>,
        metadata: &'h mut Fields<'a>,
    }
    impl<'a> Homes<'_, 'a> {
        fn of(&mut self, field: &str) -> &mut Fields<'a> {
            if self.on_record.contains(field) { self.record } else { self.metadata }
        }
    }
    let on_record = NotesOnRecord::from_fn(|field| record.has(field));
    let mut homes = Homes { on_record, record, metadata };
    Ok(Notes {
        on_record,
        drain_started_at: homes.of("drain_started_at").timestamp("drain_started_at")?,
        scaled_down_at: homes.of("scaled_down_at").timestamp("scaled_down_at")?,
        launched_at: homes.of("launched_at").timestamp("launched_at")?,
        launch_generation: take_generation(homes.of("launch_generation"))?,
        launch_plan: take_plan(homes.of("launch_plan"))?,
        license_attempt: homes.of("license_attempt").text("license_attempt")?,
    })
}

fn take_generation(fields: &mut Fields<'_>) -> Result<u32, FieldError> {
    let field = "launch_generation";
    let generation = fields.integer(field)?.unwrap_or(0);
    u32::try_from(generation)
        .map_err(|_| fields.error(field, &Value::from(generation), "a whole number up to 4294967295"))
}

fn take_plan(fields: &mut Fields<'_>) -> Result<Option<Box<LaunchPlan>>, FieldError> {
    let field = "launch_plan";
    let plan = fields.object(field)?;
    if plan.is_empty() {
        return Ok(None);
    }
    let plan = Value::Object(plan);
    let read = serde_json::from_value(plan.clone());
    read.map(Some).map_err(|error| fields.error(field, &plan, &format!("a launch plan ({error})")))
}

impl Notes {
    /// The notes as JSON fields; unset ones are omitted.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |field: &str, value: Value| {
            if !value.is_null() {
                map.insert(field.to_owned(), value);
            }
        };
        put("drain_started_at", written(self.drain_started_at));
        put("scaled_down_at", written(self.scaled_down_at));
        put("launched_at", written(self.launched_at));
        put("launch_generation", Some(self.launch_generation).filter(|generation| *generation > 0).into());
        put("launch_plan", serde_json::to_value(&self.launch_plan).unwrap_or_default());
        put("license_attempt", self.license_attempt.as_deref().into());
        map
    }
}

impl Worker {
    /// The record as the control plane writes it, without its secrets: password and tokens are omitted rather than
    /// masked, so that writing the result back cannot overwrite them with asterisks.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        let mut put = |field: &str, value: Value| {
            map.insert(field.to_owned(), value);
        };
        put("id", self.id.as_str().into());
        put("status", self.status.as_str().into());
        put("desired_status", self.desired_status.map(|desired| desired.as_str()).into());
        put("ec2_instance_id", self.ec2_instance_id.as_ref().map(InstanceId::as_str).into());
        for (field, text) in [
            ("name", &self.name),
            ("aws_region", &self.aws_region),
            ("ip_address", &self.ip_address),
            ("public_ip", &self.public_ip),
            ("private_ip", &self.private_ip),
            ("template_name", &self.template_name),
            ("instance_type", &self.instance_type),
            ("ami_name", &self.ami_name),
            ("cml_username", &self.cml_username),
        ] {
            put(field, text.as_deref().into());
        }
        for (field, moment) in [
            ("created_at", self.created_at),
            ("updated_at", self.updated_at),
            ("terminated_at", self.terminated_at),
            ("start_initiated_at", self.start_initiated_at),
            ("last_activity_check_at", self.last_activity_check_at),
        ] {
            put(field, written(moment));
        }
        put("aws_tags", serde_json::to_value(&self.aws_tags).unwrap_or_default());
        put("license", self.license.to_json().into());
        put("is_idle_detection_enabled", self.is_idle_detection_enabled.into());
        if let Some(version) = self.version {
            put("version", version.into());
        }
        let mut metadata = self.metadata.clone();
        for (field, value) in self.notes.to_json() {
            let home = if self.notes.on_record.contains(&field) { &mut map } else { &mut metadata };
            home.insert(field, value);
        }
        map.insert("metadata".to_owned(), metadata.into());
        map
    }
}

pub(crate) fn written(moment: Option<Timestamp>) -> Value {
    moment.map(|moment| moment.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)).into()
}

impl Serialize for Worker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Worker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::open("worker", Raw::deserialize(deserializer)?);
        fields.and_then(Self::from_fields).map_err(serde::de::Error::custom)
    }
}

/// An unreadable record. It is reported and left alone: never written, never acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableWorker {
    /// Its id, if that could be read.
    pub id: Option<WorkerId>,
    /// The instance it names, if that could be read: it has an owner.
    pub ec2_instance_id: Option<InstanceId>,
    /// Description of the problem.
    pub error: FieldError,
}

/// Reads a listing record by record, so that one bad record never hides the others.
///
/// ```
/// use lcm_sdk::lifecycle::read_workers;
///
/// let listing = serde_json::json!([
///     {"id": "w-1", "status": "running"},
///     {"id": "w-2", "status": "asleep"},
/// ]);
/// let (workers, unreadable) = read_workers(listing.as_array().unwrap().clone());
/// assert_eq!(workers.len(), 1);
/// assert_eq!(unreadable[0].id, Some("w-2".into()));
/// ```
pub fn read_workers(listing: Vec<Value>) -> (Vec<Worker>, Vec<UnreadableWorker>) {
    let (mut workers, mut unreadable) = (Vec::with_capacity(listing.len()), Vec::new());
    for record in listing {
        match read_worker(record.into()) {
            Ok(worker) => workers.push(worker),
            Err(bad) => unreadable.push(*bad),
        }
    }
    (workers, unreadable)
}

/// Reads one record of a listing.
pub(crate) fn read_worker(record: Raw<'_>) -> Result<Worker, Box<UnreadableWorker>> {
    let unreadable = |id: Option<Cow<'_, str>>, ec2_instance_id: Option<Cow<'_, str>>, error| {
        let (id, ec2_instance_id) = (id.map(|id| id.as_ref().into()), ec2_instance_id.map(|id| id.as_ref().into()));
        Box::new(UnreadableWorker { id, ec2_instance_id, error })
    };
    let fields = Fields::open("worker", record).map_err(|error| unreadable(None, None, error))?;
    let text = |field| fields.peek(field).filter(|text| !text.is_empty()).cloned();
    let (id, ec2_instance_id) = (text("id"), text("ec2_instance_id").or_else(|| text("aws_instance_id")));
    Worker::from_fields(fields).map_err(|error| unreadable(id, ec2_instance_id, error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lifecycle::status::{DesiredStatus, WorkerStatus};

    fn read(value: Value) -> Worker {
        Worker::try_from(value).expect("valid")
    }

    fn error(value: Value) -> String {
        Worker::try_from(value).expect_err("malformed").to_string()
    }

    #[test]
    fn records_round_trip() {
        let record = json!({
            "id": "w-1", "name": "blue", "status": "running", "desired_status": "stopped",
            "ec2_instance_id": "i-1", "aws_region": "us-east-1", "ip_address": "203.0.113.7",
            "public_ip": "203.0.113.7", "private_ip": "10.0.0.7", "template_name": "metal",
            "instance_type": "m5zn.metal", "ami_name": null, "cml_username": "admin", "aws_tags": {"team": "net"},
            "license": {"status": "registered", "pending_operation": "deregister", "operation_in_progress": true,
                        "smart_account": "acme"},
            "is_idle_detection_enabled": false, "created_at": "2026-02-06T08:00:00Z",
            "updated_at": "2026-02-06T09:00:00.250Z", "terminated_at": null, "start_initiated_at": null,
            "last_activity_check_at": null, "metadata": {"drain_started_at": "2026-02-06T09:00:00Z", "colour": "blue"},
            "version": 7, "state_history": [{"from": "pending", "at": 1.5}], "port_utilization_pct": 0.1,
            "declared_capacity": {"cpu_cores": 48, "nested": {"deep": [null, true]}},
        });
        let worker = read(record.clone());
        assert_eq!(worker.desired_status, Some(DesiredStatus::Stopped));
        assert_eq!(worker.notes.drain_started_at, super::super::time::parse("2026-02-06T09:00:00Z"));
        assert_eq!(serde_json::to_value(&worker).expect("serializes"), record);
    }

    #[test]
    fn notes_stay_where_the_server_keeps_them() {
        let record = json!({
            "id": "w", "status": "pending", "drain_started_at": null, "launch_generation": 2,
            "metadata": {"launched_at": "2026-02-06T09:00:00Z", "scaled_down_at": "2026-02-05T09:00:00Z"},
        });
        let worker = read(record.clone());
        assert_eq!(worker.notes.launch_generation, 2);
        assert!(worker.notes.launched_at.is_some() && worker.notes.scaled_down_at.is_some());
        let written = serde_json::to_value(&worker).expect("serializes");
        assert_eq!(written["launch_generation"], 2);
        assert_eq!(written["metadata"], record["metadata"]);
    }

    #[test]
    fn aliases_and_flat_licenses_are_parsed() {
        let worker = read(json!({
            "id": "w", "status": "Shutting-Down", "desired_status": "RUNNING", "aws_instance_id": "i-2",
            "ec2_instance_id": null, "private_ip": "10.0.0.1", "license_status": "expired", "license_token": "t",
            "version": 3.0,
        }));
        assert_eq!(worker.status, WorkerStatus::Terminating);
        assert_eq!(worker.desired_status, Some(DesiredStatus::Running));
        assert_eq!(worker.ec2_instance_id, Some("i-2".into()));
        assert_eq!(worker.address(), Some("10.0.0.1"));
        assert_eq!(worker.license.status.as_deref(), Some("expired"));
        assert_eq!(worker.license.token.as_ref().map(|token| token.expose()), Some("t"));
        assert_eq!(worker.version, Some(3));
    }

    #[test]
    fn serialization_omits_secrets() {
        let worker = read(json!({
            "id": "w", "status": "running", "cml_password": "hunter2",
            "license": {"token": "t0ken", "pending_token": "p3nding"},
        }));
        let text = serde_json::to_string(&worker).expect("serializes");
        for secret in ["hunter2", "t0ken", "p3nding", "cml_password", "\"token\""] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn errors_name_field_value_and_accepted_values() {
        assert_eq!(
            error(json!({"id": "w-1", "status": "asleep"})),
            "worker \"w-1\": field `status` is \"asleep\"; accepted: pending, provisioning, starting, running, \
             draining, stopping, stopped, terminating, shutting-down, terminated, failed, unknown"
        );
        assert_eq!(
            error(json!({"status": "running"})),
            "worker: field `id` is missing or empty; accepted: non-empty text"
        );
        assert_eq!(error(json!({"id": 7})), "worker: field `id` is 7; accepted: non-empty text");
        assert!(
            error(json!({"id": "w", "status": 7}))
                .starts_with("worker \"w\": field `status` is 7; accepted: pending, ")
        );
        assert!(error(json!({"id": "w"})).contains("field `status` is missing or empty; accepted: pending, "));
        assert_eq!(error(json!([1])), "worker: field `(whole record)` is a list; accepted: a JSON object");
        assert_eq!(
            error(json!({"id": "w", "status": "running", "desired_status": "idle"})),
            "worker \"w\": field `desired_status` is \"idle\"; accepted: running, stopped, terminated"
        );
        assert_eq!(
            error(json!({"id": "w", "status": "running", "created_at": "noon"})),
            "worker \"w\": field `created_at` is \"noon\"; accepted: an ISO 8601 time such as \"2026-02-06T08:00:00Z\""
        );
        assert_eq!(
            error(json!({"id": "w", "status": "running", "license": {"pending_operation": "renew"}})),
            "worker \"w\": field `license.pending_operation` is \"renew\"; accepted: register, deregister"
        );
        assert_eq!(
            error(json!({"id": "w", "status": "running", "version": -1})),
            "worker \"w\": field `version` is -1; accepted: a whole number from 0 up"
        );
        assert_eq!(
            error(json!({"id": "w", "status": "running", "is_idle_detection_enabled": "yes"})),
            "worker \"w\": field `is_idle_detection_enabled` is \"yes\"; accepted: true, false or null"
        );
        assert!(
            error(json!({"id": "w", "status": "provisioning", "metadata": {"launch_plan": {"region": 1}}}))
                .contains("field `metadata.launch_plan` is an object; accepted: a launch plan (")
        );
    }

    #[test]
    fn errors_omit_secrets_of_the_wrong_type() {
        let text = error(json!({"id": "w", "status": "running", "cml_password": {"plain": "hunter2"}}));
        assert_eq!(
            text,
            "worker \"w\": field `cml_password` is of the wrong type (value not shown); accepted: text or null"
        );
    }

    #[test]
    fn malformed_records_reveal_no_secret() {
        for record in [
            json!({"id": "w", "status": "running", "license": [{"token": "hunter2"}]}),
            json!({"id": "w", "status": "running", "license": "hunter2"}),
            json!([{"id": "w", "status": "running", "cml_password": "hunter2"}]),
            json!({"id": "w", "status": {"cml_password": "hunter2"}}),
        ] {
            let text = error(record);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn errors_truncate_huge_values() {
        let text = error(json!({"id": "w", "status": "é".repeat(10_000)}));
        assert!(text.len() < 500, "{}", text.len());
    }

    #[test]
    fn errors_truncate_huge_tag_names() {
        let text = error(json!({"id": "w", "status": "running", "aws_tags": {"é".repeat(10_000): null}}));
        assert!(text.len() < 500 && text.contains("aws_tags.é"), "{text}");
    }
}
