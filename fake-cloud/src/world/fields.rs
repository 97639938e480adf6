//! Filter fields of DescribeInstances that are read without encoding the instance. All other filters read the response.

use chrono::{DateTime, Utc};

use super::filter::Field;
use super::instance::Instance;
use super::tags::Tags;

/// Filter fields of DescribeInstances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceField {
    /// Filter name `availability-zone`.
    AvailabilityZone,
    /// Filter name `client-token`.
    ClientToken,
    /// Filter name `ip-address`.
    PublicIp,
    /// Filter name `image-id`.
    ImageId,
    /// Filter name `instance-id`.
    InstanceId,
    /// Filter name `instance-state-code`.
    StateCode,
    /// Filter name `instance-state-name`.
    StateName,
    /// Filter name `instance-type`.
    InstanceType,
    /// Filter names `instance.group-id` and `network-interface.group-id`.
    GroupId,
    /// Filter name `instance.group-name`.
    GroupName,
    /// Filter name `key-name`.
    KeyName,
    /// Filter name `owner-id`.
    OwnerId,
    /// Filter name `private-ip-address`.
    PrivateIp,
    /// Filter name `reservation-id`.
    ReservationId,
    /// Filter name `subnet-id`.
    SubnetId,
    /// Filter name `vpc-id`.
    VpcId,
    /// `tag:<key>`, `tag-key` or `tag-value`
    Tag(TagField),
}

/// Filter fields for tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagField {
    /// `tag:<key>`: the value of one tag.
    Value(String),
    /// `tag-key`: the key of any tag.
    AnyKey,
    /// `tag-value`: the value of any tag.
    AnyValue,
}

impl TagField {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "tag-key" => Some(Self::AnyKey),
            "tag-value" => Some(Self::AnyValue),
            name => name.strip_prefix("tag:").map(|key| Self::Value(key.to_owned())),
        }
    }

    fn any(&self, tags: &Tags, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::Value(key) => tags.get(key).is_some_and(|value| test(value)),
            Self::AnyKey => tags.keys().any(|key| test(key)),
            Self::AnyValue => tags.values().any(|value| test(value)),
        }
    }
}

impl Field for InstanceField {
    type Resource = Instance;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "availability-zone" => Self::AvailabilityZone,
            "client-token" => Self::ClientToken,
            "ip-address" => Self::PublicIp,
            "image-id" => Self::ImageId,
            "instance-id" => Self::InstanceId,
            "instance-state-code" => Self::StateCode,
            "instance-state-name" => Self::StateName,
            "instance-type" => Self::InstanceType,
            "instance.group-id" | "network-interface.group-id" => Self::GroupId,
            "instance.group-name" => Self::GroupName,
            "key-name" => Self::KeyName,
            "owner-id" => Self::OwnerId,
            "private-ip-address" => Self::PrivateIp,
            "reservation-id" => Self::ReservationId,
            "subnet-id" => Self::SubnetId,
            "vpc-id" => Self::VpcId,
            name => Self::Tag(TagField::parse(name)?),
        })
    }

    fn any(&self, instance: &Instance, now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::AvailabilityZone => test(&instance.availability_zone),
            Self::ClientToken => instance.client_token.as_deref().is_some_and(test),
            Self::PublicIp => instance.public_ip(now).is_some_and(|address| test(&address.to_string())),
            Self::ImageId => test(&instance.image_id),
            Self::InstanceId => test(&instance.id),
            Self::StateCode => test(&instance.state(now).code().to_string()),
            Self::StateName => test(instance.state(now).name()),
            Self::InstanceType => test(&instance.instance_type),
            Self::GroupId => instance.groups.iter().any(|group| test(&group.id)),
            Self::GroupName => instance.groups.iter().any(|group| test(&group.name)),
            Self::KeyName => instance.key_name.as_deref().is_some_and(test),
            Self::OwnerId => test(&instance.owner),
            Self::PrivateIp => test(&instance.private_ip.to_string()),
            Self::ReservationId => test(&instance.reservation_id),
            Self::SubnetId => test(&instance.subnet_id),
            Self::VpcId => test(&instance.vpc_id),
            Self::Tag(tag) => tag.any(&instance.tags, test),
        }
    }
}
