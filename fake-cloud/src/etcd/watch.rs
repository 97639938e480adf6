//! Who watches what, and what they are told.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::delivery::{Batch, Deliveries, Delivery, Mailbox, Telling, channel};
use super::history::History;
use super::key_range::KeyRange;
use super::record::Event;

/// How many revisions of history go into one message.
const REVISIONS_PER_MESSAGE: usize = 1000;

/// What to watch.
#[derive(Debug, Clone)]
pub(super) struct WatchRequest {
    /// The keys.
    pub(super) keys: KeyRange,
    /// The first revision of interest; 0 is the next one.
    pub(super) start_revision: i64,
    /// The id the caller wants, or 0 for any.
    pub(super) id: i64,
    /// Which events to leave out.
    pub(super) without: Without,
    /// How to tell the others.
    pub(super) telling: Telling,
    /// Whether to be told now and then how far it is.
    pub(super) progress: bool,
}

impl WatchRequest {
    /// All that happens to some keys from a revision on, or from now on for 0.
    pub(super) fn of(keys: KeyRange, start_revision: i64) -> Self {
        let (without, telling) = (Without::default(), Telling::default());
        Self { keys, start_revision, id: 0, without, telling, progress: false }
    }
}

/// Which events a watcher does not want.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Without {
    /// No puts.
    pub(super) puts: bool,
    /// No deletions.
    pub(super) deletes: bool,
}

impl Without {
    fn lets_through(self, event: &Event) -> bool {
        if event.is_delete() { !self.deletes } else { !self.puts }
    }
}

/// All watchers of a store.
///
/// Watchers of one key and of one prefix are found by hashing, so what a write costs does not grow with the number
/// of watchers that look elsewhere. Only ranges of other shapes are looked through one by one.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    streams: HashMap<u64, Stream>,
    watchers: HashMap<u64, Watcher>,
    by_key: HashMap<Bytes, Vec<u64>>,
    by_prefix: HashMap<Bytes, Vec<u64>>,
    prefix_lengths: BTreeMap<usize, usize>,
    others: Vec<u64>,
    next_number: u64,
    stalled: bool,
}

#[derive(Debug)]
struct Stream {
    mailbox: Mailbox,
    ids: HashMap<i64, u64>,
    next_id: i64,
    /// Whether it was told that it fell behind, and did not ask for the rest yet.
    is_behind: bool,
    /// Whether it asked how far it is while it was behind.
    owes_progress: bool,
}

#[derive(Debug)]
struct Watcher {
    stream: u64,
    id: i64,
    keys: KeyRange,
    without: Without,
    telling: Telling,
    wants_progress: bool,
    /// Whether it was told nothing since the last round of progress.
    is_idle: bool,
    /// The first revision it was not told about.
    next: i64,
    /// Whether it is to be served from the history.
    is_behind: bool,
}

/// Watchers that look at the same keys, and are told the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Key(&'a [u8]),
    Prefix(&'a [u8]),
    Other(u64),
}

/// Where the store is, for those who are told about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position<'a> {
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) history: &'a History,
}

impl Watchers {
    pub(super) fn open(&mut self) -> Deliveries {
        let stream = self.number();
        let (mailbox, deliveries) = channel(stream);
        self.streams.insert(
            stream,
            Stream { mailbox, ids: HashMap::new(), next_id: 0, is_behind: false, owes_progress: false },
        );
        deliveries
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for number in closed.ids.into_values() {
            self.forget(number);
        }
    }

