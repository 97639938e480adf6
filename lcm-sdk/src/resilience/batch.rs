//! Batches describe calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{Instrument as _, Span};

use crate::lifecycle::discovery::Scan;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, ImageDetails, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::trust;
use crate::ports::{Compute, DiscoveryFilter};
use crate::resilience::image_details::ImageDetailsCache;
use crate::spans::{self, CALLS};
use crate::telemetry::Telemetry;

/// Configuration of a [`BatchingCompute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchSettings {
    /// Time that the first call of a batch waits for others. Default: 5 ms.
    pub window: Duration,
    /// Maximum number of instances per batch. Default: 1000, the limit of EC2.
    pub max_size: usize,
    /// Time limit of a batch. Default: 60 s.
    pub timeout: Duration,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { window: Duration::from_millis(5), max_size: 1000, timeout: Duration::from_secs(60) }
    }
}

impl BatchSettings {
    /// Sets the time that the first call of a batch waits for others.
    #[must_use]
    pub fn with_window(self, window: Duration) -> Self {
        Self { window, ..self }
    }

    /// Sets the maximum number of instances per batch.
    #[must_use]
    pub fn with_max_size(self, max_size: usize) -> Self {
        Self { max_size, ..self }
    }

    /// Sets the time limit of a batch.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// A [`Compute`] that combines concurrent calls of [`Compute::instance`] into one call of [`Compute::instances`], and
/// caches [`Compute::image_details`], of which the IDs that are requested during a call share the next one. All other
/// calls are passed on unchanged.
///
/// # Flow
/// The first call in a region opens a batch. The batch is sent in a task of its own, when the window has passed or the
/// batch is full. Each caller waits for its own result.
///
/// # Guarantees
/// - n instances within a window cost ⌈n/1000⌉ calls. Callers of the same instance share its result.
/// - A result is never older than the call.
/// - Regions do not wait for each other, and a batch does not wait for the one before.
///
/// # Cancel safety
/// A dropped call does not affect the others. A batch whose calls were all dropped is not sent.
///
/// Needs a running tokio runtime.
#[derive(Clone)]
pub struct BatchingCompute {
    inner: Arc<dyn Compute>,
    settings: BatchSettings,
    telemetry: Telemetry,
    regions: Arc<Mutex<HashMap<String, OpenBatch>>>,
    images: Arc<ImageDetailsCache>,
}

impl std::fmt::Debug for BatchingCompute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchingCompute").field("settings", &self.settings).finish_non_exhaustive()
    }
}

type Callers = HashMap<InstanceId, Vec<Caller>>;

/// A caller that waits for an instance.
#[derive(Debug)]
struct Caller {
    result: oneshot::Sender<Lookup<Instance>>,
    /// Its span, to which the span of the batch links.
    span: Option<tracing::Id>,
}

/// The open batch of a region.
#[derive(Debug, Default)]
struct OpenBatch {
    /// Sequence number, so that the timer of a full batch does not send the next one early.
    number: u64,
    callers: Callers,
}

impl OpenBatch {
    fn take(&mut self) -> Callers {
        self.number = self.number.wrapping_add(1);
        std::mem::take(&mut self.callers)
    }
}

impl BatchingCompute {
    /// Batches the describe calls to `inner`.
    pub fn new(inner: Arc<dyn Compute>, settings: BatchSettings, telemetry: Telemetry) -> Self {
        let settings = BatchSettings { max_size: settings.max_size.max(1), ..settings };
        Self { inner, settings, telemetry, regions: Arc::default(), images: Arc::default() }
    }

    fn join(&self, region: &str, id: &InstanceId) -> oneshot::Receiver<Lookup<Instance>> {
        let (sender, receiver) = oneshot::channel();
        let mut regions = self.regions.lock();
        let batch = regions.entry(region.to_owned()).or_default();
        let is_first = batch.callers.is_empty();
        let caller = Caller { result: sender, span: Span::current().id() };
        batch.callers.entry(id.clone()).or_default().push(caller);
        if batch.callers.len() >= self.settings.max_size {
            let callers = batch.take();
            tokio::spawn(self.clone().send(region.to_owned(), callers));
        } else if is_first {
            tokio::spawn(self.clone().send_later(region.to_owned(), batch.number));
        }
        receiver
    }

