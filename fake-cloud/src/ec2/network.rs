//! VPCs, subnets and security groups.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::described::Item;
use super::form::Form;
use super::instance_xml::{flag, tag_set};
use super::volumes::missing_or_malformed;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, Direction, InstanceState, Peer, Region, Rule, SecurityGroup, Subnet, Tags, Vpc, zone_id};

pub(super) fn describe_vpcs(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("VpcId");
    let vpcs: Vec<(Vpc, Tags)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.catalog.vpcs_of(request.account);
        Ok::<_, AwsError>(own.map(|vpc| (vpc.clone(), region.tags_of(&vpc.id).clone())).collect())
    })?;
    let items = vpcs.iter().map(|(vpc, tags)| Item::new(&vpc.id, |xml| vpc_fields(xml, vpc, tags)));
    request.respond_items("DescribeVpcs", "vpcSet", items.collect(), &ids, |id| missing_or_malformed(id, "vpc"))
}

fn vpc_fields(xml: &mut Xml, vpc: &Vpc, tags: &Tags) {
    let digits = vpc.id.trim_start_matches("vpc-");
    xml.text("vpcId", &vpc.id);
    xml.text("ownerId", &vpc.owner);
    xml.raw("<state>available</state>");
    xml.text("cidrBlock", vpc.blocks.first().map_or("", String::as_str));
    xml.element("cidrBlockAssociationSet", |xml| {
        for (position, block) in vpc.blocks.iter().enumerate() {
            xml.element("item", |xml| {
                xml.plain("associationId", format_args!("vpc-cidr-assoc-{position}{}", digits.get(1..).unwrap_or("")));
                xml.text("cidrBlock", block);
                xml.raw("<cidrBlockState><state>associated</state></cidrBlockState>");
            });
        }
    });
    xml.plain("dhcpOptionsId", format_args!("dopt-{digits}"));
    xml.text("instanceTenancy", &vpc.tenancy);
    flag(xml, "isDefault", vpc.is_default);
    tag_set(xml, tags);
}

/// Parses a block such as `10.0.0.0/16`, whose prefix length is from 16 to 28.
fn parse_block(text: &str, code: &'static str) -> Result<(Ipv4Addr, u8), AwsError> {
    let invalid = || {
        let message = format!("Value ({text}) for parameter cidrBlock is invalid. This is not a valid CIDR block.");
        AwsError::new("InvalidParameterValue", message)
    };
    let (address, length) = text.split_once('/').ok_or_else(invalid)?;
    let (address, length): (Ipv4Addr, u8) =
        (address.parse().map_err(|_| invalid())?, length.parse().map_err(|_| invalid())?);
    if length > 32 {
        return Err(invalid());
    }
    if !(16..=28).contains(&length) {
        return Err(AwsError::new(code, format!("The CIDR '{text}' is invalid.")));
    }
    // Host bits are dropped, as EC2 does.
    Ok((Ipv4Addr::from(u32::from(address) & (u32::MAX << (32 - length))), length))
}

fn overlaps((one, one_length): (Ipv4Addr, u8), (other, other_length): (Ipv4Addr, u8)) -> bool {
    let mask = u32::MAX << (32 - one_length.min(other_length));
    u32::from(one) & mask == u32::from(other) & mask
}

pub(super) fn create_vpc(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (network, length) = parse_block(form.need("CidrBlock")?, "InvalidVpc.Range")?;
    let tenancy = form.optional("InstanceTenancy").unwrap_or("default").to_owned();
    let tags = request.new_tags("vpc")?;
    let intent = form.intent()?;
    let vpc = request.world.with_ec2(|ec2, now| {
        intent.proceed()?;
        let (id, group) = (ec2.new_id("vpc"), ec2.new_id("sg"));
        let blocks = vec![format!("{network}/{length}")];
        let vpc = Vpc { id, blocks, tenancy, is_default: false, owner: request.account.to_string() };
        let region = ec2.region(request.region, now)?;
        let default = SecurityGroup::new(&group, "default", "default VPC security group", &vpc.id, request.account);
        region.catalog.groups.push(default);
        region.put_tags(&vpc.id, &tags);
        region.catalog.vpcs.push(vpc.clone());
        Ok::<_, AwsError>(vpc)
    })?;
    let tags = tags.into_iter().collect();
    Ok(request.respond("CreateVpc", 1024, |xml| xml.element("vpc", |xml| vpc_fields(xml, &vpc, &tags))))
}

