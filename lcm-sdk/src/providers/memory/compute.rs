//! EC2 in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, ImageDetails, ImageOwners, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::trust::Caller;
use crate::ports::{Clock, Compute, DiscoveryFilter};
use crate::simulate::{ACCOUNT_ID, Catalog, Ec2Model};

/// A [`Compute`] port in memory: one [`Ec2Model`] per region.
///
/// Transitions complete only with [`MemoryCompute::settle`]. Calls are recorded, and fail on demand.
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
    state: Mutex<State>,
}

impl std::fmt::Debug for MemoryCompute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryCompute").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    /// The account of the credentials in use.
    account: String,
    /// By account and region.
    regions: BTreeMap<(String, String), Ec2Model>,
    calls: Vec<ComputeCall>,
    faults: Vec<(ComputeOperation, Fault)>,
    delays: HashMap<String, Duration>,
    launches: u64,
    image_owners: ImageOwners,
}

#[derive(Debug)]
enum Fault {
    Fail(CallFailure),
    LoseResponse(CallFailure),
}

/// Kind of a call to [`MemoryCompute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComputeOperation {
    /// [`Compute::instances`] or [`Compute::instance`].
    Instances,
    /// [`Compute::tagged`], by worker.
    Tagged,
    /// [`Compute::images`], by name pattern.
    Images,
    /// [`Compute::image_details`], by ID.
    ImageDetails,
    /// [`Compute::scan`], by filter.
    Scan,
    /// [`Compute::subnet_owner`], by ID.
    SubnetOwner,
    /// [`Compute::launch`], by plan.
    Launch,
    /// [`Compute::start`], by ID.
    Start,
    /// [`Compute::stop`], by ID.
    Stop,
    /// [`Compute::terminate`], by ID.
    Terminate,
}

/// A recorded call to [`MemoryCompute`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the `Compute` methods")]
pub enum ComputeCall {
    /// [`Compute::instances`] or [`Compute::instance`].
    Instances { region: String, ids: Vec<InstanceId> },
    /// [`Compute::tagged`], by worker.
    Tagged { region: String, worker: WorkerId },
    /// [`Compute::images`], by name pattern.
    Images { region: String, pattern: String },
    /// [`Compute::image_details`], by ID.
    ImageDetails { region: String, ids: Vec<String> },
    /// [`Compute::scan`], by filter.
    Scan { region: String, filter: DiscoveryFilter },
    /// [`Compute::subnet_owner`], by ID.
    SubnetOwner { region: String, subnet_id: String },
    /// [`Compute::launch`], by plan.
    Launch(Box<LaunchPlan>),
    /// [`Compute::start`], by ID.
    Start { region: String, id: InstanceId },
    /// [`Compute::stop`], by ID.
    Stop { region: String, id: InstanceId },
    /// [`Compute::terminate`], by ID.
    Terminate { region: String, id: InstanceId },
}

impl ComputeCall {
    /// Kind of the call.
    pub const fn operation(&self) -> ComputeOperation {
        match self {
            Self::Instances { .. } => ComputeOperation::Instances,
            Self::Tagged { .. } => ComputeOperation::Tagged,
            Self::Images { .. } => ComputeOperation::Images,
            Self::ImageDetails { .. } => ComputeOperation::ImageDetails,
            Self::Scan { .. } => ComputeOperation::Scan,
            Self::SubnetOwner { .. } => ComputeOperation::SubnetOwner,
            Self::Launch(_) => ComputeOperation::Launch,
            Self::Start { .. } => ComputeOperation::Start,
            Self::Stop { .. } => ComputeOperation::Stop,
            Self::Terminate { .. } => ComputeOperation::Terminate,
        }
    }

    fn region(&self) -> &str {
        match self {
            Self::Instances { region, .. }
            | Self::Tagged { region, .. }
            | Self::Images { region, .. }
            | Self::ImageDetails { region, .. }
            | Self::Scan { region, .. }
            | Self::SubnetOwner { region, .. }
            | Self::Start { region, .. }
            | Self::Stop { region, .. }
            | Self::Terminate { region, .. } => region,
            Self::Launch(plan) => &plan.region,
        }
    }
}

