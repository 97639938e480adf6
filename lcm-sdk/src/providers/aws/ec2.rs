//! [`Compute`] with EC2.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, InstanceType, ResourceType, Tag, TagSpecification};

use super::account::{Account, ClientCache};
use super::api::Api;
use super::convert;
use super::describe::describe;
use super::errors::{CONFLICT, INSTANCE_NOT_FOUND, SUBNET_NOT_FOUND, refuses_image};
use super::identity::Identities;
use super::image_cache::ImageCache;
use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::{InstanceId, WorkerId};
use crate::lifecycle::instance::{Image, ImageDetails, Instance, WORKER_ID_TAG};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::lifecycle::trust::Caller;
use crate::ports::{Compute, DiscoveryFilter};

/// Maximum number of filter values per call, over all filters.
const MAX_FILTER_VALUES: usize = 200;
/// Page size, the maximum of EC2.
const PAGE_SIZE: i32 = 1000;
/// Maximum number of pages, which a million instances do not fill. More mean that the tokens repeat.
const MAX_PAGES: usize = 1000;

/// A [`Compute`] port to EC2, with one client per region.
///
/// # Guarantees
/// Those of [`Compute`]. Every call has a time limit, a rate limit, retries and a circuit breaker per region; see
/// [`Tuning`](super::Tuning).
#[derive(Debug)]
pub struct Ec2 {
    account: Account,
    clients: ClientCache<Client>,
    identities: Identities,
    images: ImageCache,
}

impl Ec2 {
    /// Creates a port to EC2 in an account. Makes no call.
    pub fn new(account: Account) -> Self {
        let images = ImageCache::new(account.tuning().image_cache_ttl);
        Self { account, clients: ClientCache::default(), identities: Identities::default(), images }
    }

    fn client(&self, region: &str) -> Client {
        self.clients.get(region, || self.account.ec2(region, self.identities.last_key(region)))
    }

    /// Passes every matching instance to `take`, page by page.
    async fn for_each_instance(
        &self,
        region: &str,
        selector: Selector<'_>,
        mut take: impl FnMut(Instance) + Send,
    ) -> Result<(), CallFailure> {
        let client = self.client(region);
        let mut token = None;
        for _ in 0..MAX_PAGES {
            let call = || {
                let request = match selector {
                    // EC2 accepts either IDs or a page size.
                    Selector::Ids(ids) => {
                        let ids = ids.iter().map(|id| id.as_str().to_owned()).collect();
                        client.describe_instances().set_instance_ids(Some(ids))
                    }
                    Selector::Filters(filters) => {
                        client.describe_instances().set_filters(Some(filters.to_vec())).max_results(PAGE_SIZE)
                    }
                };
                request.set_next_token(token.clone()).send()
            };
            let page = self.account.caller().call(Api::DescribeInstances, region, call).await?;
            for reservation in page.reservations() {
                let described = reservation.instances().iter();
                described.filter_map(|one| convert::instance(one, reservation.owner_id())).for_each(&mut take);
            }
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(());
            }
        }
        Err(too_many_pages("DescribeInstances", region))
    }

    async fn describe_images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        let client = self.client(region);
        let owners = &self.account.tuning().image_owners;
        let (mut images, mut token) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let call = || {
                client
                    .describe_images()
                    .filters(convert::pattern("name", pattern))
                    .filters(convert::exact("state", "available"))
                    .set_owners(owners.names().map(<[String]>::to_vec))
                    .max_results(PAGE_SIZE)
                    .set_next_token(token.clone())
                    .send()
            };
            let page = self.account.caller().call(Api::DescribeImages, region, call).await?;
            let own = match owners.include_own() && !page.images().is_empty() {
                true => Some(self.own_account(region).await?),
                false => None,
            };
            for image in page.images() {
                if owners.accepts(image.owner_id(), image.image_owner_alias(), own.as_deref()) {
                    images.extend(convert::image(image));
                } else {
                    let (image, owner) = (image.image_id(), image.owner_id());
                    tracing::warn!(target: "lcm::aws", region, image, owner, %owners, "an AMI of another owner is ignored");
                }
            }
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(images);
            }
        }
        Err(too_many_pages("DescribeImages", region))
    }

    /// The account that the owner `self` of an AMI is compared with.
    async fn own_account(&self, region: &str) -> Result<String, CallFailure> {
        let message = "the owners of the AMIs cannot be compared with AMI_OWNERS=self, because STS does not report the \
                       account of the credentials; accepted without STS: ids of accounts";
        let unknown = || CallFailure::new(FailureKind::RefusedForNow, message);
        self.identities.caller(&self.account, region).await.account_id.ok_or_else(unknown)
    }

    /// Builds the filters of a scan, one list per call. Together the calls match all instances.
    async fn scan_filters(&self, region: &str, filter: &DiscoveryFilter) -> Result<Vec<Vec<Filter>>, CallFailure> {
        if filter.is_empty() {
            let message = "a scan needs an AMI name pattern or a tag to look for";
            return Err(CallFailure::new(FailureKind::Refused, message));
        }
        let tags: Vec<Filter> = filter.tags.iter().map(|(key, value)| convert::tag(key, value.as_deref())).collect();
        let Some(pattern) = &filter.ami_name_pattern else {
            return Ok(vec![tags]);
        };
        // Not cached: a scan that misses a new AMI would count as complete.
        let images = self.describe_images(region, pattern).await?;
        let room = MAX_FILTER_VALUES.saturating_sub(tags.len()).max(1);
        let image_filters = |images: &[Image]| {
            let ids = images.iter().map(|image| image.id.clone()).collect();
            let mut filters = tags.clone();
            filters.push(Filter::builder().name("image-id").set_values(Some(ids)).build());
            filters
        };
        Ok(images.chunks(room).map(image_filters).collect())
    }

    /// Turns a conflict into a success if the instance is already in the target state.
    async fn accept_if_settled(
        &self,
        region: &str,
        id: &InstanceId,
        refusal: CallFailure,
        is_settled: fn(Ec2State) -> Settled,
    ) -> Result<(), CallFailure> {
        match self.instance(region, id).await.found().map(|instance| is_settled(instance.state)) {
            Some(Settled::Yes) => Ok(()),
            Some(Settled::No) | None => Err(refusal),
        }
    }
}

