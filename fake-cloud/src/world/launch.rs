//! RunInstances, and the client tokens that make it idempotent.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::catalog::{ACCOUNT, SecurityGroup, Subnet, is_well_formed};
use super::change_feed::InstanceChange;
use super::ec2::{Ec2, Intent, Region, later};
use super::error::AwsError;
use super::instance::{Instance, InstanceState, Lifecycle, Monitoring, Profile};
use super::tags::{self, Tags};

/// Maximum number of instances in one request.
const MAX_INSTANCES: usize = 1000;

/// Parameters of RunInstances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRequest {
    /// Id of the image.
    pub image_id: String,
    /// Instance type; `m5.large` by default.
    pub instance_type: String,
    /// Minimum number of instances.
    pub min_count: usize,
    /// Number of instances to launch.
    pub max_count: usize,
    /// Id of the subnet; `None` selects the default subnet.
    pub subnet_id: Option<String>,
    /// Ids or names of the security groups; empty selects the default group.
    pub groups: Vec<String>,
    /// Name of the key pair. Key pairs are not modeled: every name is accepted.
    pub key_name: Option<String>,
    /// Name or ARN of the instance profile. Profiles are not modeled: every name is accepted.
    pub profile: Option<String>,
    /// Interval of the metrics.
    pub monitoring: Monitoring,
    /// Idempotency token, of at most 64 ASCII characters.
    pub client_token: Option<String>,
    /// Tags of the instances.
    pub tags: Vec<(String, String)>,
    /// Hash of the user data, which is not stored.
    pub user_data_digest: Option<u64>,
}

impl LaunchRequest {
    /// Requests one `m5.large` instance of an image in the default subnet.
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

/// Result of RunInstances.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Reservation id, shared by all instances of the launch.
    pub reservation_id: String,
    /// Instances of the launch that are still described.
    pub instances: Vec<Arc<Instance>>,
    /// Whether the request launched the instances.
    pub kind: LaunchKind,
}

/// Whether a request launched instances or repeated an earlier launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    /// The request launched the instances.
    New,
    /// An earlier request with the same client token launched them.
    Repeated,
}

