//! RunInstances.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::catalog::{ACCOUNT, SecurityGroup, Subnet, is_well_formed};
use super::ec2::{Ec2, Intent, Region, later};
use super::error::AwsError;
use super::instance::{Course, Instance, InstanceState, Monitoring, Profile};
use super::orders::Told;
use super::shared::Shared;
use super::tags::{self, Tags};
use super::tokens::UsedToken;

/// How many instances one request may ask for.
const MOST_PER_LAUNCH: usize = 1000;

/// What RunInstances is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRequest {
    /// The image.
    pub image_id: String,
    /// The type.
    pub instance_type: String,
    /// As few as this will do.
    pub min_count: usize,
    /// As many as this are wanted.
    pub max_count: usize,
    /// The subnet; the default one if none is named.
    pub subnet_id: Option<String>,
    /// Security groups, by id or name; the default one if none is named.
    pub groups: Vec<String>,
    /// The key pair. Key pairs are not modelled: every name will do.
    pub key_name: Option<String>,
    /// The instance profile, by name or ARN. Profiles are not modelled: every name will do.
    pub profile: Option<String>,
    /// How often to measure.
    pub monitoring: Monitoring,
    /// Makes the same request happen once.
    pub client_token: Option<String>,
    /// Tags for the instances.
    pub tags: Vec<(String, String)>,
    /// Stands for the user data, which nobody needs to keep.
    pub user_data_digest: Option<u64>,
}

impl LaunchRequest {
    /// One instance of an image, with nothing special about it.
    pub fn new(image_id: impl Into<String>) -> Self {
        Self {
            image_id: image_id.into(),
            instance_type: "m5.large".to_owned(),
            min_count: 1,
            max_count: 1,
            subnet_id: None,
            groups: Vec::new(),
            key_name: None,
            profile: None,
            monitoring: Monitoring::Basic,
            client_token: None,
            tags: Vec::new(),
            user_data_digest: None,
        }
    }
}

/// What a launch made.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its id.
    pub reservation_id: String,
    /// The instances.
    pub instances: Vec<Arc<Instance>>,
    /// Whether they are new.
    pub novelty: Novelty,
}

/// Whether a launch made something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Novelty {
    /// It did.
    New,
    /// The same token had made it before.
    Known,
}

impl Ec2 {
    /// Launches instances, or finds those the same token has launched before.
    ///
    /// # Errors
    /// What EC2 says to unknown and malformed ids, bad counts and tags, and tokens used for something else or long ago.
    pub fn launch(
        &mut self,
        region: &str,
        request: LaunchRequest,
        intent: Intent,
        now: DateTime<Utc>,
    ) -> Result<Launch, AwsError> {
        let place = self.region(region, now)?;
        check_token(request.client_token.as_deref())?;
        if let Some(earlier) = place.launched_before(&request, now)? {
            intent.proceed()?;
            return Ok(earlier);
        }
        check_counts(&request)?;
        check_type(&request.instance_type)?;
        tags::check(&Tags::new(), &request.tags)?;
        place.check_image(&request.image_id)?;
        let subnet = place.choose_subnet(request.subnet_id.as_deref())?.clone();
        let groups = place.choose_groups(&request.groups)?;
        intent.proceed()?;
        Ok(self.create(region, request, &subnet, groups, now))
    }

    fn create(
        &mut self,
        region: &str,
        request: LaunchRequest,
        subnet: &Subnet,
        groups: Vec<SecurityGroup>,
        now: DateTime<Utc>,
    ) -> Launch {
        let reservation_id = self.rng.id("r");
        let shared = |text: &str| Shared::<str>::from(text);
        // What all of them have in common is there once.
        let model = Instance {
            sequence: 0,
            id: String::new(),
            reservation_id: shared(&reservation_id),
            launch_index: 0,
            image_id: shared(&request.image_id),
            instance_type: shared(&request.instance_type),
            key_name: request.key_name.as_deref().map(shared),
            client_token: request.client_token.as_deref().map(shared),
            availability_zone: shared(&subnet.availability_zone),
            subnet_id: shared(&subnet.id),
            vpc_id: shared(&subnet.vpc_id),
            groups: groups.into(),
            profile: None,
            monitoring: request.monitoring,
            volume_id: Box::default(),
            interface_id: Box::default(),
            tags: request.tags.iter().cloned().collect::<Tags>().into(),
            created_at: now,
            launched_at: now,
            course: Course::Up { running_at: now },
            runs: Vec::new(),
            private_ip: subnet.network,
            assigned_ip: subnet.network,
        };
        let mut made = Vec::with_capacity(request.max_count);
        for launch_index in 0..request.max_count {
            let mut instance = Instance {
                sequence: self.next_sequence(),
                id: self.rng.id("i"),
                launch_index,
                profile: request.profile.as_deref().map(|name| self.profile(name)),
                volume_id: self.rng.id("vol").into(),
                interface_id: self.rng.id("eni").into(),
                ..model.clone()
            };
            instance.go_up(now, later(now, self.delays.starting), self.addresses.take());
            made.push(instance);
        }
        // The caller has just been in this region, so it exists.
        let (place, instances) = match self.region(region, now) {
            Ok(place) => (place.name, place.settle(made, subnet, &reservation_id, request)),
            Err(_) => ("", Vec::new()),
        };
        self.told.extend(instances.iter().map(|made| Told { region: place, sequence: made.sequence }));
        Launch { reservation_id, instances, novelty: Novelty::New }
    }

