//! DescribeImages, DescribeRegions, DescribeSubnets, CreateTags, DeleteTags and DescribeTags.

use super::form::Form;
use super::instance_xml::tag_set;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{
    ACCOUNT, AwsError, Filters, Image, ImageField, Page, REGIONS, RegionField, Subnet, SubnetField, TagRemoval,
    is_well_formed,
};

pub(super) fn describe_images(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (ids, owners) = (form.list("ImageId"), form.list("Owner"));
    let filters: Filters<ImageField> = form.filters()?;
    let (page, intent) = (form.page()?, form.intent()?);
    if let Some(id) = ids.iter().find(|id| !is_well_formed(id, "ami")) {
        let message = format!("Invalid id: \"{id}\" (expecting \"ami-...\")");
        return Err(AwsError::new("InvalidAMIID.Malformed", message));
    }
    let page = request.world.with_ec2(|ec2, now| {
        let images = &ec2.region(request.region, now)?.catalog.images;
        let unknown: Vec<&str> =
            ids.iter().filter(|id| !images.iter().any(|image| image.id == **id)).map(String::as_str).collect();
        if !unknown.is_empty() {
            let message = match unknown[..] {
                [id] => format!("The image id '[{id}]' does not exist"),
                _ => format!("The image ids '[{}]' do not exist", unknown.join(", ")),
            };
            return Err(AwsError::new("InvalidAMIID.NotFound", message));
        }
        intent.proceed()?;
        let is_selected = |image: &&Image| {
            (ids.is_empty() || ids.contains(&image.id)) && is_owned(image, &owners) && filters.match_all(image, now)
        };
        let numbered =
            images.iter().filter(is_selected).cloned().enumerate().map(|(position, image)| (position as u64, image));
        Ok(Page::collect(page, numbered.skip_while(|(position, _)| *position < page.from)))
    })?;
    Ok(request.respond("DescribeImages", page.items.len() * 1500, |xml| {
        xml.element("imagesSet", |xml| {
            for image in &page.items {
                image_item(xml, image);
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn is_owned(image: &Image, owners: &[String]) -> bool {
    let is_owner = |owner: &String| match owner.as_str() {
        "self" => image.owner == ACCOUNT,
        // The CML images belong to neither Amazon nor the marketplace.
        "amazon" | "aws-marketplace" | "aws-backup-vault" => false,
        id => image.owner == id,
    };
    owners.is_empty() || owners.iter().any(is_owner)
}

fn image_item(xml: &mut Xml, image: &Image) {
    xml.open("item");
    xml.text("imageId", &image.id);
    xml.element("imageLocation", |xml| {
        xml.raw(&image.owner);
        xml.raw("/");
        xml.raw(&image.id);
    });
    xml.raw("<imageState>available</imageState>");
    xml.text("imageOwnerId", &image.owner);
    xml.text("creationDate", &image.creation_date);
    xml.raw("<isPublic>false</isPublic><architecture>x86_64</architecture><imageType>machine</imageType>");
    xml.text("name", &image.name);
    xml.text("description", &image.description);
    xml.raw("<rootDeviceType>ebs</rootDeviceType><rootDeviceName>/dev/sda1</rootDeviceName>");
    xml.raw("<blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs>");
    xml.element("snapshotId", |xml| {
        xml.raw("snap-");
        xml.raw(image.id.trim_start_matches("ami-"));
    });
    xml.raw("<volumeSize>64</volumeSize><deleteOnTermination>true</deleteOnTermination><volumeType>gp3</volumeType>");
    xml.raw("<encrypted>false</encrypted></ebs></item></blockDeviceMapping>");
    tag_set(xml, &image.tags);
    xml.raw("<virtualizationType>hvm</virtualizationType><hypervisor>xen</hypervisor><enaSupport>true</enaSupport>");
    xml.raw("<platformDetails>Linux/UNIX</platformDetails><usageOperation>RunInstances</usageOperation>");
    xml.close("item");
}

pub(super) fn describe_regions(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
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
    let is_selected = |region: &&'static str| {
        (names.is_empty() || names.iter().any(|name| name == region)) && filters.match_all(region, now)
    };
    Ok(request.respond("DescribeRegions", REGIONS.len() * 192, |xml| {
        xml.element("regionInfo", |xml| {
            for region in REGIONS.into_iter().filter(|region| is_selected(region)) {
                xml.element("item", |xml| {
                    xml.text("regionName", region);
                    xml.plain("regionEndpoint", format_args!("ec2.{region}.amazonaws.com"));
                    xml.raw("<optInStatus>opt-in-not-required</optInStatus>");
                });
            }
        });
    }))
}

pub(super) fn describe_subnets(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
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
        let is_selected =
            |subnet: &&Subnet| (ids.is_empty() || ids.contains(&subnet.id)) && filters.match_all(subnet, now);
        Ok(subnets.iter().filter(is_selected).cloned().collect())
    })?;
    Ok(request.respond("DescribeSubnets", subnets.len() * 900, |xml| {
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

pub(super) fn create_tags(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let ids = form.need_list("ResourceId")?;
    let mut tags = Vec::new();
    for tag in tag_members(form)? {
        let key = form.need(&format!("{tag}.Key"))?;
        tags.push((key.to_owned(), form.get(&format!("{tag}.Value")).unwrap_or_default().to_owned()));
    }
    let intent = form.intent()?;
    request
        .world
        .with_ec2(|ec2, now| ec2.region(request.region, now)?.create_tags(&ids, &tags, intent, request.view, now))?;
    Ok(request.respond_true("CreateTags"))
}

pub(super) fn delete_tags(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let ids = form.need_list("ResourceId")?;
    let mut removals = Vec::new();
    for tag in form.members("Tag") {
        let key = form.need(&format!("{tag}.Key"))?.to_owned();
        removals.push(TagRemoval { key, value: form.get(&format!("{tag}.Value")).map(str::to_owned) });
    }
    let intent = form.intent()?;
    request.world.with_ec2(|ec2, now| {
        ec2.region(request.region, now)?.delete_tags(&ids, &removals, intent, request.view, now)
    })?;
    Ok(request.respond_true("DeleteTags"))
}

pub(super) fn describe_tags(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (filters, page, intent) = (form.filters()?, form.page()?, form.intent()?);
    let page = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.list_tags(&filters, page, request.view, now);
        intent.proceed()?;
        Ok::<_, AwsError>(page)
    })?;
    Ok(request.respond("DescribeTags", page.items.len() * 192, |xml| {
        xml.element("tagSet", |xml| {
            for tag in &page.items {
                xml.element("item", |xml| {
                    xml.text("resourceId", &tag.resource_id);
                    xml.text("resourceType", tag.resource_type);
                    xml.text("key", &tag.key);
                    xml.text("value", &tag.value);
                });
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn tag_members(form: &Form<'_>) -> Result<Vec<String>, AwsError> {
    let members = form.members("Tag");
    if members.is_empty() { Err(AwsError::missing("Tag")) } else { Ok(members) }
}
