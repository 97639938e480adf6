//! Attributes of instances that can be read and changed after the launch.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::instance_xml::{block_devices, flag, group_set, metadata_options};
use super::parse_launch::{combination, metadata};
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, Instance, InstanceState, Intent, Monitoring, Protection, Region, not_found};

/// Attributes of DescribeInstanceAttribute. Attributes of other kinds of instances are never set here.
const ATTRIBUTES: [&str; 16] = [
    "blockDeviceMapping",
    "disableApiStop",
    "disableApiTermination",
    "ebsOptimized",
    "enaSupport",
    "enclaveOptions",
    "groupSet",
    "instanceInitiatedShutdownBehavior",
    "instanceType",
    "kernel",
    "productCodes",
    "ramdisk",
    "rootDeviceName",
    "sourceDestCheck",
    "sriovNetSupport",
    "userData",
];

fn find(request: &Request<'_>, region: &Region, now: DateTime<Utc>) -> Result<Instance, AwsError> {
    let id = request.form.need("InstanceId")?.to_owned();
    let found = region.find_all(&[id], request.view, now)?;
    found.first().map(|instance| (**instance).clone()).ok_or_else(|| not_found("i-"))
}

pub(super) fn describe(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let attribute = request.form.need("Attribute")?;
    if !ATTRIBUTES.contains(&attribute) {
        return Err(AwsError::invalid_value(attribute, "attribute"));
    }
    let intent = request.form.intent()?;
    let instance = request.world.with_ec2(|ec2, now| {
        let instance = find(request, ec2.region(request.region, now)?, now)?;
        intent.proceed()?;
        Ok::<_, AwsError>(instance)
    })?;
    let options = &*instance.options;
    Ok(request.respond("DescribeInstanceAttribute", 512, |xml| {
        xml.text("instanceId", &instance.id);
        let text = |xml: &mut Xml, value: &str| xml.element(attribute, |xml| xml.text("value", value));
        let boolean = |xml: &mut Xml, value: bool| xml.element(attribute, |xml| flag(xml, "value", value));
        match attribute {
            "blockDeviceMapping" => xml.element(attribute, |xml| block_devices(xml, &instance)),
            "disableApiStop" => boolean(xml, options.stop_protection == Protection::On),
            "disableApiTermination" => boolean(xml, options.termination_protection == Protection::On),
            "ebsOptimized" => boolean(xml, options.ebs_optimized),
            "enaSupport" => boolean(xml, true),
            "enclaveOptions" => xml.element(attribute, |xml| flag(xml, "enabled", false)),
            "groupSet" => group_set(xml, &instance.groups),
            "instanceInitiatedShutdownBehavior" => text(xml, &options.shutdown_behavior),
            "instanceType" => text(xml, &instance.instance_type),
            "rootDeviceName" => text(xml, options.volumes.first().map_or("", |root| &root.device)),
            "sourceDestCheck" => boolean(xml, options.source_dest_check),
            "userData" => match &options.user_data {
                Some(data) => text(xml, data),
                None => xml.raw("<userData/>"),
            },
            // Kernel, RAM disk, product codes and SR-IOV: no instance of this cloud has one.
            empty => xml.element(empty, |_| ()),
        }
    }))
}

/// Name of the attribute that a request changes, with its value.
struct Change<'a> {
    name: &'a str,
    value: &'a str,
}

/// Attributes that a request can change, with their parameter.
const CHANGES: [(&str, &str); 9] = [
    ("disableApiStop", "DisableApiStop.Value"),
    ("disableApiTermination", "DisableApiTermination.Value"),
    ("ebsOptimized", "EbsOptimized.Value"),
    ("enaSupport", "EnaSupport.Value"),
    ("enclaveOptions", "EnclaveOptions.Enabled"),
    ("instanceInitiatedShutdownBehavior", "InstanceInitiatedShutdownBehavior.Value"),
    ("instanceType", "InstanceType.Value"),
    ("sourceDestCheck", "SourceDestCheck.Value"),
    ("userData", "UserData.Value"),
];

pub(super) fn modify(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let mut changes: Vec<Change<'_>> = Vec::new();
    for (name, parameter) in CHANGES {
        if let Some(value) = form.get(parameter) {
            changes.push(Change { name, value });
        }
    }
    match (form.optional("Attribute"), form.get("Value")) {
        (Some(name), Some(value)) if CHANGES.iter().any(|(known, _)| *known == name) => {
            changes.push(Change { name, value });
        }
        (Some("groupSet" | "blockDeviceMapping"), None) => {}
        (Some(name), _) => return Err(AwsError::invalid_value(name, "attribute")),
        (None, Some(_)) => return Err(combination("The parameter value requires the parameter attribute.")),
        (None, None) => {}
    }
    let groups = form.list("GroupId");
    let devices = form.members("BlockDeviceMapping");
    match changes.len() + usize::from(!groups.is_empty()) + usize::from(!devices.is_empty()) {
        0 => return Err(combination("No attributes specified.")),
        1 => {}
        _ => return Err(combination("Fields for multiple attribute types specified")),
    }
    let intent = form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let mut instance = find(request, region, now)?;
        for change in &changes {
            apply(&mut instance, change, now)?;
        }
        if !groups.is_empty() {
            let subnet = region.find_subnet(&instance.owner, &instance.subnet_id)?;
            instance.groups = region.find_groups(&instance.owner, &groups, subnet)?.into();
        }
        for device in &devices {
            let name = form.need(&format!("{device}.DeviceName"))?;
            let deletes = form.flag(&format!("{device}.Ebs.DeleteOnTermination"))?;
            let options = Arc::make_mut(&mut instance.options);
            let Some(volume) = options.volumes.iter_mut().find(|volume| volume.device == name) else {
                let message = format!("No device is currently mapped at {name}");
                return Err(AwsError::new("InvalidInstanceAttributeValue", message));
            };
            volume.delete_on_termination = deletes;
        }
        intent.proceed()?;
        region.replace(instance);
        Ok(())
    })?;
    Ok(request.respond_true("ModifyInstanceAttribute"))
}

