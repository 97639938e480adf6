//! Who is told that instances were launched or told something.

use std::mem;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// An instance that was launched or told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Its region.
    pub region: &'static str,
    /// Its place in the order of launches.
    pub sequence: u64,
}

/// What has happened since somebody last asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// Whether the world began anew. Whatever was known before it is no more.
    pub began_anew: bool,
    /// The instances that were launched or told something since, in that order.
    pub told: Vec<Told>,
}

/// Somebody's news of a world, kept until they are taken.
#[derive(Debug)]
pub struct Orders {
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    news: Mutex<News>,
    arrived: Notify,
}

impl Orders {
    /// Waits until there is something to take.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time; nothing is lost.
    pub async fn changed(&self) {
        while *self.inbox.news.lock() == News::default() {
            self.inbox.arrived.notified().await;
        }
    }

    /// Takes what there is.
    #[must_use]
    pub fn take(&self) -> News {
        mem::take(&mut *self.inbox.news.lock())
    }
}

/// Everybody who wants to be told.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Weak<Inbox>>>);

impl Subscribers {
    pub(super) fn subscribe(&self) -> Orders {
        let inbox = Arc::default();
        self.0.lock().push(Arc::downgrade(&inbox));
        Orders { inbox }
    }

    pub(super) fn tell(&self, told: &[Told]) {
        self.put(|news| news.told.extend_from_slice(told));
    }

    pub(super) fn tell_of_beginning(&self) {
        self.put(|news| *news = News { began_anew: true, told: Vec::new() });
    }

    fn put(&self, change: impl Fn(&mut News)) {
        self.0.lock().retain(|inbox| {
            let Some(inbox) = inbox.upgrade() else { return false };
            change(&mut inbox.news.lock());
            inbox.arrived.notify_one();
            true
        });
    }
}
