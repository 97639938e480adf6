//! The last known state of each worker of a fleet, now and before, for people who look at the fleet.
//!
//! Kept in memory from records that were read anyway and instances that were described anyway. No decision reads it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::result::ReconcileResult;
use crate::lifecycle::effect::EffectResult;
use crate::lifecycle::ids::WorkerId;
use crate::lifecycle::instance::Instance;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::observation::Observation;
use crate::lifecycle::status::{DesiredStatus, Ec2State, WorkerStatus};
use crate::lifecycle::time::{self, Timestamp};
use crate::lifecycle::worker::Worker;

/// Maximum number of changes that are kept of one worker, of its record and of its instance.
const CHANGES: usize = 24;

/// Time for which a terminated worker stays after it is listed no more.
const RECENT: Duration = Duration::from_secs(3600);

/// A worker as this process last saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KnownWorker {
    /// Id of the worker.
    pub id: WorkerId,
    /// Display name.
    pub name: Option<String>,
    /// Status on the record.
    pub status: WorkerStatus,
    /// Status that the owner desires; none means no preference.
    pub desired_status: Option<DesiredStatus>,
    /// Id of its instance.
    pub ec2_instance_id: Option<String>,
    /// Region that the record names for its instance.
    pub aws_region: Option<String>,
    /// Name of its template.
    pub template_name: Option<String>,
    /// Its instance, as EC2 last described it.
    pub instance: Option<KnownInstance>,
    /// Its CML, as it last responded.
    pub cml: Option<KnownCml>,
    /// The last statuses of the record, each with the time at which it was noticed, the oldest first.
    pub statuses: Vec<(Timestamp, WorkerStatus)>,
    /// The last states of the instance, each with the time at which it was noticed, the oldest first; none is an
    /// instance that EC2 does not show.
    pub instance_states: Vec<(Timestamp, Option<Ec2State>)>,
}

/// An instance as EC2 last described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KnownInstance {
    /// Id of the instance.
    pub id: String,
    /// State reported by EC2.
    pub state: Ec2State,
    /// Instance type, such as `m5zn.metal`.
    pub instance_type: Option<String>,
    /// Address to reach it at.
    pub address: Option<String>,
    /// Id of its AMI.
    pub image_id: Option<String>,
    /// When it was launched or last started.
    pub launched_at: Option<Timestamp>,
    /// EC2's explanation of the state.
    pub state_reason: Option<String>,
}

/// A CML server as it last responded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KnownCml {
    /// When it responded.
    pub at: Timestamp,
    /// Version, such as `2.9.1+build.7`.
    pub version: Option<String>,
    /// Whether CML can start nodes.
    pub ready: Option<bool>,
    /// Labs on the system.
    pub labs: Option<u64>,
    /// Nodes on the system.
    pub nodes: Option<u64>,
}

impl KnownInstance {
    fn new(instance: &Instance) -> Self {
        Self {
            id: instance.id.to_string(),
            state: instance.state,
            instance_type: instance.instance_type.clone(),
            address: instance.address().map(str::to_owned),
            image_id: instance.image_id.clone(),
            launched_at: instance.launched_at,
            state_reason: instance.state_reason.clone(),
        }
    }

    fn is(&self, instance: &Instance) -> bool {
        self.id == instance.id.as_str()
            && self.state == instance.state
            && self.instance_type == instance.instance_type
            && self.address.as_deref() == instance.address()
            && self.image_id == instance.image_id
            && self.launched_at == instance.launched_at
            && self.state_reason == instance.state_reason
    }
}

impl KnownWorker {
    fn new(worker: &Worker, since: Timestamp) -> Self {
        Self {
            id: worker.id.clone(),
            name: worker.name.clone(),
            status: worker.status,
            desired_status: worker.desired_status,
            ec2_instance_id: worker.ec2_instance_id.as_ref().map(ToString::to_string),
            aws_region: worker.known_region().map(str::to_owned),
            template_name: worker.template_name.clone(),
            instance: None,
            cml: None,
            statuses: vec![(since, worker.status)],
            instance_states: Vec::new(),
        }
    }

    fn is(&self, worker: &Worker) -> bool {
        self.status == worker.status
            && self.desired_status == worker.desired_status
            && self.ec2_instance_id.as_deref() == worker.ec2_instance_id.as_ref().map(|id| id.as_str())
            && self.name == worker.name
            && self.aws_region.as_deref() == worker.known_region()
            && self.template_name == worker.template_name
    }

    fn set_status(&mut self, status: WorkerStatus, now: Timestamp) {
        self.status = status;
        push(&mut self.statuses, status, now);
    }
}

