//! An EC2 instance and an AMI, as EC2 describes them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ids::InstanceId;
use super::status::Ec2State;
use super::time::Timestamp;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Tags by name.
    pub tags: BTreeMap<String, String>,
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
            tags: BTreeMap::new(),
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

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
