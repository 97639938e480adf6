//! Describing many instances with few calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::lifecycle::discovery::Scan;
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;
use crate::ports::{Compute, DiscoveryFilter};
use crate::telemetry::Telemetry;

/// How describes are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// How long the first caller waits for others.
    pub window: Duration,
    /// How many instances go into one describe; EC2 takes 1000.
    pub most: usize,
    /// How long a describe may take before its callers are told that nobody knows.
    pub deadline: Duration,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { window: Duration::from_millis(5), most: 1000, deadline: Duration::from_secs(60) }
    }
}

/// A [`Compute`] that collects the calls of [`Compute::instance`] and sends them as one [`Compute::instances`].
/// Everything else goes straight through; launches above all, because a batch would defeat their tokens.
///
/// # Flow
/// The first caller in a region opens a batch, which leaves when its window is over or when it is full, in a task of
/// its own. Each caller waits for its own answer.
///
/// # Guarantees
/// - n instances asked for within a window cost ⌈n/1000⌉ calls; who asks for the same instance shares the answer.
/// - Nobody is given an answer that was asked for before he came.
/// - Regions do not wait for each other, nor does a batch for the one before.
///
/// # Cancel safety
/// A caller that goes away takes nobody with it. If all of a batch's callers go before it leaves, nothing is asked.
///
/// Needs a running tokio runtime.
#[derive(Clone)]
pub struct BatchingCompute {
    inner: Arc<dyn Compute>,
    settings: BatchSettings,
    telemetry: Telemetry,
    regions: Arc<Mutex<HashMap<String, Collecting>>>,
}

impl std::fmt::Debug for BatchingCompute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchingCompute").field("settings", &self.settings).finish_non_exhaustive()
    }
}

type Callers = HashMap<InstanceId, Vec<oneshot::Sender<Lookup<Instance>>>>;

/// The batch of a region that has not left yet.
#[derive(Debug, Default)]
struct Collecting {
    /// Which batch this is, so that the timer of one that left full does not send the next one early.
    number: u64,
    callers: Callers,
}

impl Collecting {
    fn take(&mut self) -> Callers {
        self.number = self.number.wrapping_add(1);
        std::mem::take(&mut self.callers)
    }
}

impl BatchingCompute {
    /// Batches the describes of another.
    pub fn new(inner: Arc<dyn Compute>, settings: BatchSettings, telemetry: Telemetry) -> Self {
        let settings = BatchSettings { most: settings.most.max(1), ..settings };
        Self { inner, settings, telemetry, regions: Arc::default() }
    }

