//! XML encoding of instances.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Xml;
use crate::response::EncodeList;
use crate::world::{ACCOUNT, Instance, InstanceState, LaunchKind, Lifecycle, Monitoring, Tags};

/// Snapshot of instances, encoded one by one.
pub(super) struct InstanceList {
    /// Instances with the index of their reservation, in order of first appearance.
    instances: Vec<(usize, Arc<Instance>)>,
    parent: Parent,
    now: DateTime<Utc>,
}

/// Element that contains the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    /// One reservation element per launch.
    Reservations,
    /// The response of RunInstances, which is a single reservation.
    Launch(LaunchKind),
}

impl InstanceList {
    /// Groups instances by launch, in the order in which each launch first appears.
    pub(super) fn from_selection(instances: Vec<Arc<Instance>>, now: DateTime<Utc>) -> Self {
        let mut reservations: HashMap<&str, usize> = HashMap::new();
        let mut indexes: Vec<usize> = Vec::with_capacity(instances.len());
        let mut previous: Option<(&str, usize)> = None;
        for instance in &instances {
            let id = &*instance.reservation_id;
            let index = match previous {
                // Instances of one launch are usually adjacent.
                Some((same, index)) if same == id => index,
                Some(_) | None => {
                    let next = reservations.len();
                    *reservations.entry(id).or_insert(next)
                }
            };
            previous = Some((id, index));
            indexes.push(index);
        }
        let mut instances: Vec<_> = indexes.into_iter().zip(instances).collect();
        instances.sort_by_key(|(index, _)| *index);
        Self { instances, parent: Parent::Reservations, now }
    }

    /// Creates the list of a RunInstances response.
    pub(super) fn from_launch(instances: Vec<Arc<Instance>>, kind: LaunchKind, now: DateTime<Utc>) -> Self {
        let instances = instances.into_iter().map(|instance| (0, instance)).collect();
        Self { instances, parent: Parent::Launch(kind), now }
    }

    fn reservation(&self, index: Option<usize>) -> Option<usize> {
        self.instances.get(index?).map(|(reservation, _)| *reservation)
    }
}

impl EncodeList for InstanceList {
    fn len(&self) -> usize {
        self.instances.len()
    }

    fn encode(&self, index: usize, bytes: &mut Vec<u8>) {
        let Some((reservation, member)) = self.instances.get(index) else { return };
        let (reservation, now) = (Some(*reservation), self.now);
        Xml::append(bytes, |xml| match self.parent {
            // RunInstances reports `pending`, even if starting takes no time.
            Parent::Launch(LaunchKind::New) => instance(xml, member, InstanceState::Pending, now),
            Parent::Launch(LaunchKind::Repeated) => instance(xml, member, member.state(now), now),
            Parent::Reservations => {
                if self.reservation(index.checked_sub(1)) != reservation {
                    xml.open("item");
                    reservation_head(xml, &member.reservation_id);
                    xml.open("instancesSet");
                }
                instance(xml, member, member.state(now), now);
                if self.reservation(index.checked_add(1)) != reservation {
                    xml.close("instancesSet");
                    xml.close("item");
                }
            }
        });
    }
}

pub(super) fn reservation_head(xml: &mut Xml, reservation_id: &str) {
    xml.text("reservationId", reservation_id);
    xml.text("ownerId", ACCOUNT);
    xml.raw("<groupSet/>");
}

/// Approximate size of an encoded instance, in bytes.
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

/// Encodes an instance with the state `shown`, which differs from the current state in a RunInstances response.
pub(super) fn instance(xml: &mut Xml, instance: &Instance, shown: InstanceState, now: DateTime<Utc>) {
    // Terminating instances release their network.
    let has_network = match shown {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    };
    let public = instance.public_ip(now).filter(|_| shown == InstanceState::Running);
    xml.open("item");
    xml.text("instanceId", &instance.id);
    xml.text("imageId", &instance.image_id);
    state(xml, "instanceState", shown);
    xml.element("privateDnsName", |xml| {
        if has_network {
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
    xml.timestamp("launchTime", instance.launched_at);
    xml.element("placement", |xml| {
        xml.text("availabilityZone", &instance.availability_zone);
        xml.raw("<groupName/><tenancy>default</tenancy>");
    });
    xml.raw(match instance.monitoring {
        Monitoring::Basic => "<monitoring><state>disabled</state></monitoring>",
        Monitoring::Detailed => "<monitoring><state>enabled</state></monitoring>",
    });
    if has_network {
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
    if has_network {
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
    if has_network {
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

/// Host names in us-east-1 do not contain the region.
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

/// Encodes the reason of the last stop or termination.
fn reason(xml: &mut Xml, instance: &Instance) {
    let requested_at = match instance.lifecycle {
        Lifecycle::Running { .. } => {
            xml.raw("<reason/>");
            return;
        }
        Lifecycle::Stopping { requested_at, .. } | Lifecycle::Terminating { requested_at, .. } => requested_at,
    };
    xml.plain("reason", format_args!("User initiated ({} GMT)", requested_at.format("%Y-%m-%d %H:%M:%S")));
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
    xml.timestamp("attachTime", instance.created_at);
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
        xml.timestamp("attachTime", instance.created_at);
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
