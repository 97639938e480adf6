//! Default resources of every region: images, a VPC, a subnet and a security group.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use super::resources::Vpc;
use super::rng::{hash_text, mix};
use super::tags::Tags;
use crate::suggest::did_you_mean;

/// Account id of all resources except the images, unless another account is added.
pub const ACCOUNT: &str = "123456789012";
/// Account id of the owner of the CML images.
pub const IMAGE_OWNER: &str = "210987654321";
/// Account id of Amazon, which the owner `amazon` names.
pub const AMAZON: &str = "137112412989";

/// Regions that every account has, each with its own instances and catalog.
pub const REGIONS: [&str; 17] = [
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ca-central-1",
    "sa-east-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "eu-central-1",
    "eu-north-1",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
];

/// Regions that an account has to opt in to.
pub const OPT_IN_REGIONS: [&str; 16] = [
    "af-south-1",
    "ap-east-1",
    "ap-east-2",
    "ap-south-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-7",
    "ca-west-1",
    "eu-central-2",
    "eu-south-1",
    "eu-south-2",
    "il-central-1",
    "me-central-1",
    "me-south-1",
    "mx-central-1",
];

/// Letters of the zones of every region.
pub const ZONES: [&str; 3] = ["a", "b", "c"];

/// Returns the ids of the zones of a region, such as `use1-az1`, in the order of [`ZONES`].
pub fn zone_ids(region: &str) -> [String; 3] {
    let mut words = region.split('-');
    let mut prefix = words.next().unwrap_or_default().to_owned();
    for word in words {
        // `southeast` is `se`, `central` is `c`.
        let short = match word {
            "northeast" => "ne",
            "southeast" => "se",
            "northwest" => "nw",
            "southwest" => "sw",
            "north" => "n",
            "south" => "s",
            "east" => "e",
            "west" => "w",
            "central" => "c",
            other => other,
        };
        prefix.push_str(short);
    }
    [1, 2, 3].map(|number| format!("{prefix}-az{number}"))
}

/// Name of a region of [`all_regions`].
pub type RegionName = &'static str;

/// Id of a zone of [`zone_ids`].
pub type ZoneId = &'static str;

/// Reads the name of a region.
pub(super) fn known_region<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RegionName, D::Error> {
    let name = String::deserialize(deserializer)?;
    region_named(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown region '{name}'")))
}

/// Returns the region of this name.
pub(super) fn region_named(name: &str) -> Option<RegionName> {
    all_regions().find(|known| *known == name)
}

/// Reads the id of a zone.
pub(super) fn known_zone_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ZoneId>, D::Error> {
    let Some(id) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let known = all_regions().flat_map(|region| ZONES.map(|letter| zone_id(region, &format!("{region}{letter}"))));
    let found = known.flatten().find(|known| *known == id);
    found.map(Some).ok_or_else(|| serde::de::Error::custom(format!("unknown zone '{id}'")))
}

/// Rejects a name that no region has.
///
/// # Errors
/// A message with the region that was probably meant.
pub(crate) fn check_region(name: &str) -> Result<(), String> {
    if all_regions().any(|region| region == name) {
        return Ok(());
    }
    Err(format!("unknown region '{name}'{}", did_you_mean(name, all_regions())))
}

/// Returns the id of a zone by its name.
pub fn zone_id(region: &str, zone: &str) -> Option<&'static str> {
    static IDS: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
        let zones = |region: &'static str| {
            let names = ZONES.map(|letter| format!("{region}{letter}"));
            names.into_iter().zip(zone_ids(region))
        };
        all_regions().flat_map(zones).collect()
    });
    IDS.get(zone).filter(|_| zone.starts_with(region)).map(String::as_str)
}

/// Name, creation date and description of the default images of every region.
const IMAGES: [(&str, &str, &str); 4] = [
    ("cisco-cml2.7.2-lablet-v0.1.2", "2024-05-14T08:30:00.000Z", "Cisco Modeling Labs 2.7.2"),
    ("cisco-cml2.8.1-lablet-v0.1.5", "2025-02-03T09:15:00.000Z", "Cisco Modeling Labs 2.8.1"),
    ("cisco-cml2.9.0-lablet-v0.1.6", "2025-06-20T10:00:00.000Z", "Cisco Modeling Labs 2.9.0"),
    ("cisco-cml2.9.1-lablet-v0.1.7", "2025-10-07T12:45:00.000Z", "Cisco Modeling Labs 2.9.1"),
];

/// Accounts that can describe and launch an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// The owner only.
    Private,
    /// The owner, and every account of the world by an explicit permission. The image is not public.
    #[default]
    Shared,
    /// Every account of AWS.
    Public,
}

/// An Amazon machine image.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct Image {
    /// Id with the prefix `ami-`.
    pub id: String,
    /// Name, on which clients filter.
    pub name: String,
    /// Description, such as `Cisco Modeling Labs 2.9.1`.
    pub description: String,
    /// Creation time in EC2's format, such as `2025-10-07T12:45:00.000Z`.
    pub creation_date: String,
    /// Account id of the owner.
    pub owner: String,
    /// Accounts that can use it.
    pub sharing: Sharing,
    /// Tags by key.
    pub tags: Tags,
}