fn apply(instance: &mut Instance, change: &Change<'_>, now: DateTime<Utc>) -> Result<(), AwsError> {
    let Change { name, value } = *change;
    let boolean = || match value {
        "true" | "True" => Ok(true),
        "false" | "False" => Ok(false),
        other => Err(AwsError::invalid_value(other, name)),
    };
    let protection = || Ok::<_, AwsError>(if boolean()? { Protection::On } else { Protection::Off });
    let needs_stop = matches!(name, "ebsOptimized" | "instanceType" | "userData" | "enaSupport" | "enclaveOptions");
    if needs_stop && instance.state(now) != InstanceState::Stopped {
        let message = format!("The instance '{}' is not in the 'stopped' state.", instance.id);
        return Err(AwsError::new("IncorrectInstanceState", message));
    }
    if name == "instanceType" {
        instance.instance_type = crate::world::checked_type(value)
            .map_err(|error| AwsError::new("InvalidInstanceAttributeValue", error.message))?
            .into();
        return Ok(());
    }
    let unsupported = |expected: &str| {
        let message =
            format!("The value '{value}' of attribute {name} is not supported by this cloud: expected {expected}");
        Err(AwsError::new("UnsupportedOperation", message))
    };
    match (name, boolean()) {
        ("enaSupport", Ok(false)) => return unsupported("true"),
        ("enclaveOptions", Ok(true)) => return unsupported("false"),
        ("instanceInitiatedShutdownBehavior", _) if !matches!(value, "stop" | "terminate") => {
            return Err(AwsError::invalid_value(value, name));
        }
        ("instanceInitiatedShutdownBehavior" | "userData", _) => {}
        (_, parsed) => drop(parsed?),
    }
    let options = Arc::make_mut(&mut instance.options);
    match name {
        "disableApiStop" => options.stop_protection = protection()?,
        "disableApiTermination" => options.termination_protection = protection()?,
        "ebsOptimized" => options.ebs_optimized = boolean()?,
        "sourceDestCheck" => options.source_dest_check = boolean()?,
        "instanceInitiatedShutdownBehavior" => value.clone_into(&mut options.shutdown_behavior),
        "userData" => options.user_data = (!value.is_empty()).then(|| value.to_owned()),
        // The only accepted value is what every instance has.
        _ => {}
    }
    Ok(())
}

pub(super) fn reset(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let attribute = request.form.need("Attribute")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let mut instance = find(request, region, now)?;
        match attribute {
            "sourceDestCheck" => Arc::make_mut(&mut instance.options).source_dest_check = true,
            "kernel" | "ramdisk" => {
                let message = format!("The attribute {attribute} is not supported for HVM images.");
                return Err(AwsError::new("UnsupportedOperation", message));
            }
            other => return Err(AwsError::invalid_value(other, "attribute")),
        }
        intent.proceed()?;
        region.replace(instance);
        Ok(())
    })?;
    Ok(request.respond_true("ResetInstanceAttribute"))
}

pub(super) fn modify_metadata(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let intent = request.form.intent()?;
    let instance = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let mut instance = find(request, region, now)?;
        let changed = metadata(request.form, "", &instance.options.metadata)?;
        intent.proceed()?;
        Arc::make_mut(&mut instance.options).metadata = changed;
        region.replace(instance.clone());
        Ok::<_, AwsError>(instance)
    })?;
    Ok(request.respond("ModifyInstanceMetadataOptions", 512, |xml| {
        xml.text("instanceId", &instance.id);
        xml.element("instanceMetadataOptions", |xml| metadata_options(xml, &instance.options.metadata));
    }))
}

pub(super) fn set_monitoring(
    request: &Request<'_>,
    action: &str,
    monitoring: Monitoring,
) -> Result<ResponseBody, AwsError> {
    let ids = request.form.list("InstanceId");
    if ids.is_empty() {
        return Err(combination("No instances specified"));
    }
    let intent: Intent = request.form.intent()?;
    let changed = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let found = region.find_all(&ids, request.view, now)?;
        intent.proceed()?;
        for instance in &found {
            region.replace(Instance { monitoring, ..(**instance).clone() });
        }
        Ok::<_, AwsError>(found)
    })?;
    // EC2 reports the transition.
    let state = match monitoring {
        Monitoring::Basic => "disabling",
        Monitoring::Detailed => "pending",
    };
    Ok(request.respond(action, changed.len() * 160, |xml| {
        xml.element("instancesSet", |xml| {
            for instance in &changed {
                xml.element("item", |xml| {
                    xml.text("instanceId", &instance.id);
                    xml.element("monitoring", |xml| xml.text("state", state));
                });
            }
        });
    }))
}
