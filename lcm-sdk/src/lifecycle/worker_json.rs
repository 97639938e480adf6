//! Converts worker records from and to the control plane's JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::ids::{InstanceId, WorkerId};
use super::json::{FieldError, Fields, Raw};
use super::license::License;
use super::misspelling::warn_of_misspellings;
use super::time::Timestamp;
use super::worker::{LaunchPlan, Notes, NotesOnRecord, Worker};

impl TryFrom<Value> for Worker {
    type Error = FieldError;

    fn try_from(value: Value) -> Result<Self, FieldError> {
        Self::from_fields(Fields::open("worker", value)?)
    }
}

/// Names of the instance's id, in order of preference.
const INSTANCE_FIELDS: [&str; 3] = ["ec2_instance_id", "aws_instance_id", "instance_id"];

/// Longest id in bytes that is reported of an unreadable record. Longer text names no worker and no instance.
const MAX_REPORTED_ID: usize = 1_024;

impl Worker {
    fn from_fields(mut fields: Fields<'_>) -> Result<Self, FieldError> {
        let id = WorkerId::from(fields.required_text("id")?);
        let status = fields.required_word("status")?;
        let ec2_instance_id = take_instance_id(&mut fields)?;
        let nested = fields.optional(|fields| fields.nested("metadata", "metadata."));
        let mut metadata = nested.unwrap_or_else(|| fields.empty("metadata."));
        let notes = take_notes(&mut fields, &mut metadata);
        let mut worker = Self {
            id,
            status,
            desired_status: fields.optional(|fields| fields.word("desired_status")),
            ec2_instance_id,
            version: fields.optional(|fields| fields.integer("version")),
            name: fields.optional(|fields| fields.text("name")),
            aws_region: fields.optional(|fields| fields.text("aws_region")),
            ip_address: fields.optional(|fields| fields.text("ip_address")),
            public_ip: fields.optional(|fields| fields.text("public_ip")),
            private_ip: fields.optional(|fields| fields.text("private_ip")),
            template_name: fields.optional(|fields| fields.text("template_name")),
            instance_type: fields.optional(|fields| fields.text("instance_type")),
            ami_name: fields.optional(|fields| fields.text("ami_name")),
            aws_tags: fields.readable_text_map("aws_tags"),
            cml_username: fields.optional(|fields| fields.text("cml_username")),
            cml_password: fields.optional(|fields| fields.secret("cml_password")),
            license: License::take(&mut fields),
            is_idle_detection_enabled: take_idle_detection(&mut fields),
            created_at: fields.optional(|fields| fields.timestamp("created_at")),
            updated_at: fields.optional(|fields| fields.timestamp("updated_at")),
            terminated_at: fields.optional(|fields| fields.timestamp("terminated_at")),
            start_initiated_at: fields.optional(|fields| fields.timestamp("start_initiated_at")),
            last_activity_check_at: fields.optional(|fields| fields.timestamp("last_activity_check_at")),
            notes,
            metadata: fields.close(metadata),
            warnings: fields.warnings(),
            extra: fields.rest(),
        };
        warn_of_misspellings(&mut worker);
        Ok(worker)
    }
}

/// Reads the switch of idle detection, which is on by default. An unreadable one is off: a check could pause the worker
/// against its operator's word.
fn take_idle_detection(fields: &mut Fields<'_>) -> bool {
    let mut is_unreadable = false;
    let switch = fields.optional(|fields| {
        let read = fields.switch("is_idle_detection_enabled");
        is_unreadable = read.is_err();
        read
    });
    switch.unwrap_or(!is_unreadable)
}

/// Reads the instance's id. An unreadable one makes the record unreadable: without an id, a pending worker would be
/// launched again, and a terminating one would count as terminated while its instance runs.
fn take_instance_id(fields: &mut Fields<'_>) -> Result<Option<InstanceId>, FieldError> {
    let mut found = None;
    for field in INSTANCE_FIELDS {
        match found {
            None => found = fields.text(field)?,
            Some(_) => drop(fields.optional(|fields| fields.text(field))),
        }
    }
    Ok(found.map(InstanceId::from))
}

