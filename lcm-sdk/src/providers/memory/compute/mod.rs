//! EC2 in memory.

mod call;
mod region;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

pub use self::call::{ComputeCall, ComputeOperation};
use self::region::{Region, enter};
use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::ports::{Clock, Compute, DiscoveryFilter};

/// A model of EC2: instances, images and subnets by region.
///
/// Nothing happens by itself: an instance that was started is `pending` until [`MemoryCompute::settle`]. Failures are
/// asked for one by one, every call is recorded.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::providers::memory::MemoryCompute;
/// use lcm_sdk::ports::{Compute, SystemClock};
/// use lcm_sdk::{Ec2State, Instance};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let compute = MemoryCompute::new(Arc::new(SystemClock));
/// compute.put("us-east-1", Instance::new("i-1", Ec2State::Running));
/// compute.stop("us-east-1", &"i-1".into()).await?;
/// compute.settle();
/// let seen = compute.instance("us-east-1", &"i-1".into()).await;
/// assert_eq!(seen.found().map(|instance| instance.state), Some(Ec2State::Stopped));
/// # Ok::<(), lcm_sdk::CallFailure>(())
/// # }).unwrap();
/// ```
pub struct MemoryCompute {
    clock: Arc<dyn Clock>,
    world: Mutex<World>,
}

impl std::fmt::Debug for MemoryCompute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryCompute").field("world", &self.world).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct World {
    regions: BTreeMap<String, Region>,
    calls: Vec<ComputeCall>,
    faults: Vec<(ComputeOperation, Fault)>,
    delays: HashMap<String, Duration>,
    launches: u64,
}

#[derive(Debug)]
enum Fault {
    Fail(CallFailure),
    LoseAnswer(CallFailure),
}

impl MemoryCompute {
    /// An empty EC2. The clock tells when instances are launched.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, world: Mutex::default() }
    }

    /// Puts an instance there, or replaces it.
    pub fn put(&self, region: &str, instance: Instance) {
        self.in_region(region, |region| region.instances.insert(instance.id.clone(), instance));
    }

    /// Puts an image there.
    pub fn put_image(&self, region: &str, image: Image) {
        self.in_region(region, |region| region.images.push(image));
    }

    /// Puts a subnet there.
    pub fn put_subnet(&self, region: &str, subnet_id: &str) {
        self.in_region(region, |region| region.subnets.insert(subnet_id.to_owned()));
    }

    /// Somebody changes an instance behind our back.
    pub fn set_state(&self, region: &str, id: &InstanceId, state: Ec2State) {
        self.in_region(region, |region| {
            if let Some(instance) = region.instances.get_mut(id) {
                enter(instance, state);
            }
        });
    }

    /// EC2 forgets an instance.
    pub fn forget(&self, region: &str, id: &InstanceId) {
        self.in_region(region, |region| region.instances.remove(id));
    }

    /// EC2 does not show an instance yet; [`MemoryCompute::show`] ends that.
    pub fn hide(&self, region: &str, id: &InstanceId) {
        self.in_region(region, |region| region.hidden.insert(id.clone()));
    }

    /// EC2 shows an instance again.
    pub fn show(&self, region: &str, id: &InstanceId) {
        self.in_region(region, |region| region.hidden.remove(id));
    }

    /// Lets every change under way come to its end.
    pub fn settle(&self) {
        for region in self.world.lock().regions.values_mut() {
            for instance in region.instances.values_mut() {
                match instance.state {
                    Ec2State::Pending => enter(instance, Ec2State::Running),
                    Ec2State::Stopping => enter(instance, Ec2State::Stopped),
                    Ec2State::ShuttingDown => enter(instance, Ec2State::Terminated),
                    Ec2State::Running | Ec2State::Stopped | Ec2State::Terminated | Ec2State::Other => {}
                }
            }
        }
    }

    /// Fails the next call of a kind; nothing is done. Several failures strike one after the other.
    pub fn fail_next(&self, operation: ComputeOperation, failure: CallFailure) {
        self.world.lock().faults.push((operation, Fault::Fail(failure)));
    }

    /// Carries out the next call of a kind, and loses the answer.
    pub fn lose_next_answer(&self, operation: ComputeOperation, failure: CallFailure) {
        self.world.lock().faults.push((operation, Fault::LoseAnswer(failure)));
    }

    /// Forgets the failures that were asked for and have not struck.
    pub fn clear_failures(&self) {
        self.world.lock().faults.clear();
    }

    /// Makes every call in a region take this long, on tokio's timer.
    pub fn slow_down(&self, region: &str, delay: Duration) {
        self.world.lock().delays.insert(region.to_owned(), delay);
    }

    /// Every call so far, in order.
    pub fn calls(&self) -> Vec<ComputeCall> {
        self.world.lock().calls.clone()
    }

    /// Every instance of a region as it is, without a call.
    pub fn all(&self, region: &str) -> Vec<Instance> {
        self.in_region(region, |region| region.instances.values().cloned().collect())
    }

    fn in_region<T>(&self, region: &str, act: impl FnOnce(&mut Region) -> T) -> T {
        act(self.world.lock().regions.entry(region.to_owned()).or_default())
    }

    /// Records a call, waits as long as its region takes, and lets it happen or not.
    async fn call<T>(
        &self,
        call: ComputeCall,
        act: impl FnOnce(&mut Region) -> Result<T, CallFailure> + Send,
    ) -> Result<T, CallFailure> {
        let region = call.region().to_owned();
        let (fault, delay) = {
            let mut world = self.world.lock();
            let place = world.faults.iter().position(|(operation, _)| *operation == call.operation());
            let fault = place.map(|place| world.faults.remove(place).1);
            world.calls.push(call);
            (fault, world.delays.get(&region).copied())
        };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        match fault {
            None => self.in_region(&region, act),
            Some(Fault::Fail(failure)) => Err(failure),
            Some(Fault::LoseAnswer(failure)) => {
                // What happened, happened; only the caller never hears of it.
                drop(self.in_region(&region, act));
                Err(failure)
            }
        }
    }
}

