//! Event sinks written in Python.

use async_trait::async_trait;
use lcm_sdk::CallFailure;
use lcm_sdk::ports::{CloudEvent, Events};

use crate::bridge::Bridge;
use crate::convert::to_python;
use crate::port_results::{json, nothing, tuple};

/// Event sinks written in Python.
pub(crate) struct PythonEvents(pub(crate) Bridge);

#[async_trait]
impl Events for PythonEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let event = json(event);
        self.0.call("publish", move |py| tuple(py, (to_python(py, &event)?,)), nothing).await
    }
}
