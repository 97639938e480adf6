//! Garbage collection: the case of ADR-014, and every rule that keeps a record.

use std::collections::{HashMap, HashSet};

use lcm_sdk::lifecycle::PROTECT_TAG;
use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::orphans::{Conclusion, OrphanReport, candidates, considers_records, evaluate, shows_a_record};
use lcm_sdk::lifecycle::transition::{EdgeKind, Transition};
use lcm_sdk::lifecycle::trust::{Caller, Place};
use lcm_sdk::{Ec2State, Instance, InstanceId, Lookup, Policy, Worker, WorkerStatus};

use crate::common::{LONG, SHORT, ago, now, policy, throttled, worker};

/// A region with its records, its scan, and the direct describes.
struct Fixture {
    workers: Vec<Worker>,
    scan: Scan,
    verified: HashMap<InstanceId, Lookup<Instance>>,
    place: Place,
    policy: Policy,
}

impl Fixture {
    /// `records` workers, of which the first `alive` have an instance that the scan shows.
    fn new(records: usize, alive: usize) -> Self {
        let id = |number: usize| InstanceId::from(format!("i-{number}"));
        let workers: Vec<_> = (0..records)
            .map(|number| {
                let mut worker = worker(WorkerStatus::Running, None);
                worker.id = format!("w-{number}").into();
                worker.ec2_instance_id = Some(id(number));
                worker
            })
            .collect();
        let instances = (0..alive).map(|number| Instance::new(id(number), Ec2State::Running)).collect();
        let scan = Scan { region: "us-east-1".into(), instances, completeness: Completeness::Complete };
        let verified = (alive..records).map(|number| (id(number), Lookup::Absent)).collect();
        Self { workers, scan, verified, place: Place::new(Caller::new("123456789012")), policy: policy() }
    }

    fn set_describes(&mut self, response: &Lookup<Instance>) {
        for value in self.verified.values_mut() {
            value.clone_from(response);
        }
    }

    fn evaluate(&self) -> OrphanReport {
        evaluate(&self.scan, &self.workers, &self.verified, &self.place, &self.policy, now())
    }

    fn conclusions(&self) -> Vec<Conclusion> {
        self.evaluate().verdicts.into_iter().map(|verdict| verdict.conclusion).collect()
    }
}

#[test]
fn records_without_instances_are_orphans() {
    let fixture = Fixture::new(13, 3);
    assert_eq!(candidates(&fixture.scan, &fixture.workers, &fixture.policy).len(), 10);
    let report = fixture.evaluate();
    assert_eq!(report.patches.len(), 10);
    for (patch, worker) in report.patches.iter().zip(&fixture.workers[3..]) {
        assert_eq!(patch.worker_id, worker.id);
        assert_eq!(patch.status, Some(WorkerStatus::Terminated));
        let termination = patch.termination.as_ref().expect("a termination");
        assert_eq!(termination.terminated_by, "discovery-gc");
        assert_eq!(termination.reason, "EC2 instance not found during discovery");
        assert_eq!(patch.apply_to(worker).status, WorkerStatus::Terminated);
    }
    assert!(report.events.iter().all(|event| event.event_type() == "cml_worker.orphan.terminated.v1"));
}

#[test]
fn failed_describes_terminate_no_record() {
    let mut fixture = Fixture::new(13, 3);
    fixture.set_describes(&Lookup::Unknown(throttled()));
    assert_eq!(fixture.conclusions(), [Conclusion::Unknown; 10]);
    fixture.verified.clear();
    assert_eq!(fixture.conclusions(), [Conclusion::Unknown; 10]);
    assert!(fixture.evaluate().patches.is_empty());
}

#[test]
fn partial_scan_proves_nothing() {
    let mut fixture = Fixture::new(13, 3);
    fixture.scan.completeness = Completeness::Partial(throttled());
    assert_eq!(fixture.evaluate(), OrphanReport::default());
    assert!(candidates(&fixture.scan, &fixture.workers, &fixture.policy).is_empty());
}

#[test]
fn instance_missed_by_the_scan_is_alive() {
    let mut fixture = Fixture::new(4, 3);
    fixture.set_describes(&Lookup::Found(Instance::new("i-3", Ec2State::Stopped)));
    assert_eq!(fixture.conclusions(), [Conclusion::Alive]);
}

#[test]
fn terminated_instance_is_gone_at_any_age() {
    let mut fixture = Fixture::new(2, 2);
    fixture.scan.instances[1].state = Ec2State::Terminated;
    fixture.workers[1].notes.launched_at = Some(ago(SHORT));
    assert_eq!(fixture.conclusions(), [Conclusion::Orphan]);
}

#[test]
fn young_launch_is_spared() {
    let mut fixture = Fixture::new(2, 1);
    fixture.workers[1].notes.launched_at = Some(ago(SHORT));
    assert_eq!(fixture.conclusions(), [Conclusion::Young]);
    fixture.workers[1].notes.launched_at = None;
    fixture.workers[1].created_at = None;
    assert_eq!(fixture.conclusions(), [Conclusion::Young]);
    fixture.workers[1].created_at = Some(ago(LONG));
    assert_eq!(fixture.conclusions(), [Conclusion::Orphan]);
}

