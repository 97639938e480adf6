//! Requests that the control plane leaves in etcd beside a worker: to synchronize it, and for its license.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::license::LicenseIntent;
use crate::lifecycle::worker::Worker;
use crate::ports::Coordination;

/// Requests in etcd, as keys below those of a worker. Clones share them.
///
/// # Flow
/// The watch notes the keys, and a reconcile reads the values. A request stays noted until it is done, so that it survives
/// a failed reconcile.
///
/// # Assumptions
/// The values of license requests contain a token: they are never logged.
#[derive(Clone)]
pub(crate) struct KeyRequests {
    inner: Arc<Inner>,
    /// Prefixes of the keys that are read without being noted first.
    unwatched: Arc<[String]>,
}

struct Inner {
    coordination: Arc<dyn Coordination>,
    noted: Mutex<HashMap<(WorkerId, RequestKind), NotedKey>>,
}

/// The last segment of the key of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RequestKind {
    Sync,
    License,
}

impl RequestKind {
    fn from_key(key: &str) -> Option<Self> {
        match key.rsplit('/').next()? {
            "sync" => Some(Self::Sync),
            "license" => Some(Self::License),
            _ => None,
        }
    }
}

struct NotedKey {
    key: String,
    /// Grows with every change of the key.
    changes: u64,
    /// The changes that the last read covers.
    read: u64,
}

/// A request to synchronize a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncRequest {
    value: String,
}

/// The fields of a synchronization request that operators are interested in.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SyncFields {
    scope: Option<String>,
    include_labs: Option<bool>,
    reason: Option<String>,
    requested_by: Option<String>,
    requested_at: Option<String>,
}

impl KeyRequests {
    pub(crate) fn new(coordination: Arc<dyn Coordination>) -> Self {
        Self { inner: Arc::new(Inner { coordination, noted: Mutex::default() }), unwatched: Arc::new([]) }
    }

    /// Reads the license operations below these prefixes although no watch notes them.
    pub(crate) fn unwatched(self, prefixes: &[String]) -> Self {
        Self { unwatched: prefixes.into(), ..self }
    }

    /// Notes a key of a worker, if it is that of a request. Whether the request exists is found out by reading it.
    pub(crate) fn note_key(&self, worker: &str, key: &[u8]) {
        let Some((key, kind)) = std::str::from_utf8(key).ok().and_then(|key| Some((key, RequestKind::from_key(key)?)))
        else {
            return;
        };
        let mut noted = self.inner.noted.lock();
        let entry = noted.entry((WorkerId::from(worker), kind)).or_insert_with(|| NotedKey {
            key: key.to_owned(),
            changes: 0,
            read: 0,
        });
        key.clone_into(&mut entry.key);
        entry.changes += 1;
    }

    /// Notes the keys of all requests below these prefixes, where no watch reports them.
    pub(crate) async fn list(
        &self,
        prefixes: &[String],
        name: impl Fn(&str, &[u8]) -> Option<String>,
    ) -> Result<(), CallFailure> {
        for prefix in prefixes {
            for (key, _) in self.inner.coordination.list(prefix).await?.keys {
                if let Some(worker) = name(prefix, &key) {
                    self.note_key(&worker, &key);
                }
            }
        }
        Ok(())
    }

    /// Whether a synchronization of the worker may be requested.
    pub(crate) fn may_sync(&self, worker: &WorkerId) -> bool {
        self.inner.noted.lock().contains_key(&(worker.clone(), RequestKind::Sync))
    }

    /// Reads the request to synchronize a worker; `None` if there is none. A failed call is logged, and the request stays
    /// noted.
    pub(crate) async fn sync(&self, worker: &WorkerId) -> Option<SyncRequest> {
        let value = self.read(worker, RequestKind::Sync).await?;
        let SyncFields { scope, include_labs, reason, requested_by, requested_at } =
            serde_json::from_str(&value).unwrap_or_default();
        tracing::info!(
            target: "lcm::requests", %worker, scope, include_labs, reason, requested_by, requested_at,
            "synchronization requested"
        );
        Some(SyncRequest { value })
    }

