//! DescribeInstanceTypes and DescribeInstanceTypeOfferings, of the catalog that launches use. Every type is in every region
//! and zone.

use super::described::Item;
use super::instance_xml::flag;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, Disk, InstanceType, Storage, Trait, ZONES, zone_ids};

pub(super) fn describe_types(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("InstanceType");
    // Every type is in every region, so that the flag adds none.
    request.form.flag("IncludeUnsupportedInRegion")?;
    request.world.with_ec2(|ec2, now| ec2.region(request.region, now).map(|_| ()))?;
    let items = InstanceType::all().map(|one| Item::new(one.name(), |xml| type_fields(xml, &one)));
    request.respond_items("DescribeInstanceTypes", "instanceTypeSet", items.collect(), &ids, |unknown| {
        let message = format!("The following supplied instance types do not exist: [{unknown}]");
        AwsError::new("InvalidInstanceType", message)
    })
}

fn type_fields(xml: &mut Xml, one: &InstanceType) {
    xml.text("instanceType", one.name());
    flag(xml, "currentGeneration", one.has(Trait::CurrentGeneration));
    flag(xml, "freeTierEligible", one.has(Trait::FreeTier));
    list(xml, "supportedUsageClasses", &one.usage_classes());
    list(xml, "supportedRootDeviceTypes", &one.root_devices());
    list(xml, "supportedVirtualizationTypes", &one.virtualization());
    flag(xml, "bareMetal", one.has(Trait::BareMetal));
    optional(xml, "hypervisor", one.hypervisor());
    xml.element("processorInfo", |xml| {
        list(xml, "supportedArchitectures", &one.architectures());
        optional(xml, "sustainedClockSpeedInGhz", one.clock_speed());
        list(xml, "supportedFeatures", &one.processor_features());
        optional(xml, "manufacturer", one.manufacturer());
    });
    xml.element("vCpuInfo", |xml| {
        let [vcpus, cores, threads] = one.cpu();
        xml.plain("defaultVCpus", vcpus);
        xml.plain("defaultCores", cores);
        xml.plain("defaultThreadsPerCore", threads);
        let valid: Vec<String> = one.valid_cores().iter().map(ToString::to_string).collect();
        list(xml, "validCores", &valid.iter().map(String::as_str).collect::<Vec<_>>());
        list(xml, "validThreadsPerCore", &one.valid_threads());
    });
    xml.element("memoryInfo", |xml| xml.text("sizeInMiB", one.memory()));
    let storage = one.storage();
    flag(xml, "instanceStorageSupported", storage.is_some());
    if let Some(Storage { size, encryption, nvme, disks }) = storage {
        xml.element("instanceStorageInfo", |xml| {
            optional(xml, "totalSizeInGB", size);
            xml.element("disks", |xml| {
                for Disk { count, size, kind } in disks {
                    xml.element("item", |xml| {
                        xml.text("sizeInGB", size);
                        xml.text("count", count);
                        xml.text("type", kind);
                    });
                }
            });
            optional(xml, "nvmeSupport", nvme);
            optional(xml, "encryptionSupport", encryption);
        });
    }
    ebs(xml, one);
    network(xml, one);
    xml.element("placementGroupInfo", |xml| list(xml, "supportedStrategies", &one.placement_strategies()));
    flag(xml, "hibernationSupported", one.has(Trait::Hibernation));
    flag(xml, "burstablePerformanceSupported", one.has(Trait::Burstable));
    flag(xml, "dedicatedHostsSupported", one.has(Trait::DedicatedHosts));
    flag(xml, "autoRecoverySupported", one.has(Trait::AutoRecovery));
    list(xml, "supportedBootModes", &one.boot_modes());
    let [enclaves, tpm, migration] = one.nitro();
    optional(xml, "nitroEnclavesSupport", enclaves);
    optional(xml, "nitroTpmSupport", tpm);
    if !one.tpm_versions().is_empty() {
        xml.element("nitroTpmInfo", |xml| list(xml, "supportedVersions", &one.tpm_versions()));
    }
    optional(xml, "rebootMigrationSupport", migration);
}

fn ebs(xml: &mut Xml, one: &InstanceType) {
    xml.element("ebsInfo", |xml| {
        let [optimized, encryption, nvme, attachments, limit] = one.ebs();
        optional(xml, "ebsOptimizedSupport", optimized);
        optional(xml, "encryptionSupport", encryption);
        if let Some(values) = one.ebs_optimized() {
            let names = [
                "baselineBandwidthInMbps",
                "baselineThroughputInMBps",
                "baselineIops",
                "maximumBandwidthInMbps",
                "maximumThroughputInMBps",
                "maximumIops",
            ];
            xml.element("ebsOptimizedInfo", |xml| {
                names.into_iter().zip(values).for_each(|(name, value)| optional(xml, name, value));
            });
        }
        optional(xml, "nvmeSupport", nvme);
        optional(xml, "maximumEbsAttachments", attachments);
        optional(xml, "attachmentLimitType", limit);
    });
}

fn network(xml: &mut Xml, one: &InstanceType) {
    xml.element("networkInfo", |xml| {
        let [performance, ena, efa, encrypts, queues, ipv4, ipv6, has_ipv6, cards, interfaces, weightings] =
            one.network();
        optional(xml, "networkPerformance", performance);
        optional(xml, "maximumNetworkInterfaces", interfaces);
        optional(xml, "maximumNetworkCards", cards);
        xml.raw("<defaultNetworkCardIndex>0</defaultNetworkCardIndex>");
        optional(xml, "ipv4AddressesPerInterface", ipv4);
        optional(xml, "ipv6AddressesPerInterface", ipv6);
        flag(xml, "ipv6Supported", has_ipv6.is_some());
        optional(xml, "enaSupport", ena);
        flag(xml, "efaSupported", efa.is_some());
        if let Some(efa) = efa {
            xml.element("efaInfo", |xml| xml.text("maximumEfaInterfaces", efa));
        }
        flag(xml, "encryptionInTransitSupported", encrypts.is_some());
        list(xml, "bandwidthWeightings", &weightings.map(|all| all.split('+').collect::<Vec<_>>()).unwrap_or_default());
        optional(xml, "flexibleEnaQueuesSupport", queues);
    });
}

fn optional(xml: &mut Xml, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        xml.text(name, value);
    }
}

/// Encodes a list, or nothing if it is empty.
fn list(xml: &mut Xml, name: &str, items: &[&str]) {
    if !items.is_empty() {
        xml.element(name, |xml| items.iter().for_each(|item| xml.text("item", item)));
    }
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
        items.extend(InstanceType::all().map(|one| {
            Item::new(one.name(), |xml| {
                xml.text("instanceType", one.name());
                xml.text("locationType", kind);
                xml.text("location", location);
            })
        }));
    }
    request.respond_items("DescribeInstanceTypeOfferings", "instanceTypeOfferingSet", items, &[], |unknown| {
        AwsError::invalid_value(unknown, "instanceType")
    })
}
