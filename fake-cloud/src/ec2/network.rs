//! DescribeRegions, DescribeSubnets.

use super::Request;
use super::instance_xml::tag_set;
use crate::answer::Answer;
use crate::world::{ACCOUNT, AwsError, Filters, REGIONS, RegionField, Subnet, SubnetField};

pub(super) fn describe_regions(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let names = form.list("RegionName");
    let filters: Filters<RegionField> = form.filters()?;
    form.flag("AllRegions")?;
    if let Some(unknown) = names.iter().find(|name| !REGIONS.contains(&name.as_str())) {
        return Err(AwsError::new("InvalidParameterValue", format!("Invalid region provided: {unknown}")));
    }
    let intent = form.intent()?;
    let now = request.world.with_ec2(|ec2, now| ec2.region(request.region, now).map(|_| now))?;
    intent.proceed()?;
    let is_asked = |region: &&'static str| {
        (names.is_empty() || names.iter().any(|name| name == region)) && filters.pass(region, now)
    };
    Ok(request.answer("DescribeRegions", REGIONS.len() * 192, |xml| {
        xml.element("regionInfo", |xml| {
            for region in REGIONS.into_iter().filter(|region| is_asked(region)) {
                xml.element("item", |xml| {
                    xml.text("regionName", region);
                    xml.plain("regionEndpoint", format_args!("ec2.{region}.amazonaws.com"));
                    xml.raw("<optInStatus>opt-in-not-required</optInStatus>");
                });
            }
        });
    }))
}

pub(super) fn describe_subnets(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let ids = form.list("SubnetId");
    let filters: Filters<SubnetField> = form.filters()?;
    let intent = form.intent()?;
    let subnets: Vec<Subnet> = request.world.with_ec2(|ec2, now| {
        let subnets = &ec2.region(request.region, now)?.catalog.subnets;
        if let Some(unknown) = ids.iter().find(|id| !subnets.iter().any(|subnet| subnet.id == **id)) {
            let message = format!("The subnet ID '{unknown}' does not exist");
            return Err(AwsError::new("InvalidSubnetID.NotFound", message));
        }
        intent.proceed()?;
        let is_asked = |subnet: &&Subnet| (ids.is_empty() || ids.contains(&subnet.id)) && filters.pass(subnet, now);
        Ok(subnets.iter().filter(is_asked).cloned().collect())
    })?;
    Ok(request.answer("DescribeSubnets", subnets.len() * 900, |xml| {
        xml.element("subnetSet", |xml| {
            for subnet in &subnets {
                xml.element("item", |xml| {
                    xml.text("subnetId", &subnet.id);
                    let arn = format!("arn:aws:ec2:{}:{ACCOUNT}:subnet/{}", request.region, subnet.id);
                    xml.text("subnetArn", &arn);
                    xml.raw("<state>available</state>");
                    xml.text("ownerId", ACCOUNT);
                    xml.text("vpcId", &subnet.vpc_id);
                    xml.plain("cidrBlock", format_args!("{}/16", subnet.network));
                    xml.raw("<availableIpAddressCount>65531</availableIpAddressCount>");
                    xml.text("availabilityZone", &subnet.availability_zone);
                    xml.raw("<defaultForAz>true</defaultForAz><mapPublicIpOnLaunch>true</mapPublicIpOnLaunch>");
                    tag_set(xml, &subnet.tags);
                });
            }
        });
    }))
}
