//! The ports of a controller: each call passes through its process.

use std::sync::Arc;

use async_trait::async_trait;
use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{
    Audit, AutoPause, CloudMetrics, CmlMetrics, IdleReport, LicenseReport, RegistrationStatus, SessionEnd,
};
use lcm_sdk::ports::{
    CloudEvent, Cml, CmlTarget, Compute, ControlPlane, DiscoveryFilter, Events, Fence, IdleCheck, ImportSummary,
    Metrics, ScanSettings, Scope, SessionMove, Version, WorkerListing,
};
use lcm_sdk::{
    CallFailure, Image, Instance, InstanceId, Lookup, Patch, Secret, Session, SessionId, Template, Timestamp, Worker,
    WorkerId, WorkerStatus,
};
use serde_json::Value;

use super::broken::Broken;
use super::call::{Call, Subject};
use super::process::Process;

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
        let mut responses = self.read(call, self.world.compute.instances(region, ids)).await;
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
        let response = self.read(call, self.world.compute.tagged(region, worker)).await;
        for instance in response.iter().flatten() {
            self.world.record_response(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        response
    }

    async fn images(&self, region: &str, pattern: &str) -> Response<Vec<Image>> {
        self.read(Call::read("images", pattern), self.world.compute.images(region, pattern)).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let mut scan = self.read(Call::read("scan", region), self.world.compute.scan(region, filter)).await;
        if self.world.is_broken(Broken::GcTrustsErrors) {
            scan.completeness = Completeness::Complete;
        }
        for instance in &scan.instances {
            self.world.record_response(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        scan
    }

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Response<bool> {
        self.read(Call::read("sees_subnet", subnet_id), self.world.compute.sees_subnet(region, subnet_id)).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Response<InstanceId> {
        let mut plan = plan.clone();
        if self.world.is_broken(Broken::NoClientToken) {
            plan.client_token = format!("{}-{}", plan.client_token, self.world.next_number());
        }
        let (world, about) = (Arc::clone(&self.world), plan.client_token.chars().take(12).collect::<String>());
        let launched = self.change(Call::new("launch", about, Subject::Launch), async move {
            let launched = world.compute.launch(&plan).await;
            if let Ok(id) = &launched {
                world.record_launch(id);
            }
            launched
        });
        let launched = launched.await;
        if let Ok(id) = &launched {
            self.world.record_response(self, id, &Lookup::Found(Instance::new(id.clone(), lcm_sdk::Ec2State::Pending)));
        }
        launched
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("start", id.as_str(), Subject::Start);
        self.change(call, async move { world.compute.start(&region, &id).await }).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("stop", id.as_str(), Subject::Stop(id.clone()));
        self.change(call, async move { world.compute.stop(&region, &id).await }).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Response<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("terminate", id.as_str(), Subject::Terminate(id.clone()));
        self.change(call, async move { world.compute.terminate(&region, &id).await }).await
    }
}

#[async_trait]
impl ControlPlane for ProcessPorts {
    async fn workers(&self, scope: &Scope) -> Response<WorkerListing> {
        let about = if scope.with_terminated { "all" } else { "live" };
        let mut listing = self.read(Call::read("workers", about), self.world.control_plane.workers(scope)).await?;
        listing.workers.iter_mut().for_each(|worker| self.misread(worker));
        Ok(listing)
    }

    async fn worker(&self, id: &WorkerId) -> Response<Option<Worker>> {
        let mut read = self.read(Call::read("worker", id.as_str()), self.world.control_plane.worker(id)).await?;
        read.iter_mut().for_each(|worker| self.misread(worker));
        Ok(read)
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Response<Version> {
        let (world, worker, mut patch, fence) =
            (Arc::clone(&self.world), worker.clone(), patch.clone(), self.fence(fence));
        if self.world.is_broken(Broken::LicenseAttemptNotRecorded) {
            patch.changes.license_attempt = None;
        }
        let status = patch.status.map_or("notes", WorkerStatus::as_str);
        let about = format!("{} {} → {status}", worker.id, worker.status);
        let call = Call::new("write", about, Subject::Write(Box::new((worker.clone(), patch.clone())), fence));
        self.change(call, async move {
            let written = world.control_plane.write(&worker, &patch, fence).await;
            world.publish(&worker.id);
            written
        })
        .await
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
        self.read(Call::read("template", name), self.world.control_plane.template(name)).await
    }

    async fn sessions(&self, worker: &WorkerId) -> Response<Vec<Session>> {
        self.read(Call::read("sessions", worker.as_str()), self.world.control_plane.sessions(worker)).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Response<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let call = Call::new("move_session", format!("{id} {to:?}"), Subject::MoveSession(fence));
        self.change(call, async move { world.control_plane.move_session(&id, to, fence).await }).await
    }

    async fn terminate_session(&self, session: &SessionId, reason: SessionEnd, fence: Fence) -> Response<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let about = format!("{id} {reason:?}");
        let call = Call::new("terminate_session", about, Subject::EndSession(id.clone(), reason, fence));
        self.change(call, async move { world.control_plane.terminate_session(&id, reason, fence).await }).await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Response<ImportSummary> {
        let (world, region, instances) = (Arc::clone(&self.world), region.to_owned(), instances.to_vec());
        let fence = self.fence(fence);
        let about = instances.iter().map(|instance| instance.id.to_string()).collect::<Vec<_>>().join(" ");
        let call = Call::new("import", about, Subject::Import(fence));
        self.change(call, async move { world.control_plane.import(&region, &instances, fence).await }).await
    }

    async fn discovery_settings(&self) -> Response<Option<ScanSettings>> {
        self.read(Call::read("discovery_settings", ""), self.world.control_plane.discovery_settings()).await
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

    /// Shows a draining worker as a stopping one to a controller without a drain handler.
    fn misread(&self, worker: &mut Worker) {
        if self.world.is_broken(Broken::DrainIsStop) && worker.status == WorkerStatus::Draining {
            worker.status = WorkerStatus::Stopping;
            worker.notes.drain_started_at = None;
        }
    }

    async fn submit<F>(&self, name: &'static str, at: &CmlTarget, token: Option<&Secret>, act: F) -> Response<()>
    where
        F: Future<Output = Response<()>> + Send + 'static,
    {
        let token = token.map(|token| token.expose().to_owned());
        let subject = Subject::Submit { address: at.address.clone(), token };
        self.change(Call::new(name, &at.address, subject), act).await
    }
}

#[async_trait]
impl Cml for ProcessPorts {
    async fn system(&self, at: &CmlTarget) -> Response<CmlMetrics> {
        self.read(Call::read("system", &at.address), self.world.cml.system(at)).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Response<Vec<Value>> {
        self.read(Call::read("telemetry", &at.address), self.world.cml.telemetry(at)).await
    }

    async fn registration(&self, at: &CmlTarget) -> Response<RegistrationStatus> {
        self.read(Call::read("registration", &at.address), self.world.cml.registration(at)).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Response<()> {
        let (world, target, secret) = (Arc::clone(&self.world), at.clone(), token.clone());
        self.submit("register", at, Some(token), async move { world.cml.register(&target, &secret).await }).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Response<()> {
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
        self.read(Call::new("publish", event.kind, Subject::Note), self.world.events.publish(event)).await
    }
}