fn dependency(what: &str, id: &str) -> AwsError {
    let message = format!("The {what} '{id}' has dependencies and cannot be deleted.");
    AwsError::new("DependencyViolation", message)
}

/// Returns whether an instance that is not terminated passes a test.
fn is_used(
    region: &Region,
    now: chrono::DateTime<chrono::Utc>,
    test: impl Fn(&crate::world::Instance) -> bool,
) -> bool {
    region.instances().any(|instance| instance.state(now) != InstanceState::Terminated && test(instance))
}

pub(super) fn delete_vpc(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let id = request.form.need("VpcId")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        if !region.catalog.vpcs_of(request.account).any(|vpc| vpc.id == id) {
            return Err(missing_or_malformed(id, "vpc"));
        }
        let has_subnets = region.catalog.subnets.iter().any(|subnet| subnet.vpc_id == id);
        let has_groups = region.catalog.groups.iter().any(|group| group.vpc_id == id && group.name != "default");
        if has_subnets || has_groups {
            return Err(dependency("vpc", id));
        }
        intent.proceed()?;
        region.catalog.vpcs.retain(|vpc| vpc.id != id);
        region.catalog.groups.retain(|group| group.vpc_id != id);
        region.resources.tags.remove(id);
        Ok(())
    })?;
    Ok(request.respond_true("DeleteVpc"))
}

pub(super) fn describe_subnets(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("SubnetId");
    let subnets: Vec<(Subnet, usize)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.catalog.subnets_of(request.account);
        Ok::<_, AwsError>(own.map(|subnet| (subnet.clone(), region.free_addresses(subnet, now))).collect())
    })?;
    let items = subnets
        .iter()
        .map(|(subnet, free)| Item::new(&subnet.id, |xml| subnet_fields(xml, subnet, *free, request.region)));
    request
        .respond_items("DescribeSubnets", "subnetSet", items.collect(), &ids, |id| missing_or_malformed(id, "subnet"))
}

fn subnet_fields(xml: &mut Xml, subnet: &Subnet, free: usize, region: &str) {
    xml.text("subnetId", &subnet.id);
    xml.plain("subnetArn", format_args!("arn:aws:ec2:{region}:{}:subnet/{}", subnet.owner, subnet.id));
    xml.raw("<state>available</state>");
    xml.text("ownerId", &subnet.owner);
    xml.text("vpcId", &subnet.vpc_id);
    xml.plain("cidrBlock", format_args!("{}/{}", subnet.network, subnet.prefix_length));
    xml.plain("availableIpAddressCount", free);
    xml.text("availabilityZone", &subnet.availability_zone);
    if let Some(id) = zone_id(region, &subnet.availability_zone) {
        xml.text("availabilityZoneId", id);
    }
    flag(xml, "defaultForAz", subnet.is_default);
    flag(xml, "mapPublicIpOnLaunch", subnet.is_default);
    xml.raw("<mapCustomerOwnedIpOnLaunch>false</mapCustomerOwnedIpOnLaunch><enableDns64>false</enableDns64>");
    xml.raw("<ipv6Native>false</ipv6Native><assignIpv6AddressOnCreation>false</assignIpv6AddressOnCreation>");
    xml.raw("<privateDnsNameOptionsOnLaunch><hostnameType>ip-name</hostnameType><enableResourceNameDnsARecord>false");
    xml.raw("</enableResourceNameDnsARecord><enableResourceNameDnsAAAARecord>false</enableResourceNameDnsAAAARecord>");
    xml.raw("</privateDnsNameOptionsOnLaunch>");
    tag_set(xml, &subnet.tags);
}

