//! An EC2 instance and an AMI, as EC2 describes them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::InstanceId;
use super::status::Ec2State;
use super::time::Timestamp;
use super::worker::Worker;

/// The tag that names the worker an instance belongs to.
pub const WORKER_ID_TAG: &str = "lcm:worker_id";
/// The tag that names the template an instance was made from.
pub const TEMPLATE_NAME_TAG: &str = "lcm:template_name";
/// The tag that names the manager of an instance.
pub const MANAGED_BY_TAG: &str = "lcm:managed_by";
/// The value of [`MANAGED_BY_TAG`] on every instance we launch.
pub const MANAGED_BY: &str = "lablet-cloud-manager";
/// An instance with this tag keeps its record regardless of garbage collection.
pub const PROTECT_TAG: &str = "lcm:protect";

/// An instance, as EC2 describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// EC2's id of the instance.
    pub id: InstanceId,
    /// State reported by EC2.
    pub state: Ec2State,
    /// Public address, while it has one.
    pub public_ip: Option<String>,
    /// Private address within the VPC.
    pub private_ip: Option<String>,
    /// When it was launched or last started.
    pub launched_at: Option<Timestamp>,
    /// Client token of its launch.
    pub client_token: Option<String>,
    /// EC2's explanation of the state.
    pub state_reason: Option<String>,
    /// Instance type, such as `m5zn.metal`.
    pub instance_type: Option<String>,
    /// Id of its AMI.
    pub image_id: Option<String>,
    /// Id of the account that owns it.
    pub account_id: Option<String>,
    /// Tags by name.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Its AMI, if that was described for a record that lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<ImageDetails>>,
}

impl Instance {
    /// An instance in a state, with every other field empty.
    pub fn new(id: impl Into<InstanceId>, state: Ec2State) -> Self {
        Self {
            id: id.into(),
            state,
            public_ip: None,
            private_ip: None,
            launched_at: None,
            client_token: None,
            state_reason: None,
            instance_type: None,
            image_id: None,
            account_id: None,
            tags: BTreeMap::new(),
            image: None,
        }
    }

    /// The address to reach it at: public before private.
    pub fn address(&self) -> Option<&str> {
        self.public_ip.as_deref().or(self.private_ip.as_deref())
    }

    /// The worker its tags name.
    pub fn owner(&self) -> Option<&str> {
        self.tags.get(WORKER_ID_TAG).map(String::as_str).filter(|owner| !owner.is_empty())
    }

    /// Whether its tags say that a control plane manages it, this one or another.
    pub fn is_managed(&self) -> bool {
        self.tags.contains_key(MANAGED_BY_TAG) || self.tags.contains_key(WORKER_ID_TAG)
    }

    /// Whether an operator protected it from garbage collection.
    pub fn is_protected(&self) -> bool {
        self.tags.contains_key(PROTECT_TAG)
    }
}

/// The live instance among those that carry a worker's tag; of several, the one launched first, so that every controller
/// picks the same.
pub(crate) fn first_live(instances: &[Instance]) -> Option<&Instance> {
    instances
        .iter()
        .filter(|instance| instance.state.is_live())
        .min_by(|a, b| (a.launched_at, &a.id).cmp(&(b.launched_at, &b.id)))
}

/// An AMI, as EC2 describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// EC2's id of the AMI.
    pub id: String,
    /// Name that AMI patterns are matched against.
    pub name: String,
    /// Creation date as EC2 writes it: a text that sorts by time.
    pub creation_date: String,
}

impl Image {
    /// The newest of several; of two made at the same moment, the one with the greater id, so that every
    /// controller picks the same.
    pub fn newest(images: &[Self]) -> Option<&Self> {
        images.iter().max_by(|a, b| (&a.creation_date, &a.id).cmp(&(&b.creation_date, &b.id)))
    }
}

/// The fields of an AMI that a record shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDetails {
    /// EC2's id of the AMI.
    pub id: String,
    /// Name of the AMI.
    pub name: Option<String>,
    /// Description that its owner gave it.
    pub description: Option<String>,
    /// Creation date as EC2 writes it.
    pub creation_date: Option<String>,
}

/// The AMI that a record shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedImage<'a> {
    id: Option<&'a str>,
    name: Option<&'a str>,
    description: Option<&'a str>,
    creation_date: Option<&'a str>,
}

impl<'a> RecordedImage<'a> {
    pub(crate) fn of(worker: &'a Worker) -> Self {
        let shown = |field: &str| worker.extra.get(field)?.as_str().filter(|text| !text.is_empty());
        Self {
            id: shown("ami_id"),
            name: worker.ami_name.as_deref(),
            description: shown("ami_description"),
            creation_date: shown("ami_creation_date"),
        }
    }

