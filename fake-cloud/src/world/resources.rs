//! Resources beside instances: VPCs, key pairs, volumes, addresses and launch templates.

use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ec2::Region;
use super::error::AwsError;
use super::instance::{Instance, InstanceState};
use super::options::VolumeSpec;
use super::tags::Tags;

/// A VPC.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Vpc {
    /// Id with the prefix `vpc-`.
    pub id: String,
    /// Address blocks, such as `10.10.0.0/16`; the first is the primary one.
    pub blocks: Vec<String>,
    /// Tenancy of its instances.
    pub tenancy: String,
    /// Whether it is the default VPC of its account.
    pub is_default: bool,
    /// Account id of the owner.
    pub owner: String,
}

/// A key pair. Private keys are returned once and not kept.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyPair {
    /// Id with the prefix `key-`.
    pub id: String,
    /// Name, which launches use.
    pub name: String,
    /// `rsa` or `ed25519`.
    pub kind: String,
    /// Fingerprint as EC2 computes it for the type.
    pub fingerprint: String,
    /// Public key in the format of OpenSSH.
    pub public_key: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Account id of the owner.
    pub owner: Arc<str>,
}

/// An EBS volume.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Volume {
    /// Id with the prefix `vol-`.
    pub id: String,
    /// Size, type and performance.
    pub spec: VolumeSpec,
    /// Availability zone.
    pub availability_zone: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Instance to which it is attached.
    pub instance_id: Option<String>,
    /// Client token of CreateVolume.
    pub client_token: Option<String>,
    /// Account id of the owner.
    pub owner: Arc<str>,
}

/// An elastic address. Association with instances is not modeled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Address {
    /// Id with the prefix `eipalloc-`.
    pub id: String,
    /// Public address.
    pub address: Ipv4Addr,
    /// Account id of the owner.
    pub owner: Arc<str>,
}

/// A launch template with its versions.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LaunchTemplate {
    /// Id with the prefix `lt-`.
    pub id: String,
    /// Name, unique in the account and region.
    pub name: String,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Number of the default version.
    pub default_version: u64,
    /// Number of the latest version, including deleted ones.
    pub latest_version: u64,
    /// Versions by number.
    pub versions: Vec<TemplateVersion>,
    /// Client token of the creation.
    pub client_token: Option<String>,
    /// Account id of the owner.
    pub owner: Arc<str>,
}

/// A version of a launch template.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TemplateVersion {
    /// Number of the version.
    pub number: u64,
    /// Description of the version.
    pub description: Option<String>,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Parameters of a launch, by their names in RunInstances.
    pub parameters: Vec<(String, String)>,
    /// The call that created it, if it had a client token.
    pub origin: Option<VersionOrigin>,
}

/// A call of CreateLaunchTemplateVersion, by which a repetition is known.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VersionOrigin {
    /// Client token of the call.
    pub client_token: String,
    /// Version that the call named as its source.
    pub source: Option<String>,
    /// Parameters of the call itself, without those of the source.
    pub parameters: Vec<(String, String)>,
    /// Description of the call.
    pub description: Option<String>,
}

/// A network interface of an instance.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Id with the prefix `eni-`.
    pub id: String,
    /// Position in the options and the interfaces of the instance.
    pub index: usize,
    /// The instance.
    pub instance: Arc<Instance>,
}

impl Region {
    /// Returns the volumes of an account: those of its instances, then those on their own.
    pub fn volumes(&self, owner: &str, now: DateTime<Utc>) -> Vec<Volume> {
        let of_instances = self.instances().filter(|instance| *instance.owner == *owner && has_devices(instance, now));
        let mut volumes: Vec<Volume> = of_instances
            .flat_map(|instance| {
                let ids = instance.volume_ids().map(str::to_owned);
                ids.zip(instance.options.volumes.clone()).map(|(id, spec)| Volume {
                    id,
                    spec,
                    availability_zone: instance.availability_zone.to_string(),
                    created_at: instance.created_at,
                    instance_id: Some(instance.id.clone()),
                    client_token: None,
                    owner: Arc::clone(&instance.owner),
                })
            })
            .collect();
        volumes.extend(self.resources.volumes.iter().filter(|volume| *volume.owner == *owner).cloned());
        volumes
    }

    /// Returns the network interfaces of the instances of an account.
    pub fn interfaces(&self, owner: &str, now: DateTime<Utc>) -> Vec<Interface> {
        let of_instances = self.instances().filter(|instance| *instance.owner == *owner && has_devices(instance, now));
        of_instances
            .flat_map(|instance| {
                instance.interface_ids().enumerate().map(|(index, id)| Interface {
                    id: id.to_owned(),
                    index,
                    instance: Arc::clone(instance),
                })
            })
            .collect()
    }