    /// Ends all streams.
    pub(super) fn cut(&mut self) {
        let streams: Vec<_> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.close(stream));
    }

    pub(super) fn create(&mut self, stream: u64, request: &WatchRequest, position: Position<'_>) -> Option<i64> {
        let number = self.number();
        let watched = self.streams.get_mut(&stream)?;
        let refused = |reason| Delivery::Refused { revision: position.revision, reason };
        if let KeyRange::Between(from, to) = &request.keys
            && from >= to
        {
            watched.mailbox.send(refused("mvcc: watcher range is empty"));
            return None;
        }
        let id = if request.id == 0 {
            while watched.ids.contains_key(&watched.next_id) {
                watched.next_id += 1;
            }
            watched.next_id += 1;
            watched.next_id - 1
        } else if watched.ids.contains_key(&request.id) {
            watched.mailbox.send(refused("mvcc: duplicate watch ID provided on the WatchStream"));
            return None;
        } else {
            request.id
        };
        watched.ids.insert(id, number);
        watched.mailbox.send(Delivery::Created { id, revision: position.revision });
        let next = if request.start_revision > 0 { request.start_revision } else { position.revision + 1 };
        let is_behind = next <= position.revision;
        let keys = request.keys.detached();
        self.enlist(number, &keys);
        let watcher = Watcher {
            stream,
            id,
            keys,
            without: request.without,
            telling: request.telling,
            wants_progress: request.progress,
            is_idle: true,
            next,
            is_behind,
        };
        self.watchers.insert(number, watcher);
        if is_behind {
            self.catch_up(number, position);
        }
        Some(id)
    }

    pub(super) fn cancel(&mut self, stream: u64, id: i64, revision: i64) {
        let Some(watched) = self.streams.get_mut(&stream) else { return };
        if let Some(number) = watched.ids.remove(&id) {
            watched.mailbox.send(Delivery::Canceled { id, revision });
            self.forget(number);
        }
    }

    /// Tells a stream that it knows everything up to now: at once, or as soon as it does.
    pub(super) fn progress(&mut self, stream: u64, revision: i64) {
        let Some(watched) = self.streams.get_mut(&stream) else { return };
        if self.stalled || watched.is_behind {
            watched.owes_progress = true;
        } else {
            watched.mailbox.send(Delivery::Progress { id: -1, revision });
        }
    }

    /// Tells those watchers of a stream that want it, and were told nothing since this was last called, how far they
    /// are.
    pub(super) fn idle_progress(&mut self, stream: u64, revision: i64) {
        let Some(watched) = self.streams.get(&stream).filter(|_| !self.stalled) else { return };
        for number in watched.ids.values() {
            let Some(watcher) = self.watchers.get_mut(number).filter(|watcher| watcher.wants_progress) else {
                continue;
            };
            if std::mem::replace(&mut watcher.is_idle, true) && !watcher.is_behind {
                watched.mailbox.send(Delivery::Progress { id: watcher.id, revision });
            }
        }
    }

    /// Tells everybody concerned about a new revision, and says whether there was anybody.
    pub(super) fn publish(&mut self, revision: i64, events: &Arc<[Event]>) -> bool {
        if self.watchers.is_empty() {
            return false;
        }
        if let [event] = events.as_ref() {
            let groups = self.interested_in(&event.record.key);
            if groups.is_empty() {
                return false;
            }
            let batch = Batch::new(Arc::clone(events));
            groups.iter().for_each(|group| self.deliver_to(*group, revision, &batch));
            return true;
        }
        // Put together once for each group, however many watchers are in it.
        let mut shares: BTreeMap<Group<'_>, Vec<Event>> = BTreeMap::new();
        for event in events.iter() {
            for group in self.interested_in(&event.record.key) {
                shares.entry(group).or_default().push(event.clone());
            }
        }
        let is_heard = !shares.is_empty();
        for (group, share) in shares {
            let share = if share.len() == events.len() { Arc::clone(events) } else { share.into() };
            self.deliver_to(group, revision, &Batch::new(share));
        }
        is_heard
    }

    /// Stops telling anybody anything, or starts again with what was missed.
    pub(super) fn stall(&mut self, stalled: bool, position: Position<'_>) {
        self.stalled = stalled;
        if !stalled {
            let streams: Vec<_> = self.streams.keys().copied().collect();
            streams.into_iter().for_each(|stream| self.catch_up_stream(stream, position));
        }
    }

    /// Serves the watchers of a stream that fell behind from the history, each with one message; the stream is told to
    /// ask again if that was not all.
    pub(super) fn catch_up_stream(&mut self, stream: u64, position: Position<'_>) {
        let Some(watched) = self.streams.get_mut(&stream) else { return };
        watched.is_behind = false;
        let numbers: Vec<_> = watched.ids.values().copied().collect();
        numbers.into_iter().for_each(|number| self.catch_up(number, position));
        let Some(watched) = self.streams.get_mut(&stream) else { return };
        if watched.owes_progress && !watched.is_behind && !self.stalled {
            watched.owes_progress = false;
            watched.mailbox.send(Delivery::Progress { id: -1, revision: position.revision });
        }
    }

    fn catch_up(&mut self, number: u64, position: Position<'_>) {
        if self.stalled {
            return;
        }
        let Some(watcher) = self.watchers.get_mut(&number).filter(|watcher| watcher.is_behind) else { return };
        let Some(stream) = self.streams.get_mut(&watcher.stream) else { return };
        let id = watcher.id;
        if watcher.next < position.compacted {
            stream.mailbox.send(Delivery::Compacted { id, compact_revision: position.compacted });
            stream.ids.remove(&id);
            self.forget(number);
            return;
        }
        let mut batch: Vec<Event> = Vec::new();
        let mut revisions = 0;
        watcher.is_behind = false;
        let mut next = position.revision + 1;
        for (revision, events) in position.history.since(watcher.next) {
            if revisions == REVISIONS_PER_MESSAGE {
                // The rest when this is read: a reader that is gone, or slow, must not be given all there is.
                (next, watcher.is_behind) = (revision, true);
                break;
            }
            let before = batch.len();
            batch.extend(events.iter().filter(|event| watcher.wants(event)).cloned());
            revisions += usize::from(batch.len() > before);
        }
        watcher.next = next;
        if !batch.is_empty() {
            watcher.is_idle = false;
            let (events, telling) = (Batch::new(batch.into()), watcher.telling);
            stream.mailbox.send(Delivery::Events { id, revision: position.revision, events, telling });
        }
        if watcher.is_behind && !stream.is_behind {
            stream.is_behind = true;
            stream.mailbox.send(Delivery::FellBehind);
        }
    }

    fn deliver_to(&mut self, group: Group<'_>, revision: i64, events: &Arc<Batch>) {
        let numbers = match group {
            Group::Key(key) => self.by_key.get(key),
            Group::Prefix(prefix) => self.by_prefix.get(prefix),
            Group::Other(number) => return self.deliver(number, revision, events),
        };
        for number in numbers.cloned().unwrap_or_default() {
            self.deliver(number, revision, events);
        }
    }

    fn deliver(&mut self, number: u64, revision: i64, events: &Arc<Batch>) {
        let Some(watcher) = self.watchers.get_mut(&number) else { return };
        let Some(stream) = self.streams.get_mut(&watcher.stream) else { return };
        if watcher.is_behind || watcher.next > revision {
            return;
        }
        if self.stalled || stream.mailbox.is_full() {
            watcher.is_behind = true;
            watcher.next = revision;
            if !self.stalled && !stream.is_behind {
                stream.is_behind = true;
                stream.mailbox.send(Delivery::FellBehind);
            }
            return;
        }
        watcher.next = revision + 1;
        let events = if events.iter().all(|event| watcher.without.lets_through(event)) {
            Arc::clone(events)
        } else {
            Batch::new(events.iter().filter(|event| watcher.without.lets_through(event)).cloned().collect())
        };
        if !events.is_empty() {
            watcher.is_idle = false;
            let (id, telling) = (watcher.id, watcher.telling);
            stream.mailbox.send(Delivery::Events { id, revision, events, telling });
        }
    }

    fn interested_in<'a>(&self, key: &'a [u8]) -> Vec<Group<'a>> {
        let lengths = self.prefix_lengths.range(..=key.len()).map(|(length, _)| *length);
        let prefixes = lengths.map(|length| &key[..length]).filter(|prefix| self.by_prefix.contains_key(*prefix));
        let is_interested = |number: &u64| self.watchers.get(number).is_some_and(|watcher| watcher.keys.contains(key));
        let others = self.others.iter().copied().filter(is_interested);
        let exact = self.by_key.contains_key(key).then_some(Group::Key(key));
        exact.into_iter().chain(prefixes.map(Group::Prefix)).chain(others.map(Group::Other)).collect()
    }

    fn enlist(&mut self, number: u64, keys: &KeyRange) {
        if let KeyRange::One(key) = keys {
            self.by_key.entry(key.clone()).or_default().push(number);
        } else if let Some(prefix) = keys.as_prefix() {
            self.by_prefix.entry(Bytes::copy_from_slice(prefix)).or_default().push(number);
            *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
        } else {
            self.others.push(number);
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(watcher) = self.watchers.remove(&number) else { return };
        if let KeyRange::One(key) = &watcher.keys {
            strike(&mut self.by_key, key, number);
        } else if let Some(prefix) = watcher.keys.as_prefix() {
            strike(&mut self.by_prefix, prefix, number);
            if let Some(count) = self.prefix_lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&prefix.len());
                }
            }
        } else {
            self.others.retain(|other| *other != number);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

impl Watcher {
    fn wants(&self, event: &Event) -> bool {
        self.without.lets_through(event) && self.keys.contains(&event.record.key)
    }
}

fn strike(index: &mut HashMap<Bytes, Vec<u64>>, key: &[u8], number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}
