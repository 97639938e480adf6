//! The store as everybody holds it: shared, locked, on the world's clock, with its faults.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;

use super::delivery::Deliveries;
use super::error::EtcdError;
use super::lease::LeaseStatus;
use super::range::{Range, RangeAnswer};
use super::store::Store;
use super::txn::{Txn, TxnAnswer};
use super::watch::WatchRequest;
use super::write::{Delete, DeleteAnswer, Put, PutAnswer};
use crate::clock::Clock;

/// A fake etcd without its port. Clones are the same store; two that were made apart share nothing.
///
/// Leases end when the clock says so, before anything else is done at that time, whether or not somebody serves it.
///
/// ```
/// use fake_cloud::clock::{Clock, Pace};
/// use fake_cloud::etcd::{EtcdStore, KeyRange, Put, Range};
///
/// let store = EtcdStore::new(Clock::new(Pace::Real));
/// assert_eq!(store.revision(), 1);
/// store.put(&Put::new("/lcm/workers/w-1", "ready")).expect("a key and a value");
/// let found = store.range(&Range::of(KeyRange::prefix("/lcm/workers/"))).expect("a range");
/// assert_eq!((found.revision, found.count), (2, 1));
/// ```
#[derive(Debug, Clone)]
pub struct EtcdStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    random: Mutex<StdRng>,
    clock: Clock,
    leases_changed: Notify,
    unavailable: AtomicBool,
    cluster_id: u64,
    member_id: u64,
}

impl EtcdStore {
    /// An empty store whose leases follow `clock`.
    pub fn new(clock: Clock) -> Self {
        Self::with_seed(clock, rand::random())
    }

    /// The same, with ids of cluster, member and leases that depend on nothing but `seed`.
    pub fn with_seed(clock: Clock, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (cluster_id, member_id) = (random.random(), random.random());
        Self {
            shared: Arc::new(Shared {
                store: Mutex::new(Store::new()),
                random: Mutex::new(random),
                clock,
                leases_changed: Notify::new(),
                unavailable: AtomicBool::new(false),
                cluster_id,
                member_id,
            }),
        }
    }

    /// The newest revision.
    pub fn revision(&self) -> i64 {
        self.with(|store, _| store.revision())
    }

    /// Reads keys.
    ///
    /// # Errors
    /// When the range has no key, or its revision is in the future or compacted away.
    pub fn range(&self, range: &Range) -> Result<RangeAnswer, EtcdError> {
        self.with(|store, _| store.range(range))
    }

    /// Writes a key.
    ///
    /// # Errors
    /// When there is no key, the lease does not exist, or something is to be kept of a key that does not exist.
    pub fn put(&self, put: &Put) -> Result<PutAnswer, EtcdError> {
        self.with(|store, _| store.put(put))
    }

    /// Deletes keys.
    ///
    /// # Errors
    /// When the range has no key.
    pub fn delete(&self, delete: &Delete) -> Result<DeleteAnswer, EtcdError> {
        self.with(|store, _| store.delete(delete))
    }

    /// Compares, then does one list of operations or the other, all in one revision or not at all.
    ///
    /// # Errors
    /// When it is too large, writes a key twice, or one of its operations would be refused alone.
    pub fn txn(&self, txn: &Txn) -> Result<TxnAnswer, EtcdError> {
        txn.check()?;
        self.with(|store, _| store.txn(txn))
    }

    /// Forgets what cannot be seen from `revision` on, and returns the newest revision.
    ///
    /// # Errors
    /// When `revision` is in the future or compacted already.
    pub fn compact(&self, revision: i64) -> Result<i64, EtcdError> {
        self.with(|store, _| store.compact(revision).map(|()| store.revision()))
    }

    /// Grants a lease for some seconds, and returns its id (one of its own for 0) and the seconds it got.
    ///
    /// # Errors
    /// When the id is taken or the time is too long.
    pub fn lease_grant(&self, id: i64, ttl: i64) -> Result<(i64, i64), EtcdError> {
        let granted = self.with(|store, now| {
            let mut chosen = id;
            while chosen == 0 || (id == 0 && store.lease_exists(chosen)) {
                chosen = self.shared.random.lock().random_range(1..=i64::MAX);
            }
            store.lease_grant(chosen, ttl, now).map(|ttl| (chosen, ttl))
        });
        self.shared.leases_changed.notify_waiters();
        granted
    }

    /// Ends a lease and deletes its keys, and returns the newest revision.
    ///
    /// # Errors
    /// When there is no such lease.
    pub fn lease_revoke(&self, id: i64) -> Result<i64, EtcdError> {
        self.with(|store, _| store.lease_revoke(id).map(|()| store.revision()))
    }

