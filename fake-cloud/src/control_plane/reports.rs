//! Reports about a worker: instance details, metrics, labs and activity.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::input::{Input, format_time};
use super::records::{ChangeKind, Records};
use super::worker::Worker;

/// Instance fields that are format_time together; omitted ones become null.
const EC2_DETAILS: [&str; 9] = [
    "public_ip",
    "private_ip",
    "instance_type",
    "ami_id",
    "ami_name",
    "ami_description",
    "ami_creation_date",
    "aws_tags",
    "ec2_instance_state_detail",
];

/// Kind of report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportKind {
    /// Utilization from CloudWatch and CML.
    Metrics,
    /// System and lab data of CML.
    CmlData,
}

impl ReportKind {
    const fn field(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::CmlData => "cml_data",
        }
    }
}

impl Records {
    /// Writes instance details from EC2. **Every omitted field becomes null**, as on the real server: send all of them.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict, 422 for an invalid field.
    pub fn write_ec2_details(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let format_time = self.change(id, expected, |draft| {
            for field in EC2_DETAILS {
                let value = match field {
                    "aws_tags" => input.object(field)?.cloned().map_or(Value::Null, Value::from),
                    _ => input.text(field)?.map_or(Value::Null, Value::from),
                };
                draft.worker.set(field, value);
            }
            let address = match input.text("ip_address")? {
                Some(address) => Some(address),
                None => input.text("public_ip")?.or(input.text("private_ip")?),
            };
            if draft.worker.text("ip_address") != address {
                draft.add_event("cml_worker.endpoint.updated.v1", json!({"ip_address": address}));
            }
            draft.worker.set("ip_address", address);
            Ok(())
        });
        Ok(format_time?.0)
    }

    /// Stores a report. The version is kept: a report does not invalidate decisions.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for an empty body.
    pub fn store_report(&self, id: &str, report: ReportKind, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let taken = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let fields = input.clone().into_fields();
            if fields.is_empty() {
                return Err(ApiError::missing("(body)", "a JSON object with at least one field"));
            }
            let at = format_time(draft.now);
            let known = draft.worker.object_mut(report.field());
            known.extend(fields);
            known.insert("reported_at".into(), at);
            Ok(())
        });
        Ok(taken?.0)
    }

    /// Records user activity on the worker.
    ///
    /// # Errors
    /// 404 for an unknown worker, 422 for an invalid field.
    pub fn record_activity(&self, id: &str, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let noted = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let at = input.time("last_activity_at")?.unwrap_or(draft.now);
            draft.worker.set("last_activity_at", format_time(at));
            if let Some(events) = input.list("recent_activity_events")? {
                draft.worker.set("recent_activity_events", events.clone());
            }
            Ok(())
        });
        Ok(noted?.0)
    }
}

/// Declared capacity of a template, as stored in a worker.
pub(super) fn declared_capacity(template: &Map<String, Value>) -> Value {
    template.get("capacity").cloned().unwrap_or(Value::Null)
}
