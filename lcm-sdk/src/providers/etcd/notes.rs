//! [`NotesStore`] with etcd: one key per worker, with a JSON document.

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::client::Members;
use super::options::EtcdOptions;
use super::{end_of_prefix, revision, unparsable};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Fence, NotesListing, NotesStore, StoredNotes};

/// Documents per page of a list. A fleet fits on one page.
const PAGE: i64 = 10_000;
/// Maximum length of a page in bytes. One document has a few kilobytes at most.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// A [`NotesStore`] backed by an etcd cluster, with the keys `{prefix}/workers/{id}`.
///
/// # Guarantees
/// - A write compares the revision of the key within its transaction. The fencing token is part of the value, so that
///   this revision pins it too.
/// - A list reads all pages at one revision.
/// - Calls, connections and time limits are those of [`Etcd`](super::Etcd).
#[derive(Debug)]
pub struct EtcdNotes {
    members: Members,
    prefix: String,
}

/// The value of a key.
#[derive(Serialize, Deserialize)]
struct Document {
    /// Newest fencing token of the writes.
    fence: Option<i64>,
    written_at: Timestamp,
    notes: Map<String, Value>,
}

impl EtcdNotes {
    /// Creates a store below a prefix such as `/lcm-notes`. Makes no connection.
    ///
    /// The prefix must be outside of all watched prefixes: each note would be reported as a change of its worker.
    ///
    /// # Errors
    /// [`FailureKind::Refused`] if the prefix or the options are invalid, or a file is unreadable.
    pub fn new(options: &EtcdOptions, prefix: &str) -> Result<Self, CallFailure> {
        let prefix = prefix.trim_end_matches('/');
        if !prefix.starts_with('/') {
            let message = format!("invalid prefix of notes '{prefix}': expected a path that begins with /");
            return Err(CallFailure::new(FailureKind::Refused, message));
        }
        Ok(Self { members: Members::new(options)?, prefix: format!("{prefix}/workers/") })
    }

    fn key(&self, id: &WorkerId) -> String {
        format!("{}{id}", self.prefix)
    }

    /// The worker of a key.
    fn worker(&self, key: &[u8]) -> WorkerId {
        let id = key.get(self.prefix.len()..).unwrap_or_default();
        String::from_utf8_lossy(id).into_owned().into()
    }
}

#[async_trait]
impl NotesStore for EtcdNotes {
    async fn list(&self) -> Result<NotesListing, CallFailure> {
        let end = end_of_prefix(self.prefix.as_bytes());
        let (mut from, mut at) = (self.prefix.clone().into_bytes(), 0);
        let mut listing = NotesListing::default();
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(at);
            let (first, page) = (&from, &page);
            let send = move |client: Client| async move {
                let mut kv = client.kv_client().max_decoding_message_size(MAX_PAGE_BYTES);
                kv.get(first.clone(), Some(page.clone())).await
            };
            let response = self.members.call("list notes", send).await?;
            if at == 0 {
                at = revision(response.header())?;
            }
            for found in response.kvs() {
                let id = self.worker(found.key());
                match read(found) {
                    Ok(notes) => drop(listing.notes.insert(id, notes)),
                    Err(problem) => drop(listing.unreadable.insert(id, problem)),
                }
            }
            match response.kvs().last() {
                Some(last) if response.more() => from = [last.key(), b"\0"].concat(),
                Some(_) | None => return Ok(listing),
            }
        }
    }

    async fn get(&self, id: &WorkerId) -> Result<Option<StoredNotes>, CallFailure> {
        let key = &self.key(id);
        let send = move |client: Client| async move { client.kv_client().get(key.as_str(), None).await };
        let response = self.members.call("read notes", send).await?;
        let notes = response.kvs().first().map(read).transpose();
        notes.map_err(|problem| unparsable(format!("notes of worker {id}: {problem}")))
    }

    async fn put(
        &self,
        id: &WorkerId,
        fields: Map<String, Value>,
        over: Option<&StoredNotes>,
        fence: Fence,
        at: Timestamp,
    ) -> Result<u64, CallFailure> {
        let fence = StoredNotes::next_fence(over, fence)?;
        let document = Document { fence: fence.0, written_at: at, notes: fields };
        let document = &serde_json::to_string(&document).map_err(|error| unparsable(error.to_string()))?;
        let key = &self.key(id);
        let unchanged = &Compare::mod_revision(key.as_str(), CompareOp::Equal, known_revision(over)?);
        let send = move |client: Client| async move {
            let put = TxnOp::put(key.as_str(), document.as_str(), None);
            client.kv_client().txn(Txn::new().when([unchanged.clone()]).and_then([put])).await
        };
        let response = self.members.call("write notes", send).await?;
        if !response.succeeded() {
            return Err(StoredNotes::changed(id));
        }
        version(revision(response.header())?)
    }

    async fn delete(&self, id: &WorkerId, over: &StoredNotes, fence: Fence) -> Result<(), CallFailure> {
        StoredNotes::next_fence(Some(over), fence)?;
        let key = &self.key(id);
        let unchanged = &Compare::mod_revision(key.as_str(), CompareOp::Equal, known_revision(Some(over))?);
        let send = move |client: Client| async move {
            let txn = Txn::new().when([unchanged.clone()]).and_then([TxnOp::delete(key.as_str(), None)]);
            client.kv_client().txn(txn.or_else([TxnOp::get(key.as_str(), None)])).await
        };
        let response = self.members.call("delete notes", send).await?;
        match (response.succeeded(), response.op_responses().first()) {
            (true, _) => Ok(()),
            (false, Some(TxnOpResponse::Get(found))) if found.kvs().is_empty() => Ok(()),
            (false, _) => Err(StoredNotes::changed(id)),
        }
    }

    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn url(&self) -> Option<String> {
        Some(format!("{} {}", self.members.endpoints(), self.prefix))
    }
}

fn read(found: &KeyValue) -> Result<StoredNotes, String> {
    let Document { fence, written_at, notes } = serde_json::from_slice(found.value()).map_err(|e| e.to_string())?;
    let version = version(found.mod_revision()).map_err(|failure| failure.message)?;
    Ok(StoredNotes { fields: notes, version, fence: Fence(fence), written_at })
}

fn version(revision: i64) -> Result<u64, CallFailure> {
    u64::try_from(revision).map_err(|_| unparsable(format!("revision {revision} is negative")))
}

/// The revision of the notes that a write replaces; 0 if there are none.
fn known_revision(over: Option<&StoredNotes>) -> Result<i64, CallFailure> {
    let version = over.map_or(0, |over| over.version);
    i64::try_from(version).map_err(|_| unparsable(format!("version {version} is no revision")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_prefix_is_refused() {
        let options = EtcdOptions::new(["127.0.0.1:2379"]);
        let refused = EtcdNotes::new(&options, "notes").expect_err("refused");
        assert_eq!(refused.message, "invalid prefix of notes 'notes': expected a path that begins with /");
        let notes = EtcdNotes::new(&options, "/lcm-notes/").expect("valid");
        assert_eq!(notes.key(&"w-1".into()), "/lcm-notes/workers/w-1");
        assert_eq!(notes.worker(b"/lcm-notes/workers/w-1"), "w-1".into());
    }
}
