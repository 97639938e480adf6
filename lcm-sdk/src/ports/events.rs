use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::time::Timestamp;

/// A sink of lifecycle events. Events are best effort: the caller logs and counts a failure, and continues.
///
/// # Promises
/// - Events arrive in order.
#[async_trait]
pub trait Events: Send + Sync {
    /// Publishes an event.
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure>;
}

/// An event in the format of CloudEvents 1.0.
///
/// ```
/// use lcm_sdk::lifecycle::Event;
/// use lcm_sdk::ports::CloudEvent;
///
/// let at = "2026-02-06T08:00:00Z".parse().unwrap();
/// let event = CloudEvent::new("w-1", &Event::DrainCompleted, at);
/// assert_eq!(event.kind, "cml_worker.drain.completed.v1");
/// let json = serde_json::to_value(&event).unwrap();
/// assert_eq!((&json["specversion"], &json["subject"]), (&"1.0".into(), &"w-1".into()));
/// // The ID depends on the content only, so that receivers can deduplicate.
/// assert_eq!(event.id, CloudEvent::new("w-1", &Event::DrainCompleted, at).id);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CloudEvent {
    /// Version of the CloudEvents specification.
    pub specversion: &'static str,
    /// Unique ID, equal for repetitions of the same event.
    pub id: String,
    /// Name of the sender.
    pub source: &'static str,
    /// Type of the event, such as `cml_worker.drain.completed.v1`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// ID of the worker, or name of the region.
    pub subject: String,
    /// Time of the event.
    pub time: Timestamp,
    /// Media type of the data.
    pub datacontenttype: &'static str,
    /// Fields of the event.
    pub data: Value,
}

impl CloudEvent {
    /// Wraps an event of a worker or a region.
    pub fn new(subject: &str, event: &Event, time: Timestamp) -> Self {
        let kind = event.event_type();
        let data = serde_json::to_value(event).unwrap_or_default();
        let mut digest = Sha256::new();
        for part in [subject, kind, &time.to_rfc3339(), &data.to_string()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        let id = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self {
            specversion: "1.0",
            id,
            source: "io.system.cml-cloud-manager/worker-controller",
            kind,
            subject: subject.to_owned(),
            time,
            datacontenttype: "application/json",
            data,
        }
    }
}
