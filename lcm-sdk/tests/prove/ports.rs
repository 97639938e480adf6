//! The ports of a controller: each call passes through its process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::trust::Caller;
use lcm_sdk::lifecycle::{
    Audit, AutoPause, Capabilities, CloudMetrics, CmlMetrics, IdleReport, ImageOwners, LicenseReport,
    RegistrationStatus, SessionEnd, SessionPhase, UnreadableWorker,
};
use lcm_sdk::ports::{
    CloudEvent, Cml, CmlTarget, Compute, ControlPlane, DiscoveryFilter, Events, Fence, IdleCheck, ImportSummary,
    Metrics, ScanSettings, Scope, SessionMove, Version, WorkerListing,
};
use lcm_sdk::{
    CallFailure, FailureKind, Image, Instance, InstanceId, Lookup, Patch, Secret, Session, SessionId, Template,
    Timestamp, Worker, WorkerId, WorkerStatus,
};
use serde_json::Value;
use tokio::time::sleep;

use super::broken::Broken;
use super::call::{Call, Subject};
use super::process::Process;
use super::records::unreadable;

type Response<T> = Result<T, CallFailure>;

/// The ports of a process.
#[derive(Clone)]
pub(crate) struct ProcessPorts(pub(crate) Arc<Process>);

impl std::ops::Deref for ProcessPorts {
    type Target = Arc<Process>;

    fn deref(&self) -> &Arc<Process> {
        &self.0
    }
}

