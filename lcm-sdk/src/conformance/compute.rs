//! Conformance suite of [`Compute`].

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Instance, WORKER_ID_TAG};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::lookup::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::ports::{Compute, DiscoveryFilter};

/// Fixture of the suite: an EC2 with at least two images in each region.
#[async_trait]
pub trait ComputeWorld: Send + Sync {
    /// The port under test.
    fn compute(&self) -> &dyn Compute;

    /// Region in which the suite launches instances.
    fn region(&self) -> &str;

    /// Region without instances.
    fn other_region(&self) -> &str;

    /// A valid plan for [`ComputeWorld::region`], without tags and token.
    fn plan(&self) -> LaunchPlan;

    /// Name pattern that matches only the image of the plan.
    fn image_pattern(&self) -> String;

    /// Completes all state transitions.
    async fn settle(&self);

    /// Removes terminated instances.
    async fn forget_terminated(&self);

    /// Fails every call with the code of `failure`, until [`ComputeWorld::recover`].
    async fn fail(&self, failure: &CallFailure);

    /// Ends the failures of [`ComputeWorld::fail`].
    async fn recover(&self);
}

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn ComputeWorld) {
    let suite = Suite { world, compute: world.compute(), region: world.region() };
    promise!(suite.launches_are_idempotent());
    promise!(suite.invalid_launches_are_refused());
    promise!(suite.each_id_has_its_own_result_in_request_order());
    promise!(suite.state_changes_are_idempotent());
    promise!(suite.forgotten_instances_are_absent());
    promise!(suite.images_are_found_by_name());
    promise!(suite.scans_match_all_conditions());
    promise!(suite.scans_without_conditions_are_refused());
    promise!(suite.subnets_are_looked_up_by_region());
    promise!(suite.failed_calls_never_mean_absence());
}

struct Suite<'a> {
    world: &'a dyn ComputeWorld,
    compute: &'a dyn Compute,
    region: &'a str,
}

const UNKNOWN: &str = "i-0123456789abcdef0";