#[async_trait]
impl Compute for MemoryCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let call = ComputeCall::Instances { region: region.to_owned(), ids: ids.to_vec() };
        let look = |region: &mut Region| {
            let answer = |id: &InstanceId| match region.seen(id) {
                Some(instance) => Lookup::Found(instance.clone()),
                None if id.as_str().starts_with("i-") => Lookup::Absent,
                None => {
                    let message = format!("Invalid id: \"{id}\"");
                    Lookup::Unknown(CallFailure::coded(FailureKind::Refused, "InvalidInstanceID.Malformed", message))
                }
            };
            Ok(ids.iter().map(answer).collect())
        };
        self.call(call, look).await.unwrap_or_else(|failure| vec![Lookup::Unknown(failure); ids.len()])
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        let call = ComputeCall::Tagged { region: region.to_owned(), worker: worker.clone() };
        let is_theirs = |instance: &&Instance| instance.owner() == Some(worker.as_str());
        self.call(call, |region| Ok(region.listed().filter(is_theirs).cloned().collect())).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        let call = ComputeCall::Images { region: region.to_owned(), pattern: pattern.to_owned() };
        self.call(call, |region| Ok(region.named_images(pattern).cloned().collect())).await
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let call = ComputeCall::Scan { region: region.to_owned(), filter: filter.clone() };
        let look = |region: &mut Region| {
            if filter.is_empty() {
                let message = "a scan needs an AMI name pattern or a tag to look for";
                return Err(CallFailure::new(FailureKind::Refused, message));
            }
            let matches = |instance: &&Instance| {
                let has_image = filter.ami_name_pattern.as_ref().is_none_or(|pattern| {
                    region.named_images(pattern).any(|image| Some(&image.id) == instance.image_id.as_ref())
                });
                has_image && filter.carried_by(instance)
            };
            Ok(region.listed().filter(matches).cloned().collect())
        };
        let (instances, completeness) = match self.call(call, look).await {
            Ok(instances) => (instances, Completeness::Complete),
            Err(failure) => (Vec::new(), Completeness::Partial(failure)),
        };
        Scan { region: region.to_owned(), instances, completeness }
    }

    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Result<bool, CallFailure> {
        let call = ComputeCall::SeesSubnet { region: region.to_owned(), subnet_id: subnet_id.to_owned() };
        self.call(call, |region| Ok(region.subnets.contains(subnet_id))).await
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        let number = {
            let mut world = self.world.lock();
            world.launches += 1;
            world.launches
        };
        let make = || Instance {
            private_ip: Some(format!("10.0.{}.{}", (number >> 8) & 255, number & 255)),
            launched_at: Some(self.clock.now()),
            client_token: Some(plan.client_token.clone()),
            instance_type: Some(plan.instance_type.clone()),
            image_id: Some(plan.image_id.clone()),
            tags: plan.tags.clone(),
            ..Instance::new(format!("i-{number:017x}"), Ec2State::Pending)
        };
        self.call(ComputeCall::Launch(Box::new(plan.clone())), |region| region.launch(plan, make)).await
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let now = self.clock.now();
        let act = |region: &mut Region| {
            let instance = region.changeable(id)?;
            match instance.state {
                Ec2State::Stopped => {
                    enter(instance, Ec2State::Pending);
                    instance.launched_at = Some(now);
                    Ok(())
                }
                Ec2State::Pending | Ec2State::Running => Ok(()),
                Ec2State::Stopping | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
                    Err(wrong_state(instance, "started"))
                }
            }
        };
        self.call(ComputeCall::Start { region: region.to_owned(), id: id.clone() }, act).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let act = |region: &mut Region| {
            let instance = region.changeable(id)?;
            match instance.state {
                Ec2State::Running => {
                    enter(instance, Ec2State::Stopping);
                    Ok(())
                }
                Ec2State::Stopping | Ec2State::Stopped => Ok(()),
                Ec2State::Pending | Ec2State::ShuttingDown | Ec2State::Terminated | Ec2State::Other => {
                    Err(wrong_state(instance, "stopped"))
                }
            }
        };
        self.call(ComputeCall::Stop { region: region.to_owned(), id: id.clone() }, act).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let act = |region: &mut Region| {
            // One that EC2 has forgotten needs nothing more.
            if let Ok(instance) = region.changeable(id)
                && instance.state != Ec2State::Terminated
            {
                enter(instance, Ec2State::ShuttingDown);
            }
            Ok(())
        };
        self.call(ComputeCall::Terminate { region: region.to_owned(), id: id.clone() }, act).await
    }
}

fn wrong_state(instance: &Instance, wish: &str) -> CallFailure {
    let message = format!("The instance '{}' is not in a state from which it can be {wish}", instance.id);
    CallFailure::coded(FailureKind::Conflict, "IncorrectInstanceState", message)
}

#[cfg(all(test, feature = "conformance"))]
mod tests;