#[test]
fn protected_instance_keeps_its_record() {
    let mut fixture = Fixture::new(2, 2);
    fixture.scan.instances[1].state = Ec2State::Terminated;
    fixture.scan.instances[1].tags.insert(PROTECT_TAG.into(), String::new());
    assert_eq!(fixture.conclusions(), [Conclusion::Protected]);
}

#[test]
fn zero_overlap_freezes_the_region() {
    // Another account has an instance that the filter matches; none of ours is shown.
    for foreign in [vec![], vec![Instance::new("i-foreign", Ec2State::Running)]] {
        for records in [1, 10] {
            let mut fixture = Fixture::new(records, 0);
            fixture.scan.instances.clone_from(&foreign);
            assert_eq!(fixture.conclusions(), vec![Conclusion::Frozen; records]);
            assert_eq!(fixture.evaluate().patches, []);
            fixture.place = fixture.place.clone().with_subnet_owner("210987654321");
            assert_eq!(fixture.conclusions(), vec![Conclusion::Frozen; records], "a shared subnet is no proof");
            fixture.place = fixture.place.clone().with_subnet_owner("123456789012");
            assert_eq!(fixture.conclusions(), vec![Conclusion::Orphan; records]);
        }
    }
}

#[test]
fn one_recorded_instance_in_any_state_lifts_the_freeze() {
    for state in [Ec2State::Running, Ec2State::Stopped, Ec2State::Terminated] {
        let mut fixture = Fixture::new(3, 0);
        fixture.verified.insert("i-0".into(), Lookup::Found(Instance::new("i-0", state)));
        assert_eq!(fixture.conclusions()[1..], [Conclusion::Orphan; 2]);
    }
}

#[test]
fn record_of_another_account_stays_frozen() {
    let mut fixture = Fixture::new(4, 2);
    fixture.workers[3].notes.ec2_account_id = Some("210987654321".into());
    assert_eq!(fixture.conclusions(), [Conclusion::Orphan, Conclusion::Frozen]);
}

#[test]
fn record_without_a_region_is_kept() {
    let mut fixture = Fixture::new(3, 2);
    fixture.workers[2].aws_region = None;
    assert_eq!(fixture.conclusions(), [Conclusion::Unknown]);
}

#[test]
fn cap_defers_the_rest_to_the_next_run() {
    let mut fixture = Fixture::new(13, 3);
    fixture.policy.orphans.max_terminations_per_pass = Some(4);
    let conclusions = fixture.conclusions();
    assert_eq!(conclusions[..4], [Conclusion::Orphan; 4]);
    assert_eq!(conclusions[4..], [Conclusion::Deferred; 6]);
    assert_eq!(fixture.evaluate().patches.len(), 4);
}

#[test]
fn only_records_with_instances_are_considered() {
    let mut fixture = Fixture::new(5, 1);
    fixture.workers[1].aws_region = Some("eu-west-1".into());
    fixture.workers[2].status = WorkerStatus::Pending;
    fixture.workers[3].status = WorkerStatus::Terminated;
    fixture.workers[4].ec2_instance_id = None;
    assert!(fixture.conclusions().is_empty());
}

#[test]
fn considered_statuses_have_an_edge_to_terminated() {
    for &status in WorkerStatus::ALL {
        let mut fixture = Fixture::new(2, 1);
        fixture.workers[1].status = status;
        let marked = fixture.evaluate().patches.len();
        let edges = [EdgeKind::Observed, EdgeKind::Commanded]
            .map(|kind| Transition::new(status, WorkerStatus::Terminated, kind).is_ok());
        let considered = !matches!(status, WorkerStatus::Pending | WorkerStatus::Terminated);
        assert_eq!(marked, usize::from(considered), "{status}");
        assert!(!considered || edges.contains(&true), "{status}");
    }
}

#[test]
fn region_without_considered_records_needs_no_proof() {
    let mut fixture = Fixture::new(1, 0);
    let considers = |fixture: &Fixture| considers_records(&fixture.scan, &fixture.workers, &fixture.policy);
    assert!(considers(&fixture));
    fixture.workers[0].status = WorkerStatus::Pending;
    assert!(!considers(&fixture));
    fixture.workers[0].status = WorkerStatus::Running;
    fixture.workers[0].aws_region = Some("eu-west-1".into());
    assert!(!considers(&fixture));
    assert!(!shows_a_record(&fixture.scan, &fixture.workers, &fixture.verified, &fixture.policy));
}

#[test]
fn records_of_other_regions_prove_nothing() {
    let mut fixture = Fixture::new(2, 1);
    let shows = |fixture: &Fixture| shows_a_record(&fixture.scan, &fixture.workers, &fixture.verified, &fixture.policy);
    assert!(shows(&fixture));
    fixture.workers[0].aws_region = Some("eu-west-1".into());
    assert!(!shows(&fixture));
}

#[test]
fn every_conclusion_has_a_sentence_of_its_own() {
    let sentences: HashSet<_> = Conclusion::ALL.iter().map(|conclusion| conclusion.sentence()).collect();
    assert_eq!(sentences.len(), Conclusion::ALL.len());
    for (conclusion, part) in [(Conclusion::Orphan, "does not exist"), (Conclusion::Frozen, "frozen")] {
        assert!(conclusion.sentence().contains(part), "{conclusion}");
    }
}
