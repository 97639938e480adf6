//! XML encoding of instances.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Xml;
use crate::response::EncodeList;
use crate::world::{
    Instance, InstanceState, LaunchKind, Lifecycle, MetadataOptions, Monitoring, SecurityGroup, StateCause, Tags,
    default_cpu,
};

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
                    reservation_head(xml, &member.reservation_id, &member.owner);
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

pub(super) fn reservation_head(xml: &mut Xml, reservation_id: &str, owner: &str) {
    xml.text("reservationId", reservation_id);
    xml.text("ownerId", owner);
    xml.raw("<groupSet/>");
}

/// Approximate size of an encoded instance, in bytes.
pub(super) const INSTANCE_SIZE: usize = 4200;

pub(super) fn state(xml: &mut Xml, name: &str, state: InstanceState) {
    xml.open(name);
    xml.raw("<code>");
    xml.number(state.code().into());
    xml.raw("</code><name>");
    xml.raw(state.name());
    xml.raw("</name>");
    xml.close(name);
}

pub(super) fn tag_set(xml: &mut Xml, tags: &Tags) {
    if tags.is_empty() {
        return;
    }
    xml.raw("<tagSet>");
    for (key, value) in tags {
        xml.raw("<item><key>");
        xml.escaped(key);
        xml.raw("</key><value>");
        xml.escaped(value);
        xml.raw("</value></item>");
    }
    xml.raw("</tagSet>");
}

/// Encodes an instance with the state `shown`, which differs from the current state in a RunInstances response.
pub(super) fn instance(xml: &mut Xml, instance: &Instance, shown: InstanceState, now: DateTime<Utc>) {
    xml.open("item");
    instance_fields(xml, instance, shown, now);
    xml.close("item");
}

/// Returns whether an instance has a network. Terminating instances release theirs.
pub(super) fn has_network(state: InstanceState) -> bool {
    match state {
        InstanceState::Pending | InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => true,
        InstanceState::ShuttingDown | InstanceState::Terminated => false,
    }
}

/// Encodes the elements of an instance. Lists are long, so constant parts are written in one piece.
pub(super) fn instance_fields(xml: &mut Xml, instance: &Instance, shown: InstanceState, now: DateTime<Utc>) {
    let options = &*instance.options;
    let has_network = has_network(shown);
    let public = instance.public_ip(now).filter(|_| shown == InstanceState::Running);
    xml.raw("<instanceId>");
    xml.escaped(&instance.id);
    xml.raw("</instanceId><imageId>");
    xml.escaped(&instance.image_id);
    xml.raw("</imageId>");
    state(xml, "instanceState", shown);
    xml.raw("<privateDnsName>");
    if has_network {
        private_name(xml, instance.private_ip, instance);
    }
    xml.raw("</privateDnsName><dnsName>");
    if let Some(public) = public {
        public_name(xml, public, instance);
    }
    xml.raw("</dnsName>");
    reason(xml, instance);
    if let Some(key_name) = &instance.key_name {
        xml.text("keyName", key_name);
    }
    xml.raw("<amiLaunchIndex>");
    xml.print(instance.launch_index);
    xml.raw("</amiLaunchIndex><productCodes/><instanceType>");
    xml.escaped(&instance.instance_type);
    xml.raw("</instanceType>");
    xml.timestamp("launchTime", instance.launched_at);
    xml.raw("<placement><availabilityZone>");
    xml.escaped(&instance.availability_zone);
    xml.raw("</availabilityZone>");
    if let Some(id) = instance.zone_id {
        xml.text("availabilityZoneId", id);
    }
    xml.raw("<groupName/><tenancy>");
    xml.escaped(&options.tenancy);
    xml.raw(match instance.monitoring {
        Monitoring::Basic => "</tenancy></placement><monitoring><state>disabled</state></monitoring>",
        Monitoring::Detailed => "</tenancy></placement><monitoring><state>enabled</state></monitoring>",
    });
    if has_network {
        xml.raw("<subnetId>");
        xml.escaped(&instance.subnet_id);
        xml.raw("</subnetId><vpcId>");
        xml.escaped(&instance.vpc_id);
        xml.raw("</vpcId><privateIpAddress>");
        xml.address(instance.private_ip, b'.');
        xml.raw("</privateIpAddress>");
        if let Some(public) = public {
            xml.element("ipAddress", |xml| xml.address(public, b'.'));
        }
        flag(xml, "sourceDestCheck", options.source_dest_check);
        group_set(xml, &instance.groups);
    }
    xml.raw(
        "<architecture>x86_64</architecture><rootDeviceType>ebs</rootDeviceType>\
         <rootDeviceName>/dev/sda1</rootDeviceName><blockDeviceMapping>",
    );
    if has_network {
        block_devices(xml, instance);
    }
    xml.raw("</blockDeviceMapping><virtualizationType>hvm</virtualizationType>");
    if let Some(token) = &instance.client_token {
        xml.text("clientToken", token);
    }
    tag_set(xml, &instance.tags);
    xml.raw("<hypervisor>xen</hypervisor><networkInterfaceSet>");
    if has_network {
        for index in 0..=instance.extra.interfaces.len() {
            xml.raw("<item>");
            interface_head(xml, instance, index, public);
            xml.raw("<attachment>");
            attachment(xml, instance, index);
            xml.raw("</attachment></item>");
        }
    }
    xml.raw("</networkInterfaceSet>");
    if let Some(profile) = &instance.profile {
        xml.element("iamInstanceProfile", |xml| {
            xml.text("arn", &profile.arn);
            xml.text("id", &profile.id);
        });
    }
    if let Some(request) = &instance.extra.spot_request {
        xml.raw("<instanceLifecycle>spot</instanceLifecycle>");
        xml.text("spotInstanceRequestId", request);
    }
    launch_options(xml, instance);
}

