//! Plans a launch that happens exactly once.
//!
//! # Flow
//! The plan is written to the record before EC2 is called, and the call is repeated from the record until its
//! outcome is known. Its client token is a function of worker, generation and every parameter.
//!
//! # Guarantees
//! Repeating a plan cannot launch a second instance: EC2 returns the same instance for the same token. A plan that
//! differs in any parameter, or that replaces an ended launch, has another token.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::instance::{Image, Instance, MANAGED_BY, MANAGED_BY_TAG, TEMPLATE_NAME_TAG, WORKER_ID_TAG};
use super::policy::Policy;
use super::region::{RegionConfig, RegionError};
use super::status::DesiredStatus;
use super::template::Template;
pub use super::worker::LaunchPlan;
use super::worker::Worker;

impl LaunchPlan {
    /// Plans the launch of a worker.
    ///
    /// An id on the record belongs to a launch that ended, so the plan is of the next generation. `earlier` are the
    /// instances that carry this worker's tag. If one of them is dead and has the token the plan would get, the
    /// generation is raised, because EC2 refuses that token forever.
    pub fn new(
        worker: &Worker,
        template: &Template,
        instance_type: &str,
        (region, config): (&str, &RegionConfig),
        image: &Image,
        earlier: &[Instance],
    ) -> Self {
        let mut plan = Self {
            region: region.to_owned(),
            image_id: image.id.clone(),
            instance_type: instance_type.to_owned(),
            subnet_id: config.subnet_id.clone(),
            security_group_ids: config.security_group_ids.clone(),
            key_name: config.key_name.clone(),
            tags: tags(worker, template, config),
            generation: worker.notes.launch_generation.saturating_add(u32::from(worker.ec2_instance_id.is_some())),
            client_token: String::new(),
        };
        plan.client_token = plan.token_for(worker);
        let spent = |token: &str| earlier.iter().any(|instance| instance.client_token.as_deref() == Some(token));
        while spent(&plan.client_token) {
            plan.generation = plan.generation.wrapping_add(1);
            plan.client_token = plan.token_for(worker);
        }
        plan
    }

    fn token_for(&self, worker: &Worker) -> String {
        let mut digest = Sha256::new();
        // Each part is preceded by its length, so that no two different lists of parts hash alike.
        let mut add = |part: &str| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        };
        add(worker.id.as_str());
        add(&self.generation.to_string());
        for part in [&self.region, &self.image_id, &self.instance_type, &self.subnet_id] {
            add(part);
        }
        add(self.key_name.as_deref().unwrap_or_default());
        add(&self.security_group_ids.len().to_string());
        self.security_group_ids.iter().for_each(|group| add(group));
        for (key, value) in &self.tags {
            add(key);
            add(value);
        }
        let hex: String = digest.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        format!("lcm-{hex}-{}", self.generation)
    }
}

/// The AMI name pattern of a worker: its own, else its template's.
pub fn image_pattern<'a>(worker: &'a Worker, template: &'a Template) -> &'a str {
    worker.ami_name.as_deref().unwrap_or(&template.ami_name_pattern)
}

/// The instance type of a worker: its template's, else its own.
pub fn instance_type<'a>(worker: &'a Worker, template: &'a Template) -> Option<&'a str> {
    template.instance_type.as_deref().or(worker.instance_type.as_deref())
}

/// Whether the desired status of a pending worker allows a launch.
pub(crate) fn wants_launch(worker: &Worker) -> bool {
    match worker.desired_status {
        None | Some(DesiredStatus::Running) => true,
        Some(DesiredStatus::Stopped | DesiredStatus::Terminated) => false,
    }
}

/// Why a pending worker that was never launched cannot be: its region is not configured, so EC2 is not queried there.
pub(crate) fn unconfigured_region(worker: &Worker, policy: &Policy) -> Option<RegionError> {
    let is_new = worker.ec2_instance_id.is_none() && worker.notes.launch_plan.is_none();
    policy.regions.resolve(worker).err().filter(|_| is_new && wants_launch(worker))
}

