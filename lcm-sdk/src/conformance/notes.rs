//! Conformance suite of [`NotesStore`].

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::time::Timestamp;
use crate::ports::{Fence, NotesStore, StoredNotes};

/// Number of workers in a list, more than a page has.
const MANY: usize = 1_200;
const NO_FENCE: Fence = Fence(None);

/// Fixture of the suite: a store without notes.
#[async_trait]
pub trait NotesWorld: Send + Sync {
    /// The port under test. Each call may return another client of the same store.
    fn notes(&self) -> Arc<dyn NotesStore>;
    /// Writes notes that cannot be read.
    async fn put_unreadable(&self, id: &WorkerId);
}

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn NotesWorld) {
    promise!(notes_are_read_back_as_written(world));
    promise!(writes_are_conditional(world));
    promise!(concurrent_writes_have_one_winner(world));
    promise!(older_fencing_tokens_are_refused(world));
    promise!(deletions_are_conditional_and_idempotent(world));
    promise!(lists_are_complete(world));
    promise!(unreadable_notes_hide_no_others(world));
}

fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(second)
}

fn fields(number: u64) -> Map<String, Value> {
    let plan = json!({"region": "us-east-1", "tags": {"Name": "w"}, "key_name": null, "generation": number});
    Map::from_iter([("launch_plan".to_owned(), plan), ("license_attempt".to_owned(), "ü\n\"".into())])
}

async fn stored(notes: &dyn NotesStore, id: &WorkerId) -> StoredNotes {
    notes.get(id).await.expect("a response").expect("notes of the worker")
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, CallFailure>, claim: &str) {
    match result {
        Err(failure) => assert_eq!(failure.kind, FailureKind::Conflict, "{claim}: {failure}"),
        Ok(done) => panic!("{claim}: {done:?}"),
    }
}

async fn notes_are_read_back_as_written(world: &dyn NotesWorld) {
    let (notes, id) = (world.notes(), WorkerId::from("reads"));
    assert_eq!(notes.get(&id).await, Ok(None), "a worker without notes has none");
    let version = notes.put(&id, fields(1), None, Fence(Some(3)), at(1)).await.expect("written");
    assert!(version > 0, "versions begin with 1");
    let read = stored(&*world.notes(), &id).await;
    let expected = StoredNotes { fields: fields(1), version, fence: Fence(Some(3)), written_at: at(1) };
    assert_eq!(read, expected);
    let next = notes.put(&id, fields(2), Some(&read), Fence(Some(3)), at(2)).await.expect("written");
    assert!(next > version, "the version grows: {version}, then {next}");
    let read = stored(&*notes, &id).await;
    assert_eq!((read.fields, read.version, read.written_at), (fields(2), next, at(2)));
}

async fn writes_are_conditional(world: &dyn NotesWorld) {
    let (notes, id) = (world.notes(), WorkerId::from("conditional"));
    notes.put(&id, fields(1), None, NO_FENCE, at(1)).await.expect("written");
    let first = stored(&*notes, &id).await;
    assert_conflict(notes.put(&id, fields(2), None, NO_FENCE, at(2)).await, "the worker has notes already");
    notes.put(&id, fields(3), Some(&first), NO_FENCE, at(3)).await.expect("written");
    assert_conflict(notes.put(&id, fields(4), Some(&first), NO_FENCE, at(4)).await, "the notes have changed");
    let second = stored(&*notes, &id).await;
    assert_eq!(second.fields, fields(3), "a conflict writes nothing");
    notes.delete(&id, &second, NO_FENCE).await.expect("deleted");
    assert_conflict(notes.put(&id, fields(5), Some(&second), NO_FENCE, at(5)).await, "the notes are deleted");
    assert_eq!(notes.get(&id).await, Ok(None), "a conflict writes nothing");
}

async fn concurrent_writes_have_one_winner(world: &dyn NotesWorld) {
    let id = WorkerId::from("concurrent");
    world.notes().put(&id, fields(0), None, NO_FENCE, at(0)).await.expect("written");
    let read = stored(&*world.notes(), &id).await;
    let writes = (1..=8).map(|number| {
        let (notes, id, read) = (world.notes(), &id, &read);
        async move { notes.put(id, fields(number), Some(read), NO_FENCE, at(1)).await.map(|_| number) }
    });
    let (won, lost): (Vec<_>, Vec<_>) = join_all(writes).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7), "one write wins");
    let winner = won.into_iter().flatten().next().unwrap_or_default();
    assert_eq!(stored(&*world.notes(), &id).await.fields, fields(winner));
}

