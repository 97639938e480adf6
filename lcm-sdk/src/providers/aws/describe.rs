//! Describing many instances of which some do not exist: one bad id never spoils the answers about the others.

use std::collections::{HashMap, HashSet, VecDeque};

use super::codes::{INSTANCE_MALFORMED, INSTANCE_NOT_FOUND};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::observation::Lookup;

/// EC2 takes so many ids in one call.
pub(super) const MOST_IDS: usize = 1000;
/// So many calls for each full batch, then the rest must wait for the next time. EC2 names all ids that it does not
/// know, so two calls do; the others are for an EC2 that names one at a time, or none.
const MOST_CALLS: usize = 64;

/// Describes instances: one answer for each id, in their order.
///
/// # Flow
/// Ids are asked for once each, in batches. If EC2 refuses a batch because of some ids, they get their answer and the
/// rest is asked for again; if it does not say which, the batch is halved.
///
/// # Guarantees
/// `Absent` only for an id that EC2 named as unknown, that it refused alone as unknown, or that is missing from an
/// answer to which it belongs.
pub(super) async fn describe<F>(ids: &[InstanceId], ask: impl Fn(Vec<InstanceId>) -> F) -> Vec<Lookup<Instance>>
where
    F: Future<Output = Result<Vec<Instance>, CallFailure>>,
{
    let mut answers: Vec<Lookup<Instance>> = Vec::with_capacity(ids.len());
    // Where each id stands first. There it is answered, and once.
    let mut places: HashMap<&InstanceId, usize> = HashMap::with_capacity(ids.len());
    let mut plausible: Vec<usize> = Vec::with_capacity(ids.len());
    for (place, id) in ids.iter().enumerate() {
        let is_new = *places.entry(id).or_insert(place) == place;
        answers.push(match is_plausible(id) {
            true => Lookup::NotRequested,
            false => Lookup::Unknown(malformed(id)),
        });
        if is_new && answers[place] == Lookup::NotRequested {
            plausible.push(place);
        }
    }
    let mut batches: VecDeque<Vec<usize>> = plausible.chunks(MOST_IDS).map(<[_]>::to_vec).collect();
    let mut calls_left = batches.len() * MOST_CALLS;
    while let Some(batch) = batches.pop_front() {
        if calls_left == 0 {
            let message = format!("too many ids that EC2 does not know; {} were not asked for", batch.len());
            unknown(&batch, &CallFailure::new(FailureKind::Unclear, message), &mut answers);
            continue;
        }
        calls_left -= 1;
        match ask(batch.iter().map(|place| ids[*place].clone()).collect()).await {
            Ok(found) => {
                batch.iter().for_each(|place| answers[*place] = Lookup::Absent);
                for instance in found {
                    // Only what was asked can be answered: in a batch the places are in order.
                    let place = places.get(&instance.id).filter(|place| batch.binary_search(place).is_ok());
                    if let Some(place) = place {
                        answers[*place] = Lookup::Found(instance);
                    }
                }
            }
            Err(failure) => match failure.code.as_deref().and_then(verdict) {
                Some(verdict) => {
                    let Split { bad, again } = split(batch, ids, &failure);
                    bad.into_iter().for_each(|place| answers[place] = verdict.answer(&ids[place]));
                    again.into_iter().rev().for_each(|batch| batches.push_front(batch));
                }
                None => unknown(&batch, &failure, &mut answers),
            },
        }
    }
    for (place, id) in ids.iter().enumerate() {
        match places.get(id) {
            Some(first) if *first != place => answers[place] = answers[*first].clone(),
            Some(_) | None => {}
        }
    }
    answers
}

fn unknown(batch: &[usize], failure: &CallFailure, answers: &mut [Lookup<Instance>]) {
    batch.iter().for_each(|place| answers[*place] = Lookup::Unknown(failure.clone()));
}

/// What a refusal says about the ids that caused it.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Unknown,
    Malformed,
}

impl Verdict {
    fn answer(self, id: &InstanceId) -> Lookup<Instance> {
        match self {
            Self::Unknown => Lookup::Absent,
            Self::Malformed => Lookup::Unknown(malformed(id)),
        }
    }
}

/// Whether a refusal with this code names the instances that caused it.
pub(super) fn names_instances(code: &str) -> bool {
    verdict(code).is_some()
}

