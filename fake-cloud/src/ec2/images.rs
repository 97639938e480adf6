//! DescribeImages.

use super::instance_xml::tag_set;
use super::{Request, Xml};
use crate::answer::Answer;
use crate::world::{ACCOUNT, AwsError, Filters, Image, ImageField, Page, is_well_formed};

pub(super) fn describe_images(request: &Request<'_>) -> Result<Answer, AwsError> {
    let form = request.form;
    let (ids, owners) = (form.list("ImageId"), form.list("Owner"));
    let filters: Filters<ImageField> = form.filters()?;
    let (asked, intent) = (form.page()?, form.intent()?);
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
        let is_asked = |image: &&Image| {
            (ids.is_empty() || ids.contains(&image.id)) && is_owned(image, &owners) && filters.pass(image, now)
        };
        let numbered = images.iter().filter(is_asked).cloned().enumerate().map(|(place, image)| (place as u64, image));
        Ok(Page::collect(asked, numbered.skip_while(|(place, _)| *place < asked.from)))
    })?;
    Ok(request.answer("DescribeImages", page.items.len() * 1500, |xml| {
        xml.element("imagesSet", |xml| {
            for image in &page.items {
                encode(xml, image);
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
        // The CML images are neither Amazon's nor from its marketplace.
        "amazon" | "aws-marketplace" | "aws-backup-vault" => false,
        id => image.owner == id,
    };
    owners.is_empty() || owners.iter().any(is_owner)
}

fn encode(xml: &mut Xml, image: &Image) {
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
