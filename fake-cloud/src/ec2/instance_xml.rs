//! An instance in EC2's words.

use std::net::Ipv4Addr;

use chrono::{DateTime, Utc};

use super::Xml;
use crate::world::{ACCOUNT, Course, Instance, InstanceState, Monitoring, Tags};

/// About how long an instance is, to make room for many at once.
pub(super) const INSTANCE_SIZE: usize = 3200;

pub(super) fn state(xml: &mut Xml, name: &str, state: InstanceState) {
    xml.element(name, |xml| {
        xml.plain("code", state.code());
        xml.raw("<name>");
        xml.raw(state.name());
        xml.raw("</name>");
    });
}

pub(super) fn tag_set(xml: &mut Xml, tags: &Tags) {
    if tags.is_empty() {
        return;
    }
    xml.element("tagSet", |xml| {
        for (key, value) in tags {
            xml.element("item", |xml| {
                xml.text("key", key);
                xml.text("value", value);
            });
        }
    });
}

/// Writes an instance. The state is given, because a launch answers `pending` however fast it is.
pub(super) fn instance(xml: &mut Xml, instance: &Instance, shown: InstanceState, now: DateTime<Utc>) {
    // What ends gives its network back.
    let is_there = match shown {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    };
    let public = instance.public_ip(now).filter(|_| shown == InstanceState::Running);
    xml.open("item");
    xml.text("instanceId", &instance.id);
    xml.text("imageId", &instance.image_id);
    state(xml, "instanceState", shown);
    xml.element("privateDnsName", |xml| {
        if is_there {
            private_name(xml, instance);
        }
    });
    xml.element("dnsName", |xml| {
        if let Some(public) = public {
            public_name(xml, public, instance);
        }
    });
    reason(xml, instance);
    if let Some(key_name) = &instance.key_name {
        xml.text("keyName", key_name);
    }
    xml.plain("amiLaunchIndex", instance.launch_index);
    xml.raw("<productCodes/>");
    xml.text("instanceType", &instance.instance_type);
    xml.moment("launchTime", instance.launched_at);
    xml.element("placement", |xml| {
        xml.text("availabilityZone", &instance.availability_zone);
        xml.raw("<groupName/><tenancy>default</tenancy>");
    });
    xml.raw(match instance.monitoring {
        Monitoring::Basic => "<monitoring><state>disabled</state></monitoring>",
        Monitoring::Detailed => "<monitoring><state>enabled</state></monitoring>",
    });
    if is_there {
        xml.text("subnetId", &instance.subnet_id);
        xml.text("vpcId", &instance.vpc_id);
        xml.element("privateIpAddress", |xml| xml.address(instance.private_ip, b'.'));
        if let Some(public) = public {
            xml.element("ipAddress", |xml| xml.address(public, b'.'));
        }
        xml.raw("<sourceDestCheck>true</sourceDestCheck>");
        group_set(xml, instance);
    }
    xml.raw("<architecture>x86_64</architecture><rootDeviceType>ebs</rootDeviceType>");
    xml.raw("<rootDeviceName>/dev/sda1</rootDeviceName>");
    if is_there {
        block_device(xml, instance);
    } else {
        xml.raw("<blockDeviceMapping/>");
    }
    xml.raw("<virtualizationType>hvm</virtualizationType>");
    if let Some(token) = &instance.client_token {
        xml.text("clientToken", token);
    }
    tag_set(xml, &instance.tags);
    xml.raw("<hypervisor>xen</hypervisor>");
    if is_there {
        network_interface(xml, instance, public);
    } else {
        xml.raw("<networkInterfaceSet/>");
    }
    if let Some(profile) = &instance.profile {
        xml.element("iamInstanceProfile", |xml| {
            xml.text("arn", &profile.arn);
            xml.text("id", &profile.id);
        });
    }
    xml.raw(
        "<ebsOptimized>true</ebsOptimized><enaSupport>true</enaSupport>\
         <cpuOptions><coreCount>1</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>\
         <capacityReservationSpecification><capacityReservationPreference>open</capacityReservationPreference>\
         </capacityReservationSpecification><hibernationOptions><configured>false</configured></hibernationOptions>\
         <metadataOptions><state>applied</state><httpTokens>required</httpTokens>\
         <httpPutResponseHopLimit>2</httpPutResponseHopLimit><httpEndpoint>enabled</httpEndpoint>\
         <httpProtocolIpv6>disabled</httpProtocolIpv6><instanceMetadataTags>disabled</instanceMetadataTags>\
         </metadataOptions><enclaveOptions><enabled>false</enabled></enclaveOptions>\
         <platformDetails>Linux/UNIX</platformDetails><usageOperation>RunInstances</usageOperation>\
         <currentInstanceBootMode>uefi</currentInstanceBootMode>",
    );
    xml.close("item");
}

