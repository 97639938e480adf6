//! A shared etcd store that follows a clock.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::auth::{Access, Auth};
use super::error::EtcdError;
use super::lease::LeaseStatus;
use super::members::Members;
use super::mvcc::Store;
use super::range::{Range, RangeResponse};
use super::txn::{Delete, DeleteResponse, Put, PutResponse, Txn, TxnResponse};
use super::watch::{WatchMessage, WatchReceiver, WatchRequest, WatcherStatus};
use crate::clock::Clock;
use crate::world::{SeededRng, mix};

/// A fake etcd that is not bound to a port. Clones share one store.
///
/// Leases expire by the clock, before any other operation at that time, whether or not the store is served.
///
/// ```
/// use fake_cloud::{Clock, Pace};
/// use fake_cloud::etcd::{EtcdStore, KeyRange, Put, Range};
///
/// let store = EtcdStore::new(Clock::new(Pace::Real));
/// assert_eq!(store.revision(), 1);
/// store.put(&Put::new("/lcm/workers/w-1", "ready")).expect("a key and a value");
/// let found = store.range(&Range::new(KeyRange::prefix("/lcm/workers/"))).expect("a range");
/// assert_eq!((found.revision, found.count), (2, 1));
/// ```
#[derive(Debug, Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Mutex<Store>,
    rng: Mutex<SeededRng>,
    clock: Clock,
    /// Wakes [`EtcdStore::expire_leases`] when the next expiry may have changed.
    leases_changed: Notify,
    unavailable: AtomicBool,
    auth: Mutex<Auth>,
    /// Whether authentication is enabled, so that a server without it takes no second lock for each request.
    auth_enabled: AtomicBool,
    members: Mutex<Members>,
    cluster_id: AtomicU64,
    member_id: AtomicU64,
}

/// A store that was read from a snapshot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EtcdState {
    /// Time of the clock of the leases.
    now: DateTime<Utc>,
    store: Store,
    rng: SeededRng,
    unavailable: bool,
    auth: Auth,
    members: Members,
    cluster_id: u64,
    member_id: u64,
}

impl EtcdState {
    /// Builds the indexes, which a snapshot leaves out.
    ///
    /// # Errors
    /// The versions of the keys do not belong to the revisions.
    pub(crate) fn check(mut self) -> Result<CheckedEtcd, String> {
        self.store.rebuild()?;
        Ok(CheckedEtcd(self))
    }
}

/// A store that can be restored without an error.
pub(crate) struct CheckedEtcd(EtcdState);

/// The sender of a request: the token it sent, if any.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller(Option<HeaderValue>);

impl Caller {
    /// Reads the token from the header that gRPC clients send, or the one that HTTP clients send.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        Self(headers.get("token").or_else(|| headers.get(header::AUTHORIZATION)).cloned())
    }

    fn token(&self) -> Option<&str> {
        self.0.as_ref().map(|token| token.to_str().unwrap_or_default())
    }
}

impl EtcdStore {
    /// An empty store whose leases follow `clock`.
    pub fn new(clock: Clock) -> Self {
        Self::with_seed(clock, rand::random())
    }

    /// An empty store whose cluster id, member id and lease ids depend only on `seed`.
    pub fn with_seed(clock: Clock, seed: u64) -> Self {
        Self::from_parts(clock, seed, Store::new)
    }

    /// An empty store that rejects writes once its accounted size reaches `quota` bytes, as with etcd's option
    /// `--quota-backend-bytes`.
    pub fn with_quota(clock: Clock, quota: usize) -> Self {
        Self::from_parts(clock, rand::random(), |member_id| Store::with_quota(member_id, quota))
    }

