//! Describes many instances, of which some may not exist.
//!
//! EC2 refuses a whole call if one ID is unknown or malformed. The other IDs are then described again.

use std::collections::{HashMap, HashSet};

use futures_util::stream::{self, StreamExt as _};

use super::errors::{INSTANCE_MALFORMED, INSTANCE_NOT_FOUND, MAX_IDS};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;

/// Maximum number of calls per batch; IDs that are left count as unknown. Two calls suffice if EC2 names all unknown IDs;
/// more are needed if it names one at a time, or none.
const MAX_CALLS: usize = 64;

/// Maximum number of batches in flight: while one response is decoded, EC2 prepares the next.
const CONCURRENT_BATCHES: usize = 4;

/// Describes instances with `send`. Returns one result per ID, in the order of the IDs.
///
/// # Flow
/// Each ID is sent once, in concurrent batches. If EC2 refuses a batch and names the IDs, the others are sent again. If
/// it names none, the batch is halved.
///
/// # Guarantees
/// An ID is `Absent` only if EC2 named it as unknown, refused it alone as unknown, or left it out of the response to its
/// own batch.
pub(super) async fn describe<F>(ids: &[InstanceId], send: impl Fn(Vec<InstanceId>) -> F) -> Vec<Lookup<Instance>>
where
    F: Future<Output = Result<Vec<Instance>, CallFailure>>,
{
    let mut results: Vec<Lookup<Instance>> = Vec::with_capacity(ids.len());
    // First position of each ID. Duplicates copy its result.
    let mut places: HashMap<&InstanceId, usize> = HashMap::with_capacity(ids.len());
    let mut plausible: Vec<usize> = Vec::with_capacity(ids.len());
    for (place, id) in ids.iter().enumerate() {
        let is_new = *places.entry(id).or_insert(place) == place;
        results.push(match is_plausible(id) {
            true => Lookup::NotRequested,
            false => Lookup::Unknown(malformed(id)),
        });
        if is_new && results[place] == Lookup::NotRequested {
            plausible.push(place);
        }
    }
    let batches: Vec<_> = plausible.chunks(MAX_IDS).map(|batch| describe_batch(batch, ids, &places, &send)).collect();
    let mut described = stream::iter(batches).buffer_unordered(CONCURRENT_BATCHES);
    while let Some(batch) = described.next().await {
        for (place, result) in batch {
            results[place] = result;
        }
    }
    drop(described);
    for (place, id) in ids.iter().enumerate() {
        match places.get(id) {
            Some(first) if *first != place => results[place] = results[*first].clone(),
            Some(_) | None => {}
        }
    }
    results
}

/// Describes one batch, in as many calls as EC2's refusals require. Returns one result per position.
async fn describe_batch<F>(
    batch: &[usize],
    ids: &[InstanceId],
    places: &HashMap<&InstanceId, usize>,
    send: &impl Fn(Vec<InstanceId>) -> F,
) -> Vec<(usize, Lookup<Instance>)>
where
    F: Future<Output = Result<Vec<Instance>, CallFailure>>,
{
    let mut results = Vec::with_capacity(batch.len());
    let mut batches = vec![batch.to_vec()];
    let mut calls_left = MAX_CALLS;
    while let Some(batch) = batches.pop() {
        if calls_left == 0 {
            let message = format!("too many unknown instance IDs; {} were not described", batch.len());
            results.extend(unknown(&batch, &CallFailure::new(FailureKind::Unclear, message)));
            continue;
        }
        calls_left -= 1;
        match send(batch.iter().map(|place| ids[*place].clone()).collect()).await {
            Ok(found) => {
                let answered = results.len();
                results.extend(batch.iter().map(|place| (*place, Lookup::Absent)));
                for instance in found {
                    // Ignores instances that are not in this batch, whose positions are sorted.
                    let position = places.get(&instance.id).and_then(|place| batch.binary_search(place).ok());
                    if let Some(position) = position {
                        results[answered + position].1 = Lookup::Found(instance);
                    }
                }
            }
            Err(failure) => match failure.code.as_deref().and_then(refusal) {
                Some(refusal) => {
                    let Split { refused, rest } = split(batch, ids, &failure);
                    results.extend(refused.into_iter().map(|place| (place, refusal.result(&ids[place]))));
                    batches.extend(rest.into_iter().rev());
                }
                None => results.extend(unknown(&batch, &failure)),
            },
        }
    }
    results
}

fn unknown(batch: &[usize], failure: &CallFailure) -> impl Iterator<Item = (usize, Lookup<Instance>)> {
    batch.iter().map(|place| (*place, Lookup::Unknown(failure.clone())))
}

