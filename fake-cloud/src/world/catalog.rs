//! What every region has from the start: images, a VPC, a subnet and a security group.

use std::net::Ipv4Addr;

use super::rng::{hash_text, mix};
use super::tags::Tags;

/// The account everything belongs to.
pub const ACCOUNT: &str = "123456789012";
/// The account the CML images belong to.
pub const IMAGE_OWNER: &str = "210987654321";

/// The regions of the world.
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

/// Name, creation date and description of the images of every region.
const IMAGES: [(&str, &str, &str); 4] = [
    ("cisco-cml2.7.2-lablet-v0.1.2", "2024-05-14T08:30:00.000Z", "Cisco Modeling Labs 2.7.2"),
    ("cisco-cml2.8.1-lablet-v0.1.5", "2025-02-03T09:15:00.000Z", "Cisco Modeling Labs 2.8.1"),
    ("cisco-cml2.9.0-lablet-v0.1.6", "2025-06-20T10:00:00.000Z", "Cisco Modeling Labs 2.9.0"),
    ("cisco-cml2.9.1-lablet-v0.1.7", "2025-10-07T12:45:00.000Z", "Cisco Modeling Labs 2.9.1"),
];

/// A machine image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it holds.
    pub description: String,
    /// When it was made, as EC2 prints it.
    pub creation_date: String,
    /// The account that owns it.
    pub owner: String,
    /// Its tags.
    pub tags: Tags,
}

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// Its id.
    pub id: String,
    /// The VPC it is part of.
    pub vpc_id: String,
    /// The zone it is in.
    pub availability_zone: String,
    /// Its first address; it is a /16.
    pub network: Ipv4Addr,
    /// Its tags.
    pub tags: Tags,
}

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The VPC it is part of.
    pub vpc_id: String,
}

/// What there is to launch with in a region.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Images, oldest first.
    pub images: Vec<Image>,
    /// Subnets; the first is the default one.
    pub subnets: Vec<Subnet>,
    /// Security groups; the first is the default one.
    pub groups: Vec<SecurityGroup>,
}

impl Catalog {
    /// What a region has from the start. Ids depend on the region alone, so documents and tests can name them.
    pub fn of(region: &str) -> Self {
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

/// An id in AWS's long form: a prefix and 17 hexadecimal digits.
fn resource_id(prefix: &str, region: &str, name: &str) -> String {
    let bits = mix(hash_text(prefix) ^ hash_text(region).rotate_left(17) ^ hash_text(name).rotate_left(41));
    format!("{prefix}-0{bits:016x}")
}

/// Whether a text has the form of an id with this prefix: 8 or 17 hexadecimal digits.
pub(crate) fn is_well_formed(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')).is_some_and(|digits| {
        matches!(digits.len(), 8 | 17) && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_in_every_world_and_differ_between_regions() {
        let (here, there) = (Catalog::of("us-east-1"), Catalog::of("eu-west-1"));
        assert_eq!(here.images, Catalog::of("us-east-1").images);
        assert_ne!(here.images[0].id, there.images[0].id);
        assert!(is_well_formed(&here.images[0].id, "ami"));
    }

    #[test]
    fn only_hexadecimal_digits_of_the_right_number_make_an_id() {
        assert!(is_well_formed("i-12345678", "i"));
        assert!(is_well_formed("i-0123456789abcdef0", "i"));
        for bad in ["i-", "i-1234567", "i-0123456789ABCDEF0", "banana", "i-zzzzzzzz", "", "ami-12345678"] {
            assert!(!is_well_formed(bad, "i"), "{bad}");
        }
    }
}
