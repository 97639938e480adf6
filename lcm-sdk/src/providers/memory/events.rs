//! Events in memory.

use async_trait::async_trait;
use parking_lot::Mutex;

use super::fault_injection::{Fault, FaultInjection};
use crate::lifecycle::failure::CallFailure;
use crate::ports::{CloudEvent, Events};

/// An [`Events`] sink that keeps events in memory and fails on demand.
#[derive(Debug, Default)]
pub struct MemoryEvents {
    published: Mutex<Vec<CloudEvent>>,
    faults: FaultInjection,
}

impl MemoryEvents {
    /// Published events, oldest first.
    pub fn published(&self) -> Vec<CloudEvent> {
        self.published.lock().clone()
    }

    /// Types of the published events, oldest first.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.published.lock().iter().map(|event| event.kind).collect()
    }

    /// Fails the next call; the event is not published.
    pub fn fail_next(&self, failure: CallFailure) {
        self.faults.plan(None, Fault::Fail(failure));
    }

    /// Injects a fault into the next call.
    pub fn plan(&self, fault: Fault) {
        self.faults.plan(None, fault);
    }
}

#[async_trait]
impl Events for MemoryEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        self.faults.call("publish", event.kind, || {
            self.published.lock().push(event.clone());
            Ok(())
        })
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;
    use crate::conformance::events::{EventsWorld, suite};

    #[async_trait]
    impl EventsWorld for MemoryEvents {
        fn events(&self) -> &dyn Events {
            self
        }

        async fn arrived(&self) -> Vec<(String, String)> {
            self.published().into_iter().map(|event| (event.kind.to_owned(), event.subject)).collect()
        }
    }

    #[tokio::test]
    async fn memory_events_conform() {
        suite(&MemoryEvents::default()).await;
    }
}
