//! Watchers, the streams they belong to, and the delivery of events to them.

mod queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::key_range::KeyRange;
use super::mvcc::{Event, History};
use queue::WatchSender;
pub(super) use queue::{WatchMessage, WatchReceiver};

/// Revisions of history that are sent in one message.
const REVISIONS_PER_MESSAGE: usize = 1000;

/// A request to create a watcher.
#[derive(Debug, Clone)]
pub(super) struct WatchRequest {
    /// The keys to watch.
    pub(super) keys: KeyRange,
    /// The first revision to send; 0 starts with the next one.
    pub(super) start_revision: i64,
    /// The watcher id to use; 0 assigns a free one.
    pub(super) watch_id: i64,
    /// The events to leave out.
    pub(super) filters: EventFilters,
    /// The encoding of events.
    pub(super) format: EventFormat,
    /// Whether to send progress notifications while there are no events.
    pub(super) progress_notify: bool,
}

impl WatchRequest {
    /// A watch of all events of `keys` from `start_revision` on; 0 starts with the next revision.
    pub(super) fn new(keys: KeyRange, start_revision: i64) -> Self {
        let (filters, format) = (EventFilters::default(), EventFormat::default());
        Self { keys, start_revision, watch_id: 0, filters, format, progress_notify: false }
    }
}

/// The events a watcher leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct EventFilters {
    /// Leaves out puts.
    pub(super) no_put: bool,
    /// Leaves out deletes.
    pub(super) no_delete: bool,
}

impl EventFilters {
    fn accepts(self, event: &Event) -> bool {
        if event.is_delete() { !self.no_delete } else { !self.no_put }
    }
}

/// The encoding of events for one watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct EventFormat {
    /// Includes the previous version of each key.
    pub(super) prev_kv: bool,
    /// Splits responses that are larger than a message may be.
    pub(super) fragment: bool,
}

/// All watchers of a store.
///
/// Watchers of a single key or a prefix are found by hashing, so the cost of a write does not grow with the number of
/// watchers of other keys. Only watchers of other ranges are scanned.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    streams: HashMap<u64, Stream>,
    watchers: HashMap<u64, Watcher>,
    by_key: HashMap<Bytes, Vec<u64>>,
    by_prefix: HashMap<Bytes, Vec<u64>>,
    /// The number of watchers for each length of a watched prefix.
    prefix_lengths: BTreeMap<usize, usize>,
    by_range: Vec<u64>,
    next_number: u64,
    is_stalled: bool,
}

#[derive(Debug)]
struct Stream {
    sender: WatchSender,
    /// The watchers of the stream, by the id the client knows them by.
    watchers: HashMap<i64, u64>,
    next_id: i64,
    /// Whether [`WatchMessage::Lagged`] was sent and not yet followed by a catch-up.
    is_lagging: bool,
    /// Whether the client requested its progress while the stream was lagging or stalled.
    progress_pending: bool,
}

#[derive(Debug)]
struct Watcher {
    stream: u64,
    id: i64,
    keys: KeyRange,
    filters: EventFilters,
    format: EventFormat,
    progress_notify: bool,
    /// Whether no event was sent since the last progress notification was due.
    is_idle: bool,
    /// The first revision that was not sent yet.
    min_revision: i64,
    /// Whether the watcher is behind the newest revision and must be served from the history.
    is_unsynced: bool,
}

/// A watcher, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatcherStatus {
    /// Number of the stream that it belongs to.
    pub(crate) stream: u64,
    /// The keys that it watches.
    pub(crate) keys: KeyRange,
    /// The first revision that was not sent yet.
    pub(crate) next_revision: i64,
}

/// Watchers that receive the same events, because they watch the same keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Key(&'a [u8]),
    Prefix(&'a [u8]),
    Range(u64),
}

/// The state of the store that watchers depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreView<'a> {
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
    pub(super) history: &'a History,
}