    /// Returns the key pair with this name.
    pub(super) fn key_pair(&self, owner: &str, name: &str) -> Option<&KeyPair> {
        self.resources.key_pairs.iter().find(|key| key.name == name && *key.owner == *owner)
    }

    /// Sets the tags of a new resource that does not keep its own.
    pub(crate) fn put_tags(&mut self, id: &str, tags: &[(String, String)]) {
        if !tags.is_empty() {
            self.resources.tags.insert(id.to_owned(), tags.iter().cloned().collect());
        }
    }

    /// Returns the tags of a resource that does not keep its own.
    pub fn tags_of(&self, id: &str) -> &Tags {
        static NONE: Tags = Tags::new();
        self.resources.tags.get(id).unwrap_or(&NONE)
    }

    /// Returns the type of a tagged resource that does not keep its own tags, and whether `account` owns it.
    pub(super) fn resource_kind(&self, id: &str, account: Option<&str>, now: DateTime<Utc>) -> Option<&'static str> {
        let (prefix, _) = id.split_once('-')?;
        let is_own = |owner: &str| account.is_none_or(|account| account == owner);
        let resources = &self.resources;
        let (kind, exists) = match prefix {
            "sg" => ("security-group", self.catalog.groups.iter().any(|group| group.id == id && is_own(&group.owner))),
            "vpc" => ("vpc", self.catalog.vpcs.iter().any(|vpc| vpc.id == id && is_own(&vpc.owner))),
            "key" => ("key-pair", resources.key_pairs.iter().any(|key| key.id == id && is_own(&key.owner))),
            "eipalloc" => ("elastic-ip", resources.addresses.iter().any(|one| one.id == id && is_own(&one.owner))),
            "lt" => ("launch-template", resources.templates.iter().any(|one| one.id == id && is_own(&one.owner))),
            "vol" => {
                let alone = resources.volumes.iter().any(|volume| volume.id == id && is_own(&volume.owner));
                let mut instances = self.instances().filter(|one| is_own(&one.owner) && has_devices(one, now));
                ("volume", alone || instances.any(|one| one.volume_ids().any(|volume| volume == id)))
            }
            "eni" => {
                let mut instances = self.instances().filter(|one| is_own(&one.owner) && has_devices(one, now));
                ("network-interface", instances.any(|one| one.interface_ids().any(|interface| interface == id)))
            }
            "sir" => {
                let mut instances = self.instances().filter(|one| is_own(&one.owner));
                ("spot-instances-request", instances.any(|one| one.extra.spot_request.as_deref() == Some(id)))
            }
            _ => return None,
        };
        exists.then_some(kind)
    }
}

/// Whether an instance still has its volumes and network interfaces.
fn has_devices(instance: &Instance, now: DateTime<Utc>) -> bool {
    instance.state(now) != InstanceState::Terminated
}

/// Resources of a region that no launch creates, and tags of all resources that do not keep their own.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Resources {
    /// Key pairs of all accounts.
    pub key_pairs: Vec<KeyPair>,
    /// Volumes without an instance.
    pub volumes: Vec<Volume>,
    /// Elastic addresses.
    pub addresses: Vec<Address>,
    /// Launch templates.
    pub templates: Vec<LaunchTemplate>,
    /// Tags by resource id.
    pub tags: std::collections::BTreeMap<String, Tags>,
}

/// Returns the error of an id that names no resource, with the code of its type.
pub(crate) fn not_found(id: &str) -> AwsError {
    let (code, what) = match id.split_once('-').map(|(prefix, _)| prefix) {
        Some("i") => return AwsError::unknown_instances(&[id]),
        Some("ami") => {
            return AwsError::new("InvalidAMIID.NotFound", format!("The image id '[{id}]' does not exist"));
        }
        Some("subnet") => ("InvalidSubnetID.NotFound", "subnet ID"),
        Some("sg") => ("InvalidGroup.NotFound", "security group"),
        Some("vpc") => ("InvalidVpcID.NotFound", "vpc ID"),
        Some("key") => ("InvalidKeyPair.NotFound", "key pair ID"),
        Some("eipalloc") => ("InvalidAllocationID.NotFound", "allocation ID"),
        Some("lt") => ("InvalidLaunchTemplateId.NotFound", "launch template ID"),
        Some("vol") => ("InvalidVolume.NotFound", "volume"),
        Some("eni") => ("InvalidNetworkInterfaceID.NotFound", "networkInterface ID"),
        Some("sir") => ("InvalidSpotInstanceRequestID.NotFound", "spot instance request ID"),
        Some(_) | None => return AwsError::new("InvalidID", format!("The ID '{id}' is not valid")),
    };
    AwsError::new(code, format!("The {what} '{id}' does not exist"))
}
