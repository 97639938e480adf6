//! RunInstances, and the client tokens that make it idempotent.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::catalog::{ACCOUNT, SecurityGroup, Subnet, ZONES, is_well_formed, zone_id};
use super::change_feed::InstanceChange;
use super::disruption::no_capacity;
use super::ec2::{Ec2, Intent, Region, later};
use super::error::AwsError;
use super::instance::{ExtraInterface, Instance, InstanceState, Lifecycle, Monitoring, Profile, StateCause};
use super::options::{InstanceOptions, InterfaceSpec, InterruptionBehavior, VolumeSpec};
use super::resources::not_found;
use super::tags::{self, Tags};

/// Maximum number of instances in one request.
const MAX_INSTANCES: usize = 1000;

/// Parameters of RunInstances.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LaunchRequest {
    /// Id of the account that owns the instances; the default account by default.
    pub account: Arc<str>,
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
    /// Availability zone, by name or id; `None` for the zone of the subnet.
    pub availability_zone: Option<String>,
    /// Name of the key pair.
    pub key_name: Option<String>,
    /// Name or ARN of the instance profile. IAM is not modeled: every name exists, unless the admin API removed it.
    pub profile: Option<String>,
    /// Interval of the metrics.
    pub monitoring: Monitoring,
    /// Idempotency token, of at most 64 ASCII characters.
    pub client_token: Option<String>,
    /// Tags of the instances.
    pub tags: Vec<(String, String)>,
    /// Tags of the instances that EC2 itself sets, with the prefix `aws:`.
    pub system_tags: Vec<(String, String)>,
    /// Tags of the volumes.
    pub volume_tags: Vec<(String, String)>,
    /// Tags of the network interfaces.
    pub interface_tags: Vec<(String, String)>,
    /// Tags of the spot instance requests.
    pub spot_tags: Vec<(String, String)>,
    /// Market, protection, volumes, network interfaces and other options.
    pub options: InstanceOptions,
}

impl LaunchRequest {
    fn token_key(&self) -> Option<TokenKey> {
        self.client_token.as_deref().map(|token| (Arc::clone(&self.account), token.into()))
    }

