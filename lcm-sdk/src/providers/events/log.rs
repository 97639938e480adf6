use async_trait::async_trait;

use crate::lifecycle::failure::CallFailure;
use crate::ports::{CloudEvent, Events};

/// Writes events to the log, under the target `lcm::events`. It never fails.
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