    fn from_parts(clock: Clock, seed: u64, store: impl FnOnce(u64) -> Store) -> Self {
        let mut rng = SeededRng::new(seed, "etcd");
        let (cluster_id, member_id) = (rng.next_u64(), rng.next_u64());
        Self {
            inner: Arc::new(Inner {
                store: Mutex::new(store(member_id)),
                rng: Mutex::new(rng),
                clock,
                leases_changed: Notify::new(),
                unavailable: AtomicBool::new(false),
                auth: Mutex::new(Auth::new()),
                auth_enabled: AtomicBool::new(false),
                members: Mutex::default(),
                cluster_id: AtomicU64::new(cluster_id),
                member_id: AtomicU64::new(member_id),
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
    /// Fails if the range has no key, or its revision is in the future or compacted.
    pub fn range(&self, range: &Range) -> Result<RangeResponse, EtcdError> {
        self.with(|store, _| {
            store.count_range();
            store.range(range)
        })
    }

    /// Writes a key.
    ///
    /// # Errors
    /// Fails if the key is empty, the lease does not exist, or the put keeps a field of a key that does not exist.
    pub fn put(&self, put: &Put) -> Result<PutResponse, EtcdError> {
        self.with(|store, _| store.put(put))
    }

    /// Deletes keys.
    ///
    /// # Errors
    /// Fails if the range has no key.
    pub fn delete(&self, delete: &Delete) -> Result<DeleteResponse, EtcdError> {
        self.with(|store, _| store.delete(delete))
    }

    /// Evaluates the compares and applies one branch, in one revision or not at all.
    ///
    /// # Errors
    /// Fails if the transaction is too large, writes a key twice, or contains an operation that would fail by itself.
    pub fn txn(&self, txn: &Txn) -> Result<TxnResponse, EtcdError> {
        txn.validate()?;
        self.with(|store, _| store.txn(txn))
    }

    /// Drops the versions that cannot be read at `revision` or later, and returns the newest revision.
    ///
    /// # Errors
    /// Fails if `revision` is in the future or already compacted.
    pub fn compact(&self, revision: i64) -> Result<i64, EtcdError> {
        self.with(|store, _| store.compact(revision).map(|()| store.revision()))
    }

    /// Grants a lease for `ttl` seconds and returns its id and TTL. An `id` of 0 assigns a free one.
    ///
    /// # Errors
    /// Fails if the id is in use or the TTL is too long.
    pub fn lease_grant(&self, id: i64, ttl: i64) -> Result<(i64, i64), EtcdError> {
        let granted = self.with(|store, now| {
            let mut chosen = id;
            while chosen == 0 || (id == 0 && store.lease_exists(chosen)) {
                chosen = i64::try_from(self.inner.rng.lock().next_u64() >> 1).unwrap_or(i64::MAX);
            }
            store.lease_grant(chosen, ttl, now).map(|ttl| (chosen, ttl))
        });
        self.inner.leases_changed.notify_waiters();
        granted
    }

    /// Revokes a lease, deletes its keys, and returns the newest revision.
    ///
    /// # Errors
    /// Fails if the lease does not exist.
    pub fn lease_revoke(&self, id: i64) -> Result<i64, EtcdError> {
        self.with(|store, _| store.lease_revoke(id).map(|()| store.revision()))
    }

    /// Renews a lease and returns its TTL in seconds, or `None` if it does not exist.
    pub fn lease_keep_alive(&self, id: i64) -> Option<i64> {
        self.with(|store, now| store.lease_keep_alive(id, now))
    }

    /// The state of a lease, or `None` if it does not exist.
    pub fn lease_status(&self, id: i64) -> Option<LeaseStatus> {
        self.with(|store, now| store.lease_status(id, now))
    }

    /// The ids of all leases, in order of expiry.
    pub fn leases(&self) -> Vec<i64> {
        self.with(|store, _| store.lease_ids())
    }

    /// A number that changes with the leases, their expiries and the watchers.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.with(|store, _| {
            let leases = store.lease_expiries().map(|(at, id)| mix(at.timestamp_millis() as u64 ^ mix(id as u64)));
            let watchers = store.watcher_numbers().map(|number| mix(!number));
            // A JavaScript number keeps 53 bits.
            leases.chain(watchers).fold(0, u64::wrapping_add) >> 11
        })
    }

    /// All watchers.
    pub(crate) fn watchers(&self) -> Vec<WatcherStatus> {
        self.with(|store, _| store.watchers())
    }

    /// Returns whether calls over the wire are rejected because of [`Fault::Unavailable`](super::Fault::Unavailable).
    pub fn is_unavailable(&self) -> bool {
        self.inner.unavailable.load(Ordering::Relaxed)
    }

    /// Returns to the state of a new store, without faults, users, roles and added members. Closes all watch streams.
    pub fn reset(&self) {
        self.with(|store, _| store.reset());
        *self.inner.auth.lock() = Auth::new();
        self.inner.auth_enabled.store(false, Ordering::Relaxed);
        *self.inner.members.lock() = Members::default();
        self.inner.unavailable.store(false, Ordering::Relaxed);
        self.inner.leases_changed.notify_waiters();
    }

    /// Runs `work` on the state for a snapshot. No key, lease, user or member changes until it returns. Watchers are
    /// left out, because they are connections.
    pub(crate) fn capture<T>(&self, work: impl FnOnce(serde_json::Result<Value>) -> T) -> T {
        // Without `..`, so that a new field is either captured or left out on purpose.
        let Inner {
            store,
            rng,
            clock,
            leases_changed: _,
            unavailable,
            auth,
            auth_enabled: _,
            members,
            cluster_id,
            member_id,
        } = &*self.inner;
        // In the order in which requests take the locks.
        let (auth, members, store) = (auth.lock(), members.lock(), store.lock());
        let state = || -> serde_json::Result<Value> {
            Ok(json!({
                "now": clock.now(),
                "store": serde_json::to_value(&*store)?,
                "rng": serde_json::to_value(&*rng.lock())?,
                "unavailable": unavailable.load(Ordering::Relaxed),
                "auth": serde_json::to_value(&*auth)?,
                "members": serde_json::to_value(&*members)?,
                "cluster_id": cluster_id.load(Ordering::Relaxed),
                "member_id": member_id.load(Ordering::Relaxed),
            }))
        };
        work(state())
    }

    /// Replaces the whole state, and closes all watch streams. The time to live of leases and tokens goes on from `now`,
    /// the time of the clock of the leases.
    pub(crate) fn restore(&self, state: CheckedEtcd, now: DateTime<Utc>) {
        let EtcdState { now: then, mut store, rng, unavailable, mut auth, members, cluster_id, member_id } = state.0;
        let by = now - then;
        store.rebase(by);
        auth.rebase(by);
        let inner = &*self.inner;
        inner.cluster_id.store(cluster_id, Ordering::Relaxed);
        inner.member_id.store(member_id, Ordering::Relaxed);
        inner.auth_enabled.store(auth.is_enabled(), Ordering::Relaxed);
        *inner.auth.lock() = auth;
        *inner.members.lock() = members;
        *inner.rng.lock() = rng;
        store.replace(&mut inner.store.lock());
        inner.unavailable.store(unavailable, Ordering::Relaxed);
        inner.leases_changed.notify_waiters();
    }

    /// The clock that leases follow.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns whether [`permit`](Self::permit) can fail for the caller.
    pub(super) fn checks(&self, caller: &Caller) -> bool {
        caller.0.is_some() || self.inner.auth_enabled.load(Ordering::Relaxed)
    }

    /// Fails unless the caller has these permissions. A token that is sent must be valid also while authentication is
    /// disabled, as in real etcd.
    pub(super) fn permit(&self, caller: &Caller, accesses: &[Access<'_>]) -> Result<(), EtcdError> {
        if !self.checks(caller) {
            return Ok(());
        }
        self.with_auth(caller, |auth, user| auth.permit(user, accesses))
    }

    /// Runs `work` on users and roles, with the name of the caller.
    pub(super) fn with_auth<R>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&mut Auth, Option<&str>) -> Result<R, EtcdError>,
    ) -> Result<R, EtcdError> {
        let mut auth = self.inner.auth.lock();
        let user = auth.user_of_token(caller.token(), self.inner.clock.now())?;
        let result = work(&mut auth, user.as_deref());
        self.inner.auth_enabled.store(auth.is_enabled(), Ordering::Relaxed);
        result
    }

