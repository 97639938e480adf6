//! Volumes, elastic addresses and network interfaces.

use std::sync::Arc;

use super::described::Item;
use super::instance_xml::{attachment, flag, interface_head, tag_set};
use super::parse_launch::{empty_volume, volume};
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{Address, AwsError, InstanceState, Tags, Volume, is_well_formed, not_found, validate_tags, zone_id};

pub(super) fn describe_volumes(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("VolumeId");
    request.form.flag("IncludeManagedResources")?;
    let volumes: Vec<(Volume, Tags)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let volumes = region.volumes(request.account, now).into_iter();
        Ok::<_, AwsError>(volumes.map(|volume| (region.tags_of(&volume.id).clone(), volume)).map(swap).collect())
    })?;
    let items = volumes
        .iter()
        .map(|(volume, tags)| Item::new(&volume.id, |xml| volume_fields(xml, volume, request.region, tags)));
    request.respond_items("DescribeVolumes", "volumeSet", items.collect(), &ids, |id| missing_or_malformed(id, "vol"))
}

fn swap<A, B>((one, other): (A, B)) -> (B, A) {
    (other, one)
}

/// Returns the error of an id: a malformed one, or one that names no resource.
pub(super) fn missing_or_malformed(id: &str, prefix: &str) -> AwsError {
    if is_well_formed(id, prefix) {
        return not_found(id);
    }
    let code = match prefix {
        "vol" => "InvalidParameterValue",
        "sg" => "InvalidGroupId.Malformed",
        "vpc" => "InvalidVpcID.Malformed",
        "subnet" => "InvalidSubnetID.Malformed",
        "eni" => "InvalidNetworkInterfaceId.Malformed",
        "lt" => "InvalidLaunchTemplateId.Malformed",
        _ => "InvalidParameterValue",
    };
    // An id with the right prefix names a resource that does not exist, with any digits.
    if code != "InvalidParameterValue" && id.starts_with(&format!("{prefix}-")) {
        return not_found(id);
    }
    AwsError::new(code, format!("Invalid id: \"{id}\" (expecting \"{prefix}-...\")"))
}

fn volume_fields(xml: &mut Xml, volume: &Volume, region: &str, tags: &Tags) {
    let spec = &volume.spec;
    xml.text("volumeId", &volume.id);
    xml.plain("size", spec.size);
    xml.element("snapshotId", |xml| spec.snapshot_id.iter().for_each(|id| xml.escaped(id)));
    xml.text("availabilityZone", &volume.availability_zone);
    if let Some(id) = zone_id(region, &volume.availability_zone) {
        xml.text("availabilityZoneId", id);
    }
    xml.text("status", if volume.instance_id.is_some() { "in-use" } else { "available" });
    xml.timestamp("createTime", volume.created_at);
    xml.element("attachmentSet", |xml| {
        if let Some(instance) = &volume.instance_id {
            xml.element("item", |xml| {
                xml.text("volumeId", &volume.id);
                xml.text("instanceId", instance);
                xml.text("device", &spec.device);
                xml.raw("<status>attached</status>");
                xml.timestamp("attachTime", volume.created_at);
                flag(xml, "deleteOnTermination", spec.delete_on_termination);
            });
        }
    });
    xml.text("volumeType", &spec.kind);
    if let Some(iops) = spec.iops {
        xml.plain("iops", iops);
    }
    if let Some(throughput) = spec.throughput {
        xml.plain("throughput", throughput);
    }
    flag(xml, "encrypted", spec.encrypted);
    xml.raw("<multiAttachEnabled>false</multiAttachEnabled><operator><managed>false</managed></operator>");
    tag_set(xml, tags);
}

pub(super) fn create_volume(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let spec = volume(form, "", "Size", empty_volume())?;
    let tags = request.new_tags("volume")?;
    let zone = form.optional("AvailabilityZone").or_else(|| form.optional("AvailabilityZoneId"));
    let zone = zone.ok_or_else(|| AwsError::missing("availabilityZone"))?;
    let client_token = form.optional("ClientToken").map(str::to_owned);
    let intent = form.intent()?;
    let volume = request.world.with_ec2(|ec2, now| {
        let id = ec2.new_id("vol");
        let region = ec2.region(request.region, now)?;
        let availability_zone = region.zone(zone)?;
        region.check_snapshots(request.account, std::slice::from_ref(&spec))?;
        let earlier = region.resources.volumes.iter().find(|volume| {
            client_token.is_some() && volume.client_token == client_token && volume.owner == *request.account
        });
        if let Some(earlier) = earlier {
            let is_same = earlier.spec == spec && earlier.availability_zone == availability_zone;
            intent.proceed()?;
            return if is_same { Ok(earlier.clone()) } else { Err(AwsError::from_code("IdempotentParameterMismatch")) };
        }
        intent.proceed()?;
        let volume = Volume {
            id: id.clone(),
            spec,
            availability_zone,
            created_at: now,
            instance_id: None,
            client_token: client_token.clone(),
            owner: Arc::clone(request.account),
        };
        region.put_tags(&id, &tags);
        region.resources.volumes.push(volume.clone());
        Ok::<_, AwsError>(volume)
    })?;
    let tags = tags.into_iter().collect();
    Ok(request.respond("CreateVolume", 1024, |xml| volume_fields(xml, &volume, request.region, &tags)))
}

