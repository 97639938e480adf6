//! Reports about CML. The server replaces all of its CML data with each one, so a partial report would erase the rest.

use serde_json::{Map, Value};

use super::client::{Call, ControlPlaneClient};
use super::requests;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::observation::CmlMetrics;
use crate::lifecycle::time::Timestamp;

/// Fields that a report replaces besides `system_info`. The record shows each as `cml_…`, or within `cml_data`.
const REPLACED: [&str; 6] = ["cml_version", "ready", "labs_count", "system_health", "license_info", "uptime_seconds"];

impl ControlPlaneClient {
    /// The body of a report that erases nothing the server knows: a value that CML did not report is taken from the
    /// record. `None` if there is no such body: without `system_info` the server would offer a new worker without a
    /// capacity, and without the record its other values are not known.
    pub(super) async fn complete_cml_data(&self, id: &WorkerId, cml: &CmlMetrics, at: Timestamp) -> Option<Value> {
        if cml.system_info.is_none() {
            tracing::debug!(target: "lcm::control_plane", worker = %id, "CML data without system_info is not reported");
            return None;
        }
        let mut body = requests::cml_data(cml, at);
        if REPLACED.iter().any(|field| !body.contains_key(*field)) {
            match self.record(id).await {
                Ok(record) => fill(&mut body, &record),
                Err(failure) => {
                    tracing::warn!(
                        target: "lcm::control_plane", worker = %id, %failure,
                        "partial CML data is not reported, because the record could not be read",
                    );
                    return None;
                }
            }
        }
        Some(body.into())
    }

    async fn record(&self, id: &WorkerId) -> Result<Value, CallFailure> {
        self.call(Call::get(&["workers", id.as_str()])).await?.success()?.json()
    }
}

/// Adds the values that the record knows and the report lacks.
fn fill(body: &mut Map<String, Value>, record: &Value) {
    for field in REPLACED {
        let flat = if field.starts_with("cml_") { &record[field] } else { &record[format!("cml_{field}")] };
        let known = [flat, &record["cml_data"][field]].into_iter().find(|value| !value.is_null());
        if let (Some(known), false) = (known, body.contains_key(field)) {
            body.insert(field.to_owned(), known.clone());
        }
    }
}