impl Watchers {
    /// The numbers of all watchers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.watchers.keys().copied()
    }

    /// Opens a stream and returns the receiving end of its queue.
    pub(super) fn open(&mut self) -> WatchReceiver {
        let stream = self.next_number();
        let (sender, receiver) = queue::watch_queue(stream);
        let opened =
            Stream { sender, watchers: HashMap::new(), next_id: 0, is_lagging: false, progress_pending: false };
        self.streams.insert(stream, opened);
        receiver
    }

    /// Closes a stream with its watchers. Does nothing if it is closed already.
    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for number in closed.watchers.into_values() {
            self.remove(number);
        }
    }

    /// Closes all streams.
    pub(super) fn close_all(&mut self) {
        let streams: Vec<_> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.close(stream));
    }

    /// Creates a watcher. The stream receives either [`WatchMessage::Created`] or [`WatchMessage::Rejected`].
    pub(super) fn create(&mut self, stream: u64, request: &WatchRequest, store: StoreView<'_>) {
        let number = self.next_number();
        let Some(opened) = self.streams.get_mut(&stream) else { return };
        let rejected = |reason| WatchMessage::Rejected { revision: store.revision, reason };
        if let KeyRange::Between(from, to) = &request.keys
            && from >= to
        {
            opened.sender.send(rejected("mvcc: watcher range is empty"));
            return;
        }
        let id = if request.watch_id == 0 {
            while opened.watchers.contains_key(&opened.next_id) {
                opened.next_id += 1;
            }
            opened.next_id += 1;
            opened.next_id - 1
        } else if opened.watchers.contains_key(&request.watch_id) {
            opened.sender.send(rejected("mvcc: duplicate watch ID provided on the WatchStream"));
            return;
        } else {
            request.watch_id
        };
        opened.watchers.insert(id, number);
        opened.sender.send(WatchMessage::Created { id, revision: store.revision });
        let min_revision = if request.start_revision > 0 { request.start_revision } else { store.revision + 1 };
        let is_unsynced = min_revision <= store.revision;
        let keys = request.keys.detached();
        self.index(number, &keys);
        let watcher = Watcher {
            stream,
            id,
            keys,
            filters: request.filters,
            format: request.format,
            progress_notify: request.progress_notify,
            is_idle: true,
            min_revision,
            is_unsynced,
        };
        self.watchers.insert(number, watcher);
        self.catch_up(number, store);
    }

    /// Cancels a watcher. Does nothing if the stream has no watcher with this id.
    pub(super) fn cancel(&mut self, stream: u64, id: i64, revision: i64) {
        let Some(opened) = self.streams.get_mut(&stream) else { return };
        if let Some(number) = opened.watchers.remove(&id) {
            opened.sender.send(WatchMessage::Canceled { id, revision });
            self.remove(number);
        }
    }

    /// Sends the stream its progress, once every event up to now has been sent.
    pub(super) fn progress(&mut self, stream: u64, revision: i64) {
        let Some(opened) = self.streams.get_mut(&stream) else { return };
        if self.is_stalled || opened.is_lagging {
            opened.progress_pending = true;
        } else {
            opened.sender.send(WatchMessage::Progress { id: -1, revision });
        }
    }

    /// Sends progress notifications to the watchers of a stream that requested them and have been idle since the last
    /// call.
    pub(super) fn idle_progress(&mut self, stream: u64, revision: i64) {
        let Some(opened) = self.streams.get(&stream).filter(|_| !self.is_stalled) else { return };
        for number in opened.watchers.values() {
            let Some(watcher) = self.watchers.get_mut(number).filter(|watcher| watcher.progress_notify) else {
                continue;
            };
            if std::mem::replace(&mut watcher.is_idle, true) && !watcher.is_unsynced {
                opened.sender.send(WatchMessage::Progress { id: watcher.id, revision });
            }
        }
    }

    /// Delivers the events of a new revision, and returns whether they match any watcher.
    pub(super) fn publish(&mut self, revision: i64, events: &Arc<[Event]>) -> bool {
        if self.watchers.is_empty() {
            return false;
        }
        // Selected once for each group, regardless of the number of its watchers.
        let mut selected: BTreeMap<Group<'_>, Vec<Event>> = BTreeMap::new();
        for event in events.iter() {
            for group in self.groups_watching(&event.record.key) {
                selected.entry(group).or_default().push(event.clone());
            }
        }
        let is_watched = !selected.is_empty();
        for (group, selected) in selected {
            let selected = if selected.len() == events.len() { Arc::clone(events) } else { selected.into() };
            self.deliver_to_group(group, revision, &selected);
        }
        is_watched
    }

    /// All watchers, ordered by their stream.
    pub(super) fn list(&self) -> Vec<WatcherStatus> {
        let listed = self.watchers.values().map(|watcher| WatcherStatus {
            stream: watcher.stream,
            keys: watcher.keys.clone(),
            next_revision: watcher.min_revision,
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by_key(|watcher| (watcher.stream, watcher.next_revision));
        listed
    }

    /// Numbers of watchers and of streams.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.watchers.len(), self.streams.len())
    }

    /// Stops the delivery of events until [`resume`](Self::resume).
    pub(super) fn stall(&mut self) {
        self.is_stalled = true;
    }

    /// Resumes the delivery of events, starting with the ones that were held back.
    pub(super) fn resume(&mut self, store: StoreView<'_>) {
        self.is_stalled = false;
        let streams: Vec<_> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.catch_up_stream(stream, store));
    }

    /// Sends each unsynced watcher of a stream one message from the history.
    ///
    /// If that is not enough to sync them all, the stream receives [`WatchMessage::Lagged`] again.
    pub(super) fn catch_up_stream(&mut self, stream: u64, store: StoreView<'_>) {
        let Some(opened) = self.streams.get_mut(&stream) else { return };
        opened.is_lagging = false;
        let numbers: Vec<_> = opened.watchers.values().copied().collect();
        numbers.into_iter().for_each(|number| self.catch_up(number, store));
        let Some(opened) = self.streams.get_mut(&stream) else { return };
        if opened.progress_pending && !opened.is_lagging && !self.is_stalled {
            opened.progress_pending = false;
            opened.sender.send(WatchMessage::Progress { id: -1, revision: store.revision });
        }
    }

    fn catch_up(&mut self, number: u64, store: StoreView<'_>) {
        if self.is_stalled {
            return;
        }
        let Some(watcher) = self.watchers.get_mut(&number).filter(|watcher| watcher.is_unsynced) else { return };
        let Some(stream) = self.streams.get_mut(&watcher.stream) else { return };
        let id = watcher.id;
        if watcher.min_revision < store.compact_revision {
            stream.sender.send(WatchMessage::Compacted { id, compact_revision: store.compact_revision });
            stream.watchers.remove(&id);
            self.remove(number);
            return;
        }
        let mut batch: Vec<Event> = Vec::new();
        let mut revisions = 0;
        watcher.is_unsynced = false;
        let mut next = store.revision + 1;
        for (revision, events) in store.history.since(watcher.min_revision) {
            if revisions == REVISIONS_PER_MESSAGE {
                // The rest is sent once this is read, so that a slow reader does not queue the whole history.
                (next, watcher.is_unsynced) = (revision, true);
                break;
            }
            let before = batch.len();
            batch.extend(events.iter().filter(|event| watcher.accepts(event)).cloned());
            revisions += usize::from(batch.len() > before);
        }
        watcher.min_revision = next;
        if !batch.is_empty() {
            watcher.is_idle = false;
            let (events, format) = (batch.into(), watcher.format);
            stream.sender.send(WatchMessage::Events { id, revision: store.revision, events, format });
        }
        if watcher.is_unsynced && !stream.is_lagging {
            stream.is_lagging = true;
            stream.sender.send(WatchMessage::Lagged);
        }
    }

    fn deliver_to_group(&mut self, group: Group<'_>, revision: i64, events: &Arc<[Event]>) {
        let numbers = match group {
            Group::Key(key) => self.by_key.get(key),
            Group::Prefix(prefix) => self.by_prefix.get(prefix),
            Group::Range(number) => return self.deliver(number, revision, events),
        };
        for number in numbers.cloned().unwrap_or_default() {
            self.deliver(number, revision, events);
        }
    }

    fn deliver(&mut self, number: u64, revision: i64, events: &Arc<[Event]>) {
        let Some(watcher) = self.watchers.get_mut(&number) else { return };
        let Some(stream) = self.streams.get_mut(&watcher.stream) else { return };
        if watcher.is_unsynced || watcher.min_revision > revision {
            return;
        }
        if self.is_stalled || stream.sender.is_full() {
            watcher.is_unsynced = true;
            watcher.min_revision = revision;
            if !self.is_stalled && !stream.is_lagging {
                stream.is_lagging = true;
                stream.sender.send(WatchMessage::Lagged);
            }
            return;
        }
        watcher.min_revision = revision + 1;
        let events = if events.iter().all(|event| watcher.filters.accepts(event)) {
            Arc::clone(events)
        } else {
            events.iter().filter(|event| watcher.filters.accepts(event)).cloned().collect()
        };
        if !events.is_empty() {
            watcher.is_idle = false;
            let (id, format) = (watcher.id, watcher.format);
            stream.sender.send(WatchMessage::Events { id, revision, events, format });
        }
    }

    fn groups_watching<'a>(&self, key: &'a [u8]) -> Vec<Group<'a>> {
        let lengths = self.prefix_lengths.range(..=key.len()).map(|(length, _)| *length);
        let prefixes = lengths.map(|length| &key[..length]).filter(|prefix| self.by_prefix.contains_key(*prefix));
        let is_watching = |number: &u64| self.watchers.get(number).is_some_and(|watcher| watcher.keys.contains(key));
        let others = self.by_range.iter().copied().filter(is_watching);
        let exact = self.by_key.contains_key(key).then_some(Group::Key(key));
        exact.into_iter().chain(prefixes.map(Group::Prefix)).chain(others.map(Group::Range)).collect()
    }

    fn index(&mut self, number: u64, keys: &KeyRange) {
        if let KeyRange::One(key) = keys {
            self.by_key.entry(key.clone()).or_default().push(number);
        } else if let Some(prefix) = keys.as_prefix() {
            self.by_prefix.entry(Bytes::copy_from_slice(prefix)).or_default().push(number);
            *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
        } else {
            self.by_range.push(number);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(watcher) = self.watchers.remove(&number) else { return };
        if let KeyRange::One(key) = &watcher.keys {
            unindex(&mut self.by_key, key, number);
        } else if let Some(prefix) = watcher.keys.as_prefix() {
            unindex(&mut self.by_prefix, prefix, number);
            if let Some(count) = self.prefix_lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&prefix.len());
                }
            }
        } else {
            self.by_range.retain(|other| *other != number);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

impl Watcher {
    fn accepts(&self, event: &Event) -> bool {
        self.filters.accepts(event) && self.keys.contains(&event.record.key)
    }
}

fn unindex(index: &mut HashMap<Bytes, Vec<u64>>, key: &[u8], number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}
