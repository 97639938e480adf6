//! Options of a launch: market, protection, volumes, network interfaces and the settings that EC2 reports back.

use std::net::Ipv4Addr;

use chrono::{DateTime, Utc};

/// Options of an instance. All instances of a launch share them until one of them is modified.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct InstanceOptions {
    /// On demand or spot.
    pub market: Market,
    /// Tenancy: `default` or `dedicated`.
    pub tenancy: String,
    /// Whether TerminateInstances is refused.
    pub termination_protection: Protection,
    /// Whether StopInstances is refused.
    pub stop_protection: Protection,
    /// Effect of a shutdown from within the instance: `stop` or `terminate`.
    pub shutdown_behavior: String,
    /// Whether the launch requested EBS optimization.
    pub ebs_optimized: bool,
    /// Whether traffic is checked for the address of the instance.
    pub source_dest_check: bool,
    /// Whether the instance can hibernate.
    pub hibernation: bool,
    /// Whether the instance gets a public address. Subnets that are not default subnets assign none by themselves.
    pub public_address: bool,
    /// Cores and threads per core; `None` for those of the instance type.
    pub cpu: Option<(u32, u32)>,
    /// Options of the metadata service.
    pub metadata: MetadataOptions,
    /// User data in base64.
    pub user_data: Option<String>,
    /// Automatic recovery: `default` or `disabled`.
    pub auto_recovery: String,
    /// Use of open capacity reservations: `open` or `none`.
    pub capacity_preference: String,
    /// Volumes; the first is the root volume.
    pub volumes: Vec<VolumeSpec>,
    /// Network interfaces; the first is the primary one.
    pub interfaces: Vec<InterfaceSpec>,
}

/// Whether an API action is refused for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Protection {
    /// The action is allowed.
    Off,
    /// The action fails with `OperationNotPermitted`.
    On,
}

/// Market of an instance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Market {
    /// On demand.
    OnDemand,
    /// Spot: EC2 may take the instance back.
    Spot(SpotOptions),
}

/// Options of a spot instance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SpotOptions {
    /// `one-time` or `persistent`.
    pub kind: String,
    /// Maximum price per hour in dollars.
    pub max_price: Option<String>,
    /// End of a persistent request.
    pub valid_until: Option<DateTime<Utc>>,
    /// Effect of an interruption.
    pub interruption: InterruptionBehavior,
}

/// Effect of a spot interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum InterruptionBehavior {
    /// The instance is terminated.
    Terminate,
    /// The instance is stopped.
    Stop,
    /// The instance hibernates, which EC2 reports as stopped.
    Hibernate,
}

impl InterruptionBehavior {
    /// Returns the name in requests and responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::Stop => "stop",
            Self::Hibernate => "hibernate",
        }
    }
}

/// Options of the metadata service of an instance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MetadataOptions {
    /// `optional` or `required`.
    pub http_tokens: String,
    /// Maximum number of hops of a response, from 1 to 64.
    pub hop_limit: u8,
    /// `enabled` or `disabled`.
    pub http_endpoint: String,
    /// `enabled` or `disabled`.
    pub instance_tags: String,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self {
            http_tokens: "required".to_owned(),
            hop_limit: 2,
            http_endpoint: "enabled".to_owned(),
            instance_tags: "disabled".to_owned(),
        }
    }
}

/// A volume of a launch, or a volume on its own.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeSpec {
    /// Device name, such as `/dev/sda1`; empty for a volume on its own.
    pub device: String,
    /// Size in GiB.
    pub size: u32,
    /// Volume type, such as `gp3`.
    pub kind: String,
    /// Provisioned operations per second.
    pub iops: Option<u32>,
    /// Provisioned throughput in MiB/s.
    pub throughput: Option<u32>,
    /// Whether the volume is encrypted.
    pub encrypted: bool,
    /// Whether the volume is deleted with its instance.
    pub delete_on_termination: bool,
    /// Snapshot from which it is created.
    pub snapshot_id: Option<String>,
}

impl VolumeSpec {
    /// Returns the root volume of the images: 64 GiB of `gp3`, deleted with the instance.
    pub fn root() -> Self {
        Self {
            device: "/dev/sda1".to_owned(),
            size: 64,
            kind: "gp3".to_owned(),
            iops: Some(3000),
            throughput: Some(125),
            encrypted: false,
            delete_on_termination: true,
            snapshot_id: None,
        }
    }
}

/// A network interface of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct InterfaceSpec {
    /// Device index; 0 is the primary interface.
    pub device_index: u32,
    /// Description, empty by default.
    pub description: String,
    /// Whether the interface survives its instance.
    pub keeps: Keeps,
    /// Subnet; `None` for the subnet of the launch.
    pub subnet_id: Option<String>,
    /// Ids of its security groups; empty for those of the launch.
    pub groups: Vec<String>,
    /// Private address; `None` for the next free one.
    pub private_ip: Option<Ipv4Addr>,
    /// Whether it gets a public address; `None` for the default of the subnet.
    pub associate_public_address: Option<bool>,
}

impl InterfaceSpec {
    pub(super) fn wants_address(&self) -> bool {
        self.associate_public_address == Some(true)
    }
}

/// Whether an interface survives its instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Keeps {
    /// It is deleted with the instance.
    #[default]
    Never,
    /// It is detached from the terminated instance.
    Always,
}

impl Default for InstanceOptions {
    fn default() -> Self {
        Self {
            market: Market::OnDemand,
            tenancy: "default".to_owned(),
            termination_protection: Protection::Off,
            stop_protection: Protection::Off,
            shutdown_behavior: "stop".to_owned(),
            ebs_optimized: false,
            source_dest_check: true,
            hibernation: false,
            public_address: true,
            cpu: None,
            metadata: MetadataOptions::default(),
            user_data: None,
            auto_recovery: "default".to_owned(),
            capacity_preference: "open".to_owned(),
            volumes: vec![VolumeSpec::root()],
            interfaces: vec![InterfaceSpec::default()],
        }
    }
}

impl InstanceOptions {
    /// Returns the options of the spot market, if the instance is on it.
    pub fn spot(&self) -> Option<&SpotOptions> {
        match &self.market {
            Market::OnDemand => None,
            Market::Spot(options) => Some(options),
        }
    }
}