    /// Requests one `m5.large` instance of an image in the default subnet.
    pub fn new(image_id: impl Into<String>) -> Self {
        Self {
            account: ACCOUNT.into(),
            image_id: image_id.into(),
            instance_type: "m5.large".to_owned(),
            min_count: 1,
            max_count: 1,
            subnet_id: None,
            groups: Vec::new(),
            availability_zone: None,
            key_name: None,
            profile: None,
            monitoring: Monitoring::Basic,
            client_token: None,
            tags: Vec::new(),
            system_tags: Vec::new(),
            volume_tags: Vec::new(),
            interface_tags: Vec::new(),
            spot_tags: Vec::new(),
            options: InstanceOptions::default(),
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
        super::instance_types::checked_type(&request.instance_type)?;
        check_options(&request)?;
        for tags in [&request.tags, &request.volume_tags, &request.interface_tags, &request.spot_tags] {
            tags::validate(&Tags::new(), tags)?;
        }
        region_state.check_image(&request)?;
        region_state.check_snapshots(&request.account, &request.options.volumes)?;
        let subnet = region_state.choose_subnet(&request)?.clone();
        let groups = region_state.choose_groups(&request, &subnet)?;
        region_state.check_key(&request)?;
        let interfaces = region_state.choose_interfaces(&request, &subnet, &groups, now)?;
        let free = region_state.free_capacity(&request.instance_type, &subnet.availability_zone, now);
        if free < request.min_count {
            return Err(no_capacity(&request.instance_type, &subnet.availability_zone));
        }
        let count = request.max_count.min(free);
        region_state.check_addresses(&subnet, count, now)?;
        self.check_profile(&request)?;
        intent.proceed()?;
        Ok(self.create(region, request, Site { subnet, groups, interfaces, count }, now))
    }

    fn check_profile(&self, request: &LaunchRequest) -> Result<(), AwsError> {
        let Some(profile) = &request.profile else { return Ok(()) };
        let name = profile.rsplit('/').next().unwrap_or_default();
        if self.missing_profiles.contains(name) {
            let parameter =
                if profile.starts_with("arn:") { "iamInstanceProfile.arn" } else { "iamInstanceProfile.name" };
            let message =
                format!("Value ({profile}) for parameter {parameter} is invalid. Invalid IAM Instance Profile name");
            return Err(AwsError::new("InvalidParameterValue", message));
        }
        Ok(())
    }

    fn create(&mut self, region: &str, request: LaunchRequest, site: Site, now: DateTime<Utc>) -> Launch {
        let reservation_id = self.rng.id("r");
        let shared = |text: &str| Arc::<str>::from(text);
        let subnet = &site.subnet;
        let mut options = request.options.clone();
        options.public_address &=
            subnet.is_default || request.options.interfaces.iter().any(InterfaceSpec::wants_address);
        // The values common to all instances of the launch are allocated once.
        let template = Instance {
            sequence: 0,
            id: String::new(),
            owner: Arc::clone(&request.account),
            reservation_id: shared(&reservation_id),
            launch_index: 0,
            image_id: shared(&request.image_id),
            instance_type: shared(&request.instance_type),
            key_name: request.key_name.as_deref().map(shared),
            client_token: request.client_token.as_deref().map(shared),
            availability_zone: shared(&subnet.availability_zone),
            zone_id: zone_id(region, &subnet.availability_zone),
            subnet_id: shared(&subnet.id),
            vpc_id: shared(&subnet.vpc_id),
            groups: site.groups.into(),
            profile: None,
            monitoring: request.monitoring,
            volume_id: Box::default(),
            interface_id: Box::default(),
            options: Arc::new(options),
            extra: Arc::default(),
            cause: StateCause::User,
            tags: Arc::new(request.tags.iter().chain(&request.system_tags).cloned().collect()),
            created_at: now,
            launched_at: now,
            lifecycle: Lifecycle::Running { running_at: now },
            runs: Vec::new(),
            private_ip: subnet.network,
            assigned_ip: subnet.network,
        };
        let mut launched = Vec::with_capacity(site.count);
        for launch_index in 0..site.count {
            let mut instance = Instance {
                sequence: self.next_sequence(),
                id: self.rng.id("i"),
                launch_index,
                profile: request.profile.as_deref().map(|name| self.profile(&request.account, name)),
                volume_id: self.rng.id("vol").into(),
                interface_id: self.rng.id("eni").into(),
                ..template.clone()
            };
            self.add_extras(&mut instance, &site.interfaces);
            instance.start(now, later(now, self.delays.starting), self.addresses.allocate());
            launched.push(instance);
        }
        // Cannot fail: the caller has read this region.
        let (region, instances) = match self.region(region, now) {
            Ok(region) => (region.name, region.insert_launch(launched, subnet, &reservation_id, request, now)),
            Err(_) => ("", Vec::new()),
        };
        let changes = instances.iter().map(|instance| InstanceChange { region, sequence: instance.sequence });
        self.changed.extend(changes);
        Launch { reservation_id, instances, kind: LaunchKind::New }
    }

    /// Adds the volumes and interfaces after the first, and the spot instance request.
    fn add_extras(&mut self, instance: &mut Instance, interfaces: &[ExtraInterface]) {
        let volumes = instance.options.volumes.len().saturating_sub(1);
        let is_spot = instance.options.spot().is_some();
        if volumes + interfaces.len() == 0 && !is_spot {
            return;
        }
        let extra = instance.extra_mut();
        extra.volumes = (0..volumes).map(|_| self.rng.id("vol").into()).collect();
        extra.interfaces = interfaces
            .iter()
            .map(|interface| ExtraInterface { id: self.rng.id("eni").into(), ..interface.clone() })
            .collect();
        extra.spot_request = is_spot.then(|| format!("sir-{}", self.rng.hex(8)));
    }

    fn profile(&mut self, account: &str, name_or_arn: &str) -> Profile {
        let arn = if name_or_arn.starts_with("arn:") {
            name_or_arn.to_owned()
        } else {
            format!("arn:aws:iam::{account}:instance-profile/{name_or_arn}")
        };
        Profile { arn, id: format!("AIPA{}", self.rng.hex(16).to_uppercase()) }
    }
}

impl Region {
    fn earlier_launch(&self, request: &LaunchRequest, now: DateTime<Utc>) -> Result<Option<Launch>, AwsError> {
        let Some(used) = request.token_key().and_then(|key| self.tokens.get(&key)) else {
            return Ok(None);
        };
        if used.request != *request {
            return Err(AwsError::from_code("IdempotentParameterMismatch"));
        }
        let instances: Vec<_> =
            used.sequences.iter().filter_map(|sequence| self.instances.get(sequence)).cloned().collect();
        if instances.iter().any(|instance| is_alive(instance, now)) {
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
        now: DateTime<Utc>,
    ) -> Vec<Arc<Instance>> {
        let mut inserted = Vec::with_capacity(launched.len());
        let named = request.options.interfaces.first().and_then(|primary| primary.private_ip);
        self.named_addresses.extend(named);
        for mut instance in launched {
            instance.private_ip = named.unwrap_or_else(|| self.next_private_address(subnet, now));
            let subnets = instance.extra.interfaces.len();
            for position in 0..subnets {
                let interface = &instance.extra.interfaces[position];
                if interface.private_ip.is_unspecified() {
                    let subnet = self.catalog.subnets.iter().find(|subnet| subnet.id == interface.subnet_id).cloned();
                    let address = subnet.map(|subnet| self.next_private_address(&subnet, now));
                    instance.extra_mut().interfaces[position].private_ip = address.unwrap_or(Ipv4Addr::UNSPECIFIED);
                } else {
                    self.named_addresses.insert(interface.private_ip);
                }
            }
            self.tag_devices(&instance, &request);
            inserted.push(self.insert(instance));
        }
        if let Some(key) = request.token_key() {
            let sequences = inserted.iter().map(|instance| instance.sequence).collect();
            let reservation_id = reservation_id.to_owned();
            self.tokens.insert(key, UsedToken { request, reservation_id, sequences });
        }
        inserted
    }

    fn tag_devices(&mut self, instance: &Instance, request: &LaunchRequest) {
        let tags = &mut self.resources.tags;
        let mut put = |id: &str, added: &[(String, String)]| {
            if !added.is_empty() {
                tags.insert(id.to_owned(), added.iter().cloned().collect());
            }
        };
        instance.volume_ids().for_each(|id| put(id, &request.volume_tags));
        instance.interface_ids().for_each(|id| put(id, &request.interface_tags));
        instance.extra.spot_request.iter().for_each(|id| put(id, &request.spot_tags));
    }

    /// Returns the next address of a subnet. Blocks of 16 bits are so large that addresses are not searched.
    fn next_private_address(&mut self, subnet: &Subnet, now: DateTime<Utc>) -> Ipv4Addr {
        let last = subnet.last_host();
        let used = if subnet.prefix_length > 16 { self.used_addresses(now) } else { self.named_addresses.clone() };
        let next = self.hosts.entry(subnet.id.clone()).or_insert(FIRST_HOST);
        for _ in FIRST_HOST..=last {
            let address = Ipv4Addr::from(u32::from(subnet.network) + *next);
            *next = if *next >= last { FIRST_HOST } else { *next + 1 };
            if !used.contains(&address) {
                return address;
            }
        }
        subnet.network
    }

    /// Returns the private addresses of all instances that still have a network.
    fn used_addresses(&self, now: DateTime<Utc>) -> BTreeSet<Ipv4Addr> {
        let with_network = self.instances().filter(|instance| is_alive(instance, now));
        with_network
            .flat_map(|instance| {
                let extra = instance.extra.interfaces.iter().map(|interface| interface.private_ip);
                std::iter::once(instance.private_ip).chain(extra)
            })
            .collect()
    }

    /// Returns the number of free addresses of a subnet.
    pub fn free_addresses(&self, subnet: &Subnet, now: DateTime<Utc>) -> usize {
        let used = self.used_addresses(now).into_iter().filter(|address| subnet.contains(*address)).count();
        (subnet.last_host() as usize + 1).saturating_sub(FIRST_HOST as usize + used)
    }

    fn check_addresses(&self, subnet: &Subnet, count: usize, now: DateTime<Utc>) -> Result<(), AwsError> {
        if subnet.prefix_length > 16 && self.free_addresses(subnet, now) < count {
            let message =
                format!("There are not enough free addresses in subnet '{}' to satisfy the request.", subnet.id);
            return Err(AwsError::new("InsufficientFreeAddressesInSubnet", message));
        }
        Ok(())
    }

    fn check_key(&self, request: &LaunchRequest) -> Result<(), AwsError> {
        match &request.key_name {
            Some(name) if self.key_pair(&request.account, name).is_none() => {
                Err(AwsError::new("InvalidKeyPair.NotFound", format!("The key pair '{name}' does not exist")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Validates the network interfaces, and returns those after the primary one without their ids.
    fn choose_interfaces(
        &self,
        request: &LaunchRequest,
        subnet: &Subnet,
        groups: &[SecurityGroup],
        now: DateTime<Utc>,
    ) -> Result<Vec<ExtraInterface>, AwsError> {
        let mut chosen = Vec::new();
        for (position, spec) in request.options.interfaces.iter().enumerate() {
            let own = match &spec.subnet_id {
                Some(id) if position > 0 => self.find_subnet(&request.account, id)?,
                Some(_) | None => subnet,
            };
            if own.availability_zone != subnet.availability_zone {
                let message = "All network interfaces of an instance must be in the same Availability Zone.";
                return Err(AwsError::new("InvalidParameterCombination", message));
            }
            if let Some(address) = spec.private_ip {
                if !own.contains(address) {
                    let message = format!("Address {address} does not fall within the subnet's address range");
                    return Err(AwsError::new("InvalidParameterValue", message));
                }
                if self.used_addresses(now).contains(&address) {
                    let message = format!("Address {address} is in use.");
                    return Err(AwsError::new("InvalidIPAddress.InUse", message));
                }
            }
            if position > 0 {
                chosen.push(ExtraInterface {
                    id: Box::default(),
                    private_ip: spec.private_ip.unwrap_or(Ipv4Addr::UNSPECIFIED),
                    subnet_id: own.id.clone(),
                    groups: if spec.groups.is_empty() {
                        groups.to_vec()
                    } else {
                        self.find_groups(&request.account, &spec.groups, own)?
                    },
                });
            }
        }
        Ok(chosen)
    }

    fn check_image(&self, request: &LaunchRequest) -> Result<(), AwsError> {
        let id = &request.image_id;
        if !is_well_formed(id, "ami") {
            return Err(malformed("InvalidAMIID.Malformed", id, "ami"));
        }
        let missing = || AwsError::new("InvalidAMIID.NotFound", format!("The image id '[{id}]' does not exist"));
        self.catalog.images_of(&request.account).find(|image| image.id == *id).map(|_| ()).ok_or_else(missing)
    }

    /// Refuses volumes of snapshots that do not exist. Each image has one, with the number of its id.
    pub(crate) fn check_snapshots(&self, account: &str, volumes: &[VolumeSpec]) -> Result<(), AwsError> {
        for id in volumes.iter().filter_map(|volume| volume.snapshot_id.as_deref()) {
            if !is_well_formed(id, "snap") {
                return Err(malformed("InvalidSnapshotID.Malformed", id, "snap"));
            }
            let number = id.trim_start_matches("snap-");
            if !self.catalog.images_of(account).any(|image| image.id.trim_start_matches("ami-") == number) {
                let message = format!("The snapshot '{id}' does not exist.");
                return Err(AwsError::new("InvalidSnapshot.NotFound", message));
            }
        }
        Ok(())
    }

    fn choose_subnet(&self, request: &LaunchRequest) -> Result<&Subnet, AwsError> {
        let zone = request.availability_zone.as_deref().map(|zone| self.zone(zone)).transpose()?;
        let Some(id) = &request.subnet_id else {
            let mut subnets = self.catalog.subnets_of(&request.account).filter(|subnet| subnet.is_default);
            return subnets
                .find(|subnet| zone.as_ref().is_none_or(|zone| *zone == subnet.availability_zone))
                .ok_or_else(|| {
                    let zone = zone.as_deref().unwrap_or("null");
                    let message = format!("No default subnet for availability zone: '{zone}'.");
                    AwsError::new("MissingInput", message)
                });
        };
        let subnet = self.find_subnet(&request.account, id)?;
        match zone {
            Some(zone) if zone != subnet.availability_zone => {
                let message = format!(
                    "The subnet '{id}' is in the availability zone '{}', not in '{zone}'.",
                    subnet.availability_zone
                );
                Err(AwsError::new("InvalidParameterValue", message))
            }
            Some(_) | None => Ok(subnet),
        }
    }

    /// Returns the name of a zone of the region, given by name or id.
    pub(crate) fn zone(&self, text: &str) -> Result<String, AwsError> {
        let names = ZONES.map(|letter| format!("{}{letter}", self.name));
        names
            .into_iter()
            .find(|name| name == text || zone_id(self.name, name) == Some(text))
            .ok_or_else(|| AwsError::new("InvalidParameterValue", format!("Invalid availability zone: [{text}]")))
    }

    pub(crate) fn find_subnet(&self, account: &str, id: &str) -> Result<&Subnet, AwsError> {
        self.catalog.subnets_of(account).find(|subnet| subnet.id == id).ok_or_else(|| not_found(id))
    }

    fn choose_groups(&self, request: &LaunchRequest, subnet: &Subnet) -> Result<Vec<SecurityGroup>, AwsError> {
        if request.groups.is_empty() {
            let mut own = self.catalog.groups_of(&request.account);
            let default = own.find(|group| group.vpc_id == subnet.vpc_id && group.name == "default");
            return Ok(default
                .or_else(|| self.catalog.groups_of(&request.account).next())
                .cloned()
                .into_iter()
                .collect());
        }
        self.find_groups(&request.account, &request.groups, subnet)
    }

    /// Returns the security groups with these ids or names, all in the VPC of a subnet.
    pub(crate) fn find_groups(
        &self,
        account: &str,
        names: &[String],
        subnet: &Subnet,
    ) -> Result<Vec<SecurityGroup>, AwsError> {
        let choose = |name: &String| {
            let mut own = self.catalog.groups_of(account);
            let group = own.find(|group| group.id == *name || group.name == *name && group.vpc_id == subnet.vpc_id);
            let group = group.cloned().ok_or_else(|| {
                AwsError::new("InvalidGroup.NotFound", format!("The security group '{name}' does not exist"))
            })?;
            if group.vpc_id != subnet.vpc_id {
                let message =
                    format!("Security group {} and subnet {} belong to different networks.", group.id, subnet.id);
                return Err(AwsError::new("InvalidParameter", message));
            }
            Ok(group)
        };
        names.iter().map(choose).collect()
    }
}

impl Subnet {
    /// Returns the last host that an instance can have; EC2 keeps the last address.
    fn last_host(&self) -> u32 {
        (1_u32 << (32 - u32::from(self.prefix_length.clamp(16, 28)))) - 2
    }

    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        let host = u32::from(address).wrapping_sub(u32::from(self.network));
        (FIRST_HOST..=self.last_host()).contains(&host)
    }
}

/// EC2 keeps the first four addresses of a subnet.
const FIRST_HOST: u32 = 4;

/// Place and devices of a launch, after validation.
struct Site {
    subnet: Subnet,
    groups: Vec<SecurityGroup>,
    interfaces: Vec<ExtraInterface>,
    count: usize,
}

fn is_alive(instance: &Instance, now: DateTime<Utc>) -> bool {
    match instance.state(now) {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    }
}

fn check_options(request: &LaunchRequest) -> Result<(), AwsError> {
    let options = &request.options;
    let combination = |message: &str| Err(AwsError::new("InvalidParameterCombination", message));
    if options.interfaces.iter().any(|interface| interface.private_ip.is_some()) && request.max_count > 1 {
        return combination("A private IP address can be specified for a single instance only.");
    }
    if options.hibernation {
        let root_is_encrypted = options.volumes.first().is_some_and(|root| root.encrypted);
        if !root_is_encrypted || options.spot().is_some() {
            let message = "Hibernation requires an encrypted root volume and an on-demand instance.";
            return Err(AwsError::new("UnsupportedHibernationConfiguration", message));
        }
    }
    if let Some(spot) = options.spot() {
        let terminates = spot.interruption == InterruptionBehavior::Terminate;
        if spot.kind == "one-time" && !terminates {
            return combination("The interruption behavior of a one-time spot instance request must be 'terminate'.");
        }
        if spot.kind == "one-time" && spot.valid_until.is_some() {
            return combination("ValidUntil is only supported for persistent spot instance requests.");
        }
    }
    Ok(())
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

fn malformed(code: &'static str, id: &str, prefix: &str) -> AwsError {
    AwsError::new(code, format!("Invalid id: \"{id}\" (expecting \"{prefix}-...\")"))
}

/// Account and client token of a launch. Accounts use tokens independently of each other.
pub(super) type TokenKey = (Arc<str>, Arc<str>);

/// Client tokens of a region.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Tokens {
    #[serde(with = "crate::serial::pairs")]
    used: HashMap<TokenKey, UsedToken>,
    expirations: BTreeSet<(DateTime<Utc>, TokenKey)>,
}

/// Launch that used a client token.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct UsedToken {
    request: LaunchRequest,
    reservation_id: String,
    /// Positions of its instances in launch order.
    sequences: Vec<u64>,
}

impl Tokens {
    fn get(&self, key: &TokenKey) -> Option<&UsedToken> {
        self.used.get(key)
    }

    /// Returns whether no instance of the token exists.
    pub(super) fn is_unused(&self, key: &TokenKey, exists: impl Fn(u64) -> bool) -> bool {
        self.used.get(key).is_none_or(|used| !used.sequences.iter().any(|sequence| exists(*sequence)))
    }

    fn insert(&mut self, key: TokenKey, used: UsedToken) {
        self.used.insert(key, used);
    }

    pub(super) fn expire_at(&mut self, key: TokenKey, expires_at: DateTime<Utc>) {
        self.expirations.insert((expires_at, key));
    }

    pub(super) fn remove_expired(&mut self, now: DateTime<Utc>) {
        while self.expirations.first().is_some_and(|(expires_at, _)| *expires_at <= now) {
            if let Some((_, key)) = self.expirations.pop_first() {
                self.used.remove(&key);
            }
        }
    }
}
