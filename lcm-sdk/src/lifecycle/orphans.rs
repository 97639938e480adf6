//! Orphans: records whose instance is gone (ADR-014), and the rules that keep a mistake small.
//!
//! # Flow
//! Scan the region completely, list its records, describe those that the scan did not show ([`candidates`]) once more,
//! then call [`evaluate`].
//!
//! # Guarantees
//! A failed call terminates no record, nor does a partial scan, a young launch, or a protected instance. A scan
//! that shows none of the region's recorded instances freezes the region unless the account is proved in another way
//! ([`trust`](super::trust)): wrong credentials look the same.

use std::collections::HashMap;

use serde::Serialize;

use super::discovery::{Completeness, Scan};
use super::event::Event;
use super::ids::{InstanceId, WorkerId};
use super::instance::Instance;
use super::lookup::Lookup;
use super::patch::{Patch, Termination};
use super::policy::Policy;
use super::status::{Ec2State, WorkerStatus};
use super::time::{self, Timestamp};
use super::transition::{EdgeKind, Transition};
use super::trust::{Doubt, Place, prove_absence};
use super::wire_enum::vocabulary;
use super::worker::Worker;

/// The author of a termination by garbage collection.
pub const TERMINATED_BY: &str = "discovery-gc";
/// The reason of a termination by garbage collection.
pub const TERMINATED_REASON: &str = "EC2 instance not found during discovery";

/// Verdict of garbage collection on one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Id of the record.
    pub worker_id: WorkerId,
    /// Id of its instance.
    pub ec2_instance_id: InstanceId,
    /// The conclusion about the instance.
    pub conclusion: Conclusion,
}

vocabulary! {
    /// Conclusion of garbage collection about one record.
    Conclusion, "conclusion" {
        /// The instance is gone: mark the record terminated.
        Orphan = "orphan",
        /// The instance exists; the scan did not match it.
        Alive = "alive",
        /// EC2 gave no response, or the worker's region is not known: nothing is concluded.
        Unknown = "unknown",
        /// The launch is young and EC2 may not show it yet.
        Young = "young",
        /// The instance carries the protection tag.
        Protected = "protected",
        /// Nothing proves the account that reported the absence: nothing is marked.
        Frozen = "frozen",
        /// Gone, but the limit of this run is reached; the next run continues.
        Deferred = "deferred",
    }
}

impl Conclusion {
    /// The conclusion as a sentence for reports.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Orphan => "EC2 reports that the instance does not exist",
            Self::Alive => "EC2 describes the instance; the filters of the scan exclude it",
            Self::Unknown => "the call to EC2 failed or the region of the worker is not known, so nothing is concluded",
            Self::Young => "the launch is recent or its time is unknown, so EC2 may not return the instance yet",
            Self::Protected => "the instance has the tag lcm:protect",
            Self::Frozen => {
                "the region is frozen: nothing proves that the credentials belong to the account of its records"
            }
            Self::Deferred => "the instance is gone, but this run has reached its limit; the next run continues",
        }
    }
}

/// Result of garbage collection in a region.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "verdicts do nothing until their patches are written"]
pub struct OrphanReport {
    /// One verdict for every record that the scan did not show alive.
    pub verdicts: Vec<Verdict>,
    /// The patches to write, one for each orphan. `orphans_terminated_count` rises by one for each that is written.
    pub patches: Vec<Patch>,
    /// The events to publish: one for each orphan after its write.
    pub events: Vec<Event>,
}

/// The records to verify by a direct describe: in this region, with an instance, neither terminated nor pending, and
/// not in the scan. None after a partial scan.
pub fn candidates<'a>(scan: &Scan, workers: &'a [Worker], policy: &Policy) -> Vec<&'a Worker> {
    match scan.completeness {
        Completeness::Partial(_) => Vec::new(),
        Completeness::Complete => {
            let shown = index(&scan.instances);
            considered(scan, workers, policy).filter(|(_, id)| !shown.contains_key(id)).map(|(w, _)| w).collect()
        }
    }
}

/// Whether the scan or a direct describe shows a recorded instance of the region, in any state: the proof that the
/// absence of the others was reported by the right account.
pub fn shows_a_record(
    scan: &Scan,
    workers: &[Worker],
    verified: &HashMap<InstanceId, Lookup<Instance>>,
    policy: &Policy,
) -> bool {
    let shown = index(&scan.instances);
    let is_shown = |id: &InstanceId| shown.contains_key(id) || verified.get(id).is_some_and(|id| id.found().is_some());
    let here = |worker: &&Worker| policy.regions.region_of(worker) == Some(scan.region.as_str());
    workers.iter().filter(here).filter_map(|worker| worker.ec2_instance_id.as_ref()).any(is_shown)
}

/// Whether garbage collection considers any record of the region.
pub fn considers_records(scan: &Scan, workers: &[Worker], policy: &Policy) -> bool {
    considered(scan, workers, policy).next().is_some()
}