/// The oldest region has names of its own, from before there were others.
fn private_name(xml: &mut Xml, instance: &Instance) {
    xml.raw("ip-");
    xml.address(instance.private_ip, b'-');
    match region(instance) {
        "us-east-1" => xml.raw(".ec2.internal"),
        region => {
            xml.raw(".");
            xml.escaped(region);
            xml.raw(".compute.internal");
        }
    }
}

fn public_name(xml: &mut Xml, address: Ipv4Addr, instance: &Instance) {
    xml.raw("ec2-");
    xml.address(address, b'-');
    match region(instance) {
        "us-east-1" => xml.raw(".compute-1.amazonaws.com"),
        region => {
            xml.raw(".");
            xml.escaped(region);
            xml.raw(".compute.amazonaws.com");
        }
    }
}

fn region(instance: &Instance) -> &str {
    instance.availability_zone.trim_end_matches(|character: char| character.is_ascii_lowercase())
}

/// Why it is not running, in the words EC2 uses for what users do.
fn reason(xml: &mut Xml, instance: &Instance) {
    let told_at = match instance.course {
        Course::Up { .. } => {
            xml.raw("<reason/>");
            return;
        }
        Course::Down { told_at, .. } | Course::Out { told_at, .. } => told_at,
    };
    xml.plain("reason", format_args!("User initiated ({} GMT)", told_at.format("%Y-%m-%d %H:%M:%S")));
    xml.raw(
        "<stateReason><code>Client.UserInitiatedShutdown</code>\
         <message>Client.UserInitiatedShutdown: User initiated shutdown</message></stateReason>",
    );
}

fn group_set(xml: &mut Xml, instance: &Instance) {
    xml.element("groupSet", |xml| {
        for group in &*instance.groups {
            xml.element("item", |xml| {
                xml.text("groupId", &group.id);
                xml.text("groupName", &group.name);
            });
        }
    });
}

fn block_device(xml: &mut Xml, instance: &Instance) {
    xml.raw("<blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs>");
    xml.text("volumeId", &instance.volume_id);
    xml.raw("<status>attached</status>");
    xml.moment("attachTime", instance.created_at);
    xml.raw("<deleteOnTermination>true</deleteOnTermination></ebs></item></blockDeviceMapping>");
}

fn network_interface(xml: &mut Xml, instance: &Instance, public: Option<Ipv4Addr>) {
    xml.raw("<networkInterfaceSet><item>");
    xml.text("networkInterfaceId", &instance.interface_id);
    xml.text("subnetId", &instance.subnet_id);
    xml.text("vpcId", &instance.vpc_id);
    xml.raw("<description/>");
    xml.text("ownerId", ACCOUNT);
    xml.raw("<status>in-use</status>");
    xml.element("privateIpAddress", |xml| xml.address(instance.private_ip, b'.'));
    xml.raw("<sourceDestCheck>true</sourceDestCheck>");
    group_set(xml, instance);
    xml.element("attachment", |xml| {
        xml.raw("<attachmentId>eni-attach-");
        xml.raw(instance.interface_id.trim_start_matches("eni-"));
        xml.raw("</attachmentId><deviceIndex>0</deviceIndex><status>attached</status>");
        xml.moment("attachTime", instance.created_at);
        xml.raw("<deleteOnTermination>true</deleteOnTermination><networkCardIndex>0</networkCardIndex>");
    });
    xml.raw("<privateIpAddressesSet><item>");
    xml.element("privateIpAddress", |xml| xml.address(instance.private_ip, b'.'));
    xml.raw("<primary>true</primary>");
    if let Some(public) = public {
        xml.element("association", |xml| {
            xml.element("publicIp", |xml| xml.address(public, b'.'));
            xml.raw("<ipOwnerId>amazon</ipOwnerId>");
        });
    }
    xml.raw("</item></privateIpAddressesSet><interfaceType>interface</interfaceType></item></networkInterfaceSet>");
}