pub(super) fn create_subnet(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let vpc_id = form.need("VpcId")?;
    let block = parse_block(form.need("CidrBlock")?, "InvalidSubnet.Range")?;
    let zone = form.optional("AvailabilityZone").or_else(|| form.optional("AvailabilityZoneId"));
    let tags = request.new_tags("subnet")?;
    let intent = form.intent()?;
    let (subnet, free) = request.world.with_ec2(|ec2, now| {
        let id = ec2.new_id("subnet");
        let region = ec2.region(request.region, now)?;
        let vpc = region.catalog.vpcs_of(request.account).find(|vpc| vpc.id == vpc_id);
        let vpc = vpc.ok_or_else(|| missing_or_malformed(vpc_id, "vpc"))?;
        let inside = vpc.blocks.iter().filter_map(|known| parse_block(known, "").ok());
        if !inside.into_iter().any(|own| own.1 <= block.1 && overlaps(own, block)) {
            let message = format!("The CIDR '{}/{}' is invalid.", block.0, block.1);
            return Err(AwsError::new("InvalidSubnet.Range", message));
        }
        let mut siblings = region.catalog.subnets.iter().filter(|subnet| subnet.vpc_id == vpc_id);
        if siblings.any(|subnet| overlaps((subnet.network, subnet.prefix_length), block)) {
            let message = format!("The CIDR '{}/{}' conflicts with another subnet", block.0, block.1);
            return Err(AwsError::new("InvalidSubnet.Conflict", message));
        }
        let availability_zone = zone.map_or_else(|| Ok(format!("{}a", region.name)), |zone| region.zone(zone))?;
        intent.proceed()?;
        let subnet = Subnet {
            id,
            vpc_id: vpc_id.to_owned(),
            availability_zone,
            network: block.0,
            prefix_length: block.1,
            is_default: false,
            owner: request.account.to_string(),
            tags: tags.into_iter().collect(),
        };
        let free = region.free_addresses(&subnet, now);
        region.catalog.subnets.push(subnet.clone());
        Ok::<_, AwsError>((subnet, free))
    })?;
    Ok(request.respond("CreateSubnet", 1024, |xml| {
        xml.element("subnet", |xml| subnet_fields(xml, &subnet, free, request.region));
    }))
}

pub(super) fn delete_subnet(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let id = request.form.need("SubnetId")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        region.find_subnet(request.account, id)?;
        let uses = |instance: &crate::world::Instance| {
            *instance.subnet_id == *id || instance.extra.interfaces.iter().any(|one| one.subnet_id == id)
        };
        if is_used(region, now, uses) {
            return Err(dependency("subnet", id));
        }
        intent.proceed()?;
        region.catalog.subnets.retain(|subnet| subnet.id != id);
        Ok(())
    })?;
    Ok(request.respond_true("DeleteSubnet"))
}

pub(super) fn describe_security_groups(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let (ids, names) = (request.form.list("GroupId"), request.form.list("GroupName"));
    let groups: Vec<(SecurityGroup, Tags)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.catalog.groups_of(request.account);
        Ok::<_, AwsError>(own.map(|group| (group.clone(), region.tags_of(&group.id).clone())).collect())
    })?;
    if let Some(unknown) = names.iter().find(|name| !groups.iter().any(|(group, _)| group.name == **name)) {
        let message = format!("The security group '{unknown}' does not exist");
        return Err(AwsError::new("InvalidGroup.NotFound", message));
    }
    let selected = groups.iter().filter(|(group, _)| names.is_empty() || names.contains(&group.name));
    let items =
        selected.map(|(group, tags)| Item::new(&group.id, |xml| group_fields(xml, group, tags, request.region)));
    request.respond_items("DescribeSecurityGroups", "securityGroupInfo", items.collect(), &ids, |id| {
        missing_or_malformed(id, "sg")
    })
}

fn group_fields(xml: &mut Xml, group: &SecurityGroup, tags: &Tags, region: &str) {
    xml.text("groupId", &group.id);
    xml.text("groupName", &group.name);
    xml.text("groupDescription", &group.description);
    xml.text("ownerId", &group.owner);
    xml.text("vpcId", &group.vpc_id);
    xml.plain("securityGroupArn", format_args!("arn:aws:ec2:{region}:{}:security-group/{}", group.owner, group.id));
    for (name, direction) in [("ipPermissions", Direction::Ingress), ("ipPermissionsEgress", Direction::Egress)] {
        xml.element(name, |xml| permissions(xml, group, direction));
    }
    tag_set(xml, tags);
}

