//! An etcd in memory.

mod state;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::state::{Granted, State};
use self::watch::MemoryWatch;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream};

/// A client of an etcd in memory. Clones are the same client; [`MemoryCoordination::another_client`] is somebody else
/// at the same server.
///
/// # Guarantees
/// - Time is tokio's: leases end under a paused clock when it is moved, and watchers are told.
/// - What goes wrong is asked for: to the server as a whole, or on the way of one client.
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
/// etcd.cut_off();
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
    /// Whenever a watcher may have something to hear. It wakes them in the order they came, so that a simulated history
    /// can be repeated.
    news: Notify,
}

/// What goes wrong between one client and the server.
#[derive(Debug, Default)]
struct Link {
    is_cut_off: bool,
    loses_claim_answer: bool,
    failures: VecDeque<CallFailure>,
}

impl Default for MemoryCoordination {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCoordination {
    /// A client of a fresh server.
    pub fn new() -> Self {
        let state = State { revision: 1, ..State::default() };
        let server = Server { state: Mutex::new(state), news: Notify::new() };
        Self { server: Arc::new(server), link: Arc::default() }
    }

    /// Somebody else at the same server.
    pub fn another_client(&self) -> Self {
        Self { server: Arc::clone(&self.server), link: Arc::default() }
    }

    /// Writes a key; returns the revision.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        self.server.change(|state| state.put(key.as_bytes(), value, None))
    }

    /// Deletes a key; returns the revision. One that does not exist changes nothing.
    pub fn delete(&self, key: &str) -> i64 {
        self.server.change(|state| {
            if state.keys.contains_key(key.as_bytes()) {
                state.delete(&[key.as_bytes().to_vec()]);
            }
            state.revision
        })
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<String> {
        self.server.change(|state| state.keys.get(key.as_bytes()).map(|entry| entry.value.clone()))
    }

    /// The leases that live.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.server.change(|state| state.leases.keys().copied().collect())
    }

    /// Forgets everything before the current revision.
    pub fn compact(&self) {
        self.server.change(|state| {
            state.compacted = state.revision;
            state.history.retain(|(revision, _)| *revision >= state.compacted);
        });
    }

    /// Every lease ends as if nobody had renewed it.
    pub fn lose_leases(&self) {
        self.server.change(|state| {
            let leases: Vec<_> = state.leases.keys().copied().collect();
            leases.into_iter().for_each(|lease| state.end(lease));
        });
    }

    /// Watchers hear nothing.
    pub fn stall_watches(&self) {
        self.server.change(|state| state.is_stalled = true);
    }

    /// Watchers hear what they missed.
    pub fn resume_watches(&self) {
        self.server.change(|state| state.is_stalled = false);
    }

    /// All watches end.
    pub fn cut_watches(&self) {
        self.server.change(|state| state.round += 1);
    }

    /// Every call fails, and watches end.
    pub fn make_unavailable(&self) {
        self.server.change(|state| {
            state.is_unavailable = true;
            state.round += 1;
        });
    }

    /// Calls are answered again.
    pub fn make_available(&self) {
        self.server.change(|state| state.is_unavailable = false);
    }

    /// This client reaches the server no more: its calls fail, and its watches are silent. Time goes on.
    pub fn cut_off(&self) {
        self.link.lock().is_cut_off = true;
        self.server.change(|_| ());
    }

    /// This client reaches the server again.
    pub fn reconnect(&self) {
        self.link.lock().is_cut_off = false;
        self.server.change(|_| ());
    }

    /// This client's next claim is carried out, and its answer is lost.
    pub fn lose_next_claim_answer(&self) {
        self.link.lock().loses_claim_answer = true;
    }

    /// This client's next call fails and does nothing. Several calls of this add up.
    pub fn fail_next(&self, failure: CallFailure) {
        self.link.lock().failures.push_back(failure);
    }

