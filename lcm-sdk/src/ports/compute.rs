use async_trait::async_trait;

use crate::lifecycle::discovery::Scan;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;

/// EC2, asked in the worker's own region.
#[async_trait]
pub trait Compute: Send + Sync {
    /// Describes instances: one answer for each id, in the order of the ids.
    ///
    /// [`Lookup::Absent`] only if EC2 itself said, in this region, that there is no such instance. An id that makes the
    /// call fail never spoils the answers about the others.
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>>;

    /// Describes one instance.
    async fn instance(&self, region: &str, id: &InstanceId) -> Lookup<Instance> {
        self.instances(region, std::slice::from_ref(id)).await.pop().unwrap_or_default()
    }

    /// All instances whose tags name the worker, dead ones that EC2 still shows included. An empty list is an answer.
    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure>;

    /// The AMIs whose name matches a pattern (`*` and `?` are wildcards), in any order. An empty list is an answer.
    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure>;

    /// Everything in a region that matches a filter, over all pages. A page that fails makes the scan partial; what
    /// was read until then is in it.
    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan;

    /// Whether a subnet can be seen with these credentials; `Ok(false)` if EC2 said there is none.
    async fn sees_subnet(&self, region: &str, subnet_id: &str) -> Result<bool, CallFailure>;

    /// Launches exactly this plan, with its token and its tags in the same call. The same plan again gives the same
    /// instance, or [`FailureKind::LaunchDied`](crate::FailureKind) if that one is terminated.
    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure>;

    /// Starts a stopped instance. One that runs or starts already is a success.
    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;

    /// Stops a running instance. One that is stopped or stops already is a success.
    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;

    /// Terminates an instance. One that is terminated already, or that EC2 has forgotten, is a success.
    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;
}

/// Which instances discovery looks for. All conditions that are set must hold; at least one must be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoveryFilter {
    /// Name pattern of the AMI they were made from.
    pub ami_name_pattern: Option<String>,
    /// Tags they carry; without a value, any value will do.
    pub tags: Vec<(String, Option<String>)>,
}

impl DiscoveryFilter {
    /// Whether nothing is asked for. Such a scan would take the whole account for ours.
    pub fn is_empty(&self) -> bool {
        self.ami_name_pattern.is_none() && self.tags.is_empty()
    }

    /// Whether an instance carries all the tags, each with the value asked for.
    pub fn carried_by(&self, instance: &Instance) -> bool {
        self.tags.iter().all(|(key, wanted)| {
            instance.tags.get(key).is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
        })
    }
}
