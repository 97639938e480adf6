use async_trait::async_trait;
use parking_lot::Mutex;

use super::fault_injection::{Fault, Trouble};
use crate::lifecycle::failure::CallFailure;
use crate::ports::{CloudEvent, Events};

/// Keeps what is published, for somebody to look at.
#[derive(Debug, Default)]
pub struct MemoryEvents {
    published: Mutex<Vec<CloudEvent>>,
    trouble: Trouble,
}

impl MemoryEvents {
    /// What was published, oldest first.
    pub fn published(&self) -> Vec<CloudEvent> {
        self.published.lock().clone()
    }

    /// The types of what was published, oldest first.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.published.lock().iter().map(|event| event.kind).collect()
    }

    /// Makes the next event fail.
    pub fn fail_next(&self, failure: CallFailure) {
        self.trouble.plan(None, Fault::Fail(failure));
    }

    /// Makes something go wrong with the next event.
    pub fn plan(&self, fault: Fault) {
        self.trouble.plan(None, fault);
    }
}

#[async_trait]
impl Events for MemoryEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        self.trouble.pass("publish", event.kind, || {
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
    async fn the_model_conforms() {
        suite(&MemoryEvents::default()).await;
    }
}
