//! Images, regions, zones, limits of the account, and tags of all resources.

use super::described::{Described, Item};
use super::form::Form;
use super::instance_xml::tag_set;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{
    AwsError, Image, REGIONS, Sharing, TagRemoval, TaggedResource, ZONES, all_regions, is_well_formed, not_found,
    zone_ids,
};

pub(super) fn describe_images(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (ids, owners, users) = (form.list("ImageId"), form.list("Owner"), form.list("ExecutableBy"));
    // No image of this cloud is deprecated or disabled, so that neither flag adds one.
    for flag in ["IncludeDeprecated", "IncludeDisabled"] {
        form.flag(flag)?;
    }
    if let Some(id) = ids.iter().find(|id| !is_well_formed(id, "ami")) {
        let message = format!("Invalid id: \"{id}\" (expecting \"ami-...\")");
        return Err(AwsError::new("InvalidAMIID.Malformed", message));
    }
    let images: Vec<Image> = request.world.with_ec2(|ec2, now| {
        Ok::<_, AwsError>(ec2.region(request.region, now)?.catalog.images_of(request.account).cloned().collect())
    })?;
    let unknown: Vec<&str> =
        ids.iter().filter(|id| !images.iter().any(|image| image.id == **id)).map(String::as_str).collect();
    if !unknown.is_empty() {
        let message = match unknown[..] {
            [id] => format!("The image id '[{id}]' does not exist"),
            _ => format!("The image ids '[{}]' do not exist", unknown.join(", ")),
        };
        return Err(AwsError::new("InvalidAMIID.NotFound", message));
    }
    let is_selected = |image: &&Image| {
        (owners.is_empty() || owners.iter().any(|owner| is_owned(image, owner, request.account)))
            && (users.is_empty() || users.iter().any(|user| is_executable_by(image, user, request.account)))
            // An image that is named is in the response, unless an owner or user excludes it.
            && (ids.is_empty() || ids.contains(&image.id))
    };
    let items = images.iter().filter(is_selected).map(|image| Item::new(&image.id, |xml| image_fields(xml, image)));
    request.respond_items("DescribeImages", "imagesSet", items.collect(), &[], not_found)
}

fn is_executable_by(image: &Image, user: &str, account: &str) -> bool {
    match user {
        "all" => image.is_public(),
        // An explicit permission: public images have none.
        "self" => image.sharing == Sharing::Shared && image.owner != account,
        id => image.sharing == Sharing::Shared && image.owner != id,
    }
}

fn is_owned(image: &Image, owner: &str, account: &str) -> bool {
    match owner {
        "self" => image.owner == account,
        "amazon" | "aws-marketplace" | "aws-backup-vault" => image.owner_alias() == Some(owner),
        id => image.owner == id,
    }
}

fn image_fields(xml: &mut Xml, image: &Image) {
    xml.text("imageId", &image.id);
    xml.element("imageLocation", |xml| {
        xml.raw(&image.owner);
        xml.raw("/");
        xml.raw(&image.id);
    });
    xml.raw("<imageState>available</imageState>");
    xml.text("imageOwnerId", &image.owner);
    xml.text("creationDate", &image.creation_date);
    if let Some(alias) = image.owner_alias() {
        xml.text("imageOwnerAlias", alias);
    }
    xml.plain("isPublic", image.is_public());
    xml.raw("<architecture>x86_64</architecture><imageType>machine</imageType>");
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
}

pub(super) fn describe_regions(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let names = request.form.list("RegionName");
    let shows_all = request.form.flag("AllRegions")? || !names.is_empty();
    let regions: Vec<(&'static str, &'static str)> = request.world.with_ec2(|ec2, now| {
        ec2.region(request.region, now)?;
        let status = |region| match (REGIONS.contains(&region), ec2.has_region(region)) {
            (true, _) => "opt-in-not-required",
            (false, true) => "opted-in",
            (false, false) => "not-opted-in",
        };
        Ok::<_, AwsError>(all_regions().map(|region| (region, status(region))).collect())
    })?;
    let shown = regions.into_iter().filter(|(_, status)| shows_all || *status != "not-opted-in");
    let items = shown.map(|(region, status)| {
        Item::new(region, |xml| {
            xml.text("regionName", region);
            xml.plain("regionEndpoint", format_args!("ec2.{region}.amazonaws.com"));
            xml.text("optInStatus", status);
        })
    });
    request.respond_items("DescribeRegions", "regionInfo", items.collect(), &names, |unknown| {
        AwsError::new("InvalidParameterValue", format!("Invalid region provided: {unknown}"))
    })
}

