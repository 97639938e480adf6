//! How the watched prefixes are doing.

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::WatchState;
use crate::telemetry::Telemetry;

/// How each prefix is doing, and all of them together.
#[derive(Debug)]
pub(crate) struct States {
    each: Mutex<Vec<WatchState>>,
    all: watch::Sender<WatchState>,
    revival: Vec<Notify>,
    telemetry: Telemetry,
}

impl States {
    pub(crate) fn new(prefixes: usize, telemetry: Telemetry) -> Self {
        Self {
            each: Mutex::new(vec![WatchState::Connecting; prefixes]),
            all: watch::Sender::new(WatchState::Connecting),
            revival: (0..prefixes).map(|_| Notify::new()).collect(),
            telemetry,
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<WatchState> {
        self.all.subscribe()
    }

    /// Notes how a prefix is doing. One that has given up stays so until it is connected.
    pub(crate) fn set(&self, number: usize, state: WatchState) {
        let mut each = self.each.lock();
        if (each[number], state) != (WatchState::GivenUp, WatchState::Connecting) {
            each[number] = state;
            self.publish(&each);
        }
    }

    /// Notes that a prefix has given up, and says whether that is news.
    pub(crate) fn give_up(&self, number: usize) -> bool {
        let mut each = self.each.lock();
        let before = std::mem::replace(&mut each[number], WatchState::GivenUp);
        self.publish(&each);
        before != WatchState::GivenUp
    }

    /// Waits until somebody revives it.
    pub(crate) async fn revived(&self, number: usize) {
        self.revival[number].notified().await;
    }

    /// Wakes every prefix that has given up.
    pub(crate) fn revive(&self) {
        let each = self.each.lock();
        for (state, revival) in each.iter().zip(&self.revival) {
            if *state == WatchState::GivenUp {
                revival.notify_one();
            }
        }
    }

    /// All together are as well as the worst of them.
    fn publish(&self, each: &[WatchState]) {
        let worst = each.iter().copied().max().unwrap_or(WatchState::Connected);
        match worst {
            WatchState::Connected => self.telemetry.set_watch_connected(),
            WatchState::Connecting | WatchState::GivenUp => self.telemetry.set_watch_disconnected(),
        }
        self.all.send_if_modified(|all| std::mem::replace(all, worst) != worst);
    }
}