async fn older_fencing_tokens_are_refused(world: &dyn NotesWorld) {
    let (notes, id) = (world.notes(), WorkerId::from("fenced"));
    notes.put(&id, fields(1), None, Fence(Some(7)), at(1)).await.expect("written");
    let read = stored(&*notes, &id).await;
    assert_conflict(notes.put(&id, fields(2), Some(&read), Fence(Some(6)), at(2)).await, "a newer leader wrote");
    assert_conflict(notes.delete(&id, &read, Fence(Some(6))).await, "a newer leader wrote");
    assert_eq!(stored(&*notes, &id).await, read, "a refused write changes nothing");
    notes.put(&id, fields(3), Some(&read), NO_FENCE, at(3)).await.expect("written without an election");
    let read = stored(&*notes, &id).await;
    assert_eq!(read.fence, Fence(Some(7)), "a write without a token keeps it");
    notes.put(&id, fields(4), Some(&read), Fence(Some(8)), at(4)).await.expect("written by the next leader");
    assert_eq!(stored(&*notes, &id).await.fence, Fence(Some(8)));
}

async fn deletions_are_conditional_and_idempotent(world: &dyn NotesWorld) {
    let (notes, id) = (world.notes(), WorkerId::from("deleted"));
    notes.put(&id, fields(1), None, NO_FENCE, at(1)).await.expect("written");
    let first = stored(&*notes, &id).await;
    notes.put(&id, fields(2), Some(&first), NO_FENCE, at(2)).await.expect("written");
    assert_conflict(notes.delete(&id, &first, NO_FENCE).await, "the notes have changed");
    let second = stored(&*notes, &id).await;
    assert_eq!(notes.delete(&id, &second, NO_FENCE).await, Ok(()));
    assert_eq!(notes.delete(&id, &second, NO_FENCE).await, Ok(()), "deleting twice succeeds");
    assert_eq!(notes.get(&id).await, Ok(None));
    notes.put(&id, fields(3), None, NO_FENCE, at(3)).await.expect("written anew");
    assert_conflict(notes.delete(&id, &second, NO_FENCE).await, "these are other notes");
}

async fn lists_are_complete(world: &dyn NotesWorld) {
    let notes = world.notes();
    let ids: Vec<_> = (0..MANY).map(|number| WorkerId::from(format!("list-{number:04}"))).collect();
    for chunk in ids.chunks(100) {
        let writes = chunk.iter().map(|id| notes.put(id, fields(1), None, NO_FENCE, at(1)));
        join_all(writes).await.into_iter().for_each(|written| assert!(written.is_ok(), "{written:?}"));
    }
    let listing = notes.list().await.expect("a list");
    let listed: Vec<_> = listing.notes.keys().filter(|id| id.as_str().starts_with("list-")).cloned().collect();
    assert_eq!(listed, ids);
    let read = stored(&*notes, &ids[700]).await;
    assert_eq!(listing.notes[&ids[700]], read, "a list has the same notes as a single read");
}

async fn unreadable_notes_hide_no_others(world: &dyn NotesWorld) {
    let (notes, good, bad) = (world.notes(), WorkerId::from("readable"), WorkerId::from("unreadable"));
    notes.put(&good, fields(1), None, NO_FENCE, at(1)).await.expect("written");
    world.put_unreadable(&bad).await;
    let listing = notes.list().await.expect("a list");
    assert!(listing.notes.contains_key(&good) && !listing.notes.contains_key(&bad));
    assert_eq!(listing.unreadable.keys().collect::<Vec<_>>(), [&bad]);
    let failure = notes.get(&bad).await.expect_err("unreadable notes are not absent");
    assert_eq!(failure.kind, FailureKind::Unparsable, "{failure}");
    assert_conflict(notes.put(&bad, fields(1), None, NO_FENCE, at(1)).await, "unreadable notes are not absent");
}
