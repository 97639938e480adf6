//! A process that can die between any two moments: its calls take time, and none goes through once it is dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::core::discovery::Scan;
use lcm_sdk::core::event::{Audit, SessionEnd};
use lcm_sdk::core::idle::{AutoPause, IdleReport};
use lcm_sdk::core::launch::LaunchPlan;
use lcm_sdk::core::license::LicenseReport;
use lcm_sdk::core::observation::{CloudMetrics, CmlMetrics};
use lcm_sdk::ports::{
    Compute, ControlPlane, DiscoveryFilter, DiscoverySettings, Fence, IdleCheck, ImportSummary, Ports, Scope,
    SessionMove, Version, WorkerListing,
};
use lcm_sdk::{
    Answer, CallFailure, Image, Instance, InstanceId, Session, SessionId, StatusPatch, Template, Timestamp, Worker,
    WorkerId,
};
use serde_json::Value;

/// How long a call is on its way, and its answer on the way back.
const WAY: Duration = Duration::from_millis(300);

/// Whether a process lives. Clones are the same life.
#[derive(Clone)]
pub(crate) struct Life(Arc<AtomicBool>);

impl Life {
    /// Ports for a process that lives until [`Life::end`].
    pub(crate) fn begin(ports: Ports) -> (Self, Ports) {
        let life = Self(Arc::new(AtomicBool::new(true)));
        let compute = Arc::new(Mortal { port: ports.compute, life: life.clone() });
        let control_plane = Arc::new(Mortal { port: ports.control_plane, life: life.clone() });
        (life, Ports { compute, control_plane, ..ports })
    }

    /// What is under way stays where it is, for ever.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }

    async fn lasts(&self) {
        tokio::time::sleep(WAY).await;
        if !self.0.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }

    async fn through<T>(&self, call: impl Future<Output = T>) -> T {
        self.lasts().await;
        let answer = call.await;
        self.lasts().await;
        answer
    }
}

struct Mortal<P: ?Sized> {
    port: Arc<P>,
    life: Life,
}

// The whole of an implementation, because `async_trait` does not look into a macro.
macro_rules! through {
    ($port:ident { $(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl $port for Mortal<dyn $port> {
            $(
                async fn $name(&self, $($argument: $type),*) -> $answer {
                    self.life.through(self.port.$name($($argument),*)).await
                }
            )*
        }
    };
}

type Told<T> = Result<T, CallFailure>;

through! {
    Compute {
        fn instances(region: &str, ids: &[InstanceId]) -> Vec<Answer<Instance>>;
        fn tagged(region: &str, worker: &WorkerId) -> Told<Vec<Instance>>;
        fn images(region: &str, pattern: &str) -> Told<Vec<Image>>;
        fn scan(region: &str, filter: &DiscoveryFilter) -> Scan;
        fn sees_subnet(region: &str, subnet_id: &str) -> Told<bool>;
        fn launch(plan: &LaunchPlan) -> Told<InstanceId>;
        fn start(region: &str, id: &InstanceId) -> Told<()>;
        fn stop(region: &str, id: &InstanceId) -> Told<()>;
        fn terminate(region: &str, id: &InstanceId) -> Told<()>;
    }
}

through! {
    ControlPlane {
        fn workers(scope: &Scope) -> Told<WorkerListing>;
        fn worker(id: &WorkerId) -> Told<Option<Worker>>;
        fn write(worker: &Worker, patch: &StatusPatch, fence: Fence) -> Told<Version>;
        fn report_metrics(
            id: &WorkerId, cloud: Option<&CloudMetrics>, cml: Option<&CmlMetrics>, at: Timestamp, fence: Fence
        ) -> Told<Version>;
        fn report_license(id: &WorkerId, report: LicenseReport, fence: Fence) -> Told<Version>;
        fn detect_idle(
            id: &WorkerId, telemetry: Option<Vec<Value>>, auto_pause: AutoPause, fence: Fence
        ) -> Told<IdleCheck>;
        fn idle_status(id: &WorkerId) -> Told<IdleReport>;
        fn template(name: &str) -> Told<Option<Template>>;
        fn sessions(worker: &WorkerId) -> Told<Vec<Session>>;
        fn move_session(session: &SessionId, to: SessionMove, fence: Fence) -> Told<()>;
        fn terminate_session(session: &SessionId, reason: SessionEnd, fence: Fence) -> Told<()>;
        fn import(region: &str, instances: &[Instance], fence: Fence) -> Told<ImportSummary>;
        fn discovery_settings() -> Told<Option<DiscoverySettings>>;
        fn audit(id: &WorkerId, audit: Audit, detail: &str, fence: Fence) -> Told<()>;
    }
}