    fn profile(&mut self, name_or_arn: &str) -> Profile {
        let arn = if name_or_arn.starts_with("arn:") {
            name_or_arn.to_owned()
        } else {
            format!("arn:aws:iam::{ACCOUNT}:instance-profile/{name_or_arn}")
        };
        Profile { arn, id: format!("AIPA{}", self.rng.hex(16).to_uppercase()) }
    }
}

impl Region {
    fn launched_before(&self, request: &LaunchRequest, now: DateTime<Utc>) -> Result<Option<Launch>, AwsError> {
        let Some(used) = request.client_token.as_deref().and_then(|token| self.tokens.get(token)) else {
            return Ok(None);
        };
        if used.request != *request {
            return Err(AwsError::known("IdempotentParameterMismatch"));
        }
        let is_alive = |instance: &Arc<Instance>| match instance.state(now) {
            InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
            InstanceState::ShuttingDown | InstanceState::Terminated => false,
        };
        let instances: Vec<_> =
            used.sequences.iter().filter_map(|sequence| self.instances.get(sequence)).cloned().collect();
        if instances.iter().any(is_alive) {
            Ok(Some(Launch { reservation_id: used.reservation_id.clone(), instances, novelty: Novelty::Known }))
        } else {
            Err(AwsError::known("IdempotentInstanceTerminated"))
        }
    }

    fn settle(
        &mut self,
        made: Vec<Instance>,
        subnet: &Subnet,
        reservation_id: &str,
        request: LaunchRequest,
    ) -> Vec<Arc<Instance>> {
        let mut settled = Vec::with_capacity(made.len());
        for mut instance in made {
            instance.private_ip = self.next_private_address(subnet);
            settled.push(self.insert(instance));
        }
        if let Some(token) = request.client_token.clone() {
            let sequences = settled.iter().map(|instance| instance.sequence).collect();
            let reservation_id = reservation_id.to_owned();
            self.tokens.remember(&token, UsedToken { request, reservation_id, sequences });
        }
        settled
    }

    fn next_private_address(&mut self, subnet: &Subnet) -> std::net::Ipv4Addr {
        let host = self.next_private;
        self.next_private = if host >= 65_000 { 10 } else { host + 1 };
        (u32::from(subnet.network) + host).into()
    }

    fn check_image(&self, id: &str) -> Result<(), AwsError> {
        if !is_well_formed(id, "ami") {
            return Err(malformed("InvalidAMIID.Malformed", id, "ami"));
        }
        let missing = || AwsError::new("InvalidAMIID.NotFound", format!("The image id '[{id}]' does not exist"));
        self.catalog.image(id).map(|_| ()).ok_or_else(missing)
    }

    fn choose_subnet(&self, id: Option<&str>) -> Result<&Subnet, AwsError> {
        let Some(id) = id else {
            let message = "No default subnet for availability zone: 'null'.";
            return self.catalog.subnets.first().ok_or_else(|| AwsError::new("MissingInput", message));
        };
        self.catalog
            .subnet(id)
            .ok_or_else(|| AwsError::new("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist")))
    }

    fn choose_groups(&self, names: &[String]) -> Result<Vec<SecurityGroup>, AwsError> {
        if names.is_empty() {
            return Ok(self.catalog.groups.first().cloned().into_iter().collect());
        }
        let choose = |name: &String| {
            self.catalog.group(name).cloned().ok_or_else(|| {
                AwsError::new("InvalidGroup.NotFound", format!("The security group '{name}' does not exist"))
            })
        };
        names.iter().map(choose).collect()
    }
}

fn check_token(token: Option<&str>) -> Result<(), AwsError> {
    match token {
        Some(token) if token.len() > 64 || !token.is_ascii() => {
            Err(AwsError::new("InvalidParameterValue", "Client token must have at most 64 ASCII characters."))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_counts(request: &LaunchRequest) -> Result<(), AwsError> {
    let (min, max) = (request.min_count, request.max_count);
    if min == 0 {
        return Err(AwsError::invalid_value("0", "minCount"));
    }
    if max < min {
        let message = format!("Invalid value '{max}' for maxCount. Must be at least minCount.");
        return Err(AwsError::new("InvalidParameterValue", message));
    }
    if max > MOST_PER_LAUNCH {
        let message = format!("You have requested more instances ({max}) than your limit of {MOST_PER_LAUNCH} allows.");
        return Err(AwsError::new("InstanceLimitExceeded", message));
    }
    Ok(())
}

/// The list of types changes too often to be copied; their form does not.
fn check_type(name: &str) -> Result<(), AwsError> {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    match name.split_once('.') {
        Some((family, size)) if is_word(family) && is_word(size) => Ok(()),
        Some(_) | None => {
            Err(AwsError::new("InvalidParameterValue", format!("Invalid value '{name}' for InstanceType.")))
        }
    }
}

fn malformed(code: &'static str, id: &str, prefix: &str) -> AwsError {
    AwsError::new(code, format!("Invalid id: \"{id}\" (expecting \"{prefix}-...\")"))
}