/// Reason for which EC2 refused IDs.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Unknown,
    Malformed,
}

impl Refusal {
    fn result(self, id: &InstanceId) -> Lookup<Instance> {
        match self {
            Self::Unknown => Lookup::Absent,
            Self::Malformed => Lookup::Unknown(malformed(id)),
        }
    }
}

fn refusal(code: &str) -> Option<Refusal> {
    if INSTANCE_NOT_FOUND.contains(&code) {
        Some(Refusal::Unknown)
    } else if INSTANCE_MALFORMED.contains(&code) {
        Some(Refusal::Malformed)
    } else {
        None
    }
}

/// A refused batch, split for the next calls.
struct Split {
    /// IDs that EC2 refused.
    refused: Vec<usize>,
    /// Batches to send again, in this order.
    rest: Vec<Vec<usize>>,
}

fn split(batch: Vec<usize>, ids: &[InstanceId], failure: &CallFailure) -> Split {
    let words: HashSet<&str> =
        failure.message.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').collect();
    // Ignores names that are not in this batch.
    let (named, mut rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|place| words.contains(ids[*place].as_str()));
    match (named.is_empty(), rest.len()) {
        (true, 0..=1) => Split { refused: rest, rest: Vec::new() },
        (true, length) => {
            let second = rest.split_off(length / 2);
            Split { refused: Vec::new(), rest: vec![rest, second] }
        }
        (false, 0) => Split { refused: named, rest: Vec::new() },
        (false, _) => Split { refused: named, rest: vec![rest] },
    }
}

/// Whether an ID is well formed. Others would cost one refused call each.
pub(super) fn is_plausible(id: &InstanceId) -> bool {
    let rest = id.as_str().strip_prefix("i-").unwrap_or_default();
    (1..=64).contains(&rest.len()) && rest.bytes().all(|letter| letter.is_ascii_alphanumeric())
}

