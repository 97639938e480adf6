//! The defects of broken controllers, between a controller and its ports: see [`Broken`].

use lcm_sdk::lifecycle::{Change, LicenseReport};
use lcm_sdk::ports::{CmlTarget, ControlPlane as _, Fence};
use lcm_sdk::{
    CallFailure, DesiredStatus, Ec2State, FailureKind, Instance, InstanceId, Lookup, Patch, Worker, WorkerId,
    WorkerStatus,
};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

use super::broken::Broken;
use super::ports::ProcessPorts;

impl ProcessPorts {
    fn has(&self, defect: Broken) -> bool {
        self.world.is_broken(defect)
    }

    /// Whether a worker has a status.
    pub(crate) fn is_in(&self, worker: &WorkerId, status: WorkerStatus) -> bool {
        self.world.control_plane.stored_worker(worker).is_some_and(|worker| worker.status == status)
    }

    /// Whether the instance of a worker is on its way down.
    pub(crate) fn has_stopped(&self, worker: &WorkerId) -> bool {
        let record = self.world.control_plane.stored_worker(worker);
        let instance = record.and_then(|record| self.world.instance(&record.ec2_instance_id?));
        instance.is_none_or(|instance| instance.state != Ec2State::Running)
    }

    pub(crate) fn defects_of_instances(&self, ids: &[InstanceId], responses: &mut [Lookup<Instance>]) {
        if self.has(Broken::PendingIsAtRest) {
            for (id, response) in ids.iter().zip(responses) {
                let is_parked =
                    self.world.owner_of(id).is_some_and(|id| self.is_in(&id.as_str().into(), WorkerStatus::Stopped));
                if let (true, Lookup::Found(instance)) = (is_parked, response)
                    && instance.state == Ec2State::Pending
                {
                    instance.state = Ec2State::Stopped;
                }
            }
        }
    }

    pub(crate) fn defects_of_a_launch(&self, failure: &mut CallFailure) {
        let is_of_the_image = failure.code.as_deref().is_some_and(|code| code.starts_with("InvalidAMIID"));
        if failure.kind == FailureKind::RefusedForNow
            && (self.has(Broken::ExpiredIsRefused) && !is_of_the_image
                || self.has(Broken::WithdrawnImageIsRefused) && is_of_the_image)
        {
            failure.kind = FailureKind::Refused;
        }
    }

    pub(crate) fn defects_of_a_record(&self, worker: &mut Worker) {
        let is_draining = worker.status == WorkerStatus::Draining;
        if self.has(Broken::DrainIsStop) && is_draining {
            worker.status = WorkerStatus::Stopping;
            worker.notes.drain_started_at = None;
        }
        if self.has(Broken::DrainOutlivesDemand) && is_draining && worker.desired_status == Some(DesiredStatus::Running)
        {
            worker.desired_status = Some(DesiredStatus::Stopped);
        }
        if self.has(Broken::StuckSessionBlocks) {
            worker.notes.drain_tries = 0;
        }
        if self.has(Broken::DefaultRegionIsBelieved) && worker.known_region().is_none() {
            worker.aws_region = Some((*self.world.default_region.lock()).to_owned());
        }
        if self.has(Broken::NamelessIsGone)
            && worker.ec2_instance_id.is_none()
            && matches!(worker.status, WorkerStatus::Running | WorkerStatus::Draining)
        {
            worker.ec2_instance_id = Some("i-00000".into());
        }
    }

    pub(crate) fn defects_of_a_patch(&self, patch: &mut Patch) {
        let changes = &mut patch.changes;
        if self.has(Broken::LicenseAttemptNotRecorded) {
            changes.license_attempt = None;
        }
        if self.has(Broken::LaunchTimeIsEarly) && changes.launch_plan != Change::Keep {
            // As if the search and the image lookup before had taken two minutes.
            changes.launched_at = changes.launched_at.map(|at| at - self.world.policy.consistency_window);
        }
        if self.has(Broken::LicenseNeverFails) && changes.license_report == Some(LicenseReport::FailRegistration) {
            changes.license_report = None;
        }
        if self.has(Broken::LicenseWaitForgotten) {
            changes.license_wait = None;
        }
    }

    pub(crate) async fn defects_after_a_write(&self, worker: &Worker, wanted: &Patch, kept: &Patch, fence: Fence) {
        if self.has(Broken::RepeatsAtOnce) && wanted.changes != kept.changes {
            for _ in 0..100 {
                self.world.check_write_rate(&worker.id);
                let again = Patch { status: None, expected_version: None, ..kept.clone() };
                // The result of the real write counts.
                let _ = self.world.control_plane.write(worker, &again, fence).await;
                sleep(Duration::from_millis(5)).await;
            }
        }
        if self.has(Broken::EventsInTheWay) && wanted.status.is_some() {
            while self.world.events_hang.load(Ordering::Acquire) {
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// The CML system that a call goes to.
    pub(crate) fn target(&self, at: &CmlTarget) -> CmlTarget {
        if !self.has(Broken::AddressIsRemembered) {
            return at.clone();
        }
        let address = self.first_address.lock().get_or_insert_with(|| at.address.clone()).clone();
        CmlTarget { address, ..at.clone() }
    }
}
