//! etcd in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream, WatchUpdate};

/// Number of revisions that watches can read; older ones are compacted.
const HISTORY: usize = 10_000;

/// A [`Coordination`] port in memory. Clones are the same client; [`MemoryCoordination::new_client`] creates another
/// client of the same server.
///
/// # Guarantees
/// - Leases expire on tokio's clock, also when it is paused, and watches report it.
/// - Faults are injected per server or per client.
///
/// ```
/// use std::time::Duration;
/// use lcm_sdk::providers::memory::MemoryCoordination;
/// use lcm_sdk::ports::{Claim, Coordination};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let etcd = MemoryCoordination::new();
/// let lease = etcd.grant(Duration::from_secs(15)).await?;
/// assert!(matches!(etcd.claim("/leader", "a", lease.id).await?, Claim::Won { .. }));
/// etcd.disconnect();
/// assert!(etcd.renew(lease.id).await.is_err());
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct MemoryCoordination {
    server: Arc<Server>,
    link: Arc<Mutex<Link>>,
}

#[derive(Debug)]
struct Server {
    state: Mutex<State>,
    /// Wakes watches after a change, in the order in which they wait, so that simulations are deterministic.
    changed: Notify,
}

/// Faults between one client and the server.
#[derive(Debug, Default)]
struct Link {
    is_cut_off: bool,
    loses_claim_response: bool,
    failures: VecDeque<CallFailure>,
}

impl Default for MemoryCoordination {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCoordination {
    /// Creates a client of a new server.
    pub fn new() -> Self {
        let state = State { revision: 1, ..State::default() };
        let server = Server { state: Mutex::new(state), changed: Notify::new() };
        Self { server: Arc::new(server), link: Arc::default() }
    }

    /// Creates another client of the same server.
    pub fn new_client(&self) -> Self {
        Self { server: Arc::clone(&self.server), link: Arc::default() }
    }

    /// Writes a key. Returns the revision.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        self.server.change(|state| state.put(key.as_bytes(), value, None))
    }

    /// Deletes a key, if it exists. Returns the revision.
    pub fn delete(&self, key: &str) -> i64 {
        self.server.change(|state| {
            if state.keys.contains_key(key.as_bytes()) {
                state.delete(&[key.as_bytes().to_vec()]);
            }
            state.revision
        })
    }

    /// Value of a key, if it exists.
    pub fn value(&self, key: &str) -> Option<String> {
        self.server.access(|state| state.keys.get(key.as_bytes()).map(|entry| entry.value.clone()))
    }

    /// Leases that have not expired.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.server.access(|state| state.leases.keys().copied().collect())
    }

    /// Compacts all revisions before the current one.
    pub fn compact(&self) {
        self.server.change(|state| {
            state.compacted = state.revision;
            state.history.retain(|(revision, _)| *revision >= state.compacted);
        });
    }

    /// Expires all leases.
    pub fn lose_leases(&self) {
        self.server.change(|state| {
            let leases: Vec<_> = state.leases.keys().copied().collect();
            leases.into_iter().for_each(|lease| state.end_lease(lease));
        });
    }

    /// Holds back watch updates until [`MemoryCoordination::resume_watches`].
    pub fn stall_watches(&self) {
        self.server.change(|state| state.is_stalled = true);
    }

    /// Delivers watch updates again, including those held back.
    pub fn resume_watches(&self) {
        self.server.change(|state| state.is_stalled = false);
    }

    /// Ends all watches.
    pub fn disconnect_watches(&self) {
        self.server.change(|state| state.watch_epoch += 1);
    }

    /// Ends all watches and fails every call until [`MemoryCoordination::make_available`].
    pub fn make_unavailable(&self) {
        self.server.change(|state| {
            state.is_unavailable = true;
            state.watch_epoch += 1;
        });
    }

    /// Serves calls again.
    pub fn make_available(&self) {
        self.server.change(|state| state.is_unavailable = false);
    }

    /// Disconnects this client: its calls fail and its watches are silent. Its leases expire.
    pub fn disconnect(&self) {
        self.link.lock().is_cut_off = true;
        self.server.change(|_| ());
    }

    /// Connects this client again.
    pub fn reconnect(&self) {
        self.link.lock().is_cut_off = false;
        self.server.change(|_| ());
    }

    /// Executes the next claim of this client, but fails it as if the response were lost.
    pub fn lose_next_claim_response(&self) {
        self.link.lock().loses_claim_response = true;
    }

    /// Fails the next call of this client, without effect. Failures queue up, one per call.
    pub fn fail_next(&self, failure: CallFailure) {
        self.link.lock().failures.push_back(failure);
    }

    /// Fails if a fault applies to this client.
    fn check_link(&self) -> Result<(), CallFailure> {
        let mut link = self.link.lock();
        if let Some(failure) = link.failures.pop_front() {
            return Err(failure);
        }
        if link.is_cut_off {
            return Err(CallFailure::new(FailureKind::Unclear, "no response: this client is disconnected"));
        }
        if self.server.access(|state| state.is_unavailable) {
            return Err(CallFailure::with_code(FailureKind::Unclear, "Unavailable", "no leader"));
        }
        Ok(())
    }
}