#[async_trait]
impl Compute for ProcessPorts {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let call = Call::new("instances", format!("{ids:?}"), Subject::Describe(ids.to_vec()));
        let responses = self.read(call, async {
            match self.world.ec2(region) {
                Ok(ec2) => ec2.instances(region, ids).await,
                Err(failure) => vec![Lookup::Unknown(failure); ids.len()],
            }
        });
        let mut responses = responses.await;
        self.defects_of_instances(ids, &mut responses);
        if self.world.is_broken(Broken::GcTrustsErrors) {
            for response in responses.iter_mut().filter(|response| matches!(response, Lookup::Unknown(_))) {
                *response = Lookup::Absent;
            }
        }
        for (id, response) in ids.iter().zip(&responses) {
            self.world.record_response(self, id, response);
        }
        responses
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Response<Vec<Instance>> {
        let call = Call::read("tagged", worker.as_str());
        let response = self.read(call, async { self.world.ec2(region)?.tagged(region, worker).await }).await;
        if self.world.is_broken(Broken::FailedIsForgotten) && self.is_in(worker, WorkerStatus::Failed) {
            return Ok(Vec::new());
        }
        for instance in response.iter().flatten() {
            self.world.record_response(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        response
    }

    async fn images(&self, region: &str, pattern: &str) -> Response<Vec<Image>> {
        let act = async {
            let ec2 = self.world.ec2(region)?;
            if self.world.is_broken(Broken::ImagesOfAnyone) {
                ec2.set_image_owners(ImageOwners::Any);
            }
            ec2.images(region, pattern).await
        };
        let images = self.read(Call::read("images", pattern), act).await?;
        Ok(self.world.images_shown(images))
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        self.world.check_scan(self);
        let act = async {
            match self.world.ec2(region) {
                Ok(ec2) => ec2.scan(region, filter).await,
                Err(failure) => Scan {
                    region: region.to_owned(),
                    instances: Vec::new(),
                    completeness: Completeness::Partial(failure),
                },
            }
        };
        let mut scan = self.read(Call::read("scan", region), act).await;
        if self.world.is_broken(Broken::FailedIsForgotten) {
            scan.instances
                .retain(|instance| instance.owner().is_none_or(|id| !self.is_in(&id.into(), WorkerStatus::Failed)));
        }
        self.foreign_seen.store(!scan.instances.is_empty(), Ordering::Release);
        if self.world.is_broken(Broken::GcTrustsErrors) {
            scan.completeness = Completeness::Complete;
        }
        for instance in &scan.instances {
            self.world.record_response(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        scan
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Response<Option<String>> {
        let act = async { self.world.ec2(region)?.subnet_owner(region, subnet_id).await };
        let owner = self.read(Call::read("subnet_owner", subnet_id), act).await?;
        let is_proved = self.world.is_broken(Broken::AbsenceNeedsNoProof)
            || self.world.is_broken(Broken::OneForeignInstanceProves) && self.foreign_seen.load(Ordering::Acquire);
        if is_proved {
            return Ok(self.world.ec2(region)?.caller(region).await?.account_id);
        }
        Ok(owner)
    }

    async fn caller(&self, region: &str) -> Response<Caller> {
        let act = async { self.world.ec2(region)?.caller(region).await };
        self.read(Call::read("caller", region), act).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Response<InstanceId> {
        let mut plan = plan.clone();
        if self.world.is_broken(Broken::NoClientToken) {
            plan.client_token = format!("{}-{}", plan.client_token, self.world.next_number());
        }
        let (world, about) = (Arc::clone(&self.world), plan.client_token.chars().take(12).collect::<String>());
        let owner = plan.tags.get("lcm:worker_id").map_or("", String::as_str);
        let subject = Subject::Launch(owner.into(), plan.image_id.clone());
        let launched = self.change(Call::new("launch", about, subject), async move {
            let launched = world.ec2(&plan.region)?.launch(&plan).await;
            if let (Ok(id), true) = (&launched, world.uses_own_account()) {
                world.record_launch(id);
            }
            launched
        });
        let mut launched = launched.await;
        if let Err(failure) = &mut launched {
            self.defects_of_a_launch(failure);
        }
        if let Ok(id) = &launched {
            self.world.record_response(self, id, &Lookup::Found(Instance::new(id.clone(), lcm_sdk::Ec2State::Pending)));
        }
        launched
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("start", id.as_str(), Subject::Start(id.clone()));
        self.change(call, async move { world.ec2(&region)?.start(&region, &id).await }).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("stop", id.as_str(), Subject::Stop(id.clone()));
        self.change(call, async move { world.ec2(&region)?.stop(&region, &id).await }).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("terminate", id.as_str(), Subject::Terminate(id.clone()));
        self.change(call, async move { world.ec2(&region)?.terminate(&region, &id).await }).await
    }
}

#[async_trait]
impl ControlPlane for ProcessPorts {
    async fn workers(&self, scope: &Scope) -> Response<WorkerListing> {
        let about = if scope.with_terminated { "all" } else { "live" };
        let mut listing = self.read(Call::read("workers", about), self.world.control_plane.workers(scope)).await?;
        for worker in std::mem::take(&mut listing.workers) {
            match self.shown(worker) {
                Ok(worker) => listing.workers.push(worker),
                Err(unreadable) => listing.unreadable.push(*unreadable),
            }
        }
        Ok(listing)
    }

    async fn worker(&self, id: &WorkerId) -> Response<Option<Worker>> {
        let read = self.read(Call::read("worker", id.as_str()), self.world.control_plane.worker(id)).await?;
        let Some(worker) = read else { return Ok(None) };
        let unparsable =
            |unreadable: Box<UnreadableWorker>| CallFailure::new(FailureKind::Unparsable, unreadable.error.to_string());
        self.shown(worker).map(Some).map_err(unparsable)
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Response<Version> {
        let (world, worker, mut patch, fence) =
            (Arc::clone(&self.world), worker.clone(), patch.clone(), self.fence(fence));
        self.defects_of_a_patch(&mut patch);
        let wanted = patch;
        let patch = self.world.setup.server.reads(wanted.clone());
        self.world.check_write_rate(&worker.id);
        let status = patch.status.map_or("notes", WorkerStatus::as_str);
        let about = format!("{} {} → {status}", worker.id, worker.status);
        let call = Call::new("write", about, Subject::Write(Box::new((worker.clone(), patch.clone())), fence));
        let (written_to, kept) = (worker.clone(), patch.clone());
        let written = self.change(call, async move {
            world.check_fence(&worker.id, fence)?;
            let written = world.control_plane.write(&worker, &patch, fence).await;
            world.publish(&worker.id);
            written
        });
        let written = written.await;
        self.defects_after_a_write(&written_to, &wanted, &kept, fence).await;
        written
    }

    async fn report_metrics(
        &self,
        id: &WorkerId,
        cloud: Option<&CloudMetrics>,
        cml: Option<&CmlMetrics>,
        at: Timestamp,
        fence: Fence,
    ) -> Response<Version> {
        let act = self.world.control_plane.report_metrics(id, cloud, cml, at, self.fence(fence));
        self.read(Call::new("report_metrics", id.as_str(), Subject::Note), act).await
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Response<Version> {
        let (world, id, fence) = (Arc::clone(&self.world), id.clone(), self.fence(fence));
        let about = format!("{id} {report:?}");
        let call = Call::new("report_license", about, Subject::License(id.clone(), report, fence));
        self.change(call, async move {
            world.check_fence(&id, fence)?;
            let reported = world.control_plane.report_license(&id, report, fence).await;
            world.publish(&id);
            reported
        })
        .await
    }

    async fn detect_idle(
        &self,
        id: &WorkerId,
        telemetry: Option<Vec<Value>>,
        auto_pause: AutoPause,
        fence: Fence,
    ) -> Response<IdleCheck> {
        let act = self.world.control_plane.detect_idle(id, telemetry, auto_pause, self.fence(fence));
        self.read(Call::new("detect_idle", id.as_str(), Subject::Note), act).await
    }

    async fn idle_status(&self, id: &WorkerId) -> Response<IdleReport> {
        self.read(Call::read("idle_status", id.as_str()), self.world.control_plane.idle_status(id)).await
    }

    async fn template(&self, name: &str) -> Response<Option<Template>> {
        let read = self.read(Call::read("template", name), self.world.control_plane.template(name)).await;
        if self.world.is_broken(Broken::ErrorIsNoTemplate) && read.is_err() { Ok(None) } else { read }
    }

    async fn sessions(&self, worker: &WorkerId) -> Response<Vec<Session>> {
        let act = self.world.control_plane.sessions(worker);
        let mut sessions = self.read(Call::read("sessions", worker.as_str()), act).await?;
        if self.world.is_broken(Broken::WaitingSessionsForgotten) {
            sessions.retain(|session| session.state.phase() != SessionPhase::Waiting || !self.has_stopped(worker));
        }
        Ok(sessions)
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Response<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let call = Call::new("move_session", format!("{id} {to:?}"), Subject::MoveSession(id.clone(), fence));
        self.change(call, async move {
            world.check_stuck(&id)?;
            world.control_plane.move_session(&id, to, fence).await
        })
        .await
    }

    async fn terminate_session(&self, session: &SessionId, reason: SessionEnd, fence: Fence) -> Response<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let about = format!("{id} {reason:?}");
        let call = Call::new("terminate_session", about, Subject::EndSession(id.clone(), reason, fence));
        self.change(call, async move {
            world.check_stuck(&id)?;
            world.control_plane.terminate_session(&id, reason, fence).await
        })
        .await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Response<ImportSummary> {
        let (world, region, instances) = (Arc::clone(&self.world), region.to_owned(), instances.to_vec());
        let fence = self.fence(fence);
        let about = instances.iter().map(|instance| instance.id.to_string()).collect::<Vec<_>>().join(" ");
        let ids = instances.iter().map(|instance| instance.id.clone()).collect();
        let call = Call::new("import", about, Subject::Import(region.clone(), ids, fence));
        self.change(call, async move { world.control_plane.import(&region, &instances, fence).await }).await
    }

    fn capabilities(&self) -> Capabilities {
        self.world.control_plane.capabilities()
    }

    async fn discovery_settings(&self) -> Response<Option<ScanSettings>> {
        let act = self.world.control_plane.discovery_settings();
        let read = self.read(Call::read("discovery_settings", ""), act).await;
        if let Ok(Some(settings)) = &read {
            let mut oracle = self.world.oracle.lock();
            match settings.enabled {
                Some(false) => drop(oracle.knows_discovery_off.insert(self.number)),
                Some(true) => drop(oracle.knows_discovery_off.remove(&self.number)),
                None => {}
            }
        }
        if self.world.is_broken(Broken::DiscoveryFailsOpen) && read.is_err() {
            return Ok(Some(ScanSettings { enabled: Some(true), ..ScanSettings::default() }));
        }
        read
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Response<()> {
        let act = self.world.control_plane.audit(id, audit, detail, self.fence(fence));
        self.read(Call::new("audit", id.as_str(), Subject::Note), act).await
    }
}

impl ProcessPorts {
    fn fence(&self, fence: Fence) -> Fence {
        if self.world.is_broken(Broken::NoFencing) { Fence(None) } else { fence }
    }

    /// A record as the controller reads it.
    fn shown(&self, worker: Worker) -> Result<Worker, Box<UnreadableWorker>> {
        if self.world.is_broken(Broken::GarbageIsUnmanaged) && self.world.garbled.lock().contains(&worker.id) {
            return Err(Box::new(unreadable(&worker)));
        }
        let mut worker = self.world.show(worker)?;
        self.defects_of_a_record(&mut worker);
        Ok(worker)
    }

    /// Waits as long as CML does.
    async fn wait_for_cml(&self) {
        let delay = *self.world.cml_delay.lock();
        sleep(delay).await;
    }

    async fn submit<F>(&self, name: &'static str, at: &CmlTarget, token: Option<&Secret>, act: F) -> Response<()>
    where
        F: Future<Output = Response<()>> + Send + 'static,
    {
        self.world.check_address(at);
        self.wait_for_cml().await;
        let token = token.map(|token| token.expose().to_owned());
        let subject = Subject::Submit { address: at.address.clone(), token };
        self.change(Call::new(name, &at.address, subject), act).await
    }
}

#[async_trait]
impl Cml for ProcessPorts {
    async fn system(&self, at: &CmlTarget) -> Response<CmlMetrics> {
        let at = &self.target(at);
        self.world.check_address(at);
        self.wait_for_cml().await;
        self.read(Call::read("system", &at.address), self.world.cml.system(at)).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Response<Vec<Value>> {
        let at = &self.target(at);
        self.world.check_address(at);
        self.wait_for_cml().await;
        self.read(Call::read("telemetry", &at.address), self.world.cml.telemetry(at)).await
    }

    async fn registration(&self, at: &CmlTarget) -> Response<RegistrationStatus> {
        let at = &self.target(at);
        self.world.check_address(at);
        self.wait_for_cml().await;
        self.read(Call::read("registration", &at.address), self.world.cml.registration(at)).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Response<()> {
        let at = &self.target(at);
        let (world, target, secret) = (Arc::clone(&self.world), at.clone(), token.clone());
        self.submit("register", at, Some(token), async move { world.cml.register(&target, &secret).await }).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Response<()> {
        let at = &self.target(at);
        let (world, target, secret) = (Arc::clone(&self.world), at.clone(), token.clone());
        self.submit("reregister", at, Some(token), async move { world.cml.reregister(&target, &secret).await }).await
    }

    async fn deregister(&self, at: &CmlTarget) -> Response<()> {
        let (world, target) = (Arc::clone(&self.world), at.clone());
        self.submit("deregister", at, None, async move { world.cml.deregister(&target).await }).await
    }
}

#[async_trait]
impl Metrics for ProcessPorts {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let call = Call::new("utilization", format!("{ids:?}"), Subject::Describe(ids.to_vec()));
        self.read(call, self.world.metrics.utilization(region, ids, until)).await
    }
}

#[async_trait]
impl Events for ProcessPorts {
    async fn publish(&self, event: &CloudEvent) -> Response<()> {
        while self.world.events_hang.load(Ordering::Acquire) {
            sleep(Duration::from_secs(1)).await;
        }
        let published =
            self.read(Call::new("publish", event.kind, Subject::Note), self.world.events.publish(event)).await;
        if published.is_ok() {
            self.world.record_event(event);
        }
        published
    }
}