/// Reads each note from its own field if the server has it, else from the metadata.
fn take_notes<'a>(record: &mut Fields<'a>, metadata: &mut Fields<'a>) -> Notes {
    struct Homes<'h, 'a> {
        on_record: NotesOnRecord,
        record: &'h mut Fields<'a>,
        metadata: &'h mut Fields<'a>,
    }
    impl<'a> Homes<'_, 'a> {
        fn of(&mut self, field: &str) -> &mut Fields<'a> {
            if self.on_record.contains(field) { self.record } else { self.metadata }
        }

        fn timestamp(&mut self, field: &str) -> Option<Timestamp> {
            self.of(field).optional(|fields| fields.timestamp(field))
        }
    }
    let on_record = NotesOnRecord::from_fn(|field| record.has(field));
    let mut homes = Homes { on_record, record, metadata };
    Notes {
        on_record,
        reading: None,
        drain_started_at: homes.timestamp("drain_started_at"),
        drain_timeout_seconds: homes
            .of("drain_timeout_seconds")
            .optional(|fields| fields.integer("drain_timeout_seconds")),
        drain_tries: homes.of("drain_tries").optional(|fields| take_count(fields, "drain_tries")),
        scaled_down_at: homes.timestamp("scaled_down_at"),
        launched_at: homes.timestamp("launched_at"),
        launch_generation: homes.of("launch_generation").optional(|fields| take_count(fields, "launch_generation")),
        launch_plan: homes.of("launch_plan").optional(take_plan),
        license_attempt: homes.of("license_attempt").optional(|fields| fields.text("license_attempt")),
        license_wait: homes.of("license_wait").optional(|fields| fields.text("license_wait")),
        ec2_account_id: homes.of("ec2_account_id").optional(|fields| fields.text("ec2_account_id")),
        ec2_region: homes.of("ec2_region").optional(|fields| fields.text("ec2_region")),
    }
}

fn take_count(fields: &mut Fields<'_>, field: &str) -> Result<u32, FieldError> {
    let count = fields.integer(field)?.unwrap_or(0);
    u32::try_from(count).map_err(|_| fields.wrong(field, Value::from(count), "a whole number up to 4294967295"))
}

fn take_plan(fields: &mut Fields<'_>) -> Result<Option<Box<LaunchPlan>>, FieldError> {
    let field = "launch_plan";
    let plan = fields.object(field)?;
    if plan.is_empty() {
        return Ok(None);
    }
    let plan = Value::Object(plan);
    let read = serde_json::from_value(plan.clone());
    read.map(Some).map_err(|error| fields.wrong(field, plan, &format!("a launch plan ({error})")))
}

impl Notes {
    /// Reads notes from the fields that [`Notes::to_json`] returns. Unknown fields are skipped.
    ///
    /// # Errors
    /// If any note is unreadable. On a record it would count as absent; without a launch plan that exists, a worker would
    /// be launched twice.
    #[cfg(feature = "runtime")]
    pub(crate) fn from_json(fields: Map<String, Value>) -> Result<Self, String> {
        let mut fields = Fields::open("notes", Value::Object(fields)).map_err(|error| error.to_string())?;
        let mut metadata = fields.empty("");
        let notes = take_notes(&mut fields, &mut metadata);
        match fields.warnings().first() {
            Some(warning) => Err(warning.to_string()),
            None => Ok(Self { on_record: NotesOnRecord::default(), ..notes }),
        }
    }

    /// The notes as JSON fields; unset ones are omitted.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |field: &str, value: Value| {
            if !value.is_null() {
                map.insert(field.to_owned(), value);
            }
        };
        put("drain_started_at", written(self.drain_started_at));
        put("drain_timeout_seconds", self.drain_timeout_seconds.into());
        put("drain_tries", Some(self.drain_tries).filter(|tries| *tries > 0).into());
        put("scaled_down_at", written(self.scaled_down_at));
        put("launched_at", written(self.launched_at));
        put("launch_generation", Some(self.launch_generation).filter(|generation| *generation > 0).into());
        put("launch_plan", serde_json::to_value(&self.launch_plan).unwrap_or_default());
        put("license_attempt", self.license_attempt.as_deref().into());
        put("license_wait", self.license_wait.as_deref().into());
        put("ec2_account_id", self.ec2_account_id.as_deref().into());
        put("ec2_region", self.ec2_region.as_deref().into());
        map
    }
}

impl Worker {
    /// The record as the control plane writes it, without its secrets: password and tokens are omitted rather than
    /// masked, so that writing the result back cannot overwrite them with asterisks.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        let mut put = |field: &str, value: Value| {
            // An unreadable value stays until there is another one.
            if !(value.is_null() && map.contains_key(field)) {
                map.insert(field.to_owned(), value);
            }
        };
        let unless_unreadable =
            |field: &str, value: Value| if self.extra.contains_key(field) { Value::Null } else { value };
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
        put("aws_tags", unless_unreadable("aws_tags", serde_json::to_value(&self.aws_tags).unwrap_or_default()));
        put("license", self.license.to_json().into());
        let idle_detection = self.is_idle_detection_enabled;
        put("is_idle_detection_enabled", unless_unreadable("is_idle_detection_enabled", idle_detection.into()));
        if let Some(version) = self.version {
            put("version", version.into());
        }
        let mut metadata = self.metadata.clone();
        for (field, value) in self.notes.to_json() {
            let home = if self.notes.on_record.contains(&field) { &mut map } else { &mut metadata };
            home.insert(field, value);
        }
        if !(metadata.is_empty() && map.contains_key("metadata")) {
            map.insert("metadata".to_owned(), metadata.into());
        }
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