pub(super) fn describe_availability_zones(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (names, ids) = (form.list("ZoneName"), form.list("ZoneId"));
    // Local zones, which this adds, are not modeled.
    form.flag("AllAvailabilityZones")?;
    request.world.with_ec2(|ec2, now| ec2.region(request.region, now).map(|_| ()))?;
    let region = request.region;
    let zones = ZONES.into_iter().zip(zone_ids(region)).map(|(letter, id)| (format!("{region}{letter}"), id));
    let mut selected = Vec::new();
    for (name, id) in zones {
        if ids.is_empty() || ids.contains(&id) {
            selected.push(Item::new(&name, |xml| {
                xml.text("optInStatus", if REGIONS.contains(&region) { "opt-in-not-required" } else { "opted-in" });
                xml.raw("<messageSet/>");
                xml.text("regionName", region);
                xml.text("zoneName", &name);
                xml.text("zoneId", &id);
                xml.plain("groupName", format_args!("{region}-zg-1"));
                xml.plain("groupLongName", format_args!("{region} 1"));
                xml.text("networkBorderGroup", region);
                xml.raw("<zoneType>availability-zone</zoneType><zoneState>available</zoneState>");
            }));
        }
    }
    let invalid = |zone: &str| AwsError::new("InvalidParameterValue", format!("Invalid availability zone: [{zone}]"));
    if let Some(unknown) = ids.iter().find(|id| !zone_ids(region).contains(id)) {
        return Err(invalid(unknown));
    }
    request.respond_items("DescribeAvailabilityZones", "availabilityZoneInfo", selected, &names, invalid)
}

/// Limits of the account, by name.
const ATTRIBUTES: [(&str, &[&str]); 6] = [
    ("default-vpc", &[]),
    ("max-elastic-ips", &["5"]),
    ("max-instances", &["1000"]),
    ("supported-platforms", &["VPC"]),
    ("vpc-max-elastic-ips", &["5"]),
    ("vpc-max-security-groups-per-interface", &["5"]),
];

pub(super) fn describe_account_attributes(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let names = request.form.list("AttributeName");
    let default = request.world.with_ec2(|ec2, now| {
        let catalog = &ec2.region(request.region, now)?.catalog;
        let vpc = catalog.vpcs_of(request.account).find(|vpc| vpc.is_default);
        Ok::<_, AwsError>(vpc.map_or_else(|| "none".to_owned(), |vpc| vpc.id.clone()))
    })?;
    let items = ATTRIBUTES.iter().map(|(name, values)| {
        Item::new(*name, |xml| {
            xml.text("attributeName", name);
            xml.element("attributeValueSet", |xml| {
                let values = if values.is_empty() { &[&*default] } else { *values };
                for value in values {
                    xml.element("item", |xml| xml.text("attributeValue", value));
                }
            });
        })
    });
    request.respond_items("DescribeAccountAttributes", "accountAttributeSet", items.collect(), &names, |unknown| {
        AwsError::invalid_value(unknown, "attributeName")
    })
}

pub(super) fn create_tags(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let ids = form.list("ResourceId");
    if ids.is_empty() {
        return Err(AwsError::missing("resourceIdSet"));
    }
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
    let ids = form.list("ResourceId");
    if ids.is_empty() {
        return Err(AwsError::missing("resourceIdSet"));
    }
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
    let sent = form.sent_filters()?;
    let filters = Described::parse("DescribeTags", &sent)?;
    let (page, intent) = (form.page()?, form.intent()?);
    let passes = |tag: &TaggedResource| {
        filters.is_empty() || {
            let mut xml = Xml::fragment();
            tag_fields(&mut xml, tag);
            // `tag:<key>` and `tag` are filters here, too.
            xml.element("tagSet", |xml| {
                xml.element("item", |xml| {
                    xml.text("key", &tag.key);
                    xml.text("value", &tag.value);
                });
            });
            filters.match_all(&xml.finish())
        }
    };
    let page = request.world.with_ec2(|ec2, now| {
        let page = ec2.region(request.region, now)?.list_tags(page, request.view, now, passes);
        intent.proceed()?;
        Ok::<_, AwsError>(page)
    })?;
    Ok(request.respond("DescribeTags", page.items.len() * 192, |xml| {
        xml.element("tagSet", |xml| {
            for tag in &page.items {
                xml.element("item", |xml| tag_fields(xml, tag));
            }
        });
        if let Some(token) = &page.next_token {
            xml.text("nextToken", token);
        }
    }))
}

fn tag_fields(xml: &mut Xml, tag: &TaggedResource) {
    xml.text("resourceId", &tag.resource_id);
    xml.text("resourceType", tag.resource_type);
    xml.text("key", &tag.key);
    xml.text("value", &tag.value);
}

fn tag_members(form: &Form<'_>) -> Result<Vec<String>, AwsError> {
    let members = form.members("Tag");
    if members.is_empty() { Err(AwsError::missing("Tag")) } else { Ok(members) }
}