/// Adds a change, unless the last one is the same.
fn push<T: PartialEq>(changes: &mut Vec<(Timestamp, T)>, value: T, now: Timestamp) {
    if changes.last().is_some_and(|(_, last)| *last == value) {
        return;
    }
    if changes.len() == CHANGES {
        changes.remove(0);
    }
    changes.push((now, value));
}

/// The last known state of each listed worker.
#[derive(Debug, Default)]
pub(crate) struct LastKnown(Mutex<HashMap<WorkerId, Entry>>);

#[derive(Debug)]
struct Entry {
    worker: Arc<KnownWorker>,
    /// Version of the record, if it has one.
    version: Option<u64>,
    /// When the record was requested, or our own change was recorded.
    read_at: Instant,
}

impl LastKnown {
    /// Notes all records of a listing that was requested at `read_at`, and drops the workers that it does not contain.
    pub(crate) fn list<'a>(&self, workers: impl Iterator<Item = &'a Worker>, read_at: Instant, now: Timestamp) {
        let mut entries = self.0.lock();
        let mut listed = HashSet::new();
        for worker in workers {
            listed.insert(&worker.id);
            note(&mut entries, worker, read_at, now);
        }
        entries.retain(|id, entry| {
            let is_recent = |at: &Timestamp| time::age(*at, now) < RECENT;
            let ended = entry.worker.status == WorkerStatus::Terminated;
            listed.contains(id)
                || entry.read_at > read_at
                || (ended && entry.worker.statuses.last().is_some_and(|(at, _)| is_recent(at)))
        });
    }

    /// Notes a record that was requested at `read_at`.
    pub(crate) fn read(&self, worker: &Worker, read_at: Instant, now: Timestamp) {
        note(&mut self.0.lock(), worker, read_at, now);
    }

    /// Notes what a reconcile of a listed worker observed.
    pub(super) fn observed(&self, worker: &Worker, seen: &Observation, now: Timestamp) {
        let mut entries = self.0.lock();
        let Some(entry) = entries.get_mut(&worker.id) else { return };
        let is_gone = worker.ec2_instance_id.is_some() && matches!(seen.instance, Lookup::Absent);
        if let Some(instance) = seen.instance_of(worker) {
            if !entry.worker.instance.as_ref().is_some_and(|known| known.is(instance)) {
                let known = Arc::make_mut(&mut entry.worker);
                known.instance = Some(KnownInstance::new(instance));
                push(&mut known.instance_states, Some(instance.state), now);
            }
        } else if is_gone && entry.worker.instance_states.last().is_none_or(|(_, state)| state.is_some()) {
            let known = Arc::make_mut(&mut entry.worker);
            known.instance = None;
            push(&mut known.instance_states, None, now);
        }
        if let Some(cml) = seen.cml.found() {
            Arc::make_mut(&mut entry.worker).cml = Some(KnownCml {
                at: now,
                version: cml.cml_version.clone(),
                ready: cml.ready,
                labs: cml.labs_count,
                nodes: cml.nodes_count,
            });
        }
    }

    /// Notes the status and the instance that a reconcile has recorded at `read_at`.
    pub(super) fn recorded(&self, result: &ReconcileResult, read_at: Instant, now: Timestamp) {
        let launched = result.effects.iter().find_map(|report| match &report.result {
            EffectResult::Launched(launched) => Some(launched.id.as_str()),
            EffectResult::Planned
            | EffectResult::Done
            | EffectResult::IdleChecked(_)
            | EffectResult::Failed(_)
            | EffectResult::NotTried => None,
        });
        if launched.is_none() && result.from_status == result.to_status {
            return;
        }
        let mut entries = self.0.lock();
        let Some(entry) = entries.get_mut(&result.worker_id) else { return };
        entry.read_at = read_at;
        let known = Arc::make_mut(&mut entry.worker);
        known.set_status(result.to_status, now);
        if let Some(launched) = launched {
            known.ec2_instance_id = Some(launched.to_owned());
        }
    }

    /// Returns a worker.
    pub(crate) fn of(&self, id: &WorkerId) -> Option<Arc<KnownWorker>> {
        self.0.lock().get(id).map(|entry| Arc::clone(&entry.worker))
    }

    /// Returns all workers, in no order. A worker that did not change since is the same allocation.
    pub(crate) fn all(&self) -> Vec<Arc<KnownWorker>> {
        self.0.lock().values().map(|entry| Arc::clone(&entry.worker)).collect()
    }
}