/// Encodes the rules of a direction, grouped by protocol and ports.
fn permissions(xml: &mut Xml, group: &SecurityGroup, direction: Direction) {
    let rules: Vec<&Rule> = group.rules.iter().filter(|rule| rule.direction == direction).collect();
    let same = |one: &Rule, other: &Rule| one.protocol == other.protocol && one.ports == other.ports;
    for (position, first) in rules.iter().enumerate() {
        if rules[..position].iter().any(|earlier| same(earlier, first)) {
            continue;
        }
        let members: Vec<&&Rule> = rules.iter().filter(|rule| same(rule, first)).collect();
        xml.element("item", |xml| {
            xml.text("ipProtocol", &first.protocol);
            if let Some((from, to)) = first.ports {
                xml.plain("fromPort", from);
                xml.plain("toPort", to);
            }
            for set in ["groups", "ipRanges", "ipv6Ranges", "prefixListIds"] {
                xml.element(set, |xml| {
                    for rule in members.iter().filter(|rule| peer_set(&rule.peer) == set) {
                        xml.element("item", |xml| peer(xml, rule));
                    }
                });
            }
        });
    }
}

fn peer_set(peer: &Peer) -> &'static str {
    match peer {
        Peer::Group(..) => "groups",
        Peer::Ipv4(_) => "ipRanges",
        Peer::Ipv6(_) => "ipv6Ranges",
        Peer::PrefixList(_) => "prefixListIds",
    }
}

fn peer(xml: &mut Xml, rule: &Rule) {
    match &rule.peer {
        Peer::Group(account, id) => {
            xml.text("userId", account);
            xml.text("groupId", id);
        }
        Peer::Ipv4(range) => xml.text("cidrIp", range),
        Peer::Ipv6(range) => xml.text("cidrIpv6", range),
        Peer::PrefixList(id) => xml.text("prefixListId", id),
    }
    if let Some(description) = &rule.description {
        xml.text("description", description);
    }
}

pub(super) fn create_security_group(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (name, description) = (form.need("GroupName")?, form.need("GroupDescription")?);
    if name.starts_with("sg-") || name.chars().count() > 255 {
        let message =
            format!("Value ({name}) for parameter GroupName is invalid. Group names may not be in the format sg-*");
        return Err(AwsError::new("InvalidParameterValue", message));
    }
    let tags = request.new_tags("security-group")?;
    let intent = form.intent()?;
    let group = request.world.with_ec2(|ec2, now| {
        let id = ec2.new_id("sg");
        let region = ec2.region(request.region, now)?;
        let vpc_id = {
            let mut vpcs = region.catalog.vpcs_of(request.account);
            let vpc = match form.optional("VpcId") {
                Some(wanted) => vpcs.find(|vpc| vpc.id == wanted).ok_or_else(|| missing_or_malformed(wanted, "vpc"))?,
                None => vpcs
                    .find(|vpc| vpc.is_default)
                    .ok_or_else(|| AwsError::new("VPCIdNotSpecified", "No default VPC for this user"))?,
            };
            vpc.id.clone()
        };
        if region.catalog.groups_of(request.account).any(|group| group.name == name && group.vpc_id == vpc_id) {
            let message = format!("The security group '{name}' already exists for VPC '{vpc_id}'");
            return Err(AwsError::new("InvalidGroup.Duplicate", message));
        }
        intent.proceed()?;
        let group = SecurityGroup::new(&id, name, description, &vpc_id, request.account);
        region.put_tags(&id, &tags);
        region.catalog.groups.push(group.clone());
        Ok::<_, AwsError>(group)
    })?;
    let tags = tags.into_iter().collect();
    Ok(request.respond("CreateSecurityGroup", 512, |xml| {
        xml.raw("<return>true</return>");
        xml.text("groupId", &group.id);
        let arn =
            format_args!("arn:aws:ec2:{}:{}:security-group/{}", request.region, group.owner, group.id).to_string();
        xml.text("securityGroupArn", &arn);
        tag_set(xml, &tags);
    }))
}

