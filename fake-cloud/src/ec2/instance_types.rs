//! DescribeInstanceTypes and DescribeInstanceTypeOfferings: the types of a few families.
//!
//! RunInstances accepts every well-formed type, because AWS adds types faster than a list could follow.

use super::Request;
use super::described::Item;
use super::instance_xml::flag;
use crate::response::ResponseBody;
use crate::world::{AwsError, ZONES, zone_ids};

/// A family: name, GiB of memory per vCPU, whether it is burstable, and its sizes.
struct Family {
    name: &'static str,
    memory: u32,
    sizes: &'static [Size],
}

/// A size: name, number of vCPUs, and whether it is a whole host.
type Size = (&'static str, u32);

const GENERAL: &[Size] = &[
    ("large", 2),
    ("xlarge", 4),
    ("2xlarge", 8),
    ("4xlarge", 16),
    ("8xlarge", 32),
    ("12xlarge", 48),
    ("16xlarge", 64),
    ("24xlarge", 96),
    ("metal", 96),
];
const ZN: &[Size] =
    &[("large", 2), ("xlarge", 4), ("2xlarge", 8), ("3xlarge", 12), ("6xlarge", 24), ("12xlarge", 48), ("metal", 48)];

const FAMILIES: [Family; 10] = [
    Family { name: "c5", memory: 2, sizes: GENERAL },
    Family { name: "c6i", memory: 2, sizes: GENERAL },
    Family { name: "c7i", memory: 2, sizes: GENERAL },
    Family { name: "m5", memory: 4, sizes: GENERAL },
    Family { name: "m5zn", memory: 4, sizes: ZN },
    Family { name: "m6i", memory: 4, sizes: GENERAL },
    Family { name: "m7i", memory: 4, sizes: GENERAL },
    Family { name: "r5", memory: 8, sizes: GENERAL },
    Family { name: "r6i", memory: 8, sizes: GENERAL },
    Family { name: "z1d", memory: 8, sizes: ZN },
];

/// Sizes of the burstable family t3, with their memory in MiB.
const BURSTABLE: [(&str, u32, u32); 7] = [
    ("nano", 2, 512),
    ("micro", 2, 1024),
    ("small", 2, 2048),
    ("medium", 2, 4096),
    ("large", 2, 8192),
    ("xlarge", 4, 16_384),
    ("2xlarge", 8, 32_768),
];

struct InstanceType {
    name: String,
    vcpus: u32,
    memory_mib: u32,
}

fn all() -> impl Iterator<Item = InstanceType> {
    let listed = FAMILIES.iter().flat_map(|family| {
        family.sizes.iter().map(|(size, vcpus)| InstanceType {
            name: format!("{}.{size}", family.name),
            vcpus: *vcpus,
            memory_mib: vcpus * family.memory * 1024,
        })
    });
    let burstable = BURSTABLE.iter().map(|(size, vcpus, memory_mib)| InstanceType {
        name: format!("t3.{size}"),
        vcpus: *vcpus,
        memory_mib: *memory_mib,
    });
    listed.chain(burstable)
}

/// Returns the cores and the threads per core of a type; one core if the type is not listed.
pub(super) fn default_cpu(instance_type: &str) -> (u32, u32) {
    let size = instance_type.split_once('.').map_or("", |(_, size)| size);
    let family = FAMILIES.iter().find(|family| {
        instance_type.starts_with(family.name) && { instance_type.as_bytes().get(family.name.len()) == Some(&b'.') }
    });
    let vcpus = match family {
        Some(family) => family.sizes.iter().find(|(name, _)| *name == size).map(|(_, vcpus)| *vcpus),
        None if instance_type.starts_with("t3.") => BURSTABLE.iter().find(|one| one.0 == size).map(|one| one.1),
        None => None,
    };
    (vcpus.unwrap_or(2) / 2, 2)
}

pub(super) fn describe_types(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("InstanceType");
    // Every type is in every region, so that the flag adds none.
    request.form.flag("IncludeUnsupportedInRegion")?;
    request.world.with_ec2(|ec2, now| ec2.region(request.region, now).map(|_| ()))?;
    let items = all().map(|one| Item::new(&one.name, |xml| type_fields(xml, &one)));
    request.respond_items("DescribeInstanceTypes", "instanceTypeSet", items.collect(), &ids, |unknown| {
        let message = format!("The following supplied instance types do not exist: [{unknown}]");
        AwsError::new("InvalidInstanceType", message)
    })
}

fn type_fields(xml: &mut super::Xml, one: &InstanceType) {
    let is_metal = one.name.ends_with(".metal");
    let is_burstable = one.name.starts_with("t3.");
    xml.text("instanceType", &one.name);
    xml.raw("<currentGeneration>true</currentGeneration>");
    flag(xml, "freeTierEligible", one.name == "t3.micro");
    xml.raw("<supportedUsageClasses><item>on-demand</item><item>spot</item></supportedUsageClasses>");
    xml.raw("<supportedRootDeviceTypes><item>ebs</item></supportedRootDeviceTypes>");
    xml.raw("<supportedVirtualizationTypes><item>hvm</item></supportedVirtualizationTypes>");
    flag(xml, "bareMetal", is_metal);
    if !is_metal {
        xml.raw("<hypervisor>nitro</hypervisor>");
    }
    xml.raw("<processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures>");
    xml.raw("<manufacturer>Intel</manufacturer></processorInfo>");
    xml.element("vCpuInfo", |xml| {
        xml.plain("defaultVCpus", one.vcpus);
        xml.plain("defaultCores", one.vcpus / 2);
        xml.raw("<defaultThreadsPerCore>2</defaultThreadsPerCore>");
    });
    xml.element("memoryInfo", |xml| xml.plain("sizeInMiB", one.memory_mib));
    flag(xml, "instanceStorageSupported", one.name.starts_with("z1d."));
    xml.raw(
        "<ebsInfo><ebsOptimizedSupport>default</ebsOptimizedSupport><encryptionSupport>supported</encryptionSupport>",
    );
    xml.raw("<nvmeSupport>required</nvmeSupport></ebsInfo><networkInfo><maximumNetworkCards>1</maximumNetworkCards>");
    xml.raw("<defaultNetworkCardIndex>0</defaultNetworkCardIndex><ipv6Supported>true</ipv6Supported>");
    xml.raw("<enaSupport>required</enaSupport></networkInfo>");
    flag(xml, "hibernationSupported", !is_metal);
    flag(xml, "burstablePerformanceSupported", is_burstable);
    flag(xml, "dedicatedHostsSupported", !is_burstable);
    flag(xml, "autoRecoverySupported", !is_metal);
    xml.raw("<supportedBootModes><item>legacy-bios</item><item>uefi</item></supportedBootModes>");
}

pub(super) fn describe_offerings(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let kind = request.form.optional("LocationType").unwrap_or("region");
    let region = request.region;
    request.world.with_ec2(|ec2, now| ec2.region(region, now).map(|_| ()))?;
    let locations: Vec<String> = match kind {
        "region" => vec![region.to_owned()],
        "availability-zone" => ZONES.map(|letter| format!("{region}{letter}")).to_vec(),
        "availability-zone-id" => zone_ids(region).to_vec(),
        other => return Err(AwsError::invalid_value(other, "locationType")),
    };
    let mut items = Vec::new();
    for location in &locations {
        items.extend(all().map(|one| {
            Item::new(&one.name, |xml| {
                xml.text("instanceType", &one.name);
                xml.text("locationType", kind);
                xml.text("location", location);
            })
        }));
    }
    request.respond_items("DescribeInstanceTypeOfferings", "instanceTypeOfferingSet", items, &[], |unknown| {
        AwsError::invalid_value(unknown, "instanceType")
    })
}
