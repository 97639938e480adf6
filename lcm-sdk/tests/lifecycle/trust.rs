//! Absence needs proof of the place: the rules one by one, and every status that would follow an absence.

use std::time::Duration;

use lcm_sdk::lifecycle::ReasonCode;
use lcm_sdk::lifecycle::trust::{Caller, Doubt, LastFound, Place, SIGHTING_MAX_AGE, Sighting, prove_absence};
use lcm_sdk::{
    DesiredStatus, Ec2State, Instance, Lookup, Observation, Outcome, Policy, Query, Worker, WorkerStatus, decide,
    queries,
};

use crate::common::{DESIRED, ago, instance, now, policy, proved_place, throttled, worker};

const OURS: &str = "123456789012";
const OTHER: &str = "210987654321";

fn running() -> Worker {
    worker(WorkerStatus::Running, None)
}

fn noted(account: &str) -> Worker {
    let mut worker = running();
    worker.notes.ec2_account_id = Some(account.into());
    worker
}

fn called_by(account: &str) -> Place {
    Place::new(Caller::new(account).with_key_fingerprint(1))
}

fn not_proved(caller: &str) -> Result<(), Doubt> {
    Err(Doubt::NotProved { caller: Some(caller.into()) })
}

fn other_account() -> Result<(), Doubt> {
    Err(Doubt::OtherAccount { found_in: OURS.into(), caller: OTHER.into() })
}

#[test]
fn each_rule_alone_proves_an_absence() {
    let seen = |age: Duration, key: Option<u64>| {
        let mut place = called_by(OURS);
        let caller = Caller { key_fingerprint: key, ..place.caller.clone() };
        place.sighting = Some(Sighting { at: ago(age), caller });
        place
    };
    let beyond = SIGHTING_MAX_AGE + Duration::from_secs(1);
    let expected = Some(OURS);
    for (label, worker, place, expected, result) in [
        ("nothing is known", running(), called_by(OURS), None, not_proved(OURS)),
        ("a sighting", running(), seen(SIGHTING_MAX_AGE, Some(1)), None, Ok(())),
        ("an old sighting", running(), seen(beyond, Some(1)), None, not_proved(OURS)),
        ("a sighting with another key", running(), seen(Duration::ZERO, Some(2)), None, not_proved(OURS)),
        ("the expected account", running(), called_by(OURS), expected, Ok(())),
        ("not the expected account", running(), called_by(OTHER), expected, not_proved(OTHER)),
        ("the account of the last find", noted(OURS), called_by(OURS), None, Ok(())),
        ("our own subnet", running(), called_by(OURS).with_subnet_owner(OURS), None, Ok(())),
        ("a shared subnet", running(), called_by(OTHER).with_subnet_owner(OURS), None, not_proved(OTHER)),
    ] {
        assert_eq!(prove_absence(&worker, &place, expected, now()), result, "{label}");
    }
}

#[test]
fn other_account_outweighs_every_proof() {
    let every_proof = called_by(OTHER).with_subnet_owner(OTHER).with_sighting(now());
    assert_eq!(prove_absence(&noted(OURS), &every_proof, Some(OTHER), now()), other_account());
    assert_eq!(prove_absence(&running(), &every_proof, None, now()), Ok(()));
    let mut remembered = every_proof;
    remembered.last_found = Some(LastFound { region: "us-east-1".into(), account_id: Some(OURS.into()) });
    assert_eq!(prove_absence(&running(), &remembered, None, now()), other_account());
}

#[test]
fn callers_without_an_account_need_a_sighting() {
    let place = Place::new(Caller::default());
    let unknown = Err(Doubt::NotProved { caller: None });
    assert_eq!(prove_absence(&noted(OURS), &place, None, now()), unknown);
    let mut with_subnet = place.clone().with_subnet_owner(OURS);
    assert_eq!(prove_absence(&running(), &with_subnet, None, now()), unknown);
    with_subnet.subnet_owner = None;
    assert_eq!(prove_absence(&running(), &with_subnet.with_sighting(now()), None, now()), Ok(()));
}

#[test]
fn default_region_is_no_proof() {
    let mut worker = running();
    worker.aws_region = None;
    let mut place = called_by(OURS).with_subnet_owner(OURS);
    let prove = |worker: &Worker, place: &Place| prove_absence(worker, place, Some(OURS), now());
    assert_eq!(prove(&worker, &place), Err(Doubt::RegionUnknown));
    let observation =
        Observation { instance: Lookup::Absent, place: Lookup::Found(place.clone()), ..Observation::default() };
    let decision = decide(&worker, &observation, &policy(), now());
    assert_eq!((decision.outcome, decision.reason.code), (Outcome::Retry, ReasonCode::RegionUnknown));
    assert!(decision.does_nothing());

    place.last_found = Some(LastFound { region: "us-east-1".into(), account_id: None });
    assert_eq!(prove(&worker, &place), Ok(()));
    place.last_found = None;
    worker.notes.ec2_region = Some("eu-west-1".into());
    assert_eq!(prove(&worker, &place), Ok(()));
    assert_eq!(policy().regions.region_of(&worker), Some("eu-west-1"), "the noted region wins over the default");
}