impl FromStr for Sharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "private" => Ok(Self::Private),
            "shared" => Ok(Self::Shared),
            "public" => Ok(Self::Public),
            other => Err(format!("invalid sharing '{other}': expected 'private', 'shared' or 'public'")),
        }
    }
}

impl Image {
    /// Returns whether every account of AWS can launch the image.
    pub fn is_public(&self) -> bool {
        self.sharing == Sharing::Public
    }

    /// Returns the alias of the owner, which only Amazon has.
    pub fn owner_alias(&self) -> Option<&'static str> {
        (self.owner == AMAZON).then_some("amazon")
    }
}

/// A subnet of a VPC.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct Subnet {
    /// Id with the prefix `subnet-`.
    pub id: String,
    /// Id of the VPC.
    pub vpc_id: String,
    /// Availability zone, such as `us-east-1a`.
    pub availability_zone: String,
    /// Network address.
    pub network: Ipv4Addr,
    /// Number of bits of the network, from 16 to 28.
    pub prefix_length: u8,
    /// Whether it is the default subnet of its zone. Launches there get a public address.
    pub is_default: bool,
    /// Account id of the owner.
    pub owner: String,
    /// Tags by key.
    pub tags: Tags,
}

/// A rule of a security group. Rules are reported, and filter no traffic.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct Rule {
    /// Id with the prefix `sgr-`.
    pub id: String,
    /// Whether it is for outgoing traffic.
    pub direction: Direction,
    /// Protocol: a name, a number, or `-1` for all.
    pub protocol: String,
    /// First and last port; `None` for all.
    pub ports: Option<(i32, i32)>,
    /// The other end.
    pub peer: Peer,
    /// Description of the rule.
    pub description: Option<String>,
}

/// Direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
pub enum Direction {
    /// To the instances of the group.
    Ingress,
    /// From the instances of the group.
    Egress,
}

/// The other end of a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub enum Peer {
    /// An IPv4 range.
    Ipv4(String),
    /// An IPv6 range.
    Ipv6(String),
    /// A prefix list.
    PrefixList(String),
    /// A security group, by account and id.
    Group(String, String),
}

/// A security group of a VPC.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct SecurityGroup {
    /// Id with the prefix `sg-`.
    pub id: String,
    /// Name; launches accept it instead of the id.
    pub name: String,
    /// Description of the group.
    pub description: String,
    /// Id of the VPC.
    pub vpc_id: String,
    /// Rules in both directions.
    pub rules: Vec<Rule>,
    /// Account id of the owner.
    pub owner: String,
}

impl SecurityGroup {
    /// Returns a group that allows all outgoing traffic, as EC2 creates it.
    pub fn new(id: &str, name: &str, description: &str, vpc_id: &str, owner: &str) -> Self {
        let everywhere = Rule {
            id: id.replacen("sg-", "sgr-", 1),
            direction: Direction::Egress,
            protocol: "-1".to_owned(),
            ports: None,
            peer: Peer::Ipv4("0.0.0.0/0".to_owned()),
            description: None,
        };
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            description: description.to_owned(),
            vpc_id: vpc_id.to_owned(),
            rules: vec![everywhere],
            owner: owner.to_owned(),
        }
    }
}

/// Images, subnets and security groups of a region.
#[derive(Debug, Clone, serde::Serialize, Deserialize)]
pub struct Catalog {
    /// Images; the default ones are ordered by creation date, oldest first.
    pub images: Vec<Image>,
    /// Subnets of all accounts; the first of an account is its default subnet.
    pub subnets: Vec<Subnet>,
    /// Security groups of all accounts; the first of an account is its default group.
    pub groups: Vec<SecurityGroup>,
    /// VPCs of all accounts; the first of an account is its default VPC.
    pub vpcs: Vec<Vpc>,
}

impl Catalog {
    /// Returns the initial catalog of a region. Ids depend only on the region, so documents and tests can name them.
    pub fn for_region(region: &str) -> Self {
        let image = |(name, creation_date, description): (&str, &str, &str)| Image {
            id: resource_id("ami", region, name),
            name: name.to_owned(),
            description: description.to_owned(),
            creation_date: creation_date.to_owned(),
            owner: IMAGE_OWNER.to_owned(),
            sharing: Sharing::Shared,
            tags: Tags::new(),
        };
        let images = IMAGES.into_iter().map(image).collect();
        let mut catalog = Self { images, subnets: Vec::new(), groups: Vec::new(), vpcs: Vec::new() };
        catalog.add_account(region, ACCOUNT);
        catalog
    }

    /// Returns the initial catalog of a region with the network of one account only.
    pub fn for_account(region: &str, account: &str) -> Self {
        let mut catalog =
            Self { subnets: Vec::new(), groups: Vec::new(), vpcs: Vec::new(), ..Self::for_region(region) };
        catalog.add_account(region, account);
        catalog
    }