    /// Whether the request is still the one that was read. A later one is not covered by what was done for it.
    pub(crate) async fn is_current(&self, worker: &WorkerId, request: &SyncRequest) -> bool {
        self.read(worker, RequestKind::Sync).await.as_ref() == Some(&request.value)
    }

    /// Forgets a request to synchronize that is done, unless it changed since it was read.
    pub(crate) fn sync_done(&self, worker: &WorkerId) {
        self.forget(worker, RequestKind::Sync);
    }

    /// Adds the requested license operation to a record that shows none. A failed call is logged, and the record stays as
    /// it is: an operation that is not known is not carried out.
    pub(crate) async fn add_license(&self, worker: &mut Worker) {
        if worker.license.pending_operation.is_some() {
            return;
        }
        for prefix in &*self.unwatched {
            self.note_key(worker.id.as_str(), format!("{prefix}{}/license", worker.id).as_bytes());
            if self.add_noted_license(worker).await.is_some() {
                return;
            }
        }
        self.add_noted_license(worker).await;
    }

    /// Adds the operation at the noted key. `None` if that was not read.
    async fn add_noted_license(&self, worker: &mut Worker) -> Option<()> {
        let value = self.read(&worker.id, RequestKind::License).await?;
        match LicenseIntent::from_json(&value) {
            Ok(Some(intent)) => worker.license.add_intent(intent, worker.notes.license_attempt.as_deref()),
            Ok(None) => self.forget(&worker.id, RequestKind::License),
            Err(error) => {
                tracing::warn!(target: "lcm::requests", worker = %worker.id, %error, "a license request is ignored");
                self.forget(&worker.id, RequestKind::License);
            }
        }
        Some(())
    }

    /// Forgets a license operation that was reported as completed or failed, unless its key changed since it was read.
    pub(crate) fn license_done(&self, worker: &WorkerId) {
        self.forget(worker, RequestKind::License);
    }

    async fn read(&self, worker: &WorkerId, kind: RequestKind) -> Option<String> {
        let id = (worker.clone(), kind);
        let key = {
            let mut noted = self.inner.noted.lock();
            let entry = noted.get_mut(&id)?;
            entry.read = entry.changes;
            entry.key.clone()
        };
        match self.inner.coordination.value(&key).await {
            Ok(Some(value)) => Some(value),
            Ok(None) => {
                self.forget(worker, kind);
                None
            }
            Err(failure) => {
                tracing::warn!(target: "lcm::requests", key, %failure, "a request could not be read");
                None
            }
        }
    }

    fn forget(&self, worker: &WorkerId, kind: RequestKind) {
        let (id, mut noted) = ((worker.clone(), kind), self.inner.noted.lock());
        if noted.get(&id).is_some_and(|entry| entry.read == entry.changes) {
            noted.remove(&id);
        }
    }
}

