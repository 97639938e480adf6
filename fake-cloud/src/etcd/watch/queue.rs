//! The bounded queue between the store and one watch stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::EventFormat;
use crate::etcd::mvcc::Event;

/// Messages that may wait in one queue before its watchers are served from the history.
const MAX_MESSAGES: usize = 4096;
/// Bytes of keys and values that may wait: the queue keeps them alive after the history is compacted.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// A message to a watch stream. Watcher ids are those of the stream.
#[derive(Debug, Clone)]
pub(crate) enum WatchMessage {
    /// The watcher was created.
    Created { id: i64, revision: i64 },
    /// The watcher was not created.
    Rejected { revision: i64, reason: &'static str },
    /// The watcher was canceled by the client.
    Canceled { id: i64, revision: i64 },
    /// The watcher was canceled because the next revision it needs is compacted.
    Compacted { id: i64, compact_revision: i64 },
    /// Events for one watcher. All events of one revision are in the same message.
    ///
    /// The format is part of the message: by the time it is read, the watcher may be gone and its id reused.
    Events { id: i64, revision: i64, events: Arc<[Event]>, format: EventFormat },
    /// Every event up to `revision` was sent. The id is -1 when this holds for all watchers of the stream.
    Progress { id: i64, revision: i64 },
    /// The queue was full and events were skipped. The reader must request a catch-up.
    Lagged,
}

impl WatchMessage {
    fn bytes(&self) -> usize {
        match self {
            Self::Events { events, .. } => {
                events.iter().map(|event| event.record.key.len() + event.record.value.len()).sum()
            }
            Self::Created { .. }
            | Self::Rejected { .. }
            | Self::Canceled { .. }
            | Self::Compacted { .. }
            | Self::Progress { .. }
            | Self::Lagged => 0,
        }
    }
}

#[derive(Debug, Default)]
struct QueueSize {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

/// The reading end of a watch stream's queue.
#[derive(Debug)]
pub(crate) struct WatchReceiver {
    /// The stream this queue belongs to.
    pub(crate) stream: u64,
    receiver: UnboundedReceiver<WatchMessage>,
    size: Arc<QueueSize>,
}

impl WatchReceiver {
    /// Waits for the next message. Returns `None` once the stream is closed.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; no message is lost.
    pub(crate) async fn recv(&mut self) -> Option<WatchMessage> {
        let message = self.receiver.recv().await?;
        Some(self.taken(message))
    }

    /// Returns the next message if one is queued.
    pub(crate) fn try_recv(&mut self) -> Option<WatchMessage> {
        let message = self.receiver.try_recv().ok()?;
        Some(self.taken(message))
    }

    fn taken(&self, message: WatchMessage) -> WatchMessage {
        self.size.messages.fetch_sub(1, Ordering::Relaxed);
        self.size.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        message
    }
}

/// The writing end of a watch stream's queue.
#[derive(Debug)]
pub(super) struct WatchSender {
    sender: UnboundedSender<WatchMessage>,
    size: Arc<QueueSize>,
}

impl WatchSender {
    /// Queues a message, also when the queue is full.
    pub(super) fn send(&self, message: WatchMessage) {
        self.size.messages.fetch_add(1, Ordering::Relaxed);
        self.size.bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        // Fails only while a dropped receiver has not closed its stream yet.
        drop(self.sender.send(message));
    }

    /// Returns whether events must wait until the reader has caught up.
    pub(super) fn is_full(&self) -> bool {
        self.size.messages.load(Ordering::Relaxed) >= MAX_MESSAGES
            || self.size.bytes.load(Ordering::Relaxed) >= MAX_BYTES
    }
}

/// Creates both ends of a stream's queue.
pub(super) fn watch_queue(stream: u64) -> (WatchSender, WatchReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let size = Arc::<QueueSize>::default();
    (WatchSender { sender, size: Arc::clone(&size) }, WatchReceiver { stream, receiver, size })
}