/// Returns the position of the group that a request names by id, or by its name in the default VPC.
fn named_group(region: &Region, form: &Form<'_>, account: &str) -> Result<usize, AwsError> {
    let default = region.catalog.vpcs_of(account).find(|vpc| vpc.is_default).map(|vpc| &vpc.id);
    let (id, name) = (form.optional("GroupId"), form.optional("GroupName"));
    if id.is_none() && name.is_none() {
        return Err(AwsError::missing("groupName or groupId"));
    }
    let is_named = |group: &SecurityGroup| {
        group.owner == account
            && match (id, name) {
                (Some(id), _) => group.id == id,
                (None, name) => Some(&*group.name) == name && Some(&group.vpc_id) == default,
            }
    };
    region.catalog.groups.iter().position(is_named).ok_or_else(|| match (id, name) {
        (Some(id), _) => missing_or_malformed(id, "sg"),
        (None, name) => {
            let name = name.unwrap_or_default();
            AwsError::new("InvalidGroup.NotFound", format!("The security group '{name}' does not exist in default VPC"))
        }
    })
}

pub(super) fn delete_security_group(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let intent = request.form.intent()?;
    let id =
        request.world.with_ec2(|ec2, now| {
            let region = ec2.region(request.region, now)?;
            let position = named_group(region, request.form, request.account)?;
            let group = &region.catalog.groups[position];
            let id = group.id.clone();
            if group.name == "default" {
                let message = format!("the specified group: \"{id}\" name: \"default\" cannot be deleted by a user");
                return Err(AwsError::new("CannotDelete", message));
            }
            let uses = |instance: &crate::world::Instance| {
                let extra = instance.extra.interfaces.iter().flat_map(|one| &one.groups);
                instance.groups.iter().chain(extra).any(|group| group.id == id)
            };
            let is_referenced =
                region.catalog.groups.iter().filter(|other| other.id != id).any(|other| {
                    other.rules.iter().any(|rule| matches!(&rule.peer, Peer::Group(_, peer) if *peer == id))
                });
            if is_used(region, now, uses) || is_referenced {
                let message = format!("resource {id} has a dependent object");
                return Err(AwsError::new("DependencyViolation", message));
            }
            intent.proceed()?;
            region.catalog.groups.remove(position);
            region.resources.tags.remove(&id);
            Ok(id)
        })?;
    Ok(request.respond("DeleteSecurityGroup", 128, |xml| {
        xml.raw("<return>true</return>");
        xml.text("groupId", &id);
    }))
}

pub(super) fn authorize(request: &Request<'_>, action: &str, direction: Direction) -> Result<ResponseBody, AwsError> {
    // Tags of rules are not modeled: DescribeSecurityGroupRules is not served.
    let mut added = rules(request, direction)?;
    if added.is_empty() {
        return Err(AwsError::missing("ipPermissions"));
    }
    let intent = request.form.intent()?;
    let id = request.world.with_ec2(|ec2, now| {
        for rule in &mut added {
            rule.id = ec2.new_id("sgr");
        }
        let region = ec2.region(request.region, now)?;
        let position = named_group(region, request.form, request.account)?;
        let groups = &region.catalog.groups;
        for rule in &added {
            if groups[position].rules.iter().any(|known| is_same(known, rule)) {
                let message = "the specified rule already exists";
                return Err(AwsError::new("InvalidPermission.Duplicate", message));
            }
            if let Peer::Group(_, peer) = &rule.peer
                && !groups.iter().any(|group| group.id == *peer)
            {
                return Err(missing_or_malformed(peer, "sg"));
            }
        }
        intent.proceed()?;
        let group = &mut region.catalog.groups[position];
        group.rules.extend(added.iter().cloned());
        Ok(group.id.clone())
    })?;
    Ok(request.respond(action, added.len() * 512, |xml| {
        xml.raw("<return>true</return>");
        xml.element("securityGroupRuleSet", |xml| {
            for rule in &added {
                xml.element("item", |xml| rule_fields(xml, rule, &id, request.account));
            }
        });
    }))
}