impl MemoryCompute {
    /// Creates an EC2 without regions or instances. The clock sets launch times.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State {
            account: ACCOUNT_ID.to_owned(),
            regions: BTreeMap::new(),
            calls: Vec::new(),
            faults: Vec::new(),
            delays: HashMap::new(),
            launches: 0,
            image_owners: ImageOwners::default(),
        };
        Self { clock, state: Mutex::new(state) }
    }

    /// Replaces the credentials by those of an account, [`ACCOUNT_ID`] at first. Every account has instances, images and
    /// subnets of its own; from then on, all methods use those of this one.
    pub fn use_account(&self, account_id: &str) {
        account_id.clone_into(&mut self.state.lock().account);
    }

    /// Adds or replaces an instance.
    pub fn put(&self, region: &str, instance: Instance) {
        let now = self.clock.now();
        self.edit(region, |ec2| ec2.place(instance, now));
    }

    /// Adds an image.
    pub fn put_image(&self, region: &str, image: Image) {
        self.edit(region, |ec2| ec2.catalog.get_or_insert_default().images.push(image));
    }

    /// Adds an image of another account, which every account sees.
    pub fn put_foreign_image(&self, region: &str, owner_id: &str, image: Image) {
        self.edit(region, |ec2| {
            let catalog = ec2.catalog.get_or_insert_default();
            catalog.foreign.insert(image.id.clone(), owner_id.to_owned());
            catalog.images.push(image);
        });
    }

    /// Sets the owners of accepted images. Default: the own account.
    pub fn set_image_owners(&self, owners: ImageOwners) {
        self.state.lock().image_owners = owners;
    }

    /// Adds a subnet.
    pub fn put_subnet(&self, region: &str, subnet_id: &str) {
        self.edit(region, |ec2| ec2.catalog.get_or_insert_default().subnets.insert(subnet_id.to_owned()));
    }

    /// Sets the state of an instance, as a user of the AWS console could.
    pub fn set_state(&self, region: &str, id: &InstanceId, state: Ec2State) {
        let now = self.clock.now();
        self.edit(region, |ec2| ec2.set_state(id, state, now));
    }

    /// Removes an instance, as EC2 does some time after termination.
    pub fn remove(&self, region: &str, id: &InstanceId) {
        self.edit(region, |ec2| ec2.remove(id));
    }

    /// Hides an instance, as EC2 may right after a launch, until [`MemoryCompute::show`].
    pub fn hide(&self, region: &str, id: &InstanceId) {
        self.edit(region, |ec2| ec2.hide(id));
    }

    /// Shows a hidden instance again.
    pub fn show(&self, region: &str, id: &InstanceId) {
        self.edit(region, |ec2| ec2.show(id));
    }

    /// Completes all state transitions.
    pub fn settle(&self) {
        let now = self.clock.now();
        self.state.lock().regions.values_mut().for_each(|ec2| ec2.settle_all(now));
    }

    /// Fails the next call of an operation, without effect. Failures queue up, one per call.
    pub fn fail_next(&self, operation: ComputeOperation, failure: CallFailure) {
        self.state.lock().faults.push((operation, Fault::Fail(failure)));
    }

    /// Executes the next call of an operation, but returns `failure` instead of its response.
    pub fn lose_next_response(&self, operation: ComputeOperation, failure: CallFailure) {
        self.state.lock().faults.push((operation, Fault::LoseResponse(failure)));
    }

    /// Discards queued failures.
    pub fn clear_failures(&self) {
        self.state.lock().faults.clear();
    }

    /// Delays every call in a region, on tokio's timer.
    pub fn set_delay(&self, region: &str, delay: Duration) {
        self.state.lock().delays.insert(region.to_owned(), delay);
    }

    /// Recorded calls, oldest first.
    pub fn calls(&self) -> Vec<ComputeCall> {
        self.state.lock().calls.clone()
    }

    /// All instances of a region, including hidden ones. Records no call.
    pub fn all(&self, region: &str) -> Vec<Instance> {
        self.read(region, |ec2| ec2.all().cloned().collect())
    }

    /// Reads a region without copying its instances. Records no call.
    pub fn read<T>(&self, region: &str, read: impl FnOnce(&Ec2Model) -> T) -> T {
        self.edit(region, |ec2| read(ec2))
    }

    fn edit<T>(&self, region: &str, edit: impl FnOnce(&mut Ec2Model) -> T) -> T {
        let mut state = self.state.lock();
        let place = (state.account.clone(), region.to_owned());
        let ec2 = state.regions.entry(place).or_insert_with_key(|(account, _)| {
            let mut ec2 = Ec2Model::default();
            ec2.account_id.clone_from(account);
            ec2.terminated_visible = Duration::MAX;
            ec2.catalog = Some(Catalog::default());
            ec2
        });
        edit(ec2)
    }

    /// Records a call, waits for the delay of its region, and executes it unless a fault is planned.
    async fn call<T>(
        &self,
        call: ComputeCall,
        execute: impl FnOnce(&mut Ec2Model) -> Result<T, CallFailure> + Send,
    ) -> Result<T, CallFailure> {
        let region = call.region().to_owned();
        let (fault, delay) = {
            let mut state = self.state.lock();
            let place = state.faults.iter().position(|(operation, _)| *operation == call.operation());
            let fault = place.map(|place| state.faults.remove(place).1);
            state.calls.push(call);
            (fault, state.delays.get(&region).copied())
        };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        match fault {
            None => self.edit(&region, execute),
            Some(Fault::Fail(failure)) => Err(failure),
            Some(Fault::LoseResponse(failure)) => {
                drop(self.edit(&region, execute));
                Err(failure)
            }
        }
    }
}

