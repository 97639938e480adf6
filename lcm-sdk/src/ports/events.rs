use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::lifecycle::event::Event;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::time::Timestamp;

/// Where events go. An event that cannot be delivered is the sender's to log and count; nothing waits for it.
#[async_trait]
pub trait Events: Send + Sync {
    /// Publishes an event.
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure>;
}

/// An event in the shape of CloudEvents 1.0, which its JSON follows.
///
/// ```
/// use lcm_sdk::lifecycle::Event;
/// use lcm_sdk::ports::CloudEvent;
///
/// let at = "2026-02-06T08:00:00Z".parse().unwrap();
/// let event = CloudEvent::about("w-1", &Event::DrainCompleted, at);
/// assert_eq!(event.kind, "cml_worker.drain.completed.v1");
/// let json = serde_json::to_value(&event).unwrap();
/// assert_eq!((&json["specversion"], &json["subject"]), (&"1.0".into(), &"w-1".into()));
/// // The same happening at the same moment is the same event: a listener that sees it twice can tell.
/// assert_eq!(event.id, CloudEvent::about("w-1", &Event::DrainCompleted, at).id);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CloudEvent {
    /// The version of the CloudEvents specification.
    pub specversion: &'static str,
    /// Unique per happening.
    pub id: String,
    /// Who tells.
    pub source: &'static str,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The worker or region it is about.
    pub subject: String,
    /// When.
    pub time: Timestamp,
    /// What the data is written in.
    pub datacontenttype: &'static str,
    /// The particulars.
    pub data: Value,
}

impl CloudEvent {
    /// Puts something that happened to a worker, or to a region, into an envelope.
    pub fn about(subject: &str, event: &Event, time: Timestamp) -> Self {
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
