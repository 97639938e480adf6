//! Default resources of every region: images, a VPC, a subnet and a security group.

use std::net::Ipv4Addr;

use super::rng::{hash_text, mix};
use super::tags::Tags;

/// Account id of all resources except the images.
pub const ACCOUNT: &str = "123456789012";
/// Account id of the owner of the CML images.
pub const IMAGE_OWNER: &str = "210987654321";

/// All regions, each with its own instances and catalog.
pub const REGIONS: [&str; 16] = [
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
];

/// Name, creation date and description of the default images of every region.
const IMAGES: [(&str, &str, &str); 4] = [
    ("cisco-cml2.7.2-lablet-v0.1.2", "2024-05-14T08:30:00.000Z", "Cisco Modeling Labs 2.7.2"),
    ("cisco-cml2.8.1-lablet-v0.1.5", "2025-02-03T09:15:00.000Z", "Cisco Modeling Labs 2.8.1"),
    ("cisco-cml2.9.0-lablet-v0.1.6", "2025-06-20T10:00:00.000Z", "Cisco Modeling Labs 2.9.0"),
    ("cisco-cml2.9.1-lablet-v0.1.7", "2025-10-07T12:45:00.000Z", "Cisco Modeling Labs 2.9.1"),
];

/// An Amazon machine image.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Tags by key.
    pub tags: Tags,
}

/// A subnet of a VPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// Id with the prefix `subnet-`.
    pub id: String,
    /// Id of the VPC.
    pub vpc_id: String,
    /// Availability zone, such as `us-east-1a`.
    pub availability_zone: String,
    /// Network address; the prefix length is 16.
    pub network: Ipv4Addr,
    /// Tags by key.
    pub tags: Tags,
}

/// A security group of a VPC. Rules are not modeled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Id with the prefix `sg-`.
    pub id: String,
    /// Name; launches accept it instead of the id.
    pub name: String,
    /// Id of the VPC.
    pub vpc_id: String,
}

/// Images, subnets and security groups of a region.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Images; the default ones are ordered by creation date, oldest first.
    pub images: Vec<Image>,
    /// Subnets; the first is the default subnet.
    pub subnets: Vec<Subnet>,
    /// Security groups; the first is the default group.
    pub groups: Vec<SecurityGroup>,
}

impl Catalog {
    /// Returns the initial catalog of a region. Ids depend only on the region, so documents and tests can name them.
    pub fn for_region(region: &str) -> Self {
        let vpc_id = resource_id("vpc", region, "default");
        let number = REGIONS.iter().position(|name| *name == region).unwrap_or(REGIONS.len()) as u8;
        let image = |(name, creation_date, description): (&str, &str, &str)| Image {
            id: resource_id("ami", region, name),
            name: name.to_owned(),
            description: description.to_owned(),
            creation_date: creation_date.to_owned(),
            owner: IMAGE_OWNER.to_owned(),
            tags: Tags::new(),
        };
        Self {
            images: IMAGES.into_iter().map(image).collect(),
            subnets: vec![Subnet {
                id: resource_id("subnet", region, "default"),
                vpc_id: vpc_id.clone(),
                availability_zone: format!("{region}a"),
                network: Ipv4Addr::new(10, 10 + number, 0, 0),
                tags: Tags::new(),
            }],
            groups: vec![SecurityGroup {
                id: resource_id("sg", region, "default"),
                name: "default".to_owned(),
                vpc_id,
            }],
        }
    }

    pub(crate) fn image(&self, id: &str) -> Option<&Image> {
        self.images.iter().find(|image| image.id == id)
    }

    pub(crate) fn subnet(&self, id: &str) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.id == id)
    }

    pub(crate) fn group(&self, id_or_name: &str) -> Option<&SecurityGroup> {
        self.groups.iter().find(|group| group.id == id_or_name || group.name == id_or_name)
    }
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
    fn ids_have_8_or_17_hexadecimal_digits() {
        assert!(is_well_formed("i-12345678", "i"));
        assert!(is_well_formed("i-0123456789abcdef0", "i"));
        for bad in ["i-", "i-1234567", "i-0123456789ABCDEF0", "banana", "i-zzzzzzzz", "", "ami-12345678"] {
            assert!(!is_well_formed(bad, "i"), "{bad}");
        }
    }
}