fn rule_fields(xml: &mut Xml, rule: &Rule, group: &str, account: &Arc<str>) {
    xml.text("securityGroupRuleId", &rule.id);
    xml.text("groupId", group);
    xml.text("groupOwnerId", account);
    flag(xml, "isEgress", rule.direction == Direction::Egress);
    xml.text("ipProtocol", &rule.protocol);
    let (from, to) = rule.ports.unwrap_or((-1, -1));
    xml.plain("fromPort", from);
    xml.plain("toPort", to);
    match &rule.peer {
        Peer::Ipv4(range) => xml.text("cidrIpv4", range),
        Peer::Ipv6(range) => xml.text("cidrIpv6", range),
        Peer::PrefixList(id) => xml.text("prefixListId", id),
        Peer::Group(account, id) => xml.element("referencedGroupInfo", |xml| {
            xml.text("groupId", id);
            xml.text("userId", account);
        }),
    }
    if let Some(description) = &rule.description {
        xml.text("description", description);
    }
}

fn is_same(one: &Rule, other: &Rule) -> bool {
    one.direction == other.direction
        && one.protocol == other.protocol
        && one.ports == other.ports
        && one.peer == other.peer
}

pub(super) fn revoke(request: &Request<'_>, action: &str, direction: Direction) -> Result<ResponseBody, AwsError> {
    let named = rules(request, direction)?;
    let ids = request.form.list("SecurityGroupRuleId");
    if named.is_empty() && ids.is_empty() {
        return Err(AwsError::missing("ipPermissions"));
    }
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = named_group(region, request.form, request.account)?;
        let group = &mut region.catalog.groups[position];
        let unknown = named.iter().any(|rule| !group.rules.iter().any(|known| is_same(known, rule)));
        if unknown {
            let message = "The specified rule does not exist in this security group.";
            return Err(AwsError::new("InvalidPermission.NotFound", message));
        }
        let is_known = |id: &String| group.rules.iter().any(|rule| rule.id == *id && rule.direction == direction);
        if let Some(unknown) = ids.iter().find(|id| !is_known(id)) {
            let message = format!("The security group rule ID '{unknown}' does not exist");
            return Err(AwsError::new("InvalidSecurityGroupRuleId.NotFound", message));
        }
        intent.proceed()?;
        group.rules.retain(|rule| !ids.contains(&rule.id) && !named.iter().any(|one| is_same(one, rule)));
        Ok(())
    })?;
    Ok(request.respond_true(action))
}

/// Reads the rules of a request, without ids.
fn rules(request: &Request<'_>, direction: Direction) -> Result<Vec<Rule>, AwsError> {
    let form = request.form;
    let mut rules = Vec::new();
    if let Some(range) = form.optional("CidrIp") {
        let (protocol, ports) = ports(form, "")?;
        rules.push(rule(direction, &protocol, ports, Peer::Ipv4(checked_ipv4(range)?), None));
    }
    for member in form.members("IpPermissions") {
        let (protocol, ports) = ports(form, &format!("{member}."))?;
        let mut add = |peer: Peer, from: &str| {
            let description = form.optional(&format!("{from}.Description"));
            rules.push(rule(direction, &protocol, ports, peer, description));
        };
        for range in form.members(&format!("{member}.IpRanges")) {
            add(Peer::Ipv4(checked_ipv4(form.need(&format!("{range}.CidrIp"))?)?), &range);
        }
        for range in form.members(&format!("{member}.Ipv6Ranges")) {
            add(Peer::Ipv6(checked_ipv6(form.need(&format!("{range}.CidrIpv6"))?)?), &range);
        }
        if let Some(list) = form.members(&format!("{member}.PrefixListIds")).into_iter().next() {
            let id = form.need(&format!("{list}.PrefixListId"))?;
            let message = format!("The prefix list ID '{id}' does not exist");
            return Err(AwsError::new("InvalidPrefixListID.NotFound", message));
        }
        for group in form.members(&format!("{member}.Groups")) {
            let get = |name: &str| form.optional(&format!("{group}.{name}"));
            let account = get("UserId").unwrap_or(request.account).to_owned();
            let id = match (get("GroupId"), get("GroupName")) {
                (Some(id), _) => id.to_owned(),
                (None, Some(name)) => request.group_id(name, get("VpcId"))?,
                (None, None) => return Err(AwsError::missing("groupId")),
            };
            add(Peer::Group(account, id), &group);
        }
    }
    Ok(rules)
}