    async fn send_later(self, region: String, number: u64) {
        sleep(self.settings.window).await;
        let callers = match self.regions.lock().get_mut(&region) {
            Some(batch) if batch.number == number => batch.take(),
            Some(_) | None => return,
        };
        self.send(region, callers).await;
    }

    async fn send(self, region: String, mut callers: Callers) {
        callers.retain(|_, waiting| {
            waiting.retain(|caller| !caller.result.is_closed());
            !waiting.is_empty()
        });
        if callers.is_empty() {
            return;
        }
        let ids: Vec<InstanceId> = callers.keys().cloned().collect();
        self.telemetry.observe_batch(ids.len());
        let span = tracing::trace_span!(
            target: CALLS, parent: None, "batch", otel.name = "describe instances of several reconciles",
            region, instances = ids.len(),
        );
        for caller in callers.values().flatten().filter_map(|caller| caller.span.as_ref()) {
            span.follows_from(caller);
        }
        let describing = self.inner.instances(&region, &ids).instrument(span);
        let results = match timeout(self.settings.timeout, describing).await {
            Ok(results) => results,
            Err(_) => {
                let message = format!("describing {} instances in {region} took too long", ids.len());
                vec![Lookup::Unknown(CallFailure::new(FailureKind::Unclear, message)); ids.len()]
            }
        };
        for (id, result) in ids.iter().zip(results) {
            for caller in callers.remove(id).into_iter().flatten() {
                // Fails if the caller was dropped meanwhile.
                drop(caller.result.send(result.clone()));
            }
        }
    }
}

