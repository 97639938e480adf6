//! What watchers are told, and the queue it waits in.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::record::Event;

/// How many messages may wait in one stream before its watchers are served from the history instead…
const QUEUE_LIMIT: usize = 4096;
/// …and how many bytes of keys and values: what waits is kept even when the history forgets it.
const QUEUE_BYTES: usize = 64 * 1024 * 1024;

/// How a watcher wants to be told of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Telling {
    /// With what was there before.
    pub(super) previous: bool,
    /// In pieces, if it is too much for one message.
    pub(super) fragment: bool,
}

/// Events that are told together. However many watchers are told them, they are put into words once.
#[derive(Debug)]
pub(super) struct Batch {
    events: Arc<[Event]>,
    with_previous: OnceLock<Bytes>,
    without_previous: OnceLock<Bytes>,
}

impl Batch {
    pub(super) fn new(events: Arc<[Event]>) -> Arc<Self> {
        Arc::new(Self { events, with_previous: OnceLock::new(), without_previous: OnceLock::new() })
    }

    /// The events in words, with what was there before or without. `encode` has to give the same for all who ask.
    pub(super) fn words(&self, telling: Telling, encode: impl FnOnce(&[Event]) -> Bytes) -> Bytes {
        let words = if telling.previous { &self.with_previous } else { &self.without_previous };
        words.get_or_init(|| encode(&self.events)).clone()
    }
}

impl Deref for Batch {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events
    }
}

/// What a stream of watchers is told. Ids are those of the stream's watchers.
#[derive(Debug, Clone)]
pub(super) enum Delivery {
    /// A watcher was made.
    Created {
        /// Which.
        id: i64,
        /// The newest revision.
        revision: i64,
    },
    /// A watcher was not made.
    Refused {
        /// The newest revision.
        revision: i64,
        /// Why not.
        reason: &'static str,
    },
    /// A watcher ended because it was asked to.
    Canceled {
        /// Which.
        id: i64,
        /// The newest revision.
        revision: i64,
    },
    /// A watcher ended because what it wants to see is compacted away.
    Compacted {
        /// Which.
        id: i64,
        /// The oldest revision that can be watched.
        compact_revision: i64,
    },
    /// Something happened. All events of one revision come together.
    Events {
        /// To which watcher's keys.
        id: i64,
        /// The newest revision.
        revision: i64,
        /// What.
        events: Arc<Batch>,
        /// How. The watcher may be gone, and its id taken by another, when this is read.
        telling: Telling,
    },
    /// Nothing happened up to this revision that was not told.
    Progress {
        /// To which watcher's keys, or -1 for all of the stream.
        id: i64,
        /// The newest revision.
        revision: i64,
    },
    /// The reader was too slow to be told everything as it happened: it must ask for the rest.
    FellBehind,
}

impl Delivery {
    fn bytes(&self) -> usize {
        match self {
            Self::Events { events, .. } => {
                events.iter().map(|event| event.record.key.len() + event.record.value.len()).sum()
            }
            Self::Created { .. }
            | Self::Refused { .. }
            | Self::Canceled { .. }
            | Self::Compacted { .. }
            | Self::Progress { .. }
            | Self::FellBehind => 0,
        }
    }
}

/// What waits in a stream.
#[derive(Debug, Default)]
struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

/// The reading end of a stream of watchers.
#[derive(Debug)]
pub(super) struct Deliveries {
    pub(super) stream: u64,
    receiver: UnboundedReceiver<Delivery>,
    queued: Arc<Queued>,
}

impl Deliveries {
    /// The next message, if it is there. None when the stream was cut.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let delivery = self.receiver.poll_recv(context);
        if let Poll::Ready(Some(delivery)) = &delivery {
            self.queued.messages.fetch_sub(1, Ordering::Relaxed);
            self.queued.bytes.fetch_sub(delivery.bytes(), Ordering::Relaxed);
        }
        delivery
    }

    /// Waits for the next message. None when the stream was cut.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; no message is lost.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

/// The writing end of a stream of watchers.
#[derive(Debug)]
pub(super) struct Mailbox {
    sender: UnboundedSender<Delivery>,
    queued: Arc<Queued>,
}

impl Mailbox {
    pub(super) fn send(&self, delivery: Delivery) {
        self.queued.messages.fetch_add(1, Ordering::Relaxed);
        self.queued.bytes.fetch_add(delivery.bytes(), Ordering::Relaxed);
        // A reader that is gone closes its stream in a moment; until then nobody misses the message.
        drop(self.sender.send(delivery));
    }

    /// Whether the reader should read first, before it is told more.
    pub(super) fn is_full(&self) -> bool {
        self.queued.messages.load(Ordering::Relaxed) >= QUEUE_LIMIT
            || self.queued.bytes.load(Ordering::Relaxed) >= QUEUE_BYTES
    }
}

/// Both ends of a new stream.
pub(super) fn channel(stream: u64) -> (Mailbox, Deliveries) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let queued = Arc::<Queued>::default();
    (Mailbox { sender, queued: Arc::clone(&queued) }, Deliveries { stream, receiver, queued })
}