    /// Lets a call of this client through, or not.
    fn reach(&self) -> Result<(), CallFailure> {
        let mut link = self.link.lock();
        if let Some(failure) = link.failures.pop_front() {
            return Err(failure);
        }
        if link.is_cut_off {
            return Err(CallFailure::new(FailureKind::Unclear, "no answer: this client is cut off"));
        }
        if self.server.change(|state| state.is_unavailable) {
            return Err(CallFailure::coded(FailureKind::Unclear, "Unavailable", "no leader"));
        }
        Ok(())
    }
}

#[async_trait]
impl Coordination for MemoryCoordination {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.reach()?;
        Ok(self.server.change(|state| {
            state.next_lease += 1;
            let id = LeaseId(state.next_lease);
            state.leases.insert(id, Granted { ttl, ends: Instant::now() + ttl });
            Lease { id, ttl }
        }))
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.reach()?;
        Ok(self.server.change(|state| match state.leases.get_mut(&lease) {
            Some(granted) => {
                granted.ends = Instant::now() + granted.ttl;
                Renewal::Renewed(granted.ttl)
            }
            None => Renewal::Gone,
        }))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.reach()?;
        self.server.change(|state| state.end(lease));
        Ok(())
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        self.reach()?;
        let claim = self.server.change(|state| state.claim(key.as_bytes(), value, lease));
        if std::mem::take(&mut self.link.lock().loses_claim_answer) {
            return Err(CallFailure::new(FailureKind::Unclear, "the answer was lost"));
        }
        claim
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        self.reach()?;
        Ok(self.server.change(|state| Listing {
            revision: state.revision,
            keys: state
                .keys
                .iter()
                .filter(|(key, _)| key.starts_with(prefix.as_bytes()))
                .map(|(key, entry)| (key.clone(), entry.modified))
                .collect(),
        }))
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        self.reach()?;
        let (round, next) = self.server.change(|state| {
            let next = if from_revision > 0 { from_revision } else { state.revision + 1 };
            (state.round, next)
        });
        Ok(Box::new(MemoryWatch {
            client: self.clone(),
            prefix: prefix.as_bytes().to_vec(),
            next,
            round,
            is_probed: false,
            is_over: false,
        }))
    }
}

impl Server {
    /// Looks at or changes the state as it is now, and wakes watchers if there is something to hear.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.expire();
        let result = change(&mut state);
        drop(state);
        self.news.notify_waiters();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::WatchUpdate;

    #[tokio::test(start_paused = true)]
    async fn a_watcher_is_told_when_a_lease_ends_though_nobody_asks() {
        let etcd = MemoryCoordination::new();
        let lease = etcd.grant(Duration::from_secs(15)).await.expect("a lease");
        etcd.claim("/leader", "a", lease.id).await.expect("an answer");
        let mut watch = etcd.watch("/leader", 3).await.expect("a watch");
        let before = Instant::now();
        assert_eq!(watch.next().await, WatchUpdate::Changed { revision: 3, keys: vec![b"/leader".to_vec()] });
        assert_eq!(before.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_watch_hears_later_and_one_of_a_client_that_is_cut_off_hears_nothing() {
        let etcd = MemoryCoordination::new();
        let mut watch = etcd.watch("/", 2).await.expect("a watch");
        etcd.stall_watches();
        etcd.put("/a", "1");
        watch.probe().await.expect("asked");
        assert!(tokio::time::timeout(Duration::from_secs(60), watch.next()).await.is_err());
        etcd.resume_watches();
        assert!(matches!(watch.next().await, WatchUpdate::Changed { revision: 2, .. }));
        etcd.cut_off();
        etcd.another_client().put("/a", "2");
        assert!(tokio::time::timeout(Duration::from_secs(60), watch.next()).await.is_err());
        etcd.cut_watches();
        etcd.reconnect();
        assert!(matches!(watch.next().await, WatchUpdate::Ended(_)));
    }

    #[tokio::test]
    async fn a_lost_answer_was_carried_out_and_asking_again_finds_it() {
        let etcd = MemoryCoordination::new();
        let lease = etcd.grant(Duration::from_secs(15)).await.expect("a lease");
        etcd.lose_next_claim_answer();
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
    async fn it_does_what_every_etcd_does() {
        suite(&InMemory(MemoryCoordination::new())).await;
    }
}