/// A record without a readable id, status or instance id. It is reported and left alone: never written, never acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableWorker {
    /// Its id, if that could be read and is no longer than 1,024 bytes.
    pub id: Option<WorkerId>,
    /// The instance it names, if that could be read and is no longer than 1,024 bytes: it has an owner.
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
    let is_id = |text: &&Cow<'_, str>| (1..=MAX_REPORTED_ID).contains(&text.len());
    let text = |field| fields.peek(field).filter(is_id).cloned();
    let (id, ec2_instance_id) = (text("id"), INSTANCE_FIELDS.iter().find_map(|field| text(field)));
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

    #[cfg(feature = "runtime")]
    #[test]
    fn notes_round_trip_alone() {
        let plan = json!({
            "region": "us-east-1", "image_id": "ami-1", "instance_type": "m5zn.metal", "subnet_id": "subnet-1",
            "security_group_ids": ["sg-1"], "key_name": null, "tags": {"Name": "w"}, "generation": 2,
            "client_token": "lcm-1",
        });
        let stored = json!({
            "drain_started_at": "2026-02-06T09:00:00.123456Z", "drain_timeout_seconds": 60, "drain_tries": 2,
            "scaled_down_at": "2026-02-06T09:00:00Z", "launched_at": "2026-02-06T09:00:00Z", "launch_generation": 2,
            "launch_plan": plan, "license_attempt": "a", "license_wait": "b", "ec2_account_id": "123456789012",
            "ec2_region": "us-east-1",
        });
        let fields = stored.as_object().expect("an object").clone();
        assert!(NotesOnRecord::FIELDS.iter().all(|field| fields.contains_key(*field)), "every note is tested");
        let notes = Notes::from_json(fields).expect("readable");
        assert_eq!(Value::Object(notes.to_json()), stored);
        assert_eq!(notes.on_record, NotesOnRecord::default());
    }

    #[cfg(feature = "runtime")]
    #[test]
    fn unreadable_note_is_an_error() {
        let read = |fields: Value| Notes::from_json(fields.as_object().expect("an object").clone());
        let error = read(json!({"launch_generation": 1, "launch_plan": {"region": 1}})).expect_err("unreadable");
        assert!(error.contains("`launch_plan` is an object; accepted: a launch plan"), "{error}");
        assert!(read(json!({"of_a_newer_version": 1})).is_ok());
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
            error(json!({"id": "w", "status": "pending", "ec2_instance_id": 7, "aws_instance_id": "i-1"})),
            "worker \"w\": field `ec2_instance_id` is 7; accepted: text or null"
        );
    }

    #[test]
    fn unreadable_switch_of_idle_detection_is_off() {
        let switch = |fields: Value| read(fields).is_idle_detection_enabled;
        for off in [json!("false"), json!("no"), json!(0), json!({}), json!(false)] {
            let record = json!({"id": "w", "status": "running", "is_idle_detection_enabled": off});
            assert!(!switch(record.clone()), "{record}");
        }
        assert!(switch(json!({"id": "w", "status": "running", "is_idle_detection_enabled": null})));
        assert!(switch(json!({"id": "w", "status": "running"})));
    }

    #[test]
    fn other_unreadable_values_count_as_absent() {
        let base = json!({"id": "w", "status": "running", "desired_status": "terminated", "ec2_instance_id": "i-1"});
        for (field, value, warning) in [
            ("desired_status", json!("idle"), "`desired_status` is \"idle\"; accepted: running, stopped, terminated"),
            (
                "created_at",
                json!("noon"),
                "`created_at` is \"noon\"; accepted: an ISO 8601 time such as \"2026-02-06T08:00:00Z\"",
            ),
            ("last_activity_check_at", json!(5), "`last_activity_check_at` is 5; accepted: text or null"),
            (
                "license",
                json!({"pending_operation": "transfer"}),
                "`license.pending_operation` is \"transfer\"; accepted: register, deregister",
            ),
            ("aws_tags", json!({"team": null}), "`aws_tags.team` is null; accepted: text"),
            ("aws_tags", json!("team"), "`aws_tags` is \"team\"; accepted: an object"),
            ("version", json!(-1), "`version` is -1; accepted: a whole number from 0 up"),
            (
                "is_idle_detection_enabled",
                json!("yes"),
                "`is_idle_detection_enabled` is \"yes\"; accepted: true, false or null",
            ),
            (
                "metadata",
                json!({"scaled_down_at": "soon"}),
                "`metadata.scaled_down_at` is \"soon\"; accepted: an ISO 8601 time such as \"2026-02-06T08:00:00Z\"",
            ),
            ("metadata", json!([1]), "`metadata` is a list; accepted: an object"),
            (
                "launch_generation",
                json!(4_294_967_296_u64),
                "`launch_generation` is 4294967296; accepted: a whole number up to 4294967295",
            ),
            ("cml_password", json!(7), "`cml_password` is of the wrong type (value not shown); accepted: text or null"),
        ] {
            let mut record = base.clone();
            record[field] = value.clone();
            let worker = read(record);
            assert_eq!(worker.ec2_instance_id, Some("i-1".into()));
            let warnings: Vec<_> = worker.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(warnings, [format!("worker \"w\": field {warning}; the value counts as absent")]);
            let written = Value::Object(worker.to_json());
            if field != "cml_password" && field != "license" {
                assert_eq!(written[field], value, "unreadable values are written back");
            }
            assert_eq!(read(written.clone()).to_json(), worker.to_json());
        }
    }

    #[test]
    fn unreadable_launch_plans_count_as_absent() {
        let worker = read(json!({"id": "w", "status": "provisioning", "metadata": {"launch_plan": {"region": 1}}}));
        assert_eq!(worker.notes.launch_plan, None);
        let warning = worker.warnings[0].to_string();
        assert!(warning.contains("field `metadata.launch_plan` is an object; accepted: a launch plan ("), "{warning}");
    }

    #[test]
    fn one_unreadable_tag_hides_no_other() {
        let worker =
            read(json!({"id": "w", "status": "running", "aws_tags": {"team": null, "env": "prod", "cost": 7}}));
        let tags = [("cost", "7"), ("env", "prod")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(worker.aws_tags, tags.into());
    }

    #[test]
    fn unreadable_license_keeps_the_rest_of_the_license() {
        let license = json!({"status": "registered", "pending_operation": "transfer", "operation_in_progress": "no"});
        let worker = read(json!({"id": "w", "status": "running", "license": license}));
        assert_eq!(worker.license.status.as_deref(), Some("registered"));
        assert_eq!((worker.license.pending_operation, worker.license.operation_in_progress), (None, false));
        assert_eq!(Value::Object(worker.license.to_json()), license);
    }

    #[test]
    fn new_values_replace_unreadable_ones() {
        let mut worker = read(json!({"id": "w", "status": "running", "desired_status": "idle", "public_ip": 4}));
        worker.desired_status = Some(DesiredStatus::Stopped);
        worker.public_ip = Some("203.0.113.7".to_owned());
        let written = worker.to_json();
        assert_eq!((&written["desired_status"], &written["public_ip"]), (&json!("stopped"), &json!("203.0.113.7")));
    }

    #[test]
    fn instance_id_is_read_under_three_names() {
        for record in [
            json!({"id": "w", "status": "running", "instance_id": "i-1"}),
            json!({"id": "w", "status": "running", "instance_id": "i-2", "aws_instance_id": "i-1"}),
            json!({"id": "w", "status": "running", "instance_id": 7, "ec2_instance_id": "i-1"}),
        ] {
            assert_eq!(read(record).ec2_instance_id, Some("i-1".into()));
        }
    }

    #[test]
    fn unreadable_values_reveal_no_secret() {
        for record in [
            json!({"id": "w", "status": "running", "cml_password": {"plain": "hunter2"}}),
            json!({"id": "w", "status": "running", "license_token": ["hunter2"]}),
            json!({"id": "w", "status": "running", "license": [{"token": "hunter2"}]}),
            json!({"id": "w", "status": "running", "license": "hunter2"}),
            json!({"id": "w", "status": "running", "license": {"token": ["hunter2"]}}),
        ] {
            let worker = read(record);
            let text = format!("{:?} {:?} {}", worker, worker.warnings, Value::Object(worker.to_json()));
            assert!(!text.contains("hunter2"), "{text}");
            assert_eq!(worker.warnings.len(), 1);
        }
        for record in [
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
    fn warnings_are_short_and_few() {
        let tags: Map<String, Value> =
            (0..1_000).map(|tag| (format!("{tag}{}", "é".repeat(10_000)), json!(null))).collect();
        let warnings = read(json!({"id": "w", "status": "running", "aws_tags": tags})).warnings;
        assert_eq!(warnings.len(), 16);
        assert!(warnings.iter().all(|warning| warning.to_string().len() < 500), "{}", warnings[0]);
    }
}