fn verdict(code: &str) -> Option<Verdict> {
    if INSTANCE_NOT_FOUND.contains(&code) {
        Some(Verdict::Unknown)
    } else if INSTANCE_MALFORMED.contains(&code) {
        Some(Verdict::Malformed)
    } else {
        None
    }
}

/// A batch that EC2 refused because of some ids.
struct Split {
    /// Those it was refused for.
    bad: Vec<usize>,
    /// What is asked for again, in this order.
    again: Vec<Vec<usize>>,
}

fn split(batch: Vec<usize>, ids: &[InstanceId], failure: &CallFailure) -> Split {
    let words: HashSet<&str> =
        failure.message.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').collect();
    // Only what was asked can be answered: a message may name anything.
    let (named, mut rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|place| words.contains(ids[*place].as_str()));
    match (named.is_empty(), rest.len()) {
        (true, 0..=1) => Split { bad: rest, again: Vec::new() },
        (true, length) => {
            let second = rest.split_off(length / 2);
            Split { bad: Vec::new(), again: vec![rest, second] }
        }
        (false, 0) => Split { bad: named, again: Vec::new() },
        (false, _) => Split { bad: named, again: vec![rest] },
    }
}

/// Whether it has the form of an id. What has not would be refused one by one, at the cost of a call each.
pub(super) fn is_plausible(id: &InstanceId) -> bool {
    let rest = id.as_str().strip_prefix("i-").unwrap_or_default();
    (1..=64).contains(&rest.len()) && rest.bytes().all(|letter| letter.is_ascii_alphanumeric())
}