impl Suite<'_> {
    fn plan(&self, worker: &str) -> LaunchPlan {
        let tags = [(WORKER_ID_TAG, worker), ("Name", "conformance"), ("odd", "a*b?c\\d")];
        let tags: BTreeMap<String, String> = tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        LaunchPlan { tags, client_token: format!("conformance-{worker}"), ..self.world.plan() }
    }

    async fn launch(&self, worker: &str) -> InstanceId {
        self.compute.launch(&self.plan(worker)).await.expect("a valid launch succeeds")
    }

    async fn found(&self, id: &InstanceId) -> Instance {
        match self.compute.instance(self.region, id).await {
            Lookup::Found(instance) => instance,
            other => panic!("{id} exists, but the result is {other:?}"),
        }
    }

    async fn scanned(&self, filter: &DiscoveryFilter) -> Vec<InstanceId> {
        let Scan { region, instances, completeness } = self.compute.scan(self.region, filter).await;
        assert_eq!(region, self.region, "a scan names its region");
        assert_eq!(completeness, Completeness::Complete, "a scan of all pages is complete");
        instances.into_iter().map(|instance| instance.id).collect()
    }

    async fn launches_are_idempotent(&self) {
        let plan = self.plan("w-once");
        let id = self.launch("w-once").await;
        assert_eq!(self.launch("w-once").await, id, "the same plan returns the same instance");
        let instance = self.found(&id).await;
        assert_eq!(instance.id, id);
        assert_eq!(instance.client_token.as_ref(), Some(&plan.client_token), "the token is set");
        assert_eq!(instance.tags, plan.tags, "the tags are set by the launch itself");
        assert_eq!(instance.image_id.as_ref(), Some(&plan.image_id));
        assert_eq!(instance.instance_type.as_ref(), Some(&plan.instance_type));
        assert!(instance.launched_at.is_some(), "the launch time is set");
        let caller = self.compute.caller(self.region).await.expect("the caller is known");
        assert_eq!(instance.account_id, caller.account_id, "the instance belongs to the caller's account");
        let tagged = self.compute.tagged(self.region, &"w-once".into()).await.expect("EC2 responds");
        assert_eq!(tagged, [instance], "the tag of the worker finds its instance only");
        let none = self.compute.tagged(self.region, &"w-*".into()).await.expect("EC2 responds");
        assert_eq!(none, [], "a worker ID is not a pattern");
    }

    async fn invalid_launches_are_refused(&self) {
        let plan = LaunchPlan { image_id: "ami-0123456789abcdef0".into(), ..self.plan("w-no-image") };
        let refused = self.compute.launch(&plan).await.expect_err("the image does not exist");
        // Another image may be launched next, so the worker need not fail.
        assert_eq!(refused.kind, FailureKind::RefusedForNow, "{refused}");
        let mut other = self.plan("w-once");
        other.instance_type = "m5.xlarge".into();
        let refused = self.compute.launch(&other).await.expect_err("the token belongs to another plan");
        assert_eq!(refused.kind, FailureKind::Refused, "{refused}");
    }

    async fn each_id_has_its_own_result_in_request_order(&self) {
        let (first, second) = (self.launch("w-first").await, self.launch("w-second").await);
        let ids: Vec<InstanceId> =
            vec![second.clone(), UNKNOWN.into(), "banana".into(), first.clone(), "".into(), second.clone()];
        let results = self.compute.instances(self.region, &ids).await;
        assert_eq!(results.len(), ids.len(), "one result per ID");
        let found = |place: usize| results[place].found().map(|instance| &instance.id);
        assert_eq!(
            (found(0), found(3), found(5)),
            (Some(&second), Some(&first), Some(&second)),
            "results are in the order of the IDs"
        );
        assert_eq!(results[1], Lookup::Absent, "EC2 reports that it does not exist");
        for place in [2, 4] {
            let kind = results[place].failure().map(|failure| failure.kind);
            assert_eq!(kind, Some(FailureKind::Refused), "{:?} is not an ID, so nothing is known", ids[place]);
        }
        assert_eq!(self.compute.instances(self.region, &[]).await, [], "no IDs, no results");
        let elsewhere = self.compute.instance(self.world.other_region(), &first).await;
        assert_eq!(elsewhere, Lookup::Absent, "an instance exists in its own region only");
    }

    async fn state_changes_are_idempotent(&self) {
        let (compute, region) = (self.compute, self.region);
        let id = self.launch("w-life").await;
        let expect = async |state: Ec2State| {
            let instance = self.found(&id).await;
            assert_eq!(instance.state, state);
            instance
        };
        self.world.settle().await;
        let running = expect(Ec2State::Running).await;
        assert!(running.public_ip.is_some() && running.private_ip.is_some(), "a running instance has addresses");
        compute.start(region, &id).await.expect("starting a running instance succeeds");
        expect(Ec2State::Running).await;
        for _ in 0..2 {
            compute.stop(region, &id).await.expect("stopping twice succeeds");
        }
        self.world.settle().await;
        assert_eq!(expect(Ec2State::Stopped).await.public_ip, None, "a stopped instance has no public address");
        compute.stop(region, &id).await.expect("stopping a stopped instance succeeds");
        for _ in 0..2 {
            compute.start(region, &id).await.expect("starting twice succeeds");
        }
        self.world.settle().await;
        expect(Ec2State::Running).await;
        for _ in 0..2 {
            compute.terminate(region, &id).await.expect("terminating twice succeeds");
        }
        self.world.settle().await;
        expect(Ec2State::Terminated).await;
        compute.terminate(region, &id).await.expect("terminating a terminated instance succeeds");
        for refused in [compute.start(region, &id).await, compute.stop(region, &id).await] {
            assert_eq!(
                refused.expect_err("it is terminated").kind,
                FailureKind::Conflict,
                "the instance is terminated"
            );
        }
        let again = compute.launch(&self.plan("w-life")).await.expect_err("the token belongs to a terminated instance");
        assert_eq!(again.kind, FailureKind::LaunchDied, "{again}");
    }

    async fn forgotten_instances_are_absent(&self) {
        let id = self.launch("w-forgotten").await;
        self.world.settle().await;
        self.compute.terminate(self.region, &id).await.expect("terminated");
        self.world.settle().await;
        self.world.forget_terminated().await;
        assert_eq!(self.compute.instance(self.region, &id).await, Lookup::Absent);
        for gone in [&id, &InstanceId::from(UNKNOWN)] {
            self.compute.terminate(self.region, gone).await.expect("terminating an unknown instance succeeds");
        }
        let start = self.compute.start(self.region, &id).await.expect_err("the instance does not exist");
        assert_eq!(start.kind, FailureKind::Refused, "{start}");
    }

    async fn images_are_found_by_name(&self) {
        let plan = self.world.plan();
        let pattern = self.world.image_pattern();
        let images = self.compute.images(self.region, &pattern).await.expect("EC2 responds");
        assert_eq!(images.iter().map(|image| &image.id).collect::<Vec<_>>(), [&plan.image_id]);
        assert!(!images[0].creation_date.is_empty(), "images have a creation date");
        let all = self.compute.images(self.region, "*").await.expect("EC2 responds");
        assert!(all.len() > 1, "`*` matches every name");
        let none = self.compute.images(self.region, "no-such-image-*").await.expect("EC2 responds");
        assert_eq!(none, [], "an empty list is a result");
    }

    async fn scans_match_all_conditions(&self) {
        let (yes, no) = (self.launch("w-scan").await, self.launch("w-not-scanned").await);
        let by_image = DiscoveryFilter::default().with_ami_name_pattern(self.world.image_pattern());
        let found = self.scanned(&by_image).await;
        assert!(found.contains(&yes) && found.contains(&no), "both have the image");
        let mut once = found.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), found.len(), "each instance is found once");

        let both = by_image.clone().with_tag(WORKER_ID_TAG, "w-scan").with_tag_key("Name");
        assert_eq!(self.scanned(&both).await, std::slice::from_ref(&yes));
        let by_tags = DiscoveryFilter::default().with_tag(WORKER_ID_TAG, "w-scan").with_tag("odd", "a*b?c\\d");
        assert_eq!(self.scanned(&by_tags).await, [yes], "a tag value is not a pattern");
        let pattern = DiscoveryFilter::default().with_tag(WORKER_ID_TAG, "w-*");
        assert_eq!(self.scanned(&pattern).await, []);
        let unknown = DiscoveryFilter::default().with_ami_name_pattern("no-such-image-*");
        assert_eq!(self.scanned(&unknown).await, [], "without an image there is no match");
    }

    async fn scans_without_conditions_are_refused(&self) {
        let scan = self.compute.scan(self.region, &DiscoveryFilter::default()).await;
        assert_eq!(scan.instances, [], "a scan must not return the whole account");
        match scan.completeness {
            Completeness::Partial(failure) => assert_eq!(failure.kind, FailureKind::Refused, "{failure}"),
            Completeness::Complete => panic!("a refused scan is not complete"),
        }
    }

    async fn subnets_are_looked_up_by_region(&self) {
        let plan = self.world.plan();
        let owner = async |region: &str, id: &str| self.compute.subnet_owner(region, id).await.expect("EC2 responds");
        let caller = self.compute.caller(self.region).await.expect("the caller is known");
        let found = owner(self.region, &plan.subnet_id).await;
        assert!(found.is_some(), "a visible subnet has an owner");
        assert!(
            caller.account_id.is_none() || found == caller.account_id,
            "the subnet belongs to the caller's account"
        );
        assert_eq!(owner(self.region, "subnet-0123456789abcdef0").await, None);
        assert_eq!(owner(self.world.other_region(), &plan.subnet_id).await, None);
    }

    async fn failed_calls_never_mean_absence(&self) {
        let id = self.launch("w-unknown").await;
        let denied = CallFailure::with_code(FailureKind::Refused, "UnauthorizedOperation", "denied");
        self.world.fail(&denied).await;
        let (compute, region) = (self.compute, self.region);
        for result in compute.instances(region, &[id.clone(), UNKNOWN.into()]).await {
            assert_eq!(result.failure().map(|failure| failure.kind), Some(denied.kind), "{result:?}");
        }
        let scan = DiscoveryFilter::default().with_tag_key("Name");
        match compute.scan(region, &scan).await.completeness {
            Completeness::Partial(failure) => assert_eq!(failure.kind, denied.kind),
            Completeness::Complete => panic!("a failed scan is not complete"),
        }
        let kinds = [
            compute.tagged(region, &"w-unknown".into()).await.expect_err("denied"),
            compute.images(region, "never-requested-before*").await.expect_err("denied"),
            compute.subnet_owner(region, &self.world.plan().subnet_id).await.expect_err("denied"),
            compute.launch(&self.plan("w-denied")).await.expect_err("denied"),
            compute.start(region, &id).await.expect_err("denied"),
            compute.stop(region, &id).await.expect_err("denied"),
            compute.terminate(region, &id).await.expect_err("denied"),
        ];
        assert!(kinds.iter().all(|failure| failure.kind == denied.kind), "{kinds:?}");
        self.world.recover().await;
        let images = compute.images(region, "never-requested-before*").await;
        assert_eq!(images, Ok(Vec::new()), "failures are not cached");
        assert!(self.found(&id).await.state.is_live(), "a denied call has no effect");
    }
}