/// The tags of a worker's instance. Ours win over the worker's own, which win over the region's.
pub fn tags(worker: &Worker, template: &Template, config: &RegionConfig) -> BTreeMap<String, String> {
    let mut tags = config.default_tags.clone();
    let name = worker.name.as_deref().unwrap_or(worker.id.as_str());
    tags.insert("Name".to_owned(), format!("cml-worker-{name}"));
    tags.extend(worker.aws_tags.clone());
    for (key, value) in
        [(WORKER_ID_TAG, worker.id.as_str()), (TEMPLATE_NAME_TAG, template.name.as_str()), (MANAGED_BY_TAG, MANAGED_BY)]
    {
        tags.insert(key.to_owned(), value.to_owned());
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::status::{Ec2State, WorkerStatus};

    fn plan(worker: &Worker, earlier: &[Instance]) -> LaunchPlan {
        let default_tags = [("team", "net"), ("Name", "region"), (MANAGED_BY_TAG, "someone")];
        let config = RegionConfig::new("subnet-1", ["sg-1"]).with_default_tags(default_tags);
        let image = Image { id: "ami-1".into(), name: "cml".into(), creation_date: "2026".into() };
        LaunchPlan::new(
            worker,
            &Template::new("metal", "m5zn.metal"),
            "m5zn.metal",
            ("us-east-1", &config),
            &image,
            earlier,
        )
    }

    fn worker() -> Worker {
        let mut worker = Worker::new("w-1", WorkerStatus::Pending);
        worker.name = Some("blue".into());
        worker
    }

    #[test]
    fn tags_of_lcm_win_over_worker_over_region() {
        let mut worker = worker();
        worker.aws_tags = [("team", "labs"), (WORKER_ID_TAG, "stolen"), ("lcm:protect", "yes")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let tags = plan(&worker, &[]).tags;
        let tag = |key: &str| tags.get(key).map(String::as_str);
        assert_eq!(tag(WORKER_ID_TAG), Some("w-1"));
        assert_eq!(tag(TEMPLATE_NAME_TAG), Some("metal"));
        assert_eq!(tag(MANAGED_BY_TAG), Some("lablet-cloud-manager"));
        assert_eq!(tag("Name"), Some("cml-worker-blue"));
        assert_eq!(tag("team"), Some("labs"));
        assert_eq!(tag("lcm:protect"), Some("yes"));
    }

    #[test]
    fn the_token_is_a_function_of_worker_generation_and_parameters() {
        let first = plan(&worker(), &[]);
        assert_eq!(first, plan(&worker(), &[]));
        assert!(first.client_token.is_ascii() && first.client_token.len() <= 64);

        let mut other_worker = worker();
        other_worker.id = "w-2".into();
        let mut other_tags = worker();
        other_tags.aws_tags.insert("a".into(), "b".into());
        let mut next_generation = worker();
        next_generation.notes.launch_generation = u32::MAX;
        for changed in [other_worker, other_tags, next_generation] {
            let token = plan(&changed, &[]).client_token;
            assert_ne!(token, first.client_token);
            assert!(token.len() <= 64, "{token}");
        }
    }

    #[test]
    fn tokens_of_dead_instances_are_not_reused() {
        let first = plan(&worker(), &[]);
        let mut dead = Instance::new("i-1", Ec2State::Terminated);
        dead.client_token = Some(first.client_token.clone());
        let second = plan(&worker(), std::slice::from_ref(&dead));
        assert_eq!(second.generation, first.generation + 1);
        let mut also_dead = dead.clone();
        also_dead.client_token = Some(second.client_token);
        assert_eq!(plan(&worker(), &[dead, also_dead]).generation, first.generation + 2);
    }

    #[test]
    fn plans_round_trip_byte_for_byte() {
        let plan = plan(&worker(), &[]);
        let text = serde_json::to_string(&plan).expect("serializes");
        assert_eq!(serde_json::from_str::<LaunchPlan>(&text).expect("reads"), plan);
    }
}