impl Ec2 {
    /// Launches instances, or returns the instances of an earlier launch with the same client token.
    ///
    /// # Errors
    /// The errors of EC2 for unknown and malformed ids, invalid counts and tags, and client tokens that were used with
    /// other parameters or for instances that are terminated.
    pub fn launch(
        &mut self,
        region: &str,
        request: LaunchRequest,
        intent: Intent,
        now: DateTime<Utc>,
    ) -> Result<Launch, AwsError> {
        let region_state = self.region(region, now)?;
        check_token(request.client_token.as_deref())?;
        if let Some(earlier) = region_state.earlier_launch(&request, now)? {
            intent.proceed()?;
            return Ok(earlier);
        }
        check_counts(&request)?;
        check_type(&request.instance_type)?;
        tags::validate(&Tags::new(), &request.tags)?;
        region_state.check_image(&request.image_id)?;
        let subnet = region_state.choose_subnet(request.subnet_id.as_deref())?.clone();
        let groups = region_state.choose_groups(&request.groups)?;
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
        let shared = |text: &str| Arc::<str>::from(text);
        // The values common to all instances of the launch are allocated once.
        let template = Instance {
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
            tags: Arc::new(request.tags.iter().cloned().collect()),
            created_at: now,
            launched_at: now,
            lifecycle: Lifecycle::Running { running_at: now },
            runs: Vec::new(),
            private_ip: subnet.network,
            assigned_ip: subnet.network,
        };
        let mut launched = Vec::with_capacity(request.max_count);
        for launch_index in 0..request.max_count {
            let mut instance = Instance {
                sequence: self.next_sequence(),
                id: self.rng.id("i"),
                launch_index,
                profile: request.profile.as_deref().map(|name| self.profile(name)),
                volume_id: self.rng.id("vol").into(),
                interface_id: self.rng.id("eni").into(),
                ..template.clone()
            };
            instance.start(now, later(now, self.delays.starting), self.addresses.allocate());
            launched.push(instance);
        }
        // Cannot fail: the caller has read this region.
        let (region, instances) = match self.region(region, now) {
            Ok(region) => (region.name, region.insert_launch(launched, subnet, &reservation_id, request)),
            Err(_) => ("", Vec::new()),
        };
        let changes = instances.iter().map(|instance| InstanceChange { region, sequence: instance.sequence });
        self.changed.extend(changes);
        Launch { reservation_id, instances, kind: LaunchKind::New }
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
    fn earlier_launch(&self, request: &LaunchRequest, now: DateTime<Utc>) -> Result<Option<Launch>, AwsError> {
        let Some(used) = request.client_token.as_deref().and_then(|token| self.tokens.get(token)) else {
            return Ok(None);
        };
        if used.request != *request {
            return Err(AwsError::from_code("IdempotentParameterMismatch"));
        }
        let is_alive = |instance: &Arc<Instance>| match instance.state(now) {
            InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
            InstanceState::ShuttingDown | InstanceState::Terminated => false,
        };
        let instances: Vec<_> =
            used.sequences.iter().filter_map(|sequence| self.instances.get(sequence)).cloned().collect();
        if instances.iter().any(is_alive) {
            Ok(Some(Launch { reservation_id: used.reservation_id.clone(), instances, kind: LaunchKind::Repeated }))
        } else {
            Err(AwsError::from_code("IdempotentInstanceTerminated"))
        }
    }

    fn insert_launch(
        &mut self,
        launched: Vec<Instance>,
        subnet: &Subnet,
        reservation_id: &str,
        request: LaunchRequest,
    ) -> Vec<Arc<Instance>> {
        let mut inserted = Vec::with_capacity(launched.len());
        for mut instance in launched {
            instance.private_ip = self.next_private_address(subnet);
            inserted.push(self.insert(instance));
        }
        if let Some(token) = request.client_token.clone() {
            let sequences = inserted.iter().map(|instance| instance.sequence).collect();
            let reservation_id = reservation_id.to_owned();
            self.tokens.insert(&token, UsedToken { request, reservation_id, sequences });
        }
        inserted
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
    if max > MAX_INSTANCES {
        let message = format!("You have requested more instances ({max}) than your limit of {MAX_INSTANCES} allows.");
        return Err(AwsError::new("InstanceLimitExceeded", message));
    }
    Ok(())
}

/// Validates the form of an instance type. The list of types changes too often to be copied.
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

/// Client tokens of a region.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    used: HashMap<String, UsedToken>,
    expirations: BTreeSet<(DateTime<Utc>, String)>,
}

/// Launch that used a client token.
#[derive(Debug)]
struct UsedToken {
    request: LaunchRequest,
    reservation_id: String,
    /// Positions of its instances in launch order.
    sequences: Vec<u64>,
}

impl Tokens {
    fn get(&self, token: &str) -> Option<&UsedToken> {
        self.used.get(token)
    }

    /// Returns whether no instance of the token exists.
    pub(super) fn is_unused(&self, token: &str, exists: impl Fn(u64) -> bool) -> bool {
        self.used.get(token).is_none_or(|used| !used.sequences.iter().any(|sequence| exists(*sequence)))
    }

    fn insert(&mut self, token: &str, used: UsedToken) {
        self.used.insert(token.to_owned(), used);
    }

    pub(super) fn expire_at(&mut self, token: &str, expires_at: DateTime<Utc>) {
        self.expirations.insert((expires_at, token.to_owned()));
    }

    pub(super) fn remove_expired(&mut self, now: DateTime<Utc>) {
        while self.expirations.first().is_some_and(|(expires_at, _)| *expires_at <= now) {
            if let Some((_, token)) = self.expirations.pop_first() {
                self.used.remove(&token);
            }
        }
    }
}