    fn enter(&self, region: &str, id: &InstanceId) -> oneshot::Receiver<Lookup<Instance>> {
        let (sender, receiver) = oneshot::channel();
        let mut regions = self.regions.lock();
        let batch = regions.entry(region.to_owned()).or_default();
        let is_first = batch.callers.is_empty();
        batch.callers.entry(id.clone()).or_default().push(sender);
        if batch.callers.len() >= self.settings.most {
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
            waiting.retain(|caller| !caller.is_closed());
            !waiting.is_empty()
        });
        if callers.is_empty() {
            return;
        }
        let ids: Vec<InstanceId> = callers.keys().cloned().collect();
        self.telemetry.observe_batch(ids.len());
        let answers = match timeout(self.settings.deadline, self.inner.instances(&region, &ids)).await {
            Ok(answers) => answers,
            Err(_) => {
                let message = format!("{region} did not describe {} instances in time", ids.len());
                vec![Lookup::Unknown(CallFailure::new(FailureKind::Unclear, message)); ids.len()]
            }
        };
        for (id, answer) in ids.iter().zip(answers) {
            for caller in callers.remove(id).into_iter().flatten() {
                // Whoever has gone meanwhile needs no answer.
                drop(caller.send(answer.clone()));
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
        let receiver = self.enter(region, id);
        receiver.await.unwrap_or_else(|_| {
            let message = format!("the describe of {id} in {region} ended without an answer about it");
            Lookup::Unknown(CallFailure::new(FailureKind::Unclear, message))
        })
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        self.inner.tagged(region, worker).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        self.inner.images(region, pattern).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        self.inner.scan(region, filter).await
    }

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Result<bool, CallFailure> {
        self.inner.sees_subnet(region, subnet_id).await
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

    fn batched(compute: &Arc<MemoryCompute>) -> (Telemetry, BatchingCompute) {
        let telemetry = Telemetry::default();
        let inner: Arc<dyn Compute> = Arc::clone(compute) as _;
        (telemetry.clone(), BatchingCompute::new(inner, BatchSettings::default(), telemetry))
    }

    fn sizes(compute: &MemoryCompute) -> Vec<usize> {
        let describes = compute.calls().into_iter().filter_map(|call| match call {
            ComputeCall::Instances { ids, .. } => Some(ids.len()),
            ComputeCall::Tagged { .. }
            | ComputeCall::Images { .. }
            | ComputeCall::Scan { .. }
            | ComputeCall::SeesSubnet { .. }
            | ComputeCall::Launch(_)
            | ComputeCall::Start { .. }
            | ComputeCall::Stop { .. }
            | ComputeCall::Terminate { .. } => None,
        });
        describes.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn n_instances_cost_a_thousandth_of_n_calls() {
        for (count, calls) in [(1, 1), (1000, 1), (1001, 2), (2500, 3)] {
            let (compute, ids) = fleet(count);
            let (telemetry, batched) = batched(&compute);
            let answers = join_all(ids.iter().map(|id| batched.instance("here", id))).await;
            assert!(answers.iter().zip(&ids).all(|(answer, id)| answer.found().is_some_and(|found| found.id == *id)));
            assert_eq!(sizes(&compute).len(), calls, "{count} instances");
            let text = telemetry.to_prometheus();
            assert!(text.contains(&format!("lcm_describe_batch_size_sum {count}.0")), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_the_same_shares_the_answer_and_who_comes_later_gets_a_fresh_one() {
        let (compute, ids) = fleet(1);
        let (_, batched) = batched(&compute);
        let answers = join_all((0..50).map(|_| batched.instance("here", &ids[0]))).await;
        assert!(answers.iter().all(|answer| answer.found().is_some()));
        assert_eq!(sizes(&compute), [1]);
        compute.set_state("here", &ids[0], Ec2State::Terminated);
        let later = batched.instance("here", &ids[0]).await;
        assert_eq!(later.found().map(|instance| instance.state), Some(Ec2State::Terminated));
        assert_eq!(sizes(&compute), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_go_take_nobody_with_them_and_are_not_asked_for() {
        let (compute, ids) = fleet(10);
        let (_, batched) = batched(&compute);
        let patient = batched.instance("here", &ids[0]);
        let impatient = join_all(ids[1..].iter().map(|id| batched.instance("here", id)));
        let impatient = timeout(Duration::from_millis(1), impatient);
        let (answer, gone) = tokio::join!(patient, impatient);
        assert!(gone.is_err() && answer.found().is_some());
        assert_eq!(sizes(&compute), [1]);

        let alone = timeout(Duration::from_millis(1), batched.instance("here", &ids[0])).await;
        assert!(alone.is_err());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(sizes(&compute), [1], "nobody was left to ask for");
    }

    #[tokio::test(start_paused = true)]
    async fn the_caller_that_opened_a_batch_can_go_while_it_is_under_way() {
        let (compute, ids) = fleet(2);
        compute.slow_down("here", Duration::from_secs(5));
        let (_, batched) = batched(&compute);
        let first = timeout(Duration::from_secs(1), batched.instance("here", &ids[0]));
        let (first, second) = tokio::join!(first, batched.instance("here", &ids[1]));
        assert!(first.is_err() && second.found().is_some());
        assert_eq!(sizes(&compute), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_region_delays_no_other_and_its_callers_are_told_in_the_end() {
        let (compute, ids) = fleet(1);
        compute.slow_down("here", Duration::from_secs(3600));
        let (_, batched) = batched(&compute);
        let start = Instant::now();
        let there = async {
            let answer = batched.instance("there", &ids[0]).await;
            (answer, start.elapsed())
        };
        let (stuck, (answer, took)) = tokio::join!(batched.instance("here", &ids[0]), there);
        assert_eq!(answer.found().map(|instance| instance.state), Some(Ec2State::Stopped));
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(stuck.failure().map(|failure| failure.kind), Some(FailureKind::Unclear));
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_id_spoils_no_other_answer() {
        let (compute, ids) = fleet(3);
        let (_, batched) = batched(&compute);
        let (missing, banana) = (InstanceId::from("i-0badbadbadbadbad0"), InstanceId::from("banana"));
        let good = join_all(ids.iter().map(|id| batched.instance("here", id)));
        let (good, missing, banana) =
            tokio::join!(good, batched.instance("here", &missing), batched.instance("here", &banana));
        assert!(good.iter().all(|answer| answer.found().is_some()));
        assert_eq!(missing, Lookup::Absent);
        assert_eq!(banana.failure().map(|failure| failure.kind), Some(FailureKind::Refused));
        assert_eq!(sizes(&compute), [5]);
    }
}
