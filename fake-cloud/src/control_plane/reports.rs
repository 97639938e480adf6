//! What others found out about a worker: its addresses, its metrics, its labs, its activity.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::input::{Input, written};
use super::records::{ChangeKind, Records};
use super::worker::Worker;

/// The fields of an instance that travel together: the ones a write leaves out become null.
const EC2_DETAILS: [&str; 7] =
    ["public_ip", "private_ip", "instance_type", "ami_id", "ami_name", "aws_tags", "ec2_instance_state_detail"];

/// Which report about a worker is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportKind {
    /// Utilisation, from CloudWatch and CML.
    Metrics,
    /// What CML says about itself and its labs.
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
    /// Writes what EC2 says about the instance. **Every field that is left out becomes null**, as on the server this
    /// imitates: send all of them.
    ///
    /// # Errors
    /// 404, 409 on another version, 422.
    pub fn write_ec2_details(&self, id: &str, expected: Option<u64>, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let written = self.change(id, expected, |draft| {
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
                draft.announce("cml_worker.endpoint.updated.v1", json!({"ip_address": address}));
            }
            draft.worker.set("ip_address", address);
            Ok(())
        });
        Ok(written?.0)
    }

    /// Takes in a report. The version stays: a measurement makes no decision stale.
    ///
    /// # Errors
    /// 404, 422 on a body without any field.
    pub fn take_report(&self, id: &str, report: ReportKind, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let taken = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let fields = input.clone().into_fields();
            if fields.is_empty() {
                return Err(ApiError::missing("(body)", "a JSON object with at least one field"));
            }
            let at = written(draft.now);
            let known = draft.worker.object_mut(report.field());
            known.extend(fields);
            known.insert("reported_at".into(), at);
            Ok(())
        });
        Ok(taken?.0)
    }

    /// Notes that somebody used the worker.
    ///
    /// # Errors
    /// 404, 422.
    pub fn note_activity(&self, id: &str, input: &Input) -> Result<Arc<Worker>, ApiError> {
        let noted = self.change(id, None, |draft| {
            draft.weight = ChangeKind::Measurement;
            let at = input.moment("last_activity_at")?.unwrap_or(draft.now);
            draft.worker.set("last_activity_at", written(at));
            if let Some(events) = input.list("recent_activity_events")? {
                draft.worker.set("recent_activity_events", events.clone());
            }
            Ok(())
        });
        Ok(noted?.0)
    }
}

/// The declared capacity of a template, as a worker carries it.
pub(super) fn declared_capacity(template: &Map<String, Value>) -> Value {
    template.get("capacity").cloned().unwrap_or(Value::Null)
}