/// Evaluates a region. `verified` holds the direct describes of the candidates; a candidate without one is unknown.
/// `place` holds the facts about the place that was scanned, besides the instances that the scan and the describes show.
///
/// ```
/// use std::collections::HashMap;
/// use lcm_sdk::lifecycle::Lookup;
/// use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
/// use lcm_sdk::lifecycle::orphans::{Conclusion, evaluate};
/// use lcm_sdk::lifecycle::trust::{Caller, Place};
/// use lcm_sdk::{Ec2State, Instance, Policy, Worker, WorkerStatus};
///
/// let now = "2026-02-06T08:00:00Z".parse().unwrap();
/// let mut worker = Worker::new("w-1", WorkerStatus::Running);
/// worker.ec2_instance_id = Some("i-gone".into());
/// worker.aws_region = Some("us-east-1".into());
/// worker.created_at = "2026-02-05T08:00:00Z".parse().ok();
/// let scan = Scan {
///     region: "us-east-1".into(),
///     instances: vec![Instance::new("i-foreign", Ec2State::Running)],
///     completeness: Completeness::Complete,
/// };
/// let verified = HashMap::from([("i-gone".into(), Lookup::Absent)]);
/// let place = Place::new(Caller::new("123456789012"));
/// let report = evaluate(&scan, &[worker.clone()], &verified, &place, &Policy::default(), now);
/// assert_eq!(report.verdicts[0].conclusion, Conclusion::Frozen);
///
/// let place = place.with_subnet_owner("123456789012");
/// let report = evaluate(&scan, &[worker], &verified, &place, &Policy::default(), now);
/// assert_eq!(report.verdicts[0].conclusion, Conclusion::Orphan);
/// assert_eq!(report.patches[0].status, Some(WorkerStatus::Terminated));
/// ```
pub fn evaluate(
    scan: &Scan,
    workers: &[Worker],
    verified: &HashMap<InstanceId, Lookup<Instance>>,
    place: &Place,
    policy: &Policy,
    now: Timestamp,
) -> OrphanReport {
    if scan.completeness != Completeness::Complete {
        return OrphanReport::default();
    }
    let seen = shows_a_record(scan, workers, verified, policy).then(|| place.clone().with_sighting(now));
    let place = seen.as_ref().unwrap_or(place);
    let shown = index(&scan.instances);
    let mut verdicts: Vec<_> = considered(scan, workers, policy)
        .filter_map(|(worker, id)| {
            let conclusion = match shown.get(id) {
                Some(instance) if instance.state == Ec2State::Terminated => gone(instance),
                Some(_) => return None,
                None => verdict(worker, verified.get(id), place, policy, now),
            };
            Some((worker, conclusion))
        })
        .collect();

    let allowed = policy.orphans.max_terminations_per_pass.unwrap_or(usize::MAX);
    let orphans = verdicts.iter_mut().filter(|(_, conclusion)| *conclusion == Conclusion::Orphan);
    for (_, conclusion) in orphans.skip(allowed) {
        *conclusion = Conclusion::Deferred;
    }
    conclude(verdicts, now)
}

fn conclude(verdicts: Vec<(&Worker, Conclusion)>, now: Timestamp) -> OrphanReport {
    let mut report = OrphanReport::default();
    for (worker, conclusion) in verdicts {
        let Some(ec2_instance_id) = worker.ec2_instance_id.clone() else { continue };
        if conclusion == Conclusion::Orphan {
            report.patches.extend(termination(worker, now));
            report.events.push(Event::OrphanTerminated { instance: ec2_instance_id.clone() });
        }
        report.verdicts.push(Verdict { worker_id: worker.id.clone(), ec2_instance_id, conclusion });
    }
    report
}

fn index(instances: &[Instance]) -> HashMap<&InstanceId, &Instance> {
    instances.iter().map(|instance| (&instance.id, instance)).collect()
}

fn considered<'a>(
    scan: &Scan,
    workers: &'a [Worker],
    policy: &Policy,
) -> impl Iterator<Item = (&'a Worker, &'a InstanceId)> {
    workers.iter().filter_map(move |worker| {
        let here = policy.regions.region_of(worker) == Some(scan.region.as_str());
        let id = worker.ec2_instance_id.as_ref().filter(|_| here)?;
        match worker.status {
            WorkerStatus::Pending | WorkerStatus::Terminated => None,
            WorkerStatus::Provisioning
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Draining
            | WorkerStatus::Stopping
            | WorkerStatus::Stopped
            | WorkerStatus::Terminating
            | WorkerStatus::Failed
            | WorkerStatus::Unknown => Some((worker, id)),
        }
    })
}

fn verdict(
    worker: &Worker,
    verified: Option<&Lookup<Instance>>,
    place: &Place,
    policy: &Policy,
    now: Timestamp,
) -> Conclusion {
    match verified {
        None | Some(Lookup::NotRequested | Lookup::Unknown(_)) => Conclusion::Unknown,
        Some(Lookup::Found(instance)) if instance.state == Ec2State::Terminated => gone(instance),
        Some(Lookup::Found(_)) => Conclusion::Alive,
        Some(Lookup::Absent) => match worker.launch_time() {
            Some(launched) if time::age(launched, now) >= policy.consistency_window => {
                match prove_absence(worker, place, policy.aws_account_id.as_deref(), now) {
                    Ok(()) => Conclusion::Orphan,
                    Err(Doubt::RegionUnknown) => Conclusion::Unknown,
                    Err(Doubt::OtherAccount { .. } | Doubt::UnexpectedAccount { .. } | Doubt::NotProved { .. }) => {
                        Conclusion::Frozen
                    }
                }
            }
            Some(_) | None => Conclusion::Young,
        },
    }
}

fn gone(instance: &Instance) -> Conclusion {
    if instance.is_protected() { Conclusion::Protected } else { Conclusion::Orphan }
}

fn termination(worker: &Worker, now: Timestamp) -> Option<Patch> {
    let edge = |kind| Transition::new(worker.status, WorkerStatus::Terminated, kind);
    let transition = edge(EdgeKind::Observed).or_else(|_| edge(EdgeKind::Commanded)).ok()?;
    Some(Patch {
        worker_id: worker.id.clone(),
        expected_version: worker.version,
        status: Some(transition.to()),
        termination: Some(Termination {
            reason: TERMINATED_REASON.to_owned(),
            terminated_by: TERMINATED_BY.to_owned(),
        }),
        drain: None,
        changes: super::decision::Changes::default(),
        at: now,
    })
}