    /// Adds the default VPC of an account, with a subnet and a security group, unless the account has them.
    pub(super) fn add_account(&mut self, region: &str, account: &str) {
        if self.subnets.iter().any(|subnet| subnet.owner == account) {
            return;
        }
        // Ids of the default account do not contain its name, so that documents can name them.
        let name = if account == ACCOUNT { "default" } else { account };
        let vpc_id = resource_id("vpc", region, name);
        let number = all_regions().position(|name| name == region).unwrap_or_default() as u8;
        // Each subnet has a block of its own: 10.10 to 10.42, 10.60 to 10.92 and 10.110 to 10.142.
        let network = |zone: u8| Ipv4Addr::new(10, 10 + 50 * zone + number, 0, 0);
        for (zone, letter) in (0..).zip(ZONES) {
            let name = if zone == 0 { name.to_owned() } else { format!("{name}-{letter}") };
            self.subnets.push(Subnet {
                id: resource_id("subnet", region, &name),
                vpc_id: vpc_id.clone(),
                availability_zone: format!("{region}{letter}"),
                network: network(zone),
                prefix_length: 16,
                is_default: true,
                owner: account.to_owned(),
                tags: Tags::new(),
            });
        }
        let mut group = SecurityGroup::new(
            &resource_id("sg", region, name),
            "default",
            "default VPC security group",
            &vpc_id,
            account,
        );
        group.rules.push(Rule {
            id: resource_id("sgr", region, name),
            direction: Direction::Ingress,
            protocol: "-1".to_owned(),
            ports: None,
            peer: Peer::Group(account.to_owned(), group.id.clone()),
            description: None,
        });
        self.groups.push(group);
        self.vpcs.push(Vpc {
            id: vpc_id,
            blocks: [0, 1, 2].map(|zone| format!("{}/16", network(zone))).to_vec(),
            tenancy: "default".to_owned(),
            is_default: true,
            owner: account.to_owned(),
        });
    }

    /// Returns the images that an account can describe and launch.
    pub(crate) fn images_of(&self, account: &str) -> impl Iterator<Item = &Image> {
        self.images.iter().filter(move |image| match image.sharing {
            Sharing::Private => image.owner == account,
            Sharing::Shared | Sharing::Public => true,
        })
    }

    /// Returns the VPCs of an account; the first is its default VPC.
    pub(crate) fn vpcs_of(&self, account: &str) -> impl Iterator<Item = &Vpc> {
        self.vpcs.iter().filter(move |vpc| vpc.owner == account)
    }

    /// Returns the subnets of an account; the first is its default subnet.
    pub(crate) fn subnets_of(&self, account: &str) -> impl Iterator<Item = &Subnet> {
        self.subnets.iter().filter(move |subnet| subnet.owner == account)
    }

    /// Returns the security groups of an account; the first is its default group.
    pub(crate) fn groups_of(&self, account: &str) -> impl Iterator<Item = &SecurityGroup> {
        self.groups.iter().filter(move |group| group.owner == account)
    }
}

/// Returns the names of all regions, opted in to or not.
pub fn all_regions() -> impl Iterator<Item = &'static str> {
    REGIONS.into_iter().chain(OPT_IN_REGIONS)
}

/// Returns an id in AWS's long form: a prefix and 17 hexadecimal digits.
fn resource_id(prefix: &str, region: &str, name: &str) -> String {
    let bits = mix(hash_text(prefix) ^ hash_text(region).rotate_left(17) ^ hash_text(name).rotate_left(41));
    format!("{prefix}-0{bits:016x}")
}

/// Returns whether `id` is `prefix`, a dash and 8 or 17 hexadecimal digits.
pub(crate) fn is_well_formed(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')).is_some_and(|digits| {
        matches!(digits.len(), 8 | 17) && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_depend_on_the_region_only() {
        let (here, there) = (Catalog::for_region("us-east-1"), Catalog::for_region("eu-west-1"));
        assert_eq!(here.images, Catalog::for_region("us-east-1").images);
        assert_ne!(here.images[0].id, there.images[0].id);
        assert!(is_well_formed(&here.images[0].id, "ami"));
    }

    #[test]
    fn zone_ids_follow_the_region() {
        assert_eq!(zone_id("us-east-1", "us-east-1a"), Some("use1-az1"));
        assert_eq!(zone_id("ap-southeast-2", "ap-southeast-2c"), Some("apse2-az3"));
        assert_eq!(zone_id("us-east-1", "us-east-2a"), None);
    }

    #[test]
    fn ids_have_8_or_17_hexadecimal_digits() {
        assert!(is_well_formed("i-12345678", "i"));
        assert!(is_well_formed("i-0123456789abcdef0", "i"));
        for bad in ["i-", "i-1234567", "i-0123456789ABCDEF0", "banana", "i-zzzzzzzz", "", "ami-12345678"] {
            assert!(!is_well_formed(bad, "i"), "{bad}");
        }
    }
}
