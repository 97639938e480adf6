//! Notes of workers in memory.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::fault_injection::{Fault, FaultInjection};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Fence, NotesListing, NotesStore, StoredNotes};

/// A [`NotesStore`] in memory. The end of the process loses the notes.
///
/// ```
/// use lcm_sdk::ports::{Fence, NotesStore, SystemClock, Clock};
/// use lcm_sdk::providers::memory::MemoryNotes;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (store, id, now) = (MemoryNotes::default(), "w-1".into(), SystemClock.now());
/// let fields = serde_json::Map::from_iter([("launch_generation".to_owned(), 1.into())]);
/// store.put(&id, fields.clone(), None, Fence(Some(7)), now).await?;
/// let stored = store.get(&id).await?.expect("notes");
/// assert_eq!(stored.fields, fields);
/// assert!(store.put(&id, fields, Some(&stored), Fence(Some(6)), now).await.is_err(), "an older leader");
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// # }).unwrap();
/// ```
#[derive(Default)]
pub struct MemoryNotes {
    state: Mutex<State>,
    faults: FaultInjection,
}

#[derive(Default)]
struct State {
    revision: u64,
    notes: BTreeMap<WorkerId, StoredNotes>,
    unreadable: BTreeMap<WorkerId, String>,
}

impl MemoryNotes {
    /// Current notes of a worker. Records no call.
    pub fn stored(&self, id: &WorkerId) -> Option<StoredNotes> {
        self.state.lock().notes.get(id).cloned()
    }

    /// Replaces the notes of a worker by notes that cannot be read.
    pub fn put_unreadable(&self, id: &WorkerId) {
        let mut state = self.state.lock();
        state.notes.remove(id);
        state.unreadable.insert(id.clone(), "not JSON".to_owned());
    }

    /// Fails the next call, without effect.
    pub fn fail_next(&self, failure: CallFailure) {
        self.faults.plan(None, Fault::Fail(failure));
    }

    /// Injects a fault into the next call of an operation, such as `put`, or with its argument, `put w-1`.
    pub fn plan(&self, operation: &str, fault: Fault) {
        self.faults.plan(Some(operation), fault);
    }

    /// Recorded calls as `operation argument`, oldest first.
    pub fn calls(&self) -> Vec<String> {
        self.faults.calls()
    }
}

#[async_trait]
impl NotesStore for MemoryNotes {
    async fn list(&self) -> Result<NotesListing, CallFailure> {
        self.faults.call("list", "*", || {
            let state = self.state.lock();
            Ok(NotesListing { notes: state.notes.clone(), unreadable: state.unreadable.clone() })
        })
    }

    async fn get(&self, id: &WorkerId) -> Result<Option<StoredNotes>, CallFailure> {
        self.faults.call("get", id.as_str(), || {
            let state = self.state.lock();
            match state.unreadable.get(id) {
                Some(problem) => Err(CallFailure::new(FailureKind::Unparsable, problem.clone())),
                None => Ok(state.notes.get(id).cloned()),
            }
        })
    }

    async fn put(
        &self,
        id: &WorkerId,
        fields: Map<String, Value>,
        over: Option<&StoredNotes>,
        fence: Fence,
        at: Timestamp,
    ) -> Result<u64, CallFailure> {
        self.faults.call("put", id.as_str(), || {
            let fence = StoredNotes::next_fence(over, fence)?;
            let mut state = self.state.lock();
            if state.version(id) != over.map_or(0, |over| over.version) {
                return Err(StoredNotes::changed(id));
            }
            state.revision += 1;
            let version = state.revision;
            state.notes.insert(id.clone(), StoredNotes { fields, version, fence, written_at: at });
            Ok(version)
        })
    }

    async fn delete(&self, id: &WorkerId, over: &StoredNotes, fence: Fence) -> Result<(), CallFailure> {
        self.faults.call("delete", id.as_str(), || {
            StoredNotes::next_fence(Some(over), fence)?;
            let mut state = self.state.lock();
            match state.version(id) {
                0 => Ok(()),
                version if version == over.version => {
                    state.notes.remove(id);
                    Ok(())
                }
                _ => Err(StoredNotes::changed(id)),
            }
        })
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}

impl State {
    /// Version of the notes of a worker; 0 if it has none.
    fn version(&self, id: &WorkerId) -> u64 {
        match self.unreadable.contains_key(id) {
            true => u64::MAX,
            false => self.notes.get(id).map_or(0, |notes| notes.version),
        }
    }
}

impl fmt::Debug for MemoryNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNotes").field("workers", &self.state.lock().notes.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::conformance::notes::{NotesWorld, suite};

    struct World(Arc<MemoryNotes>);

    #[async_trait]
    impl NotesWorld for World {
        fn notes(&self) -> Arc<dyn NotesStore> {
            Arc::clone(&self.0) as _
        }

        async fn put_unreadable(&self, id: &WorkerId) {
            self.0.put_unreadable(id);
        }
    }

    #[tokio::test]
    async fn memory_notes_conform() {
        suite(&World(Arc::default())).await;
    }
}