pub(super) fn delete_volume(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let id = request.form.need("VolumeId")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let volume = region.volumes(request.account, now).into_iter().find(|volume| volume.id == id);
        let volume = volume.ok_or_else(|| missing_or_malformed(id, "vol"))?;
        if let Some(instance) = &volume.instance_id {
            let message = format!("Volume {id} is currently attached to {instance}");
            return Err(AwsError::new("VolumeInUse", message));
        }
        intent.proceed()?;
        region.resources.volumes.retain(|volume| volume.id != id);
        region.resources.tags.remove(id);
        Ok(())
    })?;
    Ok(request.respond_true("DeleteVolume"))
}

pub(super) fn describe_addresses(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("AllocationId");
    let public = request.form.list("PublicIp");
    let (addresses, tags): (Vec<Address>, Vec<Tags>) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.resources.addresses.iter().filter(|one| one.owner == *request.account);
        Ok::<_, AwsError>(own.map(|one| (one.clone(), region.tags_of(&one.id).clone())).unzip())
    })?;
    let unknown = public.iter().find(|ip| !addresses.iter().any(|one| one.address.to_string() == **ip));
    if let Some(unknown) = unknown {
        return Err(AwsError::new("InvalidAddress.NotFound", format!("Address '{unknown}' not found.")));
    }
    let selected = addresses.iter().zip(&tags);
    let selected = selected.filter(|(one, _)| public.is_empty() || public.contains(&one.address.to_string()));
    let items = selected.map(|(one, tags)| {
        Item::new(&one.id, |xml| {
            address_fields(xml, one, request.region);
            tag_set(xml, tags);
        })
    });
    request.respond_items("DescribeAddresses", "addressesSet", items.collect(), &ids, not_found)
}

fn address_fields(xml: &mut Xml, one: &Address, region: &str) {
    xml.element("publicIp", |xml| xml.address(one.address, b'.'));
    xml.text("allocationId", &one.id);
    xml.raw("<domain>vpc</domain><publicIpv4Pool>amazon</publicIpv4Pool>");
    xml.text("networkBorderGroup", region);
}

pub(super) fn allocate_address(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let tags = request.new_tags("elastic-ip")?;
    let intent = request.form.intent()?;
    let address = request.world.with_ec2(|ec2, now| {
        intent.proceed()?;
        let address =
            Address { id: ec2.new_id("eipalloc"), address: ec2.new_address(), owner: Arc::clone(request.account) };
        let region = ec2.region(request.region, now)?;
        region.put_tags(&address.id, &tags);
        region.resources.addresses.push(address.clone());
        Ok::<_, AwsError>(address)
    })?;
    Ok(request.respond("AllocateAddress", 512, |xml| address_fields(xml, &address, request.region)))
}

pub(super) fn release_address(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (id, ip) = (form.optional("AllocationId"), form.optional("PublicIp"));
    if id.is_none() && ip.is_none() {
        return Err(AwsError::missing("AllocationId"));
    }
    let intent = form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let is_named = |one: &Address| {
            one.owner == *request.account
                && id.is_none_or(|id| one.id == id)
                && ip.is_none_or(|ip| one.address.to_string() == ip)
        };
        let Some(position) = region.resources.addresses.iter().position(is_named) else {
            return Err(match (id, ip) {
                (Some(id), _) => {
                    AwsError::new("InvalidAllocationID.NotFound", format!("The allocation ID '{id}' does not exist"))
                }
                (None, ip) => {
                    let ip = ip.unwrap_or_default();
                    AwsError::new("InvalidAddress.NotFound", format!("Address '{ip}' not found."))
                }
            });
        };
        intent.proceed()?;
        let released = region.resources.addresses.remove(position);
        region.resources.tags.remove(&released.id);
        Ok(())
    })?;
    Ok(request.respond_true("ReleaseAddress"))
}

pub(super) fn describe_network_interfaces(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("NetworkInterfaceId");
    request.form.flag("IncludeManagedResources")?;
    let (found, now) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let found = region.interfaces(request.account, now).into_iter();
        let found: Vec<_> = found.map(|one| (region.tags_of(&one.id).clone(), one)).collect();
        Ok::<_, AwsError>((found, now))
    })?;
    let items = found.iter().map(|(tags, one)| {
        let instance = &one.instance;
        Item::new(&one.id, |xml| {
            let public = instance.public_ip(now).filter(|_| instance.state(now) == InstanceState::Running);
            interface_head(xml, instance, one.index, public);
            xml.text("availabilityZone", &instance.availability_zone);
            if let Some(id) = instance.zone_id {
                xml.text("availabilityZoneId", id);
            }
            xml.raw("<requesterManaged>false</requesterManaged><operator><managed>false</managed></operator>");
            xml.element("attachment", |xml| {
                xml.text("instanceId", &instance.id);
                xml.text("instanceOwnerId", &instance.owner);
                attachment(xml, instance, one.index);
            });
            tag_set(xml, tags);
        })
    });
    request.respond_items("DescribeNetworkInterfaces", "networkInterfaceSet", items.collect(), &ids, |id| {
        missing_or_malformed(id, "eni")
    })
}

impl Request<'_> {
    /// Returns the tags of a new resource.
    ///
    /// # Errors
    /// Tags of another resource type, and tags that are not allowed.
    pub(super) fn new_tags(&self, kind: &str) -> Result<Vec<(String, String)>, AwsError> {
        let mut specifications = self.form.tag_specifications(&[kind])?;
        let tags = specifications.pop().map(|(_, tags)| tags).unwrap_or_default();
        validate_tags(&Tags::new(), &tags)?;
        Ok(tags)
    }
}