#[async_trait]
impl Coordination for MemoryCoordination {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.check_link()?;
        Ok(self.server.access(|state| {
            state.next_lease += 1;
            let id = LeaseId(state.next_lease);
            state.leases.insert(id, Granted { ttl, ends: Instant::now() + ttl });
            Lease { id, ttl }
        }))
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.check_link()?;
        Ok(self.server.access(|state| match state.leases.get_mut(&lease) {
            Some(granted) => {
                granted.ends = Instant::now() + granted.ttl;
                Renewal::Renewed(granted.ttl)
            }
            None => Renewal::Gone,
        }))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.check_link()?;
        self.server.change(|state| state.end_lease(lease));
        Ok(())
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.check_link()?;
        let claim = self.server.change(|state| state.claim(key.as_bytes(), value, lease));
        if std::mem::take(&mut self.link.lock().loses_claim_response) {
            return Err(CallFailure::new(FailureKind::Unclear, "the response was lost"));
        }
        claim
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        self.check_link()?;
        Ok(self.server.access(|state| Listing {
            revision: state.revision,
            keys: state
                .keys
                .iter()
                .filter(|(key, _)| key.starts_with(prefix.as_bytes()))
                .map(|(key, entry)| (key.clone(), entry.modified))
                .collect(),
        }))
    }

    async fn value(&self, key: &str) -> Result<Option<String>, CallFailure> {
        self.check_link()?;
        let value = |state: &mut State| state.keys.get(key.as_bytes()).map(|entry| entry.value.clone());
        Ok(self.server.access(value))
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        self.check_link()?;
        let (epoch, next) = self.server.access(|state| {
            let next = if from_revision > 0 { from_revision } else { state.revision + 1 };
            (state.watch_epoch, next)
        });
        Ok(Box::new(MemoryWatch {
            client: self.clone(),
            prefix: prefix.as_bytes().to_vec(),
            next,
            epoch,
            is_probed: false,
            is_ended: false,
        }))
    }
}

impl Server {
    /// Expires leases, and reads the state or changes a lease. Watches are woken only if a lease had expired: a lease
    /// without a key is not reported, and a later expiry is noticed at the earlier one.
    fn access<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.revision;
        state.expire();
        let result = access(&mut state);
        let is_changed = state.revision != before;
        drop(state);
        if is_changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Expires leases, changes the state, and wakes watches.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.expire();
        let result = change(&mut state);
        drop(state);
        self.changed.notify_waiters();
        result
    }
}

#[derive(Debug, Default)]
struct State {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, Entry>,
    leases: BTreeMap<LeaseId, Granted>,
    history: VecDeque<(i64, Vec<u8>)>,
    next_lease: i64,
    /// Incremented when all watches end; a watch from an earlier epoch has ended.
    watch_epoch: u64,
    is_stalled: bool,
    is_unavailable: bool,
}

#[derive(Debug)]
struct Entry {
    value: String,
    created: i64,
    modified: i64,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
struct Granted {
    ttl: Duration,
    ends: Instant,
}

impl State {
    fn put(&mut self, key: &[u8], value: &str, lease: Option<LeaseId>) -> i64 {
        self.revision += 1;
        let created = self.keys.get(key).map_or(self.revision, |entry| entry.created);
        let entry = Entry { value: value.to_owned(), created, modified: self.revision, lease };
        self.keys.insert(key.to_vec(), entry);
        self.append_history(key);
        self.revision
    }

    /// Deletes keys, all at one revision.
    fn delete(&mut self, keys: &[Vec<u8>]) {
        if keys.is_empty() {
            return;
        }
        self.revision += 1;
        for key in keys {
            self.keys.remove(key);
            self.append_history(key);
        }
    }

    fn append_history(&mut self, key: &[u8]) {
        self.history.push_back((self.revision, key.to_vec()));
        if self.history.len() > HISTORY
            && let Some((revision, _)) = self.history.pop_front()
        {
            self.compacted = self.compacted.max(revision + 1);
        }
    }

    fn claim(&mut self, key: &[u8], value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        if let Some(entry) = self.keys.get(key) {
            return Ok(if entry.value == value && entry.lease == Some(lease) {
                Claim::Won { revision: entry.created }
            } else {
                Claim::Held { by: entry.value.clone(), revision: self.revision }
            });
        }
        if !self.leases.contains_key(&lease) {
            return Err(CallFailure::with_code(FailureKind::Refused, "NotFound", "requested lease not found"));
        }
        Ok(Claim::Won { revision: self.put(key, value, Some(lease)) })
    }

    fn end_lease(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_some() {
            let held = self.keys.iter().filter(|(_, entry)| entry.lease == Some(lease));
            let held: Vec<_> = held.map(|(key, _)| key.clone()).collect();
            self.delete(&held);
        }
    }

    fn expire(&mut self) {
        // Without a leader, etcd expires no leases.
        if self.is_unavailable {
            return;
        }
        let now = Instant::now();
        let mut expired: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, granted)| granted.ends <= now)
            .map(|(id, granted)| (granted.ends, id.0))
            .collect();
        expired.sort_unstable();
        expired.into_iter().for_each(|(_, id)| self.end_lease(LeaseId(id)));
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|granted| granted.ends).min().filter(|_| !self.is_unavailable)
    }
}

