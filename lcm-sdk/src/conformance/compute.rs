//! What [`Compute`] promises.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::lifecycle::discovery::{Completeness, Scan};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;
use crate::lifecycle::instance::{Instance, WORKER_ID_TAG};
use crate::lifecycle::launch::LaunchPlan;
use crate::lifecycle::observation::Lookup;
use crate::lifecycle::status::Ec2State;
use crate::ports::{Compute, DiscoveryFilter};

/// A far side that the suite can use. It must hold at least two images in each region.
#[async_trait]
pub trait ComputeWorld: Send + Sync {
    /// The implementation.
    fn compute(&self) -> &dyn Compute;

    /// A region in which everything happens.
    fn region(&self) -> &str;

    /// A region in which nothing ever happened.
    fn other_region(&self) -> &str;

    /// What a launch in [`ComputeWorld::region`] needs, without tags and token.
    fn plan(&self) -> LaunchPlan;

    /// A pattern that matches the name of the plan's image and of no other.
    fn image_pattern(&self) -> String;

    /// Lets every change under way come to its end.
    async fn settle(&self);

    /// Lets EC2 forget what is terminated.
    async fn forget_terminated(&self);

    /// Makes every call fail with this failure's code until [`ComputeWorld::recover`].
    async fn fail(&self, failure: &CallFailure);

    /// Ends [`ComputeWorld::fail`].
    async fn recover(&self);
}

/// Checks every promise of the port, one after the other, in one world.
///
/// # Panics
/// With the promise that was broken.
pub async fn suite(world: &dyn ComputeWorld) {
    let suite = Suite { world, compute: world.compute(), region: world.region() };
    promise!(suite.a_launch_carries_its_token_and_tags_and_happens_once());
    promise!(suite.a_launch_that_cannot_be_is_refused());
    promise!(suite.every_id_gets_its_own_answer_in_order());
    promise!(suite.an_instance_goes_through_its_life());
    promise!(suite.what_ec2_forgot_is_absent_and_needs_no_terminating());
    promise!(suite.images_are_found_by_name());
    promise!(suite.a_scan_finds_what_meets_all_conditions());
    promise!(suite.a_scan_for_nothing_is_refused());
    promise!(suite.subnets_are_seen_or_not());
    promise!(suite.no_answer_is_never_taken_for_one());
}

struct Suite<'a> {
    world: &'a dyn ComputeWorld,
    compute: &'a dyn Compute,
    region: &'a str,
}

const NOBODY: &str = "i-0123456789abcdef0";

