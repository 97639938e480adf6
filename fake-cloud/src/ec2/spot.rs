//! Spot instance requests. RunInstances makes one per spot instance.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::described::Item;
use super::instance_xml::{flag, group_set, tag_set};
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{
    AwsError, Instance, InstanceState, InterfaceSpec, InterruptionBehavior, Keeps, Monitoring, StateCause, VolumeSpec,
    not_found, zone_id,
};

pub(super) fn describe(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("SpotInstanceRequestId");
    let (instances, now) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.instances().filter(|one| one.owner == *request.account && one.extra.spot_request.is_some());
        let own: Vec<_> = own
            .map(|one| {
                let id = one.extra.spot_request.as_deref().unwrap_or_default();
                (Arc::clone(one), region.tags_of(id).clone())
            })
            .collect();
        Ok::<_, AwsError>((own, now))
    })?;
    let items = instances.iter().filter_map(|(instance, tags)| {
        let id = instance.extra.spot_request.as_ref()?;
        Some(Item::new(id, |xml| {
            request_fields(xml, id, instance, request.region, now);
            tag_set(xml, tags);
        }))
    });
    request.respond_items("DescribeSpotInstanceRequests", "spotInstanceRequestSet", items.collect(), &ids, not_found)
}

/// Returns the state of the request of an instance, and the code and message of its status.
fn status(instance: &Instance, now: DateTime<Utc>) -> (&'static str, &'static str, &'static str) {
    let stops = instance.options.spot().is_some_and(|spot| spot.interruption != InterruptionBehavior::Terminate);
    let canceled = instance.extra.spot_canceled_at.is_some_and(|at| at <= now);
    let noticed = instance.extra.interruption.is_some_and(|one| one.noticed_at <= now && now < one.at);
    match (instance.state(now), instance.cause) {
        (InstanceState::ShuttingDown | InstanceState::Terminated, StateCause::SpotInterruption) => (
            "closed",
            "instance-terminated-no-capacity",
            "Your Spot Instance was terminated because there is no Spot capacity available.",
        ),
        (InstanceState::ShuttingDown | InstanceState::Terminated, _) => {
            ("closed", "instance-terminated-by-user", "Spot Instance terminated due to user-initiated termination.")
        }
        (_, _) if canceled => (
            "cancelled",
            "request-canceled-and-instance-running",
            "Your Spot request is canceled, but your Spot Instance is still running.",
        ),
        (InstanceState::Stopping | InstanceState::Stopped, StateCause::SpotInterruption) => (
            "disabled",
            "instance-stopped-no-capacity",
            "Your Spot Instance was stopped because there is no Spot capacity available.",
        ),
        (InstanceState::Stopping | InstanceState::Stopped, _) => {
            ("disabled", "instance-stopped-by-user", "Spot Instance stopped due to user-initiated stop.")
        }
        (InstanceState::Pending | InstanceState::Running, _) if noticed && stops => {
            ("active", "marked-for-stop", "Spot Instance is marked for stop.")
        }
        (InstanceState::Pending | InstanceState::Running, _) if noticed => {
            ("active", "marked-for-termination", "Spot Instance is marked for termination.")
        }
        (InstanceState::Pending | InstanceState::Running, _) => {
            ("active", "fulfilled", "Your Spot request is fulfilled.")
        }
    }
}

fn request_fields(xml: &mut Xml, id: &str, instance: &Instance, region: &str, now: DateTime<Utc>) {
    let Some(spot) = instance.options.spot() else { return };
    let (state, code, message) = status(instance, now);
    xml.text("spotInstanceRequestId", id);
    if let Some(price) = &spot.max_price {
        xml.text("spotPrice", price);
    }
    xml.text("type", &spot.kind);
    xml.text("state", state);
    xml.element("status", |xml| {
        xml.text("code", code);
        xml.timestamp("updateTime", instance.extra.interruption.map_or(instance.created_at, |one| one.noticed_at));
        xml.text("message", message);
    });
    xml.element("launchSpecification", |xml| {
        xml.text("imageId", &instance.image_id);
        if let Some(name) = &instance.key_name {
            xml.text("keyName", name);
        }
        group_set(xml, &instance.groups);
        xml.text("instanceType", &instance.instance_type);
        volumes(xml, &instance.options.volumes);
        interfaces(xml, &instance.options.interfaces);
        xml.text("subnetId", &instance.subnet_id);
        xml.element("monitoring", |xml| flag(xml, "enabled", instance.monitoring == Monitoring::Detailed));
    });
    xml.text("instanceId", &instance.id);
    xml.timestamp("createTime", instance.created_at);
    xml.raw("<productDescription>Linux/UNIX</productDescription>");
    xml.text("launchedAvailabilityZone", &instance.availability_zone);
    if let Some(zone) = zone_id(region, &instance.availability_zone) {
        xml.text("launchedAvailabilityZoneId", zone);
    }
    if let Some(until) = spot.valid_until {
        xml.timestamp("validUntil", until);
    }
    xml.text("instanceInterruptionBehavior", spot.interruption.name());
}

/// Encodes the volumes of a launch specification.
fn volumes(xml: &mut Xml, volumes: &[VolumeSpec]) {
    xml.element("blockDeviceMapping", |xml| {
        for volume in volumes {
            xml.element("item", |xml| {
                xml.text("deviceName", &volume.device);
                xml.element("ebs", |xml| {
                    flag(xml, "deleteOnTermination", volume.delete_on_termination);
                    if let Some(snapshot) = &volume.snapshot_id {
                        xml.text("snapshotId", snapshot);
                    }
                    xml.plain("volumeSize", volume.size);
                    xml.text("volumeType", &volume.kind);
                    flag(xml, "encrypted", volume.encrypted);
                });
            });
        }
    });
}

/// Encodes the network interfaces of a launch specification, if the launch had any.
fn interfaces(xml: &mut Xml, interfaces: &[InterfaceSpec]) {
    if *interfaces == [InterfaceSpec::default()] {
        return;
    }
    xml.element("networkInterfaceSet", |xml| {
        for interface in interfaces {
            xml.element("item", |xml| {
                xml.plain("deviceIndex", interface.device_index);
                if !interface.description.is_empty() {
                    xml.text("description", &interface.description);
                }
                flag(xml, "deleteOnTermination", interface.keeps == Keeps::Never);
                if let Some(subnet) = &interface.subnet_id {
                    xml.text("subnetId", subnet);
                }
                if let Some(address) = interface.private_ip {
                    xml.plain("privateIpAddress", address);
                }
            });
        }
    });
}

/// Cancels requests. Their instances keep running, as in EC2.
pub(super) fn cancel(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.need_list("SpotInstanceRequestId")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let mut found = Vec::with_capacity(ids.len());
        for id in &ids {
            let mut own = region.instances().filter(|one| one.owner == *request.account);
            let instance = own.find(|one| one.extra.spot_request.as_ref() == Some(id));
            found.push((**instance.ok_or_else(|| not_found(id))?).clone());
        }
        intent.proceed()?;
        for mut instance in found {
            Arc::make_mut(&mut instance.extra).spot_canceled_at.get_or_insert(now);
            region.replace(instance);
        }
        Ok(())
    })?;
    Ok(request.respond("CancelSpotInstanceRequests", ids.len() * 128, |xml| {
        xml.element("spotInstanceRequestSet", |xml| {
            for id in &ids {
                xml.element("item", |xml| {
                    xml.text("spotInstanceRequestId", id);
                    xml.raw("<state>cancelled</state>");
                });
            }
        });
    }))
}
