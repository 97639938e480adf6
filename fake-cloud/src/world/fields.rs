//! Filter fields of each resource type.

use chrono::{DateTime, Utc};

use super::catalog::{Image, Subnet};
use super::filter::Field;
use super::instance::Instance;
use super::tags::{TaggedResource, Tags};

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
            Self::PrivateIp => test(&instance.private_ip.to_string()),
            Self::ReservationId => test(&instance.reservation_id),
            Self::SubnetId => test(&instance.subnet_id),
            Self::VpcId => test(&instance.vpc_id),
            Self::Tag(tag) => tag.any(&instance.tags, test),
        }
    }
}

/// Filter fields of DescribeImages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageField {
    /// Filter name `architecture`.
    Architecture,
    /// Filter name `creation-date`.
    CreationDate,
    /// Filter name `description`.
    Description,
    /// Filter name `image-id`.
    ImageId,
    /// Filter name `is-public`.
    IsPublic,
    /// Filter name `name`.
    Name,
    /// Filter name `owner-id`.
    OwnerId,
    /// Filter name `root-device-type`.
    RootDeviceType,
    /// Filter name `state`.
    State,
    /// Filter name `virtualization-type`.
    VirtualizationType,
    /// `tag:<key>`, `tag-key` or `tag-value`
    Tag(TagField),
}

impl Field for ImageField {
    type Resource = Image;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "architecture" => Self::Architecture,
            "creation-date" => Self::CreationDate,
            "description" => Self::Description,
            "image-id" => Self::ImageId,
            "is-public" => Self::IsPublic,
            "name" => Self::Name,
            "owner-id" => Self::OwnerId,
            "root-device-type" => Self::RootDeviceType,
            "state" => Self::State,
            "virtualization-type" => Self::VirtualizationType,
            name => Self::Tag(TagField::parse(name)?),
        })
    }

    fn any(&self, image: &Image, _now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::Architecture => test("x86_64"),
            Self::CreationDate => test(&image.creation_date),
            Self::Description => test(&image.description),
            Self::ImageId => test(&image.id),
            Self::IsPublic => test("false"),
            Self::Name => test(&image.name),
            Self::OwnerId => test(&image.owner),
            Self::RootDeviceType => test("ebs"),
            Self::State => test("available"),
            Self::VirtualizationType => test("hvm"),
            Self::Tag(tag) => tag.any(&image.tags, test),
        }
    }
}

/// Filter fields of DescribeSubnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubnetField {
    /// Filter name `availability-zone`.
    AvailabilityZone,
    /// Filter name `default-for-az`.
    DefaultForZone,
    /// Filter name `state`.
    State,
    /// Filter name `subnet-id`.
    SubnetId,
    /// Filter name `vpc-id`.
    VpcId,
    /// `tag:<key>`, `tag-key` or `tag-value`
    Tag(TagField),
}

impl Field for SubnetField {
    type Resource = Subnet;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "availability-zone" | "availabilityZone" => Self::AvailabilityZone,
            "default-for-az" | "defaultForAz" => Self::DefaultForZone,
            "state" => Self::State,
            "subnet-id" => Self::SubnetId,
            "vpc-id" => Self::VpcId,
            name => Self::Tag(TagField::parse(name)?),
        })
    }

    fn any(&self, subnet: &Subnet, _now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::AvailabilityZone => test(&subnet.availability_zone),
            Self::DefaultForZone => test("true"),
            Self::State => test("available"),
            Self::SubnetId => test(&subnet.id),
            Self::VpcId => test(&subnet.vpc_id),
            Self::Tag(tag) => tag.any(&subnet.tags, test),
        }
    }
}

/// Filter fields of DescribeTags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagListField {
    /// Filter name `key`.
    Key,
    /// Filter name `resource-id`.
    ResourceId,
    /// Filter name `resource-type`.
    ResourceType,
    /// Filter name `value`.
    Value,
}

impl Field for TagListField {
    type Resource = TaggedResource;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "key" => Self::Key,
            "resource-id" => Self::ResourceId,
            "resource-type" => Self::ResourceType,
            "value" => Self::Value,
            _ => return None,
        })
    }

    fn any(&self, tag: &TaggedResource, _now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        test(match self {
            Self::Key => &tag.key,
            Self::ResourceId => &tag.resource_id,
            Self::ResourceType => tag.resource_type,
            Self::Value => &tag.value,
        })
    }
}

/// Filter fields of DescribeRegions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionField {
    /// Filter name `endpoint`.
    Endpoint,
    /// Filter name `opt-in-status`.
    OptInStatus,
    /// Filter name `region-name`.
    Name,
}

impl Field for RegionField {
    type Resource = &'static str;

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "endpoint" => Self::Endpoint,
            "opt-in-status" => Self::OptInStatus,
            "region-name" => Self::Name,
            _ => return None,
        })
    }

    fn any(&self, region: &&'static str, _now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::Endpoint => test(&format!("ec2.{region}.amazonaws.com")),
            Self::OptInStatus => test("opt-in-not-required"),
            Self::Name => test(region),
        }
    }
}
