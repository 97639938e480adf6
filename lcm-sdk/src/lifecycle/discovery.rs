//! Sorts the instances that a scan of a region found. The status of a known worker is the reconciler's concern.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::failure::CallFailure;
use super::ids::{InstanceId, WorkerId};
use super::instance::Instance;
use super::status::{Ec2State, WorkerStatus};
use super::worker::Worker;
use super::worker_json::UnreadableWorker;

/// Result of scanning one region.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Name of the region.
    pub region: String,
    /// Every instance that matched.
    pub instances: Vec<Instance>,
    /// Whether every page was read. An incomplete scan proves nothing about missing instances.
    pub completeness: Completeness,
}

/// Whether a scan read every page.
#[derive(Debug, Clone, PartialEq)]
pub enum Completeness {
    /// Every page was read.
    Complete,
    /// A page could not be read.
    Partial(CallFailure),
}

/// Treatment of instances whose tags name an owner that this control plane does not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignInstances {
    /// Report them. Another control plane in the same account manages them.
    #[default]
    Report,
    /// Import them like instances without an owner.
    Import,
}

/// The action for one scanned instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// It belongs to no record: import it.
    Import {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Its tags name an owner that this control plane does not know: report it.
    Foreign {
        /// Id of the instance.
        instance: InstanceId,
    },
    /// Its tags name a record that does not name it: the reconciler adopts it.
    HandOver {
        /// Id of the instance.
        instance: InstanceId,
        /// The worker its tags name.
        worker: WorkerId,
    },
    /// Its record is stopped and not polled, but the instance is not stopped: reconcile it.
    Drifted {
        /// Id of the instance.
        instance: InstanceId,
        /// Id of its worker.
        worker: WorkerId,
    },
    /// Its record is terminated, but it is alive: report it and reconcile the record.
    Resurrect {
        /// Id of the instance.
        instance: InstanceId,
        /// Id of its worker.
        worker: WorkerId,
    },
}

impl Finding {
    /// Whether no record names the instance. If only living records were compared, a terminated one may name it.
    pub const fn is_unknown(&self) -> bool {
        match self {
            Self::Import { .. } | Self::Foreign { .. } => true,
            Self::HandOver { .. } | Self::Drifted { .. } | Self::Resurrect { .. } => false,
        }
    }
}

/// Returns the action for each scanned instance. Known and dead instances give none, except that a stopped worker whose
/// instance is not stopped is reconciled. An instance named by an unreadable record gives none either: it has an owner.
///
/// A living record owns an instance before a terminated one. Terminated records are needed only if a finding
/// [is unknown](Finding::is_unknown) without them.
///
/// ```
/// use lcm_sdk::lifecycle::discovery::{explore, Completeness, Finding, ForeignInstances, Scan};
/// use lcm_sdk::{Ec2State, Instance};
///
/// let mut foreign = Instance::new("i-2", Ec2State::Running);
/// foreign.tags.insert("lcm:worker_id".into(), "w-of-staging".into());
/// let scan = Scan {
///     region: "us-east-1".into(),
///     instances: vec![Instance::new("i-1", Ec2State::Running), foreign],
///     completeness: Completeness::Complete,
/// };
/// assert_eq!(
///     explore(&scan, &[], &[], ForeignInstances::Report),
///     [Finding::Import { instance: "i-1".into() }, Finding::Foreign { instance: "i-2".into() }]
/// );
/// ```
pub fn explore(
    scan: &Scan,
    workers: &[Worker],
    unreadable: &[UnreadableWorker],
    foreign: ForeignInstances,
) -> Vec<Finding> {
    let (terminated, living): (Vec<_>, Vec<_>) =
        workers.iter().partition(|worker| worker.status == WorkerStatus::Terminated);
    let (terminated, living) = (Index::new(&terminated), Index::new(&living));
    let unreadable_ids: HashSet<&str> =
        unreadable.iter().filter_map(|record| Some(record.id.as_ref()?.as_str())).collect();
    let of_unreadable: HashSet<&InstanceId> =
        unreadable.iter().filter_map(|record| record.ec2_instance_id.as_ref()).collect();
    let belongs_to_unreadable = |instance: &Instance| {
        let is_tagged = instance.owner().is_some_and(|owner| unreadable_ids.contains(owner));
        is_tagged || of_unreadable.contains(&instance.id)
    };
    let live = scan.instances.iter().filter(|instance| instance.state.is_live());
    live.filter(|instance| !belongs_to_unreadable(instance))
        .filter_map(|instance| {
            let id = instance.id.clone();
            if let Some(worker) = living.recording(instance) {
                return has_drifted(worker, instance)
                    .then(|| Finding::Drifted { instance: id, worker: worker.id.clone() });
            }
            if let Some(worker) = living.tagged(instance) {
                return Some(Finding::HandOver { instance: id, worker: worker.id.clone() });
            }
            if let Some(worker) = terminated.recording(instance).or_else(|| terminated.tagged(instance)) {
                return Some(Finding::Resurrect { instance: id, worker: worker.id.clone() });
            }
            Some(match foreign {
                ForeignInstances::Report if instance.is_managed() => Finding::Foreign { instance: id },
                ForeignInstances::Report | ForeignInstances::Import => Finding::Import { instance: id },
            })
        })
        .collect()
}

/// Whether a worker that is not polled has an instance in another state.
fn has_drifted(worker: &Worker, instance: &Instance) -> bool {
    worker.status == WorkerStatus::Stopped && worker.is_at_rest() && instance.state != Ec2State::Stopped
}

/// Records by their id and by the instance they name.
struct Index<'a> {
    by_id: HashMap<&'a str, &'a Worker>,
    by_instance: HashMap<&'a InstanceId, &'a Worker>,
}