#[async_trait]
impl Compute for BatchingCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        self.inner.instances(region, ids).await
    }

    async fn instance(&self, region: &str, id: &InstanceId) -> Lookup<Instance> {
        let span = spans::call("ec2", "DescribeInstances in a batch", region);
        let receiver = span.in_scope(|| self.join(region, id));
        let found = receiver.instrument(span.clone()).await.unwrap_or_else(|_| {
            let message = format!("describing {id} in {region} ended without a result");
            Lookup::Unknown(CallFailure::new(FailureKind::Unclear, message))
        });
        if let Lookup::Unknown(failure) = &found {
            spans::note_failure(&span, failure);
        }
        found
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        self.inner.tagged(region, worker).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        self.inner.images(region, pattern).await
    }

    async fn image_details(&self, region: &str, ids: &[String]) -> Vec<Lookup<ImageDetails>> {
        self.images.get(&*self.inner, region, ids).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        self.inner.scan(region, filter).await
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Result<Option<String>, CallFailure> {
        self.inner.subnet_owner(region, subnet_id).await
    }

    async fn caller(&self, region: &str) -> Result<trust::Caller, CallFailure> {
        self.inner.caller(region).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        self.inner.launch(plan).await
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.inner.start(region, id).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.inner.stop(region, id).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        self.inner.terminate(region, id).await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;
    use crate::lifecycle::status::Ec2State;
    use crate::ports::SystemClock;
    use crate::providers::memory::{ComputeCall, MemoryCompute};

    fn fleet(count: usize) -> (Arc<MemoryCompute>, Vec<InstanceId>) {
        let compute = Arc::new(MemoryCompute::new(Arc::new(SystemClock)));
        let ids: Vec<InstanceId> = (0..count).map(|number| format!("i-{number:08x}").into()).collect();
        for id in &ids {
            compute.put("here", Instance::new(id.as_str(), Ec2State::Running));
            compute.put("there", Instance::new(id.as_str(), Ec2State::Stopped));
        }
        (compute, ids)
    }

    fn batching(compute: &Arc<MemoryCompute>) -> (Telemetry, BatchingCompute) {
        let telemetry = Telemetry::default();
        let inner: Arc<dyn Compute> = Arc::clone(compute) as _;
        (telemetry.clone(), BatchingCompute::new(inner, BatchSettings::default(), telemetry))
    }

    fn sizes(compute: &MemoryCompute) -> Vec<usize> {
        let describes = compute.calls().into_iter().filter_map(|call| match call {
            ComputeCall::Instances { ids, .. } => Some(ids.len()),
            ComputeCall::Tagged { .. }
            | ComputeCall::Images { .. }
            | ComputeCall::ImageDetails { .. }
            | ComputeCall::Scan { .. }
            | ComputeCall::SubnetOwner { .. }
            | ComputeCall::Launch(_)
            | ComputeCall::Start { .. }
            | ComputeCall::Stop { .. }
            | ComputeCall::Terminate { .. } => None,
        });
        describes.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn instances_are_batched_by_the_thousand() {
        for (count, calls) in [(1, 1), (1000, 1), (1001, 2), (2500, 3)] {
            let (compute, ids) = fleet(count);
            let (telemetry, batching) = batching(&compute);
            let results = join_all(ids.iter().map(|id| batching.instance("here", id))).await;
            assert!(results.iter().zip(&ids).all(|(result, id)| result.found().is_some_and(|found| found.id == *id)));
            assert_eq!(sizes(&compute).len(), calls, "{count} instances");
            let text = telemetry.to_prometheus();
            assert!(text.contains(&format!("lcm_describe_batch_size_sum {count}.0")), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_a_result() {
        let (compute, ids) = fleet(1);
        let (_, batching) = batching(&compute);
        let results = join_all((0..50).map(|_| batching.instance("here", &ids[0]))).await;
        assert!(results.iter().all(|result| result.found().is_some()));
        assert_eq!(sizes(&compute), [1]);
        compute.set_state("here", &ids[0], Ec2State::Terminated);
        let later = batching.instance("here", &ids[0]).await;
        assert_eq!(later.found().map(|instance| instance.state), Some(Ec2State::Terminated));
        assert_eq!(sizes(&compute), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn canceled_caller_does_not_affect_others() {
        let (compute, ids) = fleet(10);
        let (_, batching) = batching(&compute);
        let patient = batching.instance("here", &ids[0]);
        let impatient = join_all(ids[1..].iter().map(|id| batching.instance("here", id)));
        let impatient = timeout(Duration::from_millis(1), impatient);
        let (result, gone) = tokio::join!(patient, impatient);
        assert!(gone.is_err() && result.found().is_some());
        assert_eq!(sizes(&compute), [1]);

        let alone = timeout(Duration::from_millis(1), batching.instance("here", &ids[0])).await;
        assert!(alone.is_err());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(sizes(&compute), [1], "a batch without callers is not sent");
    }

    #[tokio::test(start_paused = true)]
    async fn batch_survives_its_first_caller() {
        let (compute, ids) = fleet(2);
        compute.set_delay("here", Duration::from_secs(5));
        let (_, batching) = batching(&compute);
        let first = timeout(Duration::from_secs(1), batching.instance("here", &ids[0]));
        let (first, second) = tokio::join!(first, batching.instance("here", &ids[1]));
        assert!(first.is_err() && second.found().is_some());
        assert_eq!(sizes(&compute), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_region_does_not_delay_others() {
        let (compute, ids) = fleet(1);
        compute.set_delay("here", Duration::from_secs(3600));
        let (_, batching) = batching(&compute);
        let start = Instant::now();
        let there = async {
            let result = batching.instance("there", &ids[0]).await;
            (result, start.elapsed())
        };
        let (stuck, (result, took)) = tokio::join!(batching.instance("here", &ids[0]), there);
        assert_eq!(result.found().map(|instance| instance.state), Some(Ec2State::Stopped));
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(stuck.failure().map(|failure| failure.kind), Some(FailureKind::Unclear));
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_id_does_not_affect_others() {
        let (compute, ids) = fleet(3);
        let (_, batching) = batching(&compute);
        let (missing, banana) = (InstanceId::from("i-0badbadbadbadbad0"), InstanceId::from("banana"));
        let good = join_all(ids.iter().map(|id| batching.instance("here", id)));
        let (good, missing, banana) =
            tokio::join!(good, batching.instance("here", &missing), batching.instance("here", &banana));
        assert!(good.iter().all(|result| result.found().is_some()));
        assert_eq!(missing, Lookup::Absent);
        assert_eq!(banana.failure().map(|failure| failure.kind), Some(FailureKind::Refused));
        assert_eq!(sizes(&compute), [5]);
    }
}