    /// Runs `work` on users and roles, without a caller.
    pub(super) fn with_auth_unchecked<R>(&self, work: impl FnOnce(&mut Auth, DateTime<Utc>) -> R) -> R {
        work(&mut self.inner.auth.lock(), self.inner.clock.now())
    }

    pub(super) fn with_members<R>(&self, work: impl FnOnce(&mut Members) -> R) -> R {
        work(&mut self.inner.members.lock())
    }

    /// A random number that is not 0.
    pub(super) fn random_id(&self) -> u64 {
        self.inner.rng.lock().next_u64().max(1)
    }

    /// Random letters, as tokens begin with.
    pub(super) fn random_letters(&self, count: usize) -> String {
        let mut rng = self.inner.rng.lock();
        const LETTERS: &[u8; 52] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        (0..count).map(|_| char::from(LETTERS[rng.below(52) as usize])).collect()
    }

    pub(super) fn make_unavailable(&self) {
        self.inner.unavailable.store(true, Ordering::Relaxed);
    }

    pub(super) fn make_available(&self) {
        self.inner.unavailable.store(false, Ordering::Relaxed);
    }

    pub(super) fn cluster_id(&self) -> u64 {
        self.inner.cluster_id.load(Ordering::Relaxed)
    }

    pub(super) fn member_id(&self) -> u64 {
        self.inner.member_id.load(Ordering::Relaxed)
    }