    /// Starts a lease's time anew and returns its seconds; none when there is no such lease.
    pub fn lease_keep_alive(&self, id: i64) -> Option<i64> {
        self.with(|store, now| store.lease_keep_alive(id, now))
    }

    /// How a lease stands; none when there is no such lease.
    pub fn lease_status(&self, id: i64) -> Option<LeaseStatus> {
        self.with(|store, now| store.lease_status(id, now))
    }

    /// All leases, the one that ends first in front.
    pub fn leases(&self) -> Vec<i64> {
        self.with(|store, _| store.lease_ids())
    }

    /// Fault: ends a lease as if nobody had kept it alive. Says whether there was one.
    pub fn lose_lease(&self, id: i64) -> bool {
        self.lease_revoke(id).is_ok()
    }

    /// Fault: compacts away everything but the newest revision.
    pub fn compact_now(&self) {
        // Refused only when this very revision is compacted already.
        let _ = self.with(|store, _| store.compact(store.revision()));
    }

    /// Fault: while stalled, watchers hear nothing; afterwards they hear what they missed.
    pub fn stall_watches(&self, stalled: bool) {
        self.with(|store, _| store.watch_stall(stalled));
    }

    /// Fault: ends all watch streams there are.
    pub fn cut_watches(&self) {
        self.with(|store, _| store.watch_cut());
    }

    /// Fault: while unavailable, every call over the wire is refused. Streams that are open stay open.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.shared.unavailable.store(unavailable, Ordering::Relaxed);
    }

    /// Whether calls over the wire are refused at the moment.
    pub fn is_unavailable(&self) -> bool {
        self.shared.unavailable.load(Ordering::Relaxed)
    }

    /// Back to the beginning: revision 1, no keys, no leases, no faults. Watch streams end.
    pub fn reset(&self) {
        self.with(|store, _| store.reset());
        self.set_unavailable(false);
        self.shared.leases_changed.notify_waiters();
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub(super) fn cluster_id(&self) -> u64 {
        self.shared.cluster_id
    }

    pub(super) fn member_id(&self) -> u64 {
        self.shared.member_id
    }

    /// Opens a stream of watchers; it is closed when the value is dropped.
    pub(super) fn watch(&self) -> WatchStream {
        WatchStream { deliveries: self.with(|store, _| store.watch_open()), store: self.clone() }
    }

    /// Writes, and lets watchers hear of it before whoever wrote does, if they are quick. A real server does so more
    /// often than not, and clients that rely on the opposite should find out here.
    pub(super) async fn write<R>(&self, write: impl FnOnce(&mut Store) -> R) -> R {
        let (answer, was_heard) = self.with(|store, _| (write(store), store.take_heard()));
        if was_heard {
            tokio::task::yield_now().await;
        }
        answer
    }

    /// Ends leases on time, for watchers who do nothing but listen.
    pub(super) async fn keep_expiring(&self) -> Infallible {
        loop {
            let changed = self.shared.leases_changed.notified();
            match self.with(|store, _| store.next_expiry()) {
                Some(due) => tokio::select! {
                    () = self.shared.clock.sleep_until(due) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// Does something under the lock, at one moment, with the leases that ended before it gone.
    fn with<R>(&self, work: impl FnOnce(&mut Store, DateTime<Utc>) -> R) -> R {
        let mut store = self.shared.store.lock();
        let now = self.shared.clock.now();
        store.expire(now);
        work(&mut store, now)
    }
}

/// A stream of watchers, as one client call opens it.
#[derive(Debug)]
pub(super) struct WatchStream {
    pub(super) deliveries: Deliveries,
    store: EtcdStore,
}

impl WatchStream {
    /// Makes a watcher, and returns its id unless it was refused. Either way the stream is told.
    pub(super) fn create(&self, request: &WatchRequest) -> Option<i64> {
        self.store.with(|store, _| store.watch_create(self.deliveries.stream, request))
    }

    pub(super) fn cancel(&self, id: i64) {
        self.store.with(|store, _| store.watch_cancel(self.deliveries.stream, id));
    }

    /// Asks to be told how far the stream is.
    pub(super) fn progress(&self) {
        self.store.with(|store, _| store.watch_progress(self.deliveries.stream));
    }

    /// Asks to be told how far the watchers are that want it and had nothing else to hear.
    pub(super) fn idle_progress(&self) {
        self.store.with(|store, _| store.watch_idle_progress(self.deliveries.stream));
    }

    /// Asks for what was not told because the stream was read too slowly.
    pub(super) fn catch_up(&self) {
        self.store.with(|store, _| store.watch_catch_up(self.deliveries.stream));
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.with(|store, _| store.watch_close(self.deliveries.stream));
    }
}
