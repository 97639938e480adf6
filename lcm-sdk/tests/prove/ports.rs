//! Every port of a controller, through its process.

use std::sync::Arc;

use async_trait::async_trait;
use lcm_sdk::lifecycle::discovery::{Completeness, Scan};
use lcm_sdk::lifecycle::launch::LaunchPlan;
use lcm_sdk::lifecycle::{
    Audit, AutoPause, CloudMetrics, CmlMetrics, IdleReport, LicenseReport, RegistrationStatus, SessionEnd,
};
use lcm_sdk::ports::{
    CloudEvent, Cml, CmlTarget, Compute, ControlPlane, DiscoveryFilter, DiscoverySettings, Events, Fence, IdleCheck,
    ImportSummary, Metrics, Scope, SessionMove, Version, WorkerListing,
};
use lcm_sdk::{
    CallFailure, Image, Instance, InstanceId, Lookup, Patch, Secret, Session, SessionId, Template, Timestamp, Worker,
    WorkerId, WorkerStatus,
};
use serde_json::Value;

use super::broken::Broken;
use super::call::{Call, Matter};
use super::process::Process;

type Told<T> = Result<T, CallFailure>;

/// A process as the ports see it.
#[derive(Clone)]
pub(crate) struct Door(pub(crate) Arc<Process>);

impl std::ops::Deref for Door {
    type Target = Arc<Process>;

    fn deref(&self) -> &Arc<Process> {
        &self.0
    }
}

