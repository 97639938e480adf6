//! Describing many instances of which some do not exist: one bad id never spoils the answers about the others.

use std::collections::{HashMap, HashSet, VecDeque};

use super::codes::{INSTANCE_MALFORMED, INSTANCE_NOT_FOUND};
use crate::core::failure::{CallFailure, FailureKind};
use crate::core::ids::InstanceId;
use crate::core::instance::Instance;
use crate::core::observation::Answer;

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
pub(super) async fn describe<F>(ids: &[InstanceId], ask: impl Fn(Vec<InstanceId>) -> F) -> Vec<Answer<Instance>>
where
    F: Future<Output = Result<Vec<Instance>, CallFailure>>,
{
    let mut answers: HashMap<&InstanceId, Answer<Instance>> = HashMap::with_capacity(ids.len());
    let mut plausible: Vec<InstanceId> = Vec::with_capacity(ids.len());
    for id in ids {
        if answers.contains_key(id) {
            continue;
        }
        if is_plausible(id) {
            answers.insert(id, Answer::NotAsked);
            plausible.push(id.clone());
        } else {
            answers.insert(id, Answer::Unknown(malformed(id)));
        }
    }
    let mut batches: VecDeque<Vec<InstanceId>> = plausible.chunks(MOST_IDS).map(<[_]>::to_vec).collect();
    let mut calls_left = batches.len() * MOST_CALLS;
    let mut told: Vec<(InstanceId, Answer<Instance>)> = Vec::with_capacity(plausible.len());
    while let Some(batch) = batches.pop_front() {
        if calls_left == 0 {
            let message = format!("too many ids that EC2 does not know; {} were not asked for", batch.len());
            let failure = CallFailure::new(FailureKind::Unclear, message);
            told.extend(batch.into_iter().map(|id| (id, Answer::Unknown(failure.clone()))));
            continue;
        }
        calls_left -= 1;
        match ask(batch.clone()).await {
            Ok(found) => {
                let mut found: HashMap<InstanceId, Instance> =
                    found.into_iter().map(|instance| (instance.id.clone(), instance)).collect();
                told.extend(batch.into_iter().map(|id| {
                    let answer = found.remove(&id).map_or(Answer::Absent, Answer::Found);
                    (id, answer)
                }));
            }
            Err(failure) => match failure.code.as_deref().and_then(verdict) {
                Some(verdict) => split(batch, &failure, verdict, &mut batches, &mut told),
                None => told.extend(batch.into_iter().map(|id| (id, Answer::Unknown(failure.clone())))),
            },
        }
    }
    for (id, answer) in told {
        if let Some(place) = answers.get_mut(&id) {
            *place = answer;
        }
    }
    ids.iter().map(|id| answers.get(id).cloned().unwrap_or_default()).collect()
}

/// What a refusal says about the ids that caused it.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Unknown,
    Malformed,
}

impl Verdict {
    fn answer(self, id: &InstanceId) -> Answer<Instance> {
        match self {
            Self::Unknown => Answer::Absent,
            Self::Malformed => Answer::Unknown(malformed(id)),
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

fn split(
    batch: Vec<InstanceId>,
    failure: &CallFailure,
    verdict: Verdict,
    batches: &mut VecDeque<Vec<InstanceId>>,
    told: &mut Vec<(InstanceId, Answer<Instance>)>,
) {
    let words: HashSet<&str> =
        failure.message.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').collect();
    // Only what was asked can be answered: a message may name anything.
    let (named, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|id| words.contains(id.as_str()));
    let (bad, again) = match (named.is_empty(), rest.len()) {
        (true, 0..=1) => (rest, Vec::new()),
        (true, _) => {
            let mut first = rest;
            let second = first.split_off(first.len() / 2);
            batches.push_front(second);
            (Vec::new(), first)
        }
        (false, _) => (named, rest),
    };
    told.extend(bad.into_iter().map(|id| {
        let answer = verdict.answer(&id);
        (id, answer)
    }));
    if !again.is_empty() {
        batches.push_front(again);
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
    use crate::core::status::Ec2State;

    fn ids(range: std::ops::Range<usize>) -> Vec<InstanceId> {
        range.map(|number| format!("i-{number:08x}").into()).collect()
    }

    /// What EC2 says when it does not know some ids.
    type Say = fn(&[&InstanceId]) -> String;

    /// Asks an EC2 that knows no odd number; says what it answered and with how many calls.
    async fn ask(asked: &[InstanceId], code: &str, say: Say) -> (Vec<Answer<Instance>>, usize) {
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

    fn check(asked: &[InstanceId], answers: &[Answer<Instance>]) {
        assert_eq!(asked.len(), answers.len());
        for (id, answer) in asked.iter().zip(answers) {
            match answer {
                Answer::Found(instance) => assert!(!is_odd(id) && instance.id == *id),
                Answer::Absent => assert!(is_odd(id)),
                Answer::NotAsked | Answer::Unknown(_) => panic!("{id}: {answer:?}"),
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
        assert_eq!(answers.iter().filter(|answer| **answer == Answer::Absent).count(), MOST_CALLS);
        assert!(answers.iter().all(|answer| *answer == Answer::Absent || answer.failure().is_some()));
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