/// A watch of [`MemoryCoordination`].
struct MemoryWatch {
    client: MemoryCoordination,
    prefix: Vec<u8>,
    next: i64,
    epoch: u64,
    is_probed: bool,
    is_ended: bool,
}

impl MemoryWatch {
    /// Returns the next update, or the time of the next lease expiry.
    fn poll_update(&mut self) -> Result<WatchUpdate, Option<Instant>> {
        let ended = || WatchUpdate::Ended(CallFailure::new(FailureKind::Unclear, "the watch has ended"));
        if self.is_ended {
            return Ok(ended());
        }
        let is_cut_off = self.client.link.lock().is_cut_off;
        let mut state = self.client.server.state.lock();
        state.expire();
        if is_cut_off {
            return Err(None);
        }
        if state.watch_epoch != self.epoch {
            self.is_ended = true;
            return Ok(ended());
        }
        if state.is_stalled {
            return Err(state.next_expiry());
        }
        if self.next < state.compacted {
            self.is_ended = true;
            return Ok(WatchUpdate::Compacted { revision: state.compacted });
        }
        let first = state.history.partition_point(|(revision, _)| *revision < self.next);
        let missed = state.history.range(first..);
        let keys: Vec<_> =
            missed.filter(|(_, key)| key.starts_with(&self.prefix)).map(|(_, key)| key.clone()).collect();
        if keys.is_empty() {
            // `next` may be a future revision.
            self.next = self.next.max(state.revision + 1);
            if std::mem::take(&mut self.is_probed) {
                return Ok(WatchUpdate::Progress { revision: state.revision });
            }
            return Err(state.next_expiry());
        }
        self.next = state.revision + 1;
        Ok(WatchUpdate::Changed { revision: state.revision, keys })
    }
}

#[async_trait]
impl WatchStream for MemoryWatch {
    async fn next(&mut self) -> WatchUpdate {
        loop {
            let server = Arc::clone(&self.client.server);
            let changed = server.changed.notified();
            tokio::pin!(changed);
            // Changes from here on wake this watch.
            changed.as_mut().enable();
            let until = match self.poll_update() {
                Ok(update) => return update,
                Err(until) => until,
            };
            let expiry = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = expiry => {}
            }
        }
    }

    async fn probe(&mut self) -> Result<(), CallFailure> {
        self.is_probed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_reports_lease_expiry() {
        let etcd = MemoryCoordination::new();
        let lease = etcd.grant(Duration::from_secs(15)).await.expect("a lease");
        etcd.claim("/leader", "a", lease.id).await.expect("a response");
        let mut watch = etcd.watch("/leader", 3).await.expect("a watch");
        let before = Instant::now();
        assert_eq!(watch.next().await, WatchUpdate::Changed { revision: 3, keys: vec![b"/leader".to_vec()] });
        assert_eq!(before.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_and_disconnected_watches_are_silent() {
        let etcd = MemoryCoordination::new();
        let mut watch = etcd.watch("/", 2).await.expect("a watch");
        etcd.stall_watches();
        etcd.put("/a", "1");
        watch.probe().await.expect("requested");
        assert!(tokio::time::timeout(Duration::from_secs(60), watch.next()).await.is_err());
        etcd.resume_watches();
        assert!(matches!(watch.next().await, WatchUpdate::Changed { revision: 2, .. }));
        etcd.disconnect();
        etcd.new_client().put("/a", "2");
        assert!(tokio::time::timeout(Duration::from_secs(60), watch.next()).await.is_err());
        etcd.disconnect_watches();
        etcd.reconnect();
        assert!(matches!(watch.next().await, WatchUpdate::Ended(_)));
    }

    #[tokio::test]
    async fn claim_is_idempotent_after_a_lost_response() {
        let etcd = MemoryCoordination::new();
        let lease = etcd.grant(Duration::from_secs(15)).await.expect("a lease");
        etcd.lose_next_claim_response();
        let lost = etcd.claim("/leader", "a", lease.id).await.expect_err("lost");
        assert!(!lost.kind.did_nothing());
        assert_eq!(etcd.claim("/leader", "a", lease.id).await, Ok(Claim::Won { revision: 2 }));
    }
}

#[cfg(all(test, feature = "conformance"))]
mod conformance {
    use super::*;
    use crate::conformance::coordination::{CoordinationWorld, suite};

    struct InMemory(MemoryCoordination);

    #[async_trait]
    impl CoordinationWorld for InMemory {
        fn coordination(&self) -> Arc<dyn Coordination> {
            Arc::new(self.0.clone())
        }

        async fn put(&self, key: &str, value: &str) {
            self.0.put(key, value);
        }

        async fn delete(&self, key: &str) {
            self.0.delete(key);
        }

        async fn compact(&self) {
            self.0.compact();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_coordination_conforms() {
        suite(&InMemory(MemoryCoordination::new())).await;
    }
}