fn note(entries: &mut HashMap<WorkerId, Entry>, worker: &Worker, read_at: Instant, now: Timestamp) {
    let Some(entry) = entries.get_mut(&worker.id) else {
        // The record was last written when its status changed, or later.
        let since = worker.updated_at.map_or(now, |written| written.min(now));
        let (known, version) = (Arc::new(KnownWorker::new(worker, since)), worker.version);
        entries.insert(worker.id.clone(), Entry { worker: known, version, read_at });
        return;
    };
    // A listing takes a while: the record may have been read or written since it began.
    let is_outdated = match (entry.version, worker.version) {
        (Some(known), Some(read)) if known != read => read < known,
        (Some(_) | None, Some(_) | None) => read_at < entry.read_at,
    };
    if is_outdated {
        return;
    }
    (entry.version, entry.read_at) = (worker.version, read_at);
    if entry.worker.is(worker) {
        return;
    }
    let known = Arc::make_mut(&mut entry.worker);
    let new = KnownWorker::new(worker, now);
    let is_same_instance = known.ec2_instance_id == new.ec2_instance_id;
    let instance = known.instance.take().filter(|_| is_same_instance || known.ec2_instance_id.is_none());
    let cml = known.cml.take().filter(|_| is_same_instance);
    let statuses = std::mem::take(&mut known.statuses);
    let instance_states = std::mem::take(&mut known.instance_states);
    *known = KnownWorker { instance, cml, statuses, instance_states, ..new };
    known.set_status(worker.status, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(second, 0).expect("a time")
    }

    fn worker(status: WorkerStatus, version: u64) -> Worker {
        let mut worker = Worker::new("w-1", status);
        worker.version = Some(version);
        worker.ec2_instance_id = Some("i-1".into());
        worker.updated_at = Some(at(0));
        worker
    }

    fn seen(state: Ec2State) -> Observation {
        Observation::with_instance_state("i-1", state)
    }

    fn known(known: &LastKnown) -> Arc<KnownWorker> {
        known.of(&"w-1".into()).expect("a worker")
    }

    #[test]
    fn changes_are_kept_with_their_times() {
        let last = LastKnown::default();
        let running = worker(WorkerStatus::Running, 1);
        last.observed(&running, &seen(Ec2State::Running), at(5));
        assert!(last.all().is_empty(), "only listed workers take memory");
        last.read(&running, Instant::now(), at(10));
        last.observed(&running, &seen(Ec2State::Running), at(11));
        last.observed(&running, &seen(Ec2State::Stopped), at(12));
        last.read(&worker(WorkerStatus::Stopped, 2), Instant::now(), at(13));
        let gone = Observation { instance: Lookup::Absent, ..Observation::default() };
        last.observed(&running, &gone, at(14));
        let known = known(&last);
        assert_eq!(known.statuses, [(at(0), WorkerStatus::Running), (at(13), WorkerStatus::Stopped)]);
        let states = [(at(11), Some(Ec2State::Running)), (at(12), Some(Ec2State::Stopped)), (at(14), None)];
        assert_eq!((&known.instance_states[..], &known.instance), (&states[..], &None));
    }

    #[test]
    fn unchanged_worker_is_the_same_allocation() {
        let last = LastKnown::default();
        let running = worker(WorkerStatus::Running, 1);
        last.read(&running, Instant::now(), at(1));
        last.observed(&running, &seen(Ec2State::Running), at(2));
        let before = known(&last);
        last.read(&running, Instant::now(), at(3));
        last.observed(&running, &seen(Ec2State::Running), at(4));
        assert!(Arc::ptr_eq(&before, &known(&last)));
    }

    #[test]
    fn older_reads_change_nothing() {
        let last = LastKnown::default();
        let (early, late) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        last.read(&worker(WorkerStatus::Stopping, 2), late, at(2));
        last.read(&worker(WorkerStatus::Running, 1), late, at(3));
        last.list([worker(WorkerStatus::Running, 2)].iter(), early, at(4));
        assert_eq!(known(&last).status, WorkerStatus::Stopping);
    }

    #[test]
    fn workers_that_are_listed_no_more_are_dropped() {
        let last = LastKnown::default();
        last.read(&worker(WorkerStatus::Running, 1), Instant::now(), at(1));
        last.list([].iter(), Instant::now(), at(2));
        assert!(last.all().is_empty());
        last.read(&worker(WorkerStatus::Terminated, 2), Instant::now(), at(3));
        last.list([].iter(), Instant::now(), at(4));
        assert_eq!(last.all().len(), 1, "it ended a moment ago");
        last.list([].iter(), Instant::now(), at(5000));
        assert!(last.all().is_empty());
    }

    #[test]
    fn number_of_changes_is_bounded() {
        let last = LastKnown::default();
        for turn in 0..100 {
            let status = [WorkerStatus::Running, WorkerStatus::Stopped][turn as usize % 2];
            last.read(&worker(status, turn), Instant::now(), at(turn as i64));
        }
        assert_eq!(known(&last).statuses.len(), CHANGES);
        assert_eq!(known(&last).statuses[CHANGES - 1], (at(99), WorkerStatus::Stopped));
    }
}