pub(super) fn malformed(id: &InstanceId) -> CallFailure {
    let message = format!("Invalid id: {:?} (expecting \"i-...\")", id.as_str());
    CallFailure::coded(FailureKind::Refused, "InvalidInstanceID.Malformed", message)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::lifecycle::status::Ec2State;

    fn ids(range: std::ops::Range<usize>) -> Vec<InstanceId> {
        range.map(|number| format!("i-{number:08x}").into()).collect()
    }

    /// What EC2 says when it does not know some ids.
    type Say = fn(&[&InstanceId]) -> String;

    /// Asks an EC2 that knows no odd number; says what it answered and with how many calls.
    async fn ask(asked: &[InstanceId], code: &str, say: Say) -> (Vec<Lookup<Instance>>, usize) {
        let calls = Mutex::new(0);
        let ec2 = |batch: Vec<InstanceId>| async {
            let batch = batch;
            *calls.lock() += 1;
            assert!(batch.len() <= MOST_IDS, "{} ids in one call", batch.len());
            let unknown: Vec<&InstanceId> = batch.iter().filter(|id| is_odd(id)).collect();
            if unknown.is_empty() {
                return Ok(batch.iter().map(|id| Instance::new(id.as_str(), Ec2State::Running)).collect());
            }
            Err(CallFailure::coded(FailureKind::Refused, code, say(&unknown)))
        };
        let answers = describe(asked, ec2).await;
        (answers, calls.into_inner())
    }

    fn is_odd(id: &InstanceId) -> bool {
        id.as_str().ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f'])
    }

    fn check(asked: &[InstanceId], answers: &[Lookup<Instance>]) {
        assert_eq!(asked.len(), answers.len());
        for (id, answer) in asked.iter().zip(answers) {
            match answer {
                Lookup::Found(instance) => assert!(!is_odd(id) && instance.id == *id),
                Lookup::Absent => assert!(is_odd(id)),
                Lookup::NotRequested | Lookup::Unknown(_) => panic!("{id}: {answer:?}"),
            }
        }
    }

    #[tokio::test]
    async fn ids_that_ec2_names_cost_one_more_call_however_many() {
        let asked = ids(0..1000);
        let say: Say = |unknown| {
            let names: Vec<&str> = unknown.iter().map(|id| id.as_str()).collect();
            format!("The instance IDs '{}' do not exist", names.join(", "))
        };
        let (answers, calls) = ask(&asked, "InvalidInstanceID.NotFound", say).await;
        check(&asked, &answers);
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn an_id_that_ec2_does_not_name_is_found_by_halving() {
        let mut asked: Vec<_> = ids(0..1000).into_iter().filter(|id| !is_odd(id)).collect();
        asked.insert(123, "i-00000001".into());
        let (answers, calls) = ask(&asked, "InvalidInstanceID.NotFound", |_| "Some are unknown".to_owned()).await;
        check(&asked, &answers);
        assert!(calls <= 2 * 10 + 1, "{calls}");
    }

    #[tokio::test]
    async fn a_name_that_was_not_asked_for_is_not_answered() {
        let say: Say = |_| "The instance ID 'i-0000' does not exist".to_owned();
        let asked: Vec<InstanceId> = vec!["i-00000000".into(), "i-00000001".into()];
        let (answers, _) = ask(&asked, "InvalidInstanceID.NotFound", say).await;
        check(&asked, &answers);
    }

    #[tokio::test]
    async fn the_number_of_calls_is_bounded_and_who_was_not_asked_for_is_unknown() {
        let asked: Vec<_> = ids(0..1000).into_iter().filter(is_odd).collect();
        let one_at_a_time: Say = |unknown| format!("The instance ID '{}' does not exist", unknown[0]);
        let (answers, calls) = ask(&asked, "InvalidInstanceID.NotFound", one_at_a_time).await;
        assert_eq!(calls, MOST_CALLS);
        assert_eq!(answers.iter().filter(|answer| **answer == Lookup::Absent).count(), MOST_CALLS);
        assert!(answers.iter().all(|answer| *answer == Lookup::Absent || answer.failure().is_some()));
    }

    #[tokio::test]
    async fn malformed_ids_are_refused_alone() {
        let asked: Vec<InstanceId> =
            vec!["i-00000000".into(), "banana".into(), "i-00000001".into(), "i-0, i-2".into(), "i-00000002".into()];
        let say: Say = |unknown| format!("Invalid id: \"{}\"", unknown[0]);
        let (answers, calls) = ask(&asked, "InvalidInstanceID.Malformed", say).await;
        let kinds: Vec<_> = answers.iter().map(|answer| answer.failure().map(|failure| failure.kind)).collect();
        let refused = Some(FailureKind::Refused);
        assert_eq!(kinds, [None, refused, refused, refused, None]);
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn who_is_named_twice_is_asked_for_once_and_answered_twice() {
        let asked: Vec<InstanceId> =
            ["i-00000000", "i-00000001", "banana", "i-00000000", "i-00000001", "banana"].map(InstanceId::from).to_vec();
        let say: Say = |unknown| {
            assert_eq!(unknown.len(), 1);
            format!("The instance ID '{}' does not exist", unknown[0])
        };
        let (answers, calls) = ask(&asked, "InvalidInstanceID.NotFound", say).await;
        assert_eq!(answers[..3], answers[3..]);
        check(&asked[..2], &answers[..2]);
        assert_eq!(answers[2], Lookup::Unknown(malformed(&asked[2])));
        assert_eq!(calls, 2);
    }

    #[tokio::test]
    async fn an_instance_in_an_answer_to_another_question_is_no_answer() {
        let asked = ids(0..1001);
        let answers = describe(&asked, |batch| async move {
            // The first of all, in every answer but that to which it belongs.
            let first = (batch.len() < 1000).then(|| "i-00000000".into());
            let others = batch.into_iter().skip(1).chain(first);
            Ok(others.map(|id: InstanceId| Instance::new(id, Ec2State::Running)).collect())
        });
        let answers = answers.await;
        assert_eq!((&answers[0], &answers[1000]), (&Lookup::Absent, &Lookup::Absent));
        assert!(answers[1..1000].iter().all(|answer| answer.found().is_some()));
    }

    #[tokio::test]
    async fn a_call_that_fails_makes_only_its_own_ids_unknown() {
        let asked = ids(0..2500);
        let first = Mutex::new(true);
        let answers = describe(&asked, |batch| async {
            let batch = batch;
            if std::mem::take(&mut *first.lock()) {
                return Err(CallFailure::new(FailureKind::Throttled, "slower"));
            }
            Ok(batch.iter().map(|id| Instance::new(id.as_str(), Ec2State::Running)).collect())
        });
        let answers = answers.await;
        assert!(answers[..1000].iter().all(|answer| answer.failure().is_some()));
        assert!(answers[1000..].iter().all(|answer| answer.found().is_some()));
    }
}