#[test]
fn unproved_absence_changes_no_status() {
    let places = [Lookup::Found(called_by(OTHER)), Lookup::Absent, Lookup::Unknown(throttled())];
    let mut doubted = 0;
    for (&status, desired, place) in WorkerStatus::ALL
        .iter()
        .flat_map(|status| DESIRED.map(|desired| (status, desired)))
        .flat_map(|(status, desired)| places.clone().map(|place| (status, desired, place)))
    {
        let observed = |place| Observation { instance: Lookup::Absent, place, ..Observation::default() };
        let worker = worker(status, desired);
        let decision = decide(&worker, &observed(place), &policy(), now());
        let to = decision.transition.map(|transition| transition.to());
        assert!(
            !matches!(to, Some(WorkerStatus::Terminated | WorkerStatus::Stopped | WorkerStatus::Failed)),
            "{status} {desired:?}: {decision}"
        );
        if decision != decide(&worker, &observed(proved_place()), &policy(), now()) {
            assert_eq!((decision.outcome, decision.reason.code), (Outcome::Retry, ReasonCode::RegionNotTrusted));
            assert!(decision.does_nothing(), "{status} {desired:?}: {decision}");
            doubted += 1;
        }
    }
    assert!(doubted >= 60, "{doubted} absences were in doubt");
}

#[test]
fn unproved_search_by_tag_changes_no_status() {
    let observed = Observation {
        tagged: Lookup::Found(Vec::new()),
        place: Lookup::Found(called_by(OTHER)),
        ..Observation::default()
    };
    for status in [WorkerStatus::Provisioning, WorkerStatus::Stopping, WorkerStatus::Terminating, WorkerStatus::Failed]
    {
        let mut worker = worker(status, Some(DesiredStatus::Terminated));
        worker.ec2_instance_id = None;
        let decision = decide(&worker, &observed, &policy(), now());
        assert!(decision.does_nothing(), "{status}: {decision}");
        assert_eq!(decision.reason.code, ReasonCode::RegionNotTrusted, "{status}");
        // A dead instance with the worker's tag is shown by the right account.
        let dead = Observation { tagged: Lookup::Found(vec![instance(Ec2State::Terminated)]), ..observed.clone() };
        assert!(decide(&worker, &dead, &policy(), now()).transition.is_some(), "{status}");
    }
}

#[test]
fn terminated_instance_needs_no_proof() {
    let observed = Observation::with_instance_state("i-1", Ec2State::Terminated);
    assert!(!queries(&running(), &observed, &policy(), now()).contains(Query::Place));
    let decision = decide(&running(), &observed, &policy(), now());
    assert_eq!(decision.transition.map(|transition| transition.to()), Some(WorkerStatus::Terminated));
}

#[test]
fn proof_is_requested_after_an_old_absence_only() {
    let asks =
        |worker: &Worker, observed: &Observation| queries(worker, observed, &policy(), now()).contains(Query::Place);
    let absent = Observation { instance: Lookup::Absent, tagged: Lookup::Absent, ..Observation::default() };
    assert!(asks(&running(), &absent));
    assert!(!asks(&running(), &Observation::with_instance_state("i-1", Ec2State::Running)));
    assert!(!asks(&running(), &Observation { place: proved_place(), ..absent.clone() }));
    let mut young = running();
    young.notes.launched_at = Some(ago(Duration::from_secs(60)));
    assert!(!asks(&young, &absent));
    let mut first = worker(WorkerStatus::Pending, None);
    first.ec2_instance_id = None;
    assert!(!asks(&first, &absent), "the search before a first launch needs no proof");
}

#[test]
fn place_is_noted_with_a_write_that_is_made_anyway() {
    let found = |state| Instance { account_id: Some(OURS.into()), ..instance(state) };
    let observe = |state| Observation { instance: Lookup::Found(found(state)), ..Observation::default() };
    let mut starting = worker(WorkerStatus::Starting, None);
    starting.aws_region = None;
    let decision = decide(&starting, &observe(Ec2State::Running), &policy(), now());
    let changes = decision.changes.expect("the worker is up");
    assert_eq!((changes.ec2_account_id.as_deref(), changes.ec2_region.as_deref()), (Some(OURS), Some("us-east-1")));

    let at_rest = worker(WorkerStatus::Stopped, None);
    let quiet = |worker: &Worker| decide(worker, &observe(Ec2State::Stopped), &Policy::default(), now());
    assert!(quiet(&at_rest).does_nothing(), "nothing is written for a note alone");
    let moved = Worker { notes: noted(OTHER).notes, ..at_rest };
    let changes = quiet(&moved).changes.expect("the account changed");
    assert_eq!(changes.ec2_account_id.as_deref(), Some(OURS));
}

#[test]
fn doubts_name_the_accounts() {
    for (doubt, expected) in [
        (Doubt::RegionUnknown, "the worker's region is not known"),
        (
            Doubt::OtherAccount { found_in: OURS.into(), caller: OTHER.into() },
            "last found in account 123456789012, the credentials belong to 210987654321",
        ),
        (
            Doubt::UnexpectedAccount { expected: OURS.into(), caller: Some(OTHER.into()) },
            "account 123456789012 is configured, the credentials belong to 210987654321",
        ),
        (
            Doubt::UnexpectedAccount { expected: OURS.into(), caller: None },
            "account 123456789012 is configured, the account of the credentials is not known",
        ),
        (Doubt::NotProved { caller: Some(OTHER.into()) }, "the credentials belong to account 210987654321"),
        (Doubt::NotProved { caller: None }, "the account of the credentials is not known"),
    ] {
        assert_eq!(doubt.to_string(), expected);
        let reason = doubt.reason();
        let is_named = reason.to_string().contains(expected);
        assert_eq!(is_named, reason.code == ReasonCode::RegionNotTrusted, "{reason}");
    }
}