    /// Opens a watch stream. It is closed on drop.
    pub(super) fn watch(&self) -> WatchStream {
        WatchStream { receiver: self.with(|store, _| store.watch_open()), store: self.clone() }
    }

    /// Applies a write, then lets ready watchers run before the caller continues.
    ///
    /// With real etcd, watchers usually receive an event before the writer receives its response. Clients that rely on
    /// the opposite order must fail here too.
    pub(super) async fn write<R>(&self, write: impl FnOnce(&mut Store) -> R) -> R {
        let (response, has_notified) = self.with(|store, _| (write(store), store.take_notified()));
        if has_notified {
            tokio::task::yield_now().await;
        }
        response
    }

    /// Expires leases on time, so that watchers are notified also while no request arrives.
    pub(super) async fn expire_leases(&self) -> Infallible {
        loop {
            let changed = self.inner.leases_changed.notified();
            match self.with(|store, _| store.next_expiry()) {
                Some(due) => tokio::select! {
                    () = self.inner.clock.sleep_until(due) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// Runs `work` under the lock with the current time, after expiring leases.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Store, DateTime<Utc>) -> R) -> R {
        let mut store = self.inner.store.lock();
        let now = self.inner.clock.now();
        store.expire(now);
        work(&mut store, now)
    }
}

/// A watch stream: the watchers that one client call creates, and the queue of messages to them.
#[derive(Debug)]
pub(super) struct WatchStream {
    receiver: WatchReceiver,
    store: EtcdStore,
}

impl WatchStream {
    /// Creates a watcher. The stream receives a message about success or failure.
    pub(super) fn create(&self, request: &WatchRequest) {
        self.store.with(|store, _| store.watch_create(self.receiver.stream, request));
    }

    /// Cancels a watcher of this stream.
    pub(super) fn cancel(&self, watch_id: i64) {
        self.store.with(|store, _| store.watch_cancel(self.receiver.stream, watch_id));
    }

    /// Requests a progress message for the whole stream.
    pub(super) fn request_progress(&self) {
        self.store.with(|store, _| store.watch_progress(self.receiver.stream));
    }

    /// Requests progress messages for the idle watchers that want them.
    pub(super) fn notify_idle(&self) {
        self.store.with(|store, _| store.watch_idle_progress(self.receiver.stream));
    }

    /// Requests the events that were skipped before [`WatchMessage::Lagged`].
    pub(super) fn catch_up(&self) {
        self.store.with(|store, _| store.watch_catch_up(self.receiver.stream));
    }

    /// Waits for the next message. Returns `None` once the stream is closed.
    ///
    /// # Cancel safety
    /// Can be dropped at any time; no message is lost.
    pub(super) async fn recv(&mut self) -> Option<WatchMessage> {
        self.receiver.recv().await
    }

    /// Returns the next message if one is queued.
    pub(super) fn try_recv(&mut self) -> Option<WatchMessage> {
        self.receiver.try_recv()
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.with(|store, _| store.watch_close(self.receiver.stream));
    }
}