pub(super) fn malformed(id: &InstanceId) -> CallFailure {
    let message = format!("Invalid id: {:?} (expecting \"i-...\")", id.as_str());
    CallFailure::with_code(FailureKind::Refused, "InvalidInstanceID.Malformed", message)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::lifecycle::status::Ec2State;

    fn ids(range: std::ops::Range<usize>) -> Vec<InstanceId> {
        range.map(|number| format!("i-{number:08x}").into()).collect()
    }

    /// Builds the error message for unknown IDs.
    type Message = fn(&[&InstanceId]) -> String;

    /// Describes IDs with an EC2 that knows no odd numbers. Returns the results and the number of calls.
    async fn run(requested: &[InstanceId], code: &str, message: Message) -> (Vec<Lookup<Instance>>, usize) {
        let calls = Mutex::new(0);
        let ec2 = |batch: Vec<InstanceId>| async {
            let batch = batch;
            *calls.lock() += 1;
            assert!(batch.len() <= MAX_IDS, "{} ids in one call", batch.len());
            let unknown: Vec<&InstanceId> = batch.iter().filter(|id| is_odd(id)).collect();
            if unknown.is_empty() {
                return Ok(batch.iter().map(|id| Instance::new(id.as_str(), Ec2State::Running)).collect());
            }
            Err(CallFailure::with_code(FailureKind::Refused, code, message(&unknown)))
        };
        let results = describe(requested, ec2).await;
        (results, calls.into_inner())
    }

    fn is_odd(id: &InstanceId) -> bool {
        id.as_str().ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f'])
    }

    fn check(requested: &[InstanceId], results: &[Lookup<Instance>]) {
        assert_eq!(requested.len(), results.len());
        for (id, result) in requested.iter().zip(results) {
            match result {
                Lookup::Found(instance) => assert!(!is_odd(id) && instance.id == *id),
                Lookup::Absent => assert!(is_odd(id)),
                Lookup::NotRequested | Lookup::Unknown(_) => panic!("{id}: {result:?}"),
            }
        }
    }

    #[tokio::test]
    async fn named_ids_cost_one_more_call() {
        let requested = ids(0..1000);
        let message: Message = |unknown| {
            let names: Vec<&str> = unknown.iter().map(|id| id.as_str()).collect();
            format!("The instance IDs '{}' do not exist", names.join(", "))
        };
        let (results, calls) = run(&requested, "InvalidInstanceID.NotFound", message).await;
        check(&requested, &results);
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn unnamed_id_is_found_by_halving() {
        let mut requested: Vec<_> = ids(0..1000).into_iter().filter(|id| !is_odd(id)).collect();
        requested.insert(123, "i-00000001".into());
        let (results, calls) = run(&requested, "InvalidInstanceID.NotFound", |_| "Some are unknown".to_owned()).await;
        check(&requested, &results);
        assert!(calls <= 2 * 10 + 1, "{calls}");
    }

    #[tokio::test]
    async fn names_outside_the_batch_are_ignored() {
        let message: Message = |_| "The instance ID 'i-0000' does not exist".to_owned();
        let requested: Vec<InstanceId> = vec!["i-00000000".into(), "i-00000001".into()];
        let (results, _) = run(&requested, "InvalidInstanceID.NotFound", message).await;
        check(&requested, &results);
    }

    #[tokio::test]
    async fn number_of_calls_is_bounded() {
        let requested: Vec<_> = ids(0..1000).into_iter().filter(is_odd).collect();
        let one_at_a_time: Message = |unknown| format!("The instance ID '{}' does not exist", unknown[0]);
        let (results, calls) = run(&requested, "InvalidInstanceID.NotFound", one_at_a_time).await;
        assert_eq!(calls, MAX_CALLS);
        assert_eq!(results.iter().filter(|result| **result == Lookup::Absent).count(), MAX_CALLS);
        assert!(results.iter().all(|result| *result == Lookup::Absent || result.failure().is_some()));
    }

    #[tokio::test]
    async fn malformed_ids_do_not_affect_others() {
        let requested: Vec<InstanceId> =
            vec!["i-00000000".into(), "banana".into(), "i-00000001".into(), "i-0, i-2".into(), "i-00000002".into()];
        let message: Message = |unknown| format!("Invalid id: \"{}\"", unknown[0]);
        let (results, calls) = run(&requested, "InvalidInstanceID.Malformed", message).await;
        let kinds: Vec<_> = results.iter().map(|result| result.failure().map(|failure| failure.kind)).collect();
        let refused = Some(FailureKind::Refused);
        assert_eq!(kinds, [None, refused, refused, refused, None]);
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn duplicate_ids_are_described_once() {
        let requested: Vec<InstanceId> =
            ["i-00000000", "i-00000001", "banana", "i-00000000", "i-00000001", "banana"].map(InstanceId::from).to_vec();
        let message: Message = |unknown| {
            assert_eq!(unknown.len(), 1);
            format!("The instance ID '{}' does not exist", unknown[0])
        };
        let (results, calls) = run(&requested, "InvalidInstanceID.NotFound", message).await;
        assert_eq!(results[..3], results[3..]);
        check(&requested[..2], &results[..2]);
        assert_eq!(results[2], Lookup::Unknown(malformed(&requested[2])));
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn instances_of_other_batches_are_ignored() {
        let requested = ids(0..1001);
        let results = describe(&requested, |batch| async move {
            // The first instance, in every response but its own.
            let first = (batch.len() < 1000).then(|| "i-00000000".into());
            let others = batch.into_iter().skip(1).chain(first);
            Ok(others.map(|id: InstanceId| Instance::new(id, Ec2State::Running)).collect())
        });
        let results = results.await;
        assert_eq!((&results[0], &results[1000]), (&Lookup::Absent, &Lookup::Absent));
        assert!(results[1..1000].iter().all(|result| result.found().is_some()));
    }

    #[tokio::test]
    async fn batches_are_sent_concurrently() {
        let requested = ids(0..2000);
        let both = tokio::sync::Barrier::new(2);
        let results = describe(&requested, |batch| async {
            let batch = batch;
            both.wait().await;
            Ok(batch.iter().map(|id| Instance::new(id.as_str(), Ec2State::Running)).collect())
        });
        let results = tokio::time::timeout(std::time::Duration::from_secs(5), results).await;
        assert!(results.expect("both batches are in flight").iter().all(|result| result.found().is_some()));
    }

    #[tokio::test]
    async fn failed_call_affects_its_own_batch_only() {
        let requested = ids(0..2500);
        let first = Mutex::new(true);
        let results = describe(&requested, |batch| async {
            let batch = batch;
            if std::mem::take(&mut *first.lock()) {
                return Err(CallFailure::new(FailureKind::Throttled, "slower"));
            }
            Ok(batch.iter().map(|id| Instance::new(id.as_str(), Ec2State::Running)).collect())
        });
        let results = results.await;
        assert!(results[..1000].iter().all(|result| result.failure().is_some()));
        assert!(results[1000..].iter().all(|result| result.found().is_some()));
    }
}
