use async_trait::async_trait;

use crate::lifecycle::discovery::Scan;
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, ImageDetails, Instance};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::trust::Caller;

/// EC2 in all regions.
///
/// # Promises
/// - Launches are idempotent, and set token and tags of the plan in the same call.
/// - Invalid launches are refused, as is another plan with the same token.
/// - Each ID has its own result, in request order. An invalid ID does not affect the others.
/// - State changes are idempotent.
/// - Forgotten instances are absent, and terminating one is a success.
/// - Images are found by name.
/// - Scans match all conditions, and return each instance once.
/// - Scans without conditions are refused.
/// - Subnets are looked up by region, with their owner.
/// - Instances name the account that owns them: that of the caller.
/// - Failed calls never mean absence, and failures are not cached.
#[async_trait]
pub trait Compute: Send + Sync {
    /// Describes instances. Returns one result per ID, in the order of the IDs.
    ///
    /// The result is [`Lookup::Absent`] only if EC2 reported that the region has no such instance. An ID that makes the
    /// call fail does not affect the results of the others.
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>>;

    /// Describes one instance. By default calls [`Compute::instances`].
    async fn instance(&self, region: &str, id: &InstanceId) -> Lookup<Instance> {
        self.instances(region, std::slice::from_ref(id)).await.pop().unwrap_or_default()
    }

    /// Lists the instances whose tags name the worker, including terminated ones that EC2 still shows.
    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure>;

    /// Lists the AMIs whose name matches a pattern, in any order. `*` and `?` are wildcards.
    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure>;

    /// Describes AMIs of any owner. Returns one result per ID, in the order of the IDs. By default nothing is known.
    async fn image_details(&self, _region: &str, ids: &[String]) -> Vec<Lookup<ImageDetails>> {
        vec![Lookup::NotRequested; ids.len()]
    }

    /// Lists the instances in a region that match a filter, over all pages. A failed page makes the scan partial; it
    /// still holds the instances of earlier pages.
    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan;

    /// Returns the ID of the account that owns a subnet; `None` if the subnet is not visible with these credentials. By
    /// default no subnet is visible.
    async fn subnet_owner(&self, _region: &str, _subnet_id: &str) -> Result<Option<String>, CallFailure> {
        Ok(None)
    }

    /// Returns the identity behind the calls in a region. By default neither account nor access key is known; then an
    /// absence is believed only next to an instance that is found.
    async fn caller(&self, _region: &str) -> Result<Caller, CallFailure> {
        Ok(Caller::default())
    }

    /// Launches an instance. The same plan again returns the same instance, or
    /// [`FailureKind::LaunchDied`](crate::FailureKind) if that one is terminated.
    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure>;

    /// Starts a stopped instance. Succeeds if it is pending or running.
    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;

    /// Stops a running instance. Succeeds if it is stopping or stopped.
    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;

    /// Terminates an instance. Succeeds if it is terminated or unknown to EC2.
    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure>;
}

/// Conditions of a scan. An instance must match all of them; at least one is required.
///
/// ```
/// use lcm_sdk::ports::DiscoveryFilter;
///
/// let filter = DiscoveryFilter::default().with_ami_name_pattern("cml-2.9*").with_tag("team", "labs");
/// assert!(!filter.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoveryFilter {
    /// Name pattern of the AMI.
    pub ami_name_pattern: Option<String>,
    /// Tags of the instance. `None` matches any value.
    pub tags: Vec<(String, Option<String>)>,
}

impl DiscoveryFilter {
    /// Requires an AMI whose name matches a pattern.
    #[must_use]
    pub fn with_ami_name_pattern(self, pattern: impl Into<String>) -> Self {
        Self { ami_name_pattern: Some(pattern.into()), ..self }
    }

    /// Requires a tag with this value.
    #[must_use]
    pub fn with_tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((key.into(), Some(value.into())));
        self
    }

    /// Requires a tag with any value.
    #[must_use]
    pub fn with_tag_key(mut self, key: impl Into<String>) -> Self {
        self.tags.push((key.into(), None));
        self
    }

    /// Whether there are no conditions. Such a scan would match every instance of the account.
    pub fn is_empty(&self) -> bool {
        self.ami_name_pattern.is_none() && self.tags.is_empty()
    }

    /// Whether the tags of an instance match. Ignores the AMI.
    pub fn matches_tags(&self, instance: &Instance) -> bool {
        self.tags.iter().all(|(key, expected)| {
            instance.tags.get(key).is_some_and(|value| expected.as_ref().is_none_or(|expected| expected == value))
        })
    }
}