impl Request<'_> {
    /// Returns the id of a group by its name, in a VPC or in the default VPC.
    fn group_id(&self, name: &str, vpc: Option<&str>) -> Result<String, AwsError> {
        self.world.with_ec2(|ec2, now| {
            let catalog = &ec2.region(self.region, now)?.catalog;
            let default = catalog.vpcs_of(self.account).find(|vpc| vpc.is_default).map(|vpc| vpc.id.as_str());
            let vpc = vpc.or(default);
            let mut own = catalog.groups_of(self.account);
            let group = own.find(|group| group.name == name && Some(group.vpc_id.as_str()) == vpc);
            group.map(|group| group.id.clone()).ok_or_else(|| {
                AwsError::new("InvalidGroup.NotFound", format!("The security group '{name}' does not exist"))
            })
        })
    }
}

fn rule(
    direction: Direction,
    protocol: &str,
    ports: Option<(i32, i32)>,
    peer: Peer,
    description: Option<&str>,
) -> Rule {
    let description = description.map(str::to_owned);
    Rule { id: String::new(), direction, protocol: protocol.to_owned(), ports, peer, description }
}

/// Reads the protocol and the ports at a prefix.
fn ports(form: &Form<'_>, prefix: &str) -> Result<(String, Option<(i32, i32)>), AwsError> {
    let protocol = match form.need(&format!("{prefix}IpProtocol"))?.to_ascii_lowercase().as_str() {
        "6" => "tcp".to_owned(),
        "17" => "udp".to_owned(),
        "1" => "icmp".to_owned(),
        "all" | "-1" => "-1".to_owned(),
        other if matches!(other, "tcp" | "udp" | "icmp" | "icmpv6") || other.parse::<u8>().is_ok() => other.to_owned(),
        other => {
            let message = format!("Invalid value '{other}' for IP protocol. Unknown protocol.");
            return Err(AwsError::new("InvalidParameterValue", message));
        }
    };
    let (from, to) = (form.number(&format!("{prefix}FromPort"))?, form.number(&format!("{prefix}ToPort"))?);
    match (protocol.as_str(), from, to) {
        // All protocols: EC2 opens all ports and ignores those of the request.
        ("-1", _, _) | (_, None, None) if protocol != "tcp" && protocol != "udp" => Ok((protocol, None)),
        (_, Some(from), Some(to)) => {
            let limits = if matches!(protocol.as_str(), "tcp" | "udp") { 0..=65_535 } else { -1..=255 };
            if !limits.contains(&from) || !limits.contains(&to) || (from > to && from != -1 && to != -1) {
                let message = format!("Invalid port range: {from}-{to}");
                return Err(AwsError::new("InvalidParameterValue", message));
            }
            Ok((protocol, Some((from, to))))
        }
        (_, None, _) | (_, _, None) => Err(AwsError::new(
            "InvalidParameterValue",
            "Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.",
        )),
    }
}

fn checked_ipv4(text: &str) -> Result<String, AwsError> {
    checked::<Ipv4Addr>(text, 32)
}

fn checked_ipv6(text: &str) -> Result<String, AwsError> {
    checked::<Ipv6Addr>(text, 128)
}

fn checked<A: std::str::FromStr>(text: &str, longest: u8) -> Result<String, AwsError> {
    let is_valid = text.split_once('/').is_some_and(|(address, length)| {
        address.parse::<A>().is_ok() && length.parse::<u8>().is_ok_and(|length| length <= longest)
    });
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err(AwsError::new("InvalidParameterValue", format!("CIDR block {text} is malformed")))
    }
}
