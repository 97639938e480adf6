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

/// The action for one scanned instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// It belongs to no record: import it.
    Import {
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

/// Returns the action for each scanned instance. Known and dead instances give none, except that a stopped worker whose
/// instance is not stopped is reconciled. An instance named by an unreadable record gives none either: it has an owner.
///
/// ```
/// use lcm_sdk::lifecycle::discovery::{explore, Completeness, Finding, Scan};
/// use lcm_sdk::{Ec2State, Instance};
///
/// let scan = Scan {
///     region: "us-east-1".into(),
///     instances: vec![Instance::new("i-1", Ec2State::Running)],
///     completeness: Completeness::Complete,
/// };
/// assert_eq!(explore(&scan, &[], &[]), [Finding::Import { instance: "i-1".into() }]);
/// ```
pub fn explore(scan: &Scan, workers: &[Worker], unreadable: &[UnreadableWorker]) -> Vec<Finding> {
    let by_id: HashMap<&str, &Worker> = workers.iter().map(|worker| (worker.id.as_str(), worker)).collect();
    let mut by_instance: HashMap<&InstanceId, &Worker> = HashMap::with_capacity(workers.len());
    for worker in workers {
        if let Some(instance) = &worker.ec2_instance_id {
            // Two records may name one instance, an old terminated one and its successor: the active record owns it.
            let owner = by_instance.entry(instance).or_insert(worker);
            if owner.status == WorkerStatus::Terminated {
                *owner = worker;
            }
        }
    }
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
            let recorded = by_instance.get(&instance.id);
            match recorded.or_else(|| by_id.get(instance.owner()?)) {
                Some(worker) if worker.status == WorkerStatus::Terminated => {
                    Some(Finding::Resurrect { instance: id, worker: worker.id.clone() })
                }
                Some(worker) if recorded.is_some() => (worker.status == WorkerStatus::Stopped
                    && worker.is_at_rest()
                    && instance.state != Ec2State::Stopped)
                    .then(|| Finding::Drifted { instance: id, worker: worker.id.clone() }),
                Some(worker) => Some(Finding::HandOver { instance: id, worker: worker.id.clone() }),
                None => Some(Finding::Import { instance: id }),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::instance::WORKER_ID_TAG;
    use crate::lifecycle::worker_json::read_workers;

    #[test]
    fn only_strangers_are_imported() {
        let instance = |id: &str, state, owner: Option<&str>| {
            let mut instance = Instance::new(id, state);
            instance.tags.extend(owner.map(|owner| (WORKER_ID_TAG.to_owned(), owner.to_owned())));
            instance
        };
        let worker = |id: &str, status, instance: Option<&str>| {
            let mut worker = Worker::new(id, status);
            worker.ec2_instance_id = instance.map(InstanceId::from);
            worker
        };
        let scan = Scan {
            region: "us-east-1".into(),
            instances: vec![
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
            ],
            completeness: Completeness::Complete,
        };
        let workers = [
            worker("w-known", WorkerStatus::Draining, Some("i-known")),
            worker("w-pending", WorkerStatus::Pending, None),
            worker("w-over", WorkerStatus::Terminated, Some("i-back")),
            worker("w-old", WorkerStatus::Terminated, Some("i-succeeded")),
            worker("w-new", WorkerStatus::Running, Some("i-succeeded")),
            worker("w-parked", WorkerStatus::Stopped, Some("i-parked")),
            worker("w-woken", WorkerStatus::Stopped, Some("i-woken")),
        ];
        let odd = serde_json::json!([{"id": "w-odd", "status": "hibernating", "ec2_instance_id": "i-unreadable"}]);
        let (_, unreadable) = read_workers(odd.as_array().expect("a list").clone());
        assert_eq!(
            explore(&scan, &workers, &unreadable),
            [
                Finding::Import { instance: "i-stranger".into() },
                Finding::Import { instance: "i-foreign".into() },
                Finding::HandOver { instance: "i-unrecorded".into(), worker: "w-pending".into() },
                Finding::Resurrect { instance: "i-back".into(), worker: "w-over".into() },
                Finding::Resurrect { instance: "i-tagged-over".into(), worker: "w-over".into() },
                Finding::Drifted { instance: "i-woken".into(), worker: "w-woken".into() },
            ]
        );
    }
}