#[async_trait]
impl Compute for MemoryCompute {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let call = ComputeCall::Instances { region: region.to_owned(), ids: ids.to_vec() };
        let now = self.clock.now();
        let describe = |ec2: &mut Ec2Model| Ok(ids.iter().map(|id| ec2.describe(id, now)).collect());
        self.call(call, describe).await.unwrap_or_else(|failure| vec![Lookup::Unknown(failure); ids.len()])
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        let call = ComputeCall::Tagged { region: region.to_owned(), worker: worker.clone() };
        let now = self.clock.now();
        let is_tagged = |instance: &&Instance| instance.owner() == Some(worker.as_str());
        self.call(call, |ec2| Ok(ec2.list(now)?.filter(is_tagged).cloned().collect())).await
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        let call = ComputeCall::Images { region: region.to_owned(), pattern: pattern.to_owned() };
        let owners = self.state.lock().image_owners.clone();
        self.call(call, |ec2| {
            let catalog = ec2.catalog.get_or_insert_default();
            Ok(catalog.matching_images(pattern, &owners).cloned().collect())
        })
        .await
    }

    async fn image_details(&self, region: &str, ids: &[String]) -> Vec<Lookup<ImageDetails>> {
        let call = ComputeCall::ImageDetails { region: region.to_owned(), ids: ids.to_vec() };
        let details = |image: &Image| ImageDetails {
            id: image.id.clone(),
            name: Some(image.name.clone()),
            description: None,
            creation_date: Some(image.creation_date.clone()),
        };
        let describe = |ec2: &mut Ec2Model| {
            let images = &ec2.catalog.get_or_insert_default().images;
            let find = |id: &String| images.iter().find(|image| image.id == *id).map(details);
            Ok(ids.iter().map(|id| find(id).map_or(Lookup::Absent, Lookup::Found)).collect())
        };
        self.call(call, describe).await.unwrap_or_else(|failure| vec![Lookup::Unknown(failure); ids.len()])
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let call = ComputeCall::Scan { region: region.to_owned(), filter: filter.clone() };
        let (now, owners) = (self.clock.now(), self.state.lock().image_owners.clone());
        let scan = |ec2: &mut Ec2Model| {
            if filter.is_empty() {
                let message = "a scan needs an AMI name pattern or a tag to look for";
                return Err(CallFailure::new(FailureKind::Refused, message));
            }
            let images: Option<Vec<String>> = filter.ami_name_pattern.as_ref().map(|pattern| {
                let catalog = ec2.catalog.get_or_insert_default();
                catalog.matching_images(pattern, &owners).map(|image| image.id.clone()).collect()
            });
            let matches = |instance: &&Instance| {
                let has_image = images
                    .as_ref()
                    .is_none_or(|images| instance.image_id.as_ref().is_some_and(|image_id| images.contains(image_id)));
                has_image && filter.matches_tags(instance)
            };
            Ok(ec2.list(now)?.filter(matches).cloned().collect())
        };
        let (instances, completeness) = match self.call(call, scan).await {
            Ok(instances) => (instances, Completeness::Complete),
            Err(failure) => (Vec::new(), Completeness::Partial(failure)),
        };
        Scan { region: region.to_owned(), instances, completeness }
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Result<Option<String>, CallFailure> {
        let call = ComputeCall::SubnetOwner { region: region.to_owned(), subnet_id: subnet_id.to_owned() };
        let owner = self.state.lock().account.clone();
        let is_visible = |ec2: &mut Ec2Model| {
            ec2.catalog.as_ref().is_some_and(|catalog| catalog.subnets.contains(subnet_id)).then_some(owner)
        };
        self.call(call, |ec2| Ok(is_visible(ec2))).await
    }

    async fn caller(&self, _region: &str) -> Result<Caller, CallFailure> {
        Ok(Caller::new(self.state.lock().account.clone()))
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        let number = {
            let mut state = self.state.lock();
            state.launches += 1;
            state.launches
        };
        let now = self.clock.now();
        self.call(ComputeCall::Launch(Box::new(plan.clone())), |ec2| ec2.launch(plan, number, now)).await
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let now = self.clock.now();
        self.call(ComputeCall::Start { region: region.to_owned(), id: id.clone() }, |ec2| ec2.start(id, now)).await
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let now = self.clock.now();
        self.call(ComputeCall::Stop { region: region.to_owned(), id: id.clone() }, |ec2| ec2.stop(id, now)).await
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let now = self.clock.now();
        let terminate = |ec2: &mut Ec2Model| match ec2.terminate(id, now) {
            // An instance that EC2 has forgotten counts as terminated.
            Err(failure) if failure.code.as_deref() == Some("InvalidInstanceID.NotFound") => Ok(()),
            result => result,
        };
        self.call(ComputeCall::Terminate { region: region.to_owned(), id: id.clone() }, terminate).await
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;
    use crate::conformance::compute::{ComputeWorld, suite};
    use crate::ports::SystemClock;

    struct Fixture(MemoryCompute);

    #[async_trait]
    impl ComputeWorld for Fixture {
        fn compute(&self) -> &dyn Compute {
            &self.0
        }

        fn region(&self) -> &str {
            "us-east-1"
        }

        fn other_region(&self) -> &str {
            "eu-west-1"
        }

        fn plan(&self) -> LaunchPlan {
            LaunchPlan {
                region: self.region().to_owned(),
                image_id: "ami-2".to_owned(),
                instance_type: "m5zn.metal".to_owned(),
                subnet_id: "subnet-1".to_owned(),
                security_group_ids: vec!["sg-1".to_owned()],
                key_name: None,
                tags: BTreeMap::new(),
                generation: 0,
                client_token: String::new(),
            }
        }

        fn image_pattern(&self) -> String {
            "cml-2.?.1*".to_owned()
        }

        async fn settle(&self) {
            self.0.settle();
        }

        async fn forget_terminated(&self) {
            for instance in self.0.all(self.region()) {
                if instance.state == Ec2State::Terminated {
                    self.0.remove(self.region(), &instance.id);
                }
            }
        }

        async fn fail(&self, failure: &CallFailure) {
            for operation in [
                ComputeOperation::Instances,
                ComputeOperation::Tagged,
                ComputeOperation::Images,
                ComputeOperation::Scan,
                ComputeOperation::SubnetOwner,
                ComputeOperation::Launch,
                ComputeOperation::Start,
                ComputeOperation::Stop,
                ComputeOperation::Terminate,
            ] {
                self.0.fail_next(operation, failure.clone());
            }
        }

        async fn recover(&self) {
            self.0.clear_failures();
        }
    }

    fn fixture() -> Fixture {
        let compute = MemoryCompute::new(Arc::new(SystemClock));
        for (id, name) in [("ami-1", "cml-2.8.0"), ("ami-2", "cml-2.9.1-x")] {
            let creation_date = "2026-01-01T00:00:00.000Z".to_owned();
            compute.put_image("us-east-1", Image { id: id.to_owned(), name: name.to_owned(), creation_date });
        }
        compute.put_subnet("us-east-1", "subnet-1");
        Fixture(compute)
    }

    #[tokio::test]
    async fn memory_compute_conforms() {
        suite(&fixture()).await;
    }

    #[tokio::test]
    async fn only_images_of_accepted_owners_are_listed() {
        let Fixture(compute) = fixture();
        let image = Image { id: "ami-9".into(), name: "cml-2.9.9".into(), creation_date: "2030".into() };
        compute.put_foreign_image("us-east-1", "666666666666", image);
        let listed = async |owners: ImageOwners| {
            compute.set_image_owners(owners);
            compute.images("us-east-1", "cml-2.9*").await.expect("listed").len()
        };
        assert_eq!(listed(ImageOwners::default()).await, 1);
        assert_eq!(listed(ImageOwners::Named(vec!["666666666666".into()])).await, 1);
        assert_eq!(listed(ImageOwners::Any).await, 2);
    }

    #[tokio::test]
    async fn launch_is_idempotent_after_a_lost_response() {
        let fixture = fixture();
        let lost = CallFailure::new(FailureKind::Unclear, "the connection was cut");
        fixture.0.lose_next_response(ComputeOperation::Launch, lost.clone());
        let plan = LaunchPlan { client_token: "once".to_owned(), ..fixture.plan() };
        assert_eq!(fixture.0.launch(&plan).await, Err(lost));
        let id = fixture.0.launch(&plan).await.expect("the same instance");
        assert_eq!(fixture.0.all("us-east-1").iter().map(|instance| &instance.id).collect::<Vec<_>>(), [&id]);
    }

    #[tokio::test]
    async fn hidden_instance_is_absent() {
        let fixture = fixture();
        let id = InstanceId::from("i-1");
        fixture.0.put("us-east-1", Instance::new("i-1", Ec2State::Running));
        fixture.0.hide("us-east-1", &id);
        assert_eq!(fixture.0.instance("us-east-1", &id).await, Lookup::Absent);
        fixture.0.show("us-east-1", &id);
        assert!(fixture.0.instance("us-east-1", &id).await.found().is_some());
    }
}