    /// Whether the record shows all fields of an AMI.
    pub(crate) fn is_complete(self, id: &str) -> bool {
        self.id == Some(id) && self.name.is_some() && self.description.is_some() && self.creation_date.is_some()
    }

    /// Whether the record lacks a field of a described AMI. Owners need not describe their AMIs.
    pub(crate) fn lacks(self, image: &ImageDetails) -> bool {
        self.id != Some(&image.id)
            || self.name.is_none() && image.name.is_some()
            || self.description.is_none() && image.description.is_some()
            || self.creation_date.is_none() && image.creation_date.is_some()
    }
}

/// Owners whose AMIs may be launched. Default: the own account.
///
/// ```
/// use lcm_sdk::lifecycle::ImageOwners;
///
/// let owners = ImageOwners::Named(vec!["self".to_owned(), "210987654321".to_owned()]);
/// let own = Some("123456789012");
/// assert!(owners.accepts(own, None, own) && owners.accepts(Some("210987654321"), None, own));
/// assert!(!owners.accepts(Some("666666666666"), None, own));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageOwners {
    /// Every account. An attacker can then publish a newer AMI with a matching name.
    Any,
    /// Account ids, `self`, or an alias such as `amazon`.
    Named(Vec<String>),
}

impl Default for ImageOwners {
    fn default() -> Self {
        Self::Named(vec!["self".to_owned()])
    }
}

impl ImageOwners {
    /// The owners to request; `None` requests the AMIs of all.
    pub fn names(&self) -> Option<&[String]> {
        match self {
            Self::Any => None,
            Self::Named(names) => Some(names),
        }
    }

    /// Whether the own account is among the owners.
    pub fn include_own(&self) -> bool {
        self.names().is_some_and(|names| names.iter().any(|name| name == "self"))
    }

    /// Whether an AMI of this owner may be launched. `own_account` is the account of the caller, which `self` stands for.
    pub fn accepts(&self, owner_id: Option<&str>, owner_alias: Option<&str>, own_account: Option<&str>) -> bool {
        let is_named = |name: &String| match name.as_str() {
            "self" => own_account.is_some() && owner_id == own_account,
            id if id.bytes().all(|letter| letter.is_ascii_digit()) => owner_id == Some(id),
            alias => owner_alias == Some(alias),
        };
        match self {
            Self::Any => true,
            Self::Named(names) => names.iter().any(is_named),
        }
    }
}

impl fmt::Display for ImageOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_owners_are_compared_with_the_response() {
        let named = |names: &[&str]| ImageOwners::Named(names.iter().map(|name| (*name).to_owned()).collect());
        let (ours, theirs) = (Some("123456789012"), Some("666666666666"));
        for (owners, owner_id, alias, own, accepted) in [
            (ImageOwners::default(), ours, None, ours, true),
            (ImageOwners::default(), theirs, None, ours, false),
            (ImageOwners::default(), ours, None, None, false),
            (ImageOwners::default(), Some("137112412989"), Some("amazon"), ours, false),
            (ImageOwners::default(), None, None, ours, false),
            (ImageOwners::default(), None, None, None, false),
            (named(&["123456789012"]), ours, None, theirs, true),
            (named(&["123456789012"]), theirs, None, theirs, false),
            (named(&["123456789012"]), None, None, ours, false),
            (named(&["self", "666666666666"]), theirs, None, ours, true),
            (named(&["amazon"]), Some("137112412989"), Some("amazon"), ours, true),
            (named(&["amazon"]), theirs, None, theirs, false),
            (ImageOwners::Any, theirs, None, ours, true),
        ] {
            assert_eq!(owners.accepts(owner_id, alias, own), accepted, "{owners} {owner_id:?} {alias:?} {own:?}");
        }
        assert!(ImageOwners::default().include_own());
        assert!(!named(&["amazon"]).include_own() && !ImageOwners::Any.include_own());
    }

    #[test]
    fn newest_image_wins_in_any_order() {
        let image = |id: &str, date: &str| Image { id: id.into(), name: "cml".into(), creation_date: date.into() };
        let mut images = vec![
            image("ami-1", "2025-03-01T00:00:00.000Z"),
            image("ami-3", "2026-01-01T00:00:00.000Z"),
            image("ami-2", "2026-01-01T00:00:00.000Z"),
        ];
        assert_eq!(Image::newest(&images).map(|image| image.id.as_str()), Some("ami-3"));
        images.reverse();
        assert_eq!(Image::newest(&images).map(|image| image.id.as_str()), Some("ami-3"));
        assert_eq!(Image::newest(&[]), None);
    }
}
