use std::sync::Arc;

use async_trait::async_trait;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{CloudEvent, Events};
use crate::providers::control_plane::ControlPlaneClient;

/// Publishes events through the control plane (`POST /api/internal/events`), which shows them among its own.
#[derive(Debug, Clone)]
pub struct ControlPlaneEvents(Arc<ControlPlaneClient>);

impl ControlPlaneEvents {
    /// Publishes through this control plane.
    pub fn new(control_plane: Arc<ControlPlaneClient>) -> Self {
        Self(control_plane)
    }
}

#[async_trait]
impl Events for ControlPlaneEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let written = serde_json::to_value(event);
        let event = written.map_err(|error| CallFailure::new(FailureKind::Refused, error.to_string()))?;
        self.0.publish(event).await
    }
}