#[async_trait]
impl Compute for Door {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let call = Call::new("instances", format!("{ids:?}"), Matter::Describe(ids.to_vec()));
        let mut answers = self.ask(call, self.world.compute.instances(region, ids)).await;
        if self.world.is_broken(Broken::GcTrustsErrors) {
            for answer in answers.iter_mut().filter(|answer| matches!(answer, Lookup::Unknown(_))) {
                *answer = Lookup::Absent;
            }
        }
        for (id, answer) in ids.iter().zip(&answers) {
            self.world.heard(self, id, answer);
        }
        answers
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Told<Vec<Instance>> {
        let call = Call::read("tagged", worker.as_str());
        let answer = self.ask(call, self.world.compute.tagged(region, worker)).await;
        for instance in answer.iter().flatten() {
            self.world.heard(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        answer
    }

    async fn images(&self, region: &str, pattern: &str) -> Told<Vec<Image>> {
        self.ask(Call::read("images", pattern), self.world.compute.images(region, pattern)).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let mut scan = self.ask(Call::read("scan", region), self.world.compute.scan(region, filter)).await;
        if self.world.is_broken(Broken::GcTrustsErrors) {
            scan.completeness = Completeness::Complete;
        }
        for instance in &scan.instances {
            self.world.heard(self, &instance.id, &Lookup::Found(instance.clone()));
        }
        scan
    }

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Told<bool> {
        self.ask(Call::read("sees_subnet", subnet_id), self.world.compute.sees_subnet(region, subnet_id)).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Told<InstanceId> {
        let mut plan = plan.clone();
        if self.world.is_broken(Broken::NoClientToken) {
            plan.client_token = format!("{}-{}", plan.client_token, self.world.number());
        }
        let (world, about) = (Arc::clone(&self.world), plan.client_token.chars().take(12).collect::<String>());
        let launched = self.change(Call::new("launch", about, Matter::Launch), async move {
            let launched = world.compute.launch(&plan).await;
            if let Ok(id) = &launched {
                world.launched(id);
            }
            launched
        });
        let launched = launched.await;
        if let Ok(id) = &launched {
            self.world.heard(self, id, &Lookup::Found(Instance::new(id.clone(), lcm_sdk::Ec2State::Pending)));
        }
        launched
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Told<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("start", id.as_str(), Matter::Start);
        self.change(call, async move { world.compute.start(&region, &id).await }).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Told<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("stop", id.as_str(), Matter::Stop(id.clone()));
        self.change(call, async move { world.compute.stop(&region, &id).await }).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Told<()> {
        let (world, region, id) = (Arc::clone(&self.world), region.to_owned(), id.clone());
        let call = Call::new("terminate", id.as_str(), Matter::Terminate(id.clone()));
        self.change(call, async move { world.compute.terminate(&region, &id).await }).await
    }
}

#[async_trait]
impl ControlPlane for Door {
    async fn workers(&self, scope: &Scope) -> Told<WorkerListing> {
        let about = if scope.with_terminated { "everything" } else { "living" };
        let mut listing = self.ask(Call::read("workers", about), self.world.control_plane.workers(scope)).await?;
        listing.workers.iter_mut().for_each(|worker| self.misread(worker));
        Ok(listing)
    }

    async fn worker(&self, id: &WorkerId) -> Told<Option<Worker>> {
        let mut read = self.ask(Call::read("worker", id.as_str()), self.world.control_plane.worker(id)).await?;
        read.iter_mut().for_each(|worker| self.misread(worker));
        Ok(read)
    }

    async fn write(&self, worker: &Worker, patch: &Patch, fence: Fence) -> Told<Version> {
        let (world, worker, mut patch, fence) =
            (Arc::clone(&self.world), worker.clone(), patch.clone(), self.fence(fence));
        if self.world.is_broken(Broken::LicenceNotNoted) {
            patch.changes.license_attempt = None;
        }
        let status = patch.status.map_or("notes", WorkerStatus::as_str);
        let about = format!("{} {} → {status}", worker.id, worker.status);
        let call = Call::new("write", about, Matter::Write(Box::new((worker.clone(), patch.clone())), fence));
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
    ) -> Told<Version> {
        let act = self.world.control_plane.report_metrics(id, cloud, cml, at, self.fence(fence));
        self.ask(Call::new("report_metrics", id.as_str(), Matter::Note), act).await
    }

    async fn report_license(&self, id: &WorkerId, report: LicenseReport, fence: Fence) -> Told<Version> {
        let (world, id, fence) = (Arc::clone(&self.world), id.clone(), self.fence(fence));
        let about = format!("{id} {report:?}");
        let call = Call::new("report_license", about, Matter::License(id.clone(), report, fence));
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
    ) -> Told<IdleCheck> {
        let act = self.world.control_plane.detect_idle(id, telemetry, auto_pause, self.fence(fence));
        self.ask(Call::new("detect_idle", id.as_str(), Matter::Note), act).await
    }

    async fn idle_status(&self, id: &WorkerId) -> Told<IdleReport> {
        self.ask(Call::read("idle_status", id.as_str()), self.world.control_plane.idle_status(id)).await
    }

    async fn template(&self, name: &str) -> Told<Option<Template>> {
        self.ask(Call::read("template", name), self.world.control_plane.template(name)).await
    }

    async fn sessions(&self, worker: &WorkerId) -> Told<Vec<Session>> {
        self.ask(Call::read("sessions", worker.as_str()), self.world.control_plane.sessions(worker)).await
    }

    async fn move_session(&self, session: &SessionId, to: SessionMove, fence: Fence) -> Told<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let call = Call::new("move_session", format!("{id} {to:?}"), Matter::MoveSession(fence));
        self.change(call, async move { world.control_plane.move_session(&id, to, fence).await }).await
    }

    async fn terminate_session(&self, session: &SessionId, reason: SessionEnd, fence: Fence) -> Told<()> {
        let (world, id, fence) = (Arc::clone(&self.world), session.clone(), self.fence(fence));
        let about = format!("{id} {reason:?}");
        let call = Call::new("terminate_session", about, Matter::EndSession(id.clone(), reason, fence));
        self.change(call, async move { world.control_plane.terminate_session(&id, reason, fence).await }).await
    }

    async fn import(&self, region: &str, instances: &[Instance], fence: Fence) -> Told<ImportSummary> {
        let (world, region, instances) = (Arc::clone(&self.world), region.to_owned(), instances.to_vec());
        let fence = self.fence(fence);
        let about = instances.iter().map(|instance| instance.id.to_string()).collect::<Vec<_>>().join(" ");
        let call = Call::new("import", about, Matter::Import(fence));
        self.change(call, async move { world.control_plane.import(&region, &instances, fence).await }).await
    }

    async fn discovery_settings(&self) -> Told<Option<DiscoverySettings>> {
        self.ask(Call::read("discovery_settings", ""), self.world.control_plane.discovery_settings()).await
    }

    async fn audit(&self, id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Told<()> {
        let act = self.world.control_plane.audit(id, audit, detail, self.fence(fence));
        self.ask(Call::new("audit", id.as_str(), Matter::Note), act).await
    }
}

impl Door {
    fn fence(&self, fence: Fence) -> Fence {
        if self.world.is_broken(Broken::NoFencing) { Fence(None) } else { fence }
    }

    /// How a controller without a drain handler would see a draining worker.
    fn misread(&self, worker: &mut Worker) {
        if self.world.is_broken(Broken::DrainIsStop) && worker.status == WorkerStatus::Draining {
            worker.status = WorkerStatus::Stopping;
            worker.notes.drain_started_at = None;
        }
    }

    async fn submit<F>(&self, name: &'static str, at: &CmlTarget, token: Option<&Secret>, act: F) -> Told<()>
    where
        F: Future<Output = Told<()>> + Send + 'static,
    {
        let token = token.map(|token| token.expose().to_owned());
        let matter = Matter::Submit { address: at.address.clone(), token };
        self.change(Call::new(name, &at.address, matter), act).await
    }
}

#[async_trait]
impl Cml for Door {
    async fn system(&self, at: &CmlTarget) -> Told<CmlMetrics> {
        self.ask(Call::read("system", &at.address), self.world.cml.system(at)).await
    }

    async fn telemetry(&self, at: &CmlTarget) -> Told<Vec<Value>> {
        self.ask(Call::read("telemetry", &at.address), self.world.cml.telemetry(at)).await
    }

    async fn registration(&self, at: &CmlTarget) -> Told<RegistrationStatus> {
        self.ask(Call::read("registration", &at.address), self.world.cml.registration(at)).await
    }

    async fn register(&self, at: &CmlTarget, token: &Secret) -> Told<()> {
        let (world, target, secret) = (Arc::clone(&self.world), at.clone(), token.clone());
        self.submit("register", at, Some(token), async move { world.cml.register(&target, &secret).await }).await
    }

    async fn reregister(&self, at: &CmlTarget, token: &Secret) -> Told<()> {
        let (world, target, secret) = (Arc::clone(&self.world), at.clone(), token.clone());
        self.submit("reregister", at, Some(token), async move { world.cml.reregister(&target, &secret).await }).await
    }

    async fn deregister(&self, at: &CmlTarget) -> Told<()> {
        let (world, target) = (Arc::clone(&self.world), at.clone());
        self.submit("deregister", at, None, async move { world.cml.deregister(&target).await }).await
    }
}

#[async_trait]
impl Metrics for Door {
    async fn utilization(&self, region: &str, ids: &[InstanceId], until: Timestamp) -> Vec<Lookup<CloudMetrics>> {
        let call = Call::new("utilization", format!("{ids:?}"), Matter::Describe(ids.to_vec()));
        self.ask(call, self.world.metrics.utilization(region, ids, until)).await
    }
}

#[async_trait]
impl Events for Door {
    async fn publish(&self, event: &CloudEvent) -> Told<()> {
        self.ask(Call::new("publish", event.kind, Matter::Note), self.world.events.publish(event)).await
    }
}
