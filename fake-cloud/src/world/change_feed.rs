//! Subscriptions to instance changes.

use std::mem;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Identifies an instance that was launched, started, stopped or terminated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceChange {
    /// Region of the instance.
    pub region: &'static str,
    /// Position of the instance in launch order.
    pub sequence: u64,
}

/// Changes that accumulated since the previous [`ChangeFeed::take`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether the world was reset. Instances that existed before the reset are gone.
    pub was_reset: bool,
    /// Changed instances since the reset, in order of change. An instance may occur more than once.
    pub instances: Vec<InstanceChange>,
}

/// A subscription to the instance changes of a world. Changes are buffered until they are taken.
#[derive(Debug)]
pub struct ChangeFeed {
    buffer: Arc<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    changes: Mutex<Changes>,
    arrived: Notify,
}

impl ChangeFeed {
    /// Waits until the buffer is not empty.
    ///
    /// # Cancel safety
    /// Cancel safe: no change is lost when the future is dropped.
    pub async fn changed(&self) {
        while *self.buffer.changes.lock() == Changes::default() {
            self.buffer.arrived.notified().await;
        }
    }

    /// Empties the buffer and returns its content.
    #[must_use]
    pub fn take(&self) -> Changes {
        mem::take(&mut *self.buffer.changes.lock())
    }
}

/// All live subscriptions of a world.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Weak<Buffer>>>);

impl Subscribers {
    pub(super) fn subscribe(&self) -> ChangeFeed {
        let buffer = Arc::default();
        self.0.lock().push(Arc::downgrade(&buffer));
        ChangeFeed { buffer }
    }

    pub(super) fn publish(&self, changed: &[InstanceChange]) {
        self.update(|changes| changes.instances.extend_from_slice(changed));
    }

    pub(super) fn publish_reset(&self) {
        self.update(|changes| *changes = Changes { was_reset: true, instances: Vec::new() });
    }

    fn update(&self, update: impl Fn(&mut Changes)) {
        self.0.lock().retain(|buffer| {
            let Some(buffer) = buffer.upgrade() else { return false };
            update(&mut buffer.changes.lock());
            buffer.arrived.notify_one();
            true
        });
    }
}
