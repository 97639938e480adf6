//! Garbage collection: the case of ADR-014, and every rule that keeps a record.

use std::collections::HashMap;

use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::orphans::{Conclusion, OrphanReport, SubnetVisibility, candidates, evaluate};
use lcm_sdk::lifecycle::transition::{EdgeKind, Transition};
use lcm_sdk::lifecycle::{Event, PROTECT_TAG};
use lcm_sdk::{Ec2State, Instance, InstanceId, Lookup, Policy, Worker, WorkerStatus};

use crate::common::{LONG, SHORT, ago, now, policy, throttled, worker};

/// A region with its records, its scan, and the direct describes.
struct Fixture {
    workers: Vec<Worker>,
    scan: Scan,
    verified: HashMap<InstanceId, Lookup<Instance>>,
    subnet: SubnetVisibility,
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
        Self { workers, scan, verified, subnet: SubnetVisibility::NotVisible, policy: policy() }
    }

    fn set_describes(&mut self, response: &Lookup<Instance>) {
        for value in self.verified.values_mut() {
            value.clone_from(response);
        }
    }

    fn evaluate(&self) -> OrphanReport {
        evaluate(&self.scan, &self.workers, &self.verified, self.subnet, &self.policy, now())
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
fn empty_scan_freezes_the_region() {
    let mut fixture = Fixture::new(3, 0);
    assert_eq!(fixture.conclusions(), [Conclusion::Frozen; 3]);
    let report = fixture.evaluate();
    assert!(report.patches.is_empty());
    assert_eq!(report.events, [Event::OrphansFrozen { region: "us-east-1".into(), records: 3 }]);

    fixture.subnet = SubnetVisibility::Visible;
    assert_eq!(fixture.conclusions(), [Conclusion::Orphan; 3]);

    fixture.subnet = SubnetVisibility::NotVisible;
    fixture.verified.insert("i-0".into(), Lookup::Found(Instance::new("i-0", Ec2State::Terminated)));
    assert_eq!(fixture.conclusions(), [Conclusion::Orphan; 3]);

    // No record would have been marked, so no event is published.
    for number in 0..3 {
        let id = InstanceId::from(format!("i-{number}"));
        fixture.verified.insert(id.clone(), Lookup::Found(Instance::new(id, Ec2State::Running)));
    }
    assert_eq!(fixture.conclusions(), [Conclusion::Alive; 3]);
    assert!(fixture.evaluate().events.is_empty());

    // Fewer than three records do not freeze a region.
    assert_eq!(Fixture::new(2, 0).conclusions(), [Conclusion::Orphan; 2]);
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