impl Suite<'_> {
    fn plan(&self, worker: &str) -> LaunchPlan {
        let tags = [(WORKER_ID_TAG, worker), ("Name", "conformance"), ("odd", "a*b?c\\d")];
        let tags: BTreeMap<String, String> = tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        LaunchPlan { tags, client_token: format!("conformance-{worker}"), ..self.world.plan() }
    }

    async fn launch(&self, worker: &str) -> InstanceId {
        self.compute.launch(&self.plan(worker)).await.expect("a launch that can be succeeds")
    }

    async fn found(&self, id: &InstanceId) -> Instance {
        match self.compute.instance(self.region, id).await {
            Lookup::Found(instance) => instance,
            other => panic!("{id} exists and is found, not {other:?}"),
        }
    }

    async fn scanned(&self, filter: &DiscoveryFilter) -> Vec<InstanceId> {
        let Scan { region, instances, completeness } = self.compute.scan(self.region, filter).await;
        assert_eq!(region, self.region, "a scan names its region");
        assert_eq!(completeness, Completeness::Complete, "a scan that reads every page is complete");
        instances.into_iter().map(|instance| instance.id).collect()
    }

    async fn a_launch_carries_its_token_and_tags_and_happens_once(&self) {
        let plan = self.plan("w-once");
        let id = self.launch("w-once").await;
        assert_eq!(self.launch("w-once").await, id, "the same plan again is the same instance");
        let instance = self.found(&id).await;
        assert_eq!(instance.id, id);
        assert_eq!(instance.client_token.as_ref(), Some(&plan.client_token), "the token can be read back");
        assert_eq!(instance.tags, plan.tags, "the tags are set by the launch itself");
        assert_eq!(instance.image_id.as_ref(), Some(&plan.image_id));
        assert_eq!(instance.instance_type.as_ref(), Some(&plan.instance_type));
        assert!(instance.launched_at.is_some(), "EC2 says when it was launched");
        let tagged = self.compute.tagged(self.region, &"w-once".into()).await.expect("EC2 is there");
        assert_eq!(tagged, [instance], "the worker's tag leads to exactly its instance");
        let nobody = self.compute.tagged(self.region, &"w-*".into()).await.expect("EC2 is there");
        assert_eq!(nobody, [], "a worker's name is no pattern");
    }

    async fn a_launch_that_cannot_be_is_refused(&self) {
        let plan = LaunchPlan { image_id: "ami-0123456789abcdef0".into(), ..self.plan("w-no-image") };
        let refused = self.compute.launch(&plan).await.expect_err("there is no such image");
        assert_eq!(refused.kind, FailureKind::Refused, "{refused}");
        let mut other = self.plan("w-once");
        other.instance_type = "m5.xlarge".into();
        let refused = self.compute.launch(&other).await.expect_err("the token stands for another plan");
        assert_eq!(refused.kind, FailureKind::Refused, "{refused}");
    }

    async fn every_id_gets_its_own_answer_in_order(&self) {
        let (first, second) = (self.launch("w-first").await, self.launch("w-second").await);
        let ids: Vec<InstanceId> =
            vec![second.clone(), NOBODY.into(), "banana".into(), first.clone(), "".into(), second.clone()];
        let answers = self.compute.instances(self.region, &ids).await;
        assert_eq!(answers.len(), ids.len(), "one answer for each id");
        let found = |place: usize| answers[place].found().map(|instance| &instance.id);
        assert_eq!((found(0), found(3), found(5)), (Some(&second), Some(&first), Some(&second)), "in the order of ids");
        assert_eq!(answers[1], Lookup::Absent, "EC2 says that there is none");
        for place in [2, 4] {
            let kind = answers[place].failure().map(|failure| failure.kind);
            assert_eq!(kind, Some(FailureKind::Refused), "{:?} is no id: nothing is known", ids[place]);
        }
        assert_eq!(self.compute.instances(self.region, &[]).await, [], "no question, no answer");
        let elsewhere = self.compute.instance(self.world.other_region(), &first).await;
        assert_eq!(elsewhere, Lookup::Absent, "each region knows its own instances only");
    }

    async fn an_instance_goes_through_its_life(&self) {
        let (compute, region) = (self.compute, self.region);
        let id = self.launch("w-life").await;
        let expect = async |state: Ec2State| {
            let instance = self.found(&id).await;
            assert_eq!(instance.state, state);
            instance
        };
        self.world.settle().await;
        let running = expect(Ec2State::Running).await;
        assert!(running.public_ip.is_some() && running.private_ip.is_some(), "what runs has addresses");
        compute.start(region, &id).await.expect("starting what runs is a success");
        expect(Ec2State::Running).await;
        for _ in 0..2 {
            compute.stop(region, &id).await.expect("stopping is a success, again too");
        }
        self.world.settle().await;
        assert_eq!(expect(Ec2State::Stopped).await.public_ip, None, "what is stopped has no public address");
        compute.stop(region, &id).await.expect("stopping what is stopped is a success");
        for _ in 0..2 {
            compute.start(region, &id).await.expect("starting is a success, again too");
        }
        self.world.settle().await;
        expect(Ec2State::Running).await;
        for _ in 0..2 {
            compute.terminate(region, &id).await.expect("terminating is a success, again too");
        }
        self.world.settle().await;
        expect(Ec2State::Terminated).await;
        compute.terminate(region, &id).await.expect("terminating what is terminated is a success");
        for refused in [compute.start(region, &id).await, compute.stop(region, &id).await] {
            assert_eq!(refused.expect_err("it is dead").kind, FailureKind::Conflict, "look again: it is dead");
        }
        let again = compute.launch(&self.plan("w-life")).await.expect_err("its token is spent");
        assert_eq!(again.kind, FailureKind::LaunchDied, "{again}");
    }

    async fn what_ec2_forgot_is_absent_and_needs_no_terminating(&self) {
        let id = self.launch("w-forgotten").await;
        self.world.settle().await;
        self.compute.terminate(self.region, &id).await.expect("it ends");
        self.world.settle().await;
        self.world.forget_terminated().await;
        assert_eq!(self.compute.instance(self.region, &id).await, Lookup::Absent);
        for gone in [&id, &InstanceId::from(NOBODY)] {
            self.compute.terminate(self.region, gone).await.expect("terminating what is gone is a success");
        }
        let start = self.compute.start(self.region, &id).await.expect_err("there is none to start");
        assert_eq!(start.kind, FailureKind::Refused, "{start}");
    }

    async fn images_are_found_by_name(&self) {
        let plan = self.world.plan();
        let pattern = self.world.image_pattern();
        let images = self.compute.images(self.region, &pattern).await.expect("EC2 is there");
        assert_eq!(images.iter().map(|image| &image.id).collect::<Vec<_>>(), [&plan.image_id]);
        assert!(!images[0].creation_date.is_empty(), "the newest can be told");
        let all = self.compute.images(self.region, "*").await.expect("EC2 is there");
        assert!(all.len() > 1, "a star matches every name");
        let none = self.compute.images(self.region, "no-such-image-*").await.expect("EC2 is there");
        assert_eq!(none, [], "no image is an answer");
    }

    async fn a_scan_finds_what_meets_all_conditions(&self) {
        let (yes, no) = (self.launch("w-scan").await, self.launch("w-not-scanned").await);
        let worker = |name: &str| (WORKER_ID_TAG.to_owned(), Some(name.to_owned()));
        let by_image =
            DiscoveryFilter { ami_name_pattern: Some(self.world.image_pattern()), ..DiscoveryFilter::default() };
        let found = self.scanned(&by_image).await;
        assert!(found.contains(&yes) && found.contains(&no), "the image alone matches both");
        let mut once = found.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), found.len(), "no instance is found twice");

        let both = DiscoveryFilter { tags: vec![worker("w-scan"), ("Name".into(), None)], ..by_image.clone() };
        assert_eq!(self.scanned(&both).await, std::slice::from_ref(&yes));
        let odd = ("odd".to_owned(), Some("a*b?c\\d".to_owned()));
        let by_tags = DiscoveryFilter { ami_name_pattern: None, tags: vec![worker("w-scan"), odd] };
        assert_eq!(self.scanned(&by_tags).await, [yes], "the value of a tag is no pattern");
        let pattern = DiscoveryFilter { ami_name_pattern: None, tags: vec![worker("w-*")] };
        assert_eq!(self.scanned(&pattern).await, []);
        let unknown = DiscoveryFilter { ami_name_pattern: Some("no-such-image-*".into()), tags: Vec::new() };
        assert_eq!(self.scanned(&unknown).await, [], "no image, no instance");
    }

    async fn a_scan_for_nothing_is_refused(&self) {
        let scan = self.compute.scan(self.region, &DiscoveryFilter::default()).await;
        assert_eq!(scan.instances, [], "it must not take the whole account for ours");
        match scan.completeness {
            Completeness::Partial(failure) => assert_eq!(failure.kind, FailureKind::Refused, "{failure}"),
            Completeness::Complete => panic!("a scan for nothing proves nothing"),
        }
    }

    async fn subnets_are_seen_or_not(&self) {
        let plan = self.world.plan();
        let sees = async |region: &str, id: &str| self.compute.sees_subnet(region, id).await.expect("EC2 is there");
        assert!(sees(self.region, &plan.subnet_id).await);
        assert!(!sees(self.region, "subnet-0123456789abcdef0").await);
        assert!(!sees(self.world.other_region(), &plan.subnet_id).await);
    }

    async fn no_answer_is_never_taken_for_one(&self) {
        let id = self.launch("w-unknown").await;
        let denied = CallFailure::coded(FailureKind::Refused, "UnauthorizedOperation", "not for you");
        self.world.fail(&denied).await;
        let (compute, region) = (self.compute, self.region);
        for answer in compute.instances(region, &[id.clone(), NOBODY.into()]).await {
            assert_eq!(answer.failure().map(|failure| failure.kind), Some(denied.kind), "{answer:?}");
        }
        let scan = DiscoveryFilter { ami_name_pattern: None, tags: vec![("Name".into(), None)] };
        match compute.scan(region, &scan).await.completeness {
            Completeness::Partial(failure) => assert_eq!(failure.kind, denied.kind),
            Completeness::Complete => panic!("a scan that failed is not complete"),
        }
        let kinds = [
            compute.tagged(region, &"w-unknown".into()).await.expect_err("denied"),
            compute.images(region, "never-asked-before*").await.expect_err("denied"),
            compute.sees_subnet(region, &self.world.plan().subnet_id).await.expect_err("denied"),
            compute.launch(&self.plan("w-denied")).await.expect_err("denied"),
            compute.start(region, &id).await.expect_err("denied"),
            compute.stop(region, &id).await.expect_err("denied"),
            compute.terminate(region, &id).await.expect_err("denied"),
        ];
        assert!(kinds.iter().all(|failure| failure.kind == denied.kind), "{kinds:?}");
        self.world.recover().await;
        let images = compute.images(region, "never-asked-before*").await;
        assert_eq!(images, Ok(Vec::new()), "a failure is not remembered");
        assert!(self.found(&id).await.state.is_live(), "what was denied was not done");
    }
}