impl<'a> Index<'a> {
    fn new(workers: &[&'a Worker]) -> Self {
        let named = workers.iter().filter_map(|worker| Some((worker.ec2_instance_id.as_ref()?, *worker)));
        Self {
            by_id: workers.iter().map(|worker| (worker.id.as_str(), *worker)).collect(),
            by_instance: named.collect(),
        }
    }

    /// The record that names the instance.
    fn recording(&self, instance: &Instance) -> Option<&'a Worker> {
        self.by_instance.get(&instance.id).copied()
    }

    /// The record that the instance's tags name.
    fn tagged(&self, instance: &Instance) -> Option<&'a Worker> {
        self.by_id.get(instance.owner()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::instance::{MANAGED_BY, MANAGED_BY_TAG, WORKER_ID_TAG};
    use crate::lifecycle::worker_json::read_workers;

    fn instance(id: &str, state: Ec2State, owner: Option<&str>) -> Instance {
        let mut instance = Instance::new(id, state);
        instance.tags.extend(owner.map(|owner| (WORKER_ID_TAG.to_owned(), owner.to_owned())));
        instance
    }

    fn worker(id: &str, status: WorkerStatus, instance: Option<&str>) -> Worker {
        let mut worker = Worker::new(id, status);
        worker.ec2_instance_id = instance.map(InstanceId::from);
        worker
    }

    fn complete(instances: Vec<Instance>) -> Scan {
        Scan { region: "us-east-1".into(), instances, completeness: Completeness::Complete }
    }

    #[test]
    fn only_instances_without_an_owner_are_imported() {
        let scan = complete(vec![
            instance("i-stranger", Ec2State::Running, None),
            instance("i-foreign", Ec2State::Stopped, Some("nobody")),
            instance("i-dead-stranger", Ec2State::Terminated, None),
            instance("i-known", Ec2State::Stopped, Some("w-known")),
            instance("i-unrecorded", Ec2State::Running, Some("w-pending")),
            instance("i-back", Ec2State::Running, Some("w-over")),
            instance("i-succeeded", Ec2State::Running, None),
            instance("i-tagged-over", Ec2State::Running, Some("w-over")),
            instance("i-unreadable", Ec2State::Running, None),
            instance("i-of-unreadable", Ec2State::Running, Some("w-odd")),
            instance("i-parked", Ec2State::Stopped, Some("w-parked")),
            instance("i-woken", Ec2State::Running, Some("w-woken")),
            instance("i-passed-on", Ec2State::Running, Some("w-pending")),
        ]);
        let workers = [
            worker("w-known", WorkerStatus::Draining, Some("i-known")),
            worker("w-pending", WorkerStatus::Pending, None),
            worker("w-over", WorkerStatus::Terminated, Some("i-back")),
            worker("w-old", WorkerStatus::Terminated, Some("i-succeeded")),
            worker("w-older", WorkerStatus::Terminated, Some("i-passed-on")),
            worker("w-new", WorkerStatus::Running, Some("i-succeeded")),
            worker("w-parked", WorkerStatus::Stopped, Some("i-parked")),
            worker("w-woken", WorkerStatus::Stopped, Some("i-woken")),
        ];
        let odd = serde_json::json!([{"id": "w-odd", "status": "hibernating", "ec2_instance_id": "i-unreadable"}]);
        let (_, unreadable) = read_workers(odd.as_array().expect("a list").clone());
        assert_eq!(
            explore(&scan, &workers, &unreadable, ForeignInstances::Report),
            [
                Finding::Import { instance: "i-stranger".into() },
                Finding::Foreign { instance: "i-foreign".into() },
                Finding::HandOver { instance: "i-unrecorded".into(), worker: "w-pending".into() },
                Finding::Resurrect { instance: "i-back".into(), worker: "w-over".into() },
                Finding::Resurrect { instance: "i-tagged-over".into(), worker: "w-over".into() },
                Finding::Drifted { instance: "i-woken".into(), worker: "w-woken".into() },
                Finding::HandOver { instance: "i-passed-on".into(), worker: "w-pending".into() },
            ]
        );
    }

    #[test]
    fn foreign_instances_are_imported_on_request_only() {
        let mut managed = instance("i-managed", Ec2State::Running, None);
        managed.tags.insert(MANAGED_BY_TAG.to_owned(), MANAGED_BY.to_owned());
        let scan = complete(vec![managed, instance("i-tagged", Ec2State::Stopped, Some("w-elsewhere"))]);
        let ids = |foreign| explore(&scan, &[], &[], foreign);
        assert_eq!(
            ids(ForeignInstances::Report),
            [Finding::Foreign { instance: "i-managed".into() }, Finding::Foreign { instance: "i-tagged".into() }]
        );
        assert_eq!(
            ids(ForeignInstances::Import),
            [Finding::Import { instance: "i-managed".into() }, Finding::Import { instance: "i-tagged".into() }]
        );
    }

    #[test]
    fn only_unnamed_live_instances_need_terminated_records() {
        let living = [worker("w-1", WorkerStatus::Running, Some("i-1")), worker("w-2", WorkerStatus::Failed, None)];
        let has_unknown = |instances| {
            let findings = explore(&complete(instances), &living, &[], ForeignInstances::Report);
            findings.iter().any(Finding::is_unknown)
        };
        let named = instance("i-1", Ec2State::Running, None);
        let tagged = instance("i-2", Ec2State::Running, Some("w-2"));
        assert!(!has_unknown(vec![named, tagged, instance("i-dead", Ec2State::Terminated, Some("w-over"))]));
        assert!(has_unknown(vec![instance("i-back", Ec2State::Running, Some("w-over"))]));
        assert!(has_unknown(vec![instance("i-new", Ec2State::Running, None)]));
    }
}