/// Encodes the elements that follow from the options of the launch.
fn launch_options(xml: &mut Xml, instance: &Instance) {
    let options = &*instance.options;
    let (cores, threads) = instance.options.cpu.unwrap_or_else(|| default_cpu(&instance.instance_type));
    flag(xml, "ebsOptimized", options.ebs_optimized);
    xml.raw("<enaSupport>true</enaSupport><cpuOptions><coreCount>");
    xml.number(cores);
    xml.raw("</coreCount><threadsPerCore>");
    xml.number(threads);
    xml.raw("</threadsPerCore></cpuOptions><capacityReservationSpecification><capacityReservationPreference>");
    xml.escaped(&options.capacity_preference);
    xml.raw("</capacityReservationPreference></capacityReservationSpecification><hibernationOptions>");
    flag(xml, "configured", options.hibernation);
    xml.raw("</hibernationOptions><metadataOptions>");
    metadata_options(xml, &options.metadata);
    xml.raw(
        "</metadataOptions><enclaveOptions><enabled>false</enabled></enclaveOptions>\
         <platformDetails>Linux/UNIX</platformDetails><usageOperation>RunInstances</usageOperation>",
    );
    xml.timestamp("usageOperationUpdateTime", instance.created_at);
    xml.raw(
        "<privateDnsNameOptions><hostnameType>ip-name</hostnameType><enableResourceNameDnsARecord>false\
         </enableResourceNameDnsARecord><enableResourceNameDnsAAAARecord>false</enableResourceNameDnsAAAARecord>\
         </privateDnsNameOptions><maintenanceOptions><autoRecovery>",
    );
    xml.escaped(&options.auto_recovery);
    xml.raw(
        "</autoRecovery></maintenanceOptions><currentInstanceBootMode>uefi</currentInstanceBootMode>\
         <networkPerformanceOptions><bandwidthWeighting>default</bandwidthWeighting></networkPerformanceOptions>\
         <operator><managed>false</managed></operator>",
    );
}

pub(super) fn metadata_options(xml: &mut Xml, options: &MetadataOptions) {
    xml.raw("<state>applied</state><httpTokens>");
    xml.escaped(&options.http_tokens);
    xml.raw("</httpTokens><httpPutResponseHopLimit>");
    xml.number(options.hop_limit.into());
    xml.raw("</httpPutResponseHopLimit><httpEndpoint>");
    xml.escaped(&options.http_endpoint);
    xml.raw("</httpEndpoint><httpProtocolIpv6>disabled</httpProtocolIpv6><instanceMetadataTags>");
    xml.escaped(&options.instance_tags);
    xml.raw("</instanceMetadataTags>");
}

/// Encodes a boolean.
pub(super) fn flag(xml: &mut Xml, name: &str, value: bool) {
    xml.open(name);
    xml.raw(if value { "true" } else { "false" });
    xml.close(name);
}

/// Host names in us-east-1 do not contain the region.
pub(super) fn private_name(xml: &mut Xml, address: Ipv4Addr, instance: &Instance) {
    xml.raw("ip-");
    xml.address(address, b'-');
    match region_of(instance) {
        "us-east-1" => xml.raw(".ec2.internal"),
        region => {
            xml.raw(".");
            xml.escaped(region);
            xml.raw(".compute.internal");
        }
    }
}

pub(super) fn public_name(xml: &mut Xml, address: Ipv4Addr, instance: &Instance) {
    xml.raw("ec2-");
    xml.address(address, b'-');
    match region_of(instance) {
        "us-east-1" => xml.raw(".compute-1.amazonaws.com"),
        region => {
            xml.raw(".");
            xml.escaped(region);
            xml.raw(".compute.amazonaws.com");
        }
    }
}

/// Returns the region of an instance.
pub(super) fn region_of(instance: &Instance) -> &str {
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
    let (initiator, code, message) = match (instance.cause, instance.lifecycle) {
        (StateCause::User, _) => ("User initiated", "Client.UserInitiatedShutdown", "User initiated shutdown"),
        (StateCause::Hibernation, _) => ("User initiated", "Client.UserInitiatedHibernate", "User initiated hibernate"),
        (StateCause::SpotInterruption, Lifecycle::Terminating { .. }) => {
            ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination", "Spot instance termination")
        }
        (StateCause::SpotInterruption, _) => {
            ("Server.SpotInstanceShutdown", "Server.SpotInstanceShutdown", "Spot instance shutdown")
        }
        (StateCause::ScheduledStop, _) => {
            ("Server.ScheduledStop", "Server.ScheduledStop", "Stopped due to a scheduled retirement")
        }
    };
    xml.plain("reason", format_args!("{initiator} ({} GMT)", requested_at.format("%Y-%m-%d %H:%M:%S")));
    xml.element("stateReason", |xml| {
        xml.text("code", code);
        xml.plain("message", format_args!("{code}: {message}"));
    });
}