/// Selects instances to describe.
#[derive(Clone, Copy)]
enum Selector<'a> {
    Ids(&'a [InstanceId]),
    Filters(&'a [Filter]),
}

enum Settled {
    Yes,
    No,
}

#[async_trait]
impl Compute for Ec2 {
    async fn instances(&self, region: &str, ids: &[InstanceId]) -> Vec<Lookup<Instance>> {
        let describe_batch = |batch: Vec<InstanceId>| async move {
            let mut found = Vec::with_capacity(batch.len());
            self.for_each_instance(region, Selector::Ids(&batch), |instance| found.push(instance)).await?;
            Ok(found)
        };
        describe(ids, describe_batch).await
    }

    async fn tagged(&self, region: &str, worker: &WorkerId) -> Result<Vec<Instance>, CallFailure> {
        let filters = [convert::tag(WORKER_ID_TAG, Some(worker.as_str()))];
        let mut found = Vec::new();
        self.for_each_instance(region, Selector::Filters(&filters), |instance| found.push(instance)).await?;
        Ok(found)
    }

    async fn images(&self, region: &str, pattern: &str) -> Result<Vec<Image>, CallFailure> {
        self.images.get(region, pattern, self.describe_images(region, pattern)).await
    }

    /// Filters by id, because a call that names an unknown AMI would be refused.
    async fn image_details(&self, region: &str, ids: &[String]) -> Vec<Lookup<ImageDetails>> {
        let client = &self.client(region);
        let mut found: HashMap<String, ImageDetails> = HashMap::new();
        let mut failure = None;
        for ids in ids.chunks(MAX_FILTER_VALUES) {
            let filter = Filter::builder().name("image-id").set_values(Some(ids.to_vec())).build();
            let call = || client.describe_images().filters(filter.clone()).include_deprecated(true).send();
            match self.account.caller().call(Api::DescribeImages, region, call).await {
                Ok(page) => found.extend(page.images().iter().filter_map(convert::image_details)),
                Err(failed) => failure = Some(failed),
            }
        }
        let missing = || failure.clone().map_or(Lookup::Absent, Lookup::Unknown);
        ids.iter().map(|id| found.get(id).cloned().map_or_else(missing, Lookup::Found)).collect()
    }

    async fn scan(&self, region: &str, filter: &DiscoveryFilter) -> Scan {
        let (mut instances, mut seen) = (Vec::new(), HashSet::new());
        let result = async {
            for filters in self.scan_filters(region, filter).await? {
                let take = |instance: Instance| {
                    if filter.matches_tags(&instance) && seen.insert(instance.id.clone()) {
                        instances.push(instance);
                    }
                };
                self.for_each_instance(region, Selector::Filters(&filters), take).await?;
            }
            Ok(())
        };
        let completeness = match result.await {
            Ok(()) => Completeness::Complete,
            Err(failure) => Completeness::Partial(failure),
        };
        Scan { region: region.to_owned(), instances, completeness }
    }

    async fn subnet_owner(&self, region: &str, subnet_id: &str) -> Result<Option<String>, CallFailure> {
        let client = self.client(region);
        let call = || client.describe_subnets().subnet_ids(subnet_id).send();
        match self.account.caller().call(Api::DescribeSubnets, region, call).await {
            Ok(described) => {
                let subnet = described.subnets().iter().find(|subnet| subnet.subnet_id() == Some(subnet_id));
                Ok(subnet.and_then(|subnet| subnet.owner_id()).map(str::to_owned))
            }
            Err(failure) if has_code(&failure, SUBNET_NOT_FOUND) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn caller(&self, region: &str) -> Result<Caller, CallFailure> {
        Ok(self.identities.caller(&self.account, region).await)
    }

    async fn launch(&self, plan: &LaunchPlan) -> Result<InstanceId, CallFailure> {
        let client = self.client(&plan.region);
        let tags = plan.tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect();
        let tags = TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags)).build();
        let call = || {
            client
                .run_instances()
                .client_token(&plan.client_token)
                .image_id(&plan.image_id)
                .instance_type(InstanceType::from(plan.instance_type.as_str()))
                .subnet_id(&plan.subnet_id)
                .set_security_group_ids(Some(plan.security_group_ids.clone()))
                .set_key_name(plan.key_name.clone())
                .tag_specifications(tags.clone())
                .min_count(1)
                .max_count(1)
                .send()
        };
        let launched = match self.account.caller().call(Api::RunInstances, &plan.region, call).await {
            Ok(launched) => launched,
            Err(failure) => {
                if failure.code.as_deref().is_some_and(refuses_image) {
                    self.images.forget(&plan.region, &plan.image_id).await;
                }
                return Err(failure);
            }
        };
        let instances: Vec<Instance> =
            launched.instances().iter().filter_map(|one| convert::instance(one, launched.owner_id())).collect();
        match <[Instance; 1]>::try_from(instances) {
            // Some regions return the terminated instance of a token.
            Ok([instance]) if !instance.state.is_live() => {
                let message = format!("the client token belongs to {}, which is {}", instance.id, instance.state);
                Err(CallFailure::new(FailureKind::LaunchDied, message))
            }
            Ok([instance]) => Ok(instance.id),
            Err(instances) => {
                let message = format!("RunInstances returned {} instances, expected 1", instances.len());
                Err(CallFailure::new(FailureKind::Unparsable, message))
            }
        }
    }

    async fn start(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let client = self.client(region);
        let call = || client.start_instances().instance_ids(id.as_str()).send();
        match self.account.caller().call(Api::StartInstances, region, call).await {
            Ok(_) => Ok(()),
            Err(refusal) if has_code(&refusal, CONFLICT) => {
                let is_settled = |state| match state {
                    Ec2State::Pending | Ec2State::Running => Settled::Yes,
                    Ec2State::Stopping
                    | Ec2State::Stopped
                    | Ec2State::ShuttingDown
                    | Ec2State::Terminated
                    | Ec2State::Other => Settled::No,
                };
                self.accept_if_settled(region, id, refusal, is_settled).await
            }
            Err(failure) => Err(failure),
        }
    }

    async fn stop(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let client = self.client(region);
        let call = || client.stop_instances().instance_ids(id.as_str()).send();
        match self.account.caller().call(Api::StopInstances, region, call).await {
            Ok(_) => Ok(()),
            Err(refusal) if has_code(&refusal, CONFLICT) => {
                let is_settled = |state| match state {
                    Ec2State::Stopping | Ec2State::Stopped => Settled::Yes,
                    Ec2State::Pending
                    | Ec2State::Running
                    | Ec2State::ShuttingDown
                    | Ec2State::Terminated
                    | Ec2State::Other => Settled::No,
                };
                self.accept_if_settled(region, id, refusal, is_settled).await
            }
            Err(failure) => Err(failure),
        }
    }

    async fn terminate(&self, region: &str, id: &InstanceId) -> Result<(), CallFailure> {
        let client = self.client(region);
        let call = || client.terminate_instances().instance_ids(id.as_str()).send();
        match self.account.caller().call(Api::TerminateInstances, region, call).await {
            Ok(_) => Ok(()),
            Err(failure) if has_code(&failure, INSTANCE_NOT_FOUND) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

fn has_code(failure: &CallFailure, codes: &[&str]) -> bool {
    failure.code.as_deref().is_some_and(|code| codes.contains(&code))
}

fn too_many_pages(api: &str, region: &str) -> CallFailure {
    let message = format!("{api} in {region} returned more than {MAX_PAGES} pages");
    CallFailure::new(FailureKind::Unparsable, message)
}
