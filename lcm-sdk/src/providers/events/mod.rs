//! [`Events`] sinks: the log, an HTTP endpoint, the control plane, or several of them.

#[cfg(feature = "control-plane")]
mod http;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

#[cfg(feature = "control-plane")]
pub use self::http::{HttpEvents, SinkOptions};
use crate::lifecycle::failure::CallFailure;
use crate::ports::{CloudEvent, Events};
#[cfg(feature = "control-plane")]
use crate::providers::control_plane::ControlPlaneClient;

/// Writes events to the log with the target `lcm::events`. Never fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogEvents;

#[async_trait]
impl Events for LogEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        tracing::info!(
            target: "lcm::events",
            id = event.id,
            subject = event.subject,
            data = %event.data,
            "{}",
            event.kind
        );
        Ok(())
    }
}

/// Publishes events to the event log of the control plane (`POST /api/internal/events`).
#[cfg(feature = "control-plane")]
#[derive(Debug, Clone)]
pub struct ControlPlaneEvents(Arc<ControlPlaneClient>);

#[cfg(feature = "control-plane")]
impl ControlPlaneEvents {
    /// Publishes with this client.
    pub fn new(control_plane: Arc<ControlPlaneClient>) -> Self {
        Self(control_plane)
    }
}

#[cfg(feature = "control-plane")]
#[async_trait]
impl Events for ControlPlaneEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        use crate::lifecycle::failure::FailureKind;

        let event = serde_json::to_value(event);
        let event = event.map_err(|error| CallFailure::new(FailureKind::Refused, error.to_string()))?;
        self.0.publish(event).await
    }
}

/// Publishes each event to several sinks concurrently.
///
/// # Guarantees
/// A sink that fails or is slow does not keep the others from receiving the event.
///
/// # Errors
/// The first failure, once all sinks were tried. The message counts the other failures.
#[derive(Clone, Default)]
pub struct FanoutEvents {
    sinks: Vec<Arc<dyn Events>>,
}

impl FanoutEvents {
    /// Publishes to all of `sinks`.
    pub fn new(sinks: impl IntoIterator<Item = Arc<dyn Events>>) -> Self {
        Self { sinks: sinks.into_iter().collect() }
    }
}

#[async_trait]
impl Events for FanoutEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let results = join_all(self.sinks.iter().map(|sink| sink.publish(event))).await;
        let mut failures = results.into_iter().filter_map(Result::err);
        let Some(first) = failures.next() else { return Ok(()) };
        let others = failures.count();
        let message = if others > 0 { format!("{} (and {others} more)", first.message) } else { first.message };
        Err(CallFailure { message, ..first })
    }
}

impl fmt::Debug for FanoutEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanoutEvents").field("sinks", &self.sinks.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::event::Event;
    use crate::lifecycle::failure::FailureKind;
    use crate::providers::memory::MemoryEvents;

    #[tokio::test]
    async fn failing_sink_does_not_block_others() {
        let (broken, good) = (Arc::new(MemoryEvents::default()), Arc::new(MemoryEvents::default()));
        broken.fail_next(CallFailure::new(FailureKind::Unreachable, "connection refused"));
        let fanout = FanoutEvents::new([Arc::clone(&broken) as Arc<dyn Events>, Arc::clone(&good) as Arc<dyn Events>]);
        let at = "2026-02-06T08:00:00Z".parse().expect("valid");
        let event = CloudEvent::new("w-1", &Event::DrainCompleted, at);
        let failure = fanout.publish(&event).await.expect_err("one of two");
        assert_eq!(failure.kind, FailureKind::Unreachable);
        assert_eq!((broken.published().len(), good.published().len()), (0, 1));
        fanout.publish(&event).await.expect("both");
        assert_eq!((broken.published().len(), good.published().len()), (1, 2));
    }
}