pub(super) fn group_set(xml: &mut Xml, groups: &[SecurityGroup]) {
    xml.raw("<groupSet>");
    for group in groups {
        xml.raw("<item><groupId>");
        xml.escaped(&group.id);
        xml.raw("</groupId><groupName>");
        xml.escaped(&group.name);
        xml.raw("</groupName></item>");
    }
    xml.raw("</groupSet>");
}

pub(super) fn block_devices(xml: &mut Xml, instance: &Instance) {
    for (id, spec) in instance.volume_ids().zip(&instance.options.volumes) {
        xml.raw("<item><deviceName>");
        xml.escaped(&spec.device);
        xml.raw("</deviceName><ebs><volumeId>");
        xml.escaped(id);
        xml.raw("</volumeId><status>attached</status>");
        xml.timestamp("attachTime", instance.created_at);
        flag(xml, "deleteOnTermination", spec.delete_on_termination);
        xml.raw("</ebs></item>");
    }
}

/// Encodes the elements that the interface at `index` has in DescribeInstances and in DescribeNetworkInterfaces. Only the
/// primary interface has a public address.
pub(super) fn interface_head(xml: &mut Xml, instance: &Instance, index: usize, public: Option<Ipv4Addr>) {
    let extra = index.checked_sub(1).and_then(|index| instance.extra.interfaces.get(index));
    let public = public.filter(|_| extra.is_none());
    let id = extra.map_or(&*instance.interface_id, |extra| &*extra.id);
    xml.raw("<networkInterfaceId>");
    xml.escaped(id);
    xml.raw("</networkInterfaceId><subnetId>");
    xml.escaped(extra.map_or(&*instance.subnet_id, |extra| &*extra.subnet_id));
    xml.raw("</subnetId><vpcId>");
    xml.escaped(&instance.vpc_id);
    xml.raw("</vpcId><description>");
    xml.escaped(instance.options.interfaces.get(index).map_or("", |spec| &*spec.description));
    xml.raw("</description><ownerId>");
    xml.escaped(&instance.owner);
    xml.raw("</ownerId><status>in-use</status><macAddress>");
    mac_address(xml, id);
    xml.raw("</macAddress>");
    let private = xml.record(|xml| {
        let address = extra.map_or(instance.private_ip, |extra| extra.private_ip);
        xml.raw("<privateIpAddress>");
        xml.address(address, b'.');
        xml.raw("</privateIpAddress><privateDnsName>");
        private_name(xml, address, instance);
        xml.raw("</privateDnsName>");
    });
    flag(xml, "sourceDestCheck", instance.options.source_dest_check);
    group_set(xml, extra.map_or(&*instance.groups, |extra| &extra.groups));
    let association = public.map(|public| xml.record(|xml| association(xml, public, instance)));
    xml.raw("<privateIpAddressesSet><item>");
    xml.repeat(private);
    xml.raw("<primary>true</primary>");
    if let Some(association) = association {
        xml.repeat(association);
    }
    xml.raw("</item></privateIpAddressesSet><interfaceType>interface</interfaceType>");
}

/// Encodes the attachment of an interface.
pub(super) fn attachment(xml: &mut Xml, instance: &Instance, index: usize) {
    let extra = index.checked_sub(1).and_then(|index| instance.extra.interfaces.get(index));
    let id = extra.map_or(&*instance.interface_id, |extra| &*extra.id);
    xml.raw("<attachmentId>eni-attach-");
    xml.raw(id.trim_start_matches("eni-"));
    xml.raw("</attachmentId><deviceIndex>");
    xml.number(instance.options.interfaces.get(index).map_or(0, |spec| spec.device_index));
    xml.raw("</deviceIndex><status>attached</status>");
    xml.timestamp("attachTime", instance.created_at);
    xml.raw("<deleteOnTermination>true</deleteOnTermination><networkCardIndex>0</networkCardIndex>");
}

fn association(xml: &mut Xml, public: Ipv4Addr, instance: &Instance) {
    xml.raw("<association><publicIp>");
    xml.address(public, b'.');
    xml.raw("</publicIp><publicDnsName>");
    public_name(xml, public, instance);
    xml.raw("</publicDnsName><ipOwnerId>amazon</ipOwnerId></association>");
}

/// Derives a locally administered address from the id of an interface.
fn mac_address(xml: &mut Xml, id: &str) {
    let digits = id.get(id.len().saturating_sub(10)..).unwrap_or_default();
    xml.raw("02");
    for pair in 0..5 {
        xml.raw(":");
        xml.raw(digits.get(2 * pair..2 * pair + 2).unwrap_or("00"));
    }
}