impl fmt::Debug for KeyRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRequests").field("noted", &self.inner.noted.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::license::LicenseOperation;
    use crate::lifecycle::status::WorkerStatus;
    use crate::providers::memory::MemoryCoordination;

    const SYNC: &str = "/lcm/workers/w-1/sync";
    const LICENSE: &str = "/lcm/workers/w-1/license";

    fn noted(key: &str, value: &str) -> (MemoryCoordination, KeyRequests) {
        let etcd = MemoryCoordination::new();
        etcd.put(key, value);
        let requests = KeyRequests::new(Arc::new(etcd.clone()));
        requests.note_key("w-1", key.as_bytes());
        (etcd, requests)
    }

    #[tokio::test]
    async fn other_keys_are_no_requests() {
        let requests = KeyRequests::new(Arc::new(MemoryCoordination::new()));
        for key in ["/lcm/workers/w-1/state", "/lcm/workers/w-1", "/workers/sync-7"] {
            requests.note_key("w-1", key.as_bytes());
        }
        assert!(!requests.may_sync(&"w-1".into()));
        assert_eq!(requests.inner.noted.lock().len(), 0);
    }

    #[tokio::test]
    async fn request_that_changed_meanwhile_stays_noted() {
        let (etcd, requests) = noted(SYNC, r#"{"scope": "full", "reason": "manual"}"#);
        let worker = WorkerId::from("w-1");
        let request = requests.sync(&worker).await.expect("a request");
        assert!(requests.is_current(&worker, &request).await);
        etcd.put(SYNC, r#"{"scope": "labs"}"#);
        requests.note_key("w-1", SYNC.as_bytes());
        requests.sync_done(&worker);
        assert!(requests.may_sync(&worker));
        assert!(!requests.is_current(&worker, &request).await);
        requests.sync_done(&worker);
        assert!(!requests.may_sync(&worker));
    }

    #[tokio::test]
    async fn unanswered_read_keeps_the_request() {
        let (etcd, requests) = noted(SYNC, "{}");
        etcd.make_unavailable();
        assert_eq!(requests.sync(&"w-1".into()).await, None);
        etcd.make_available();
        assert!(requests.sync(&"w-1".into()).await.is_some());
        etcd.delete(SYNC);
        assert_eq!(requests.sync(&"w-1".into()).await, None);
        assert!(!requests.may_sync(&"w-1".into()), "the key is gone");
    }

    #[tokio::test]
    async fn license_of_the_record_wins() {
        let (_etcd, requests) = noted(LICENSE, r#"{"operation": "register", "token": "hunter2", "reregister": false}"#);
        let mut worker = Worker::new("w-1", WorkerStatus::Running);
        requests.add_license(&mut worker).await;
        assert_eq!(worker.license.pending_operation, Some(LicenseOperation::Register));
        assert_eq!(worker.license.pending_token.as_ref().map(|token| token.expose()), Some("hunter2"));
        assert!(!format!("{worker:?} {requests:?}").contains("hunter2"));

        let mut worker = Worker::new("w-1", WorkerStatus::Running);
        worker.license.pending_operation = Some(LicenseOperation::Deregister);
        requests.add_license(&mut worker).await;
        assert_eq!(worker.license.pending_operation, Some(LicenseOperation::Deregister));
        assert_eq!(worker.license.pending_token, None);
    }

    #[tokio::test]
    async fn unwatched_license_is_read_without_being_noted() {
        let etcd = MemoryCoordination::new();
        etcd.put(LICENSE, r#"{"operation": "deregister"}"#);
        let prefixes = ["/workers/".to_owned(), "/lcm/workers/".to_owned()];
        let requests = KeyRequests::new(Arc::new(etcd.clone())).unwatched(&prefixes);
        for expected in [Some(LicenseOperation::Deregister), None] {
            let mut worker = Worker::new("w-1", WorkerStatus::Running);
            requests.add_license(&mut worker).await;
            assert_eq!(worker.license.pending_operation, expected);
            etcd.delete(LICENSE);
        }
    }

    #[tokio::test]
    async fn finished_license_is_not_read_again() {
        let (etcd, requests) = noted(LICENSE, r#"{"operation": "deregister"}"#);
        let mut worker = Worker::new("w-1", WorkerStatus::Running);
        requests.add_license(&mut worker).await;
        requests.license_done(&worker.id);
        let mut later = Worker::new("w-1", WorkerStatus::Running);
        requests.add_license(&mut later).await;
        assert_eq!(later.license.pending_operation, None);
        requests.note_key("w-1", LICENSE.as_bytes());
        etcd.put(LICENSE, r#"{"status": "registered"}"#);
        requests.add_license(&mut later).await;
        assert_eq!(later.license.pending_operation, None, "a key that names no operation");
    }
}
