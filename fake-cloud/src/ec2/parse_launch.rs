//! Parameters of RunInstances, alone or on top of a launch template.

use std::net::Ipv4Addr;
use std::sync::Arc;

use chrono::DateTime;

use super::Request;
use super::form::Form;
use crate::world::{
    AwsError, InstanceOptions, InterfaceSpec, InterruptionBehavior, Keeps, LaunchRequest, Market, MetadataOptions,
    Monitoring, Protection, SpotOptions, VolumeSpec,
};

/// Maximum length of user data in base64, which is 16 KB decoded.
const MAX_USER_DATA: usize = 16 * 1024 * 4 / 3 + 4;
/// Volume types of EBS.
pub(super) const VOLUME_TYPES: [&str; 7] = ["gp2", "gp3", "io1", "io2", "sc1", "st1", "standard"];

pub(super) fn combination(message: impl Into<String>) -> AwsError {
    AwsError::new("InvalidParameterCombination", message)
}

/// Reads the launch of a form that has the parameters of its launch template already.
pub(super) fn launch_request(request: &Request<'_>, form: &Form<'_>) -> Result<LaunchRequest, AwsError> {
    let user_data = form.optional("UserData");
    if user_data.is_some_and(|data| data.len() > MAX_USER_DATA) {
        return Err(AwsError::new("InvalidParameterValue", "User data is limited to 16384 bytes"));
    }
    let interfaces = interfaces(form)?;
    let primary = interfaces.first().cloned().unwrap_or_default();
    let mut groups = form.list("SecurityGroupId");
    groups.extend(form.list("SecurityGroup"));
    groups.extend(primary.groups.iter().cloned());
    let optional = |name: &str| form.optional(name).map(str::to_owned);
    let zone = optional("Placement.AvailabilityZone").or_else(|| optional("Placement.AvailabilityZoneId"));
    let mut launch = LaunchRequest {
        account: Arc::clone(request.account),
        instance_type: form.get("InstanceType").unwrap_or("m1.small").to_owned(),
        min_count: form.need_count("MinCount")?,
        max_count: form.need_count("MaxCount")?,
        subnet_id: optional("SubnetId").or_else(|| primary.subnet_id.clone()),
        groups,
        availability_zone: zone,
        key_name: optional("KeyName"),
        profile: optional("IamInstanceProfile.Arn").or_else(|| optional("IamInstanceProfile.Name")),
        monitoring: if form.flag("Monitoring.Enabled")? { Monitoring::Detailed } else { Monitoring::Basic },
        client_token: optional("ClientToken"),
        options: options(form, interfaces)?,
        ..LaunchRequest::new(form.need("ImageId")?)
    };
    let types = ["instance", "volume", "network-interface", "spot-instances-request"];
    for (kind, tags) in form.tag_specifications(&types)? {
        match kind {
            "instance" => launch.tags = tags,
            "volume" => launch.volume_tags = tags,
            "network-interface" => launch.interface_tags = tags,
            _ => launch.spot_tags = tags,
        }
    }
    if !launch.spot_tags.is_empty() && launch.options.spot().is_none() {
        let message = "'spot-instances-request' is not a valid taggable resource type for an on-demand launch.";
        return Err(AwsError::new("InvalidParameterValue", message));
    }
    Ok(launch)
}

fn options(form: &Form<'_>, interfaces: Vec<InterfaceSpec>) -> Result<InstanceOptions, AwsError> {
    let defaults = InstanceOptions::default();
    let text = |name: &str, default: &str| form.optional(name).unwrap_or(default).to_owned();
    let protection = |name: &str| Ok::<_, AwsError>(if form.flag(name)? { Protection::On } else { Protection::Off });
    let public_address = interfaces.first().and_then(|primary| primary.associate_public_address);
    let mut options = defaults.clone();
    options.market = market(form)?;
    options.tenancy = text("Placement.Tenancy", &defaults.tenancy);
    options.termination_protection = protection("DisableApiTermination")?;
    options.stop_protection = protection("DisableApiStop")?;
    options.shutdown_behavior = text("InstanceInitiatedShutdownBehavior", &defaults.shutdown_behavior);
    options.ebs_optimized = form.flag("EbsOptimized")?;
    options.hibernation = form.flag("HibernationOptions.Configured")?;
    options.public_address = public_address.unwrap_or(true);
    options.cpu = match (form.number("CpuOptions.CoreCount")?, form.number("CpuOptions.ThreadsPerCore")?) {
        (None, None) => None,
        (Some(cores), Some(threads @ 1..=2)) if cores > 0 => Some((cores, threads)),
        (Some(_), Some(_)) => return Err(AwsError::new("InvalidParameterValue", "The CPU options are invalid.")),
        (Some(_), None) | (None, Some(_)) => {
            return Err(combination("You must specify both CoreCount and ThreadsPerCore."));
        }
    };
    options.metadata = metadata(form, "MetadataOptions.", &defaults.metadata)?;
    options.user_data = form.optional("UserData").map(str::to_owned);
    options.auto_recovery = text("MaintenanceOptions.AutoRecovery", &defaults.auto_recovery);
    options.capacity_preference =
        text("CapacityReservationSpecification.CapacityReservationPreference", &defaults.capacity_preference);
    options.volumes = volumes(form)?;
    if !interfaces.is_empty() {
        options.interfaces = interfaces;
    } else if let Some(address) = form.optional("PrivateIpAddress") {
        options.interfaces[0].private_ip = Some(parse_address(address)?);
    }
    Ok(options)
}

/// Reads options of the metadata service on top of `current`. The prefix ends with a dot or is empty.
pub(super) fn metadata(form: &Form<'_>, prefix: &str, current: &MetadataOptions) -> Result<MetadataOptions, AwsError> {
    let text = |name: &str, default: &str| form.optional(&format!("{prefix}{name}")).unwrap_or(default).to_owned();
    let name = format!("{prefix}HttpPutResponseHopLimit");
    let hop_limit = form.number::<u8>(&name)?.unwrap_or(current.hop_limit);
    if !(1..=64).contains(&hop_limit) {
        return Err(AwsError::invalid_value(&hop_limit.to_string(), &name));
    }
    Ok(MetadataOptions {
        http_tokens: text("HttpTokens", &current.http_tokens),
        hop_limit,
        http_endpoint: text("HttpEndpoint", &current.http_endpoint),
        instance_tags: text("InstanceMetadataTags", &current.instance_tags),
    })
}

fn market(form: &Form<'_>) -> Result<Market, AwsError> {
    let option = |name: &str| form.optional(&format!("InstanceMarketOptions.SpotOptions.{name}"));
    let names = ["MaxPrice", "SpotInstanceType", "ValidUntil", "InstanceInterruptionBehavior"];
    if form.optional("InstanceMarketOptions.MarketType").is_none() {
        return match names.iter().find(|name| option(name).is_some()) {
            Some(_) => Err(combination("Spot options require the market type 'spot'.")),
            None => Ok(Market::OnDemand),
        };
    }
    if let Some(price) = option("MaxPrice")
        && !price.parse::<f64>().is_ok_and(|price| price > 0.0 && price.is_finite())
    {
        return Err(AwsError::invalid_value(price, "maxPrice"));
    }
    let valid_until = option("ValidUntil")
        .map(|text| DateTime::parse_from_rfc3339(text).map_err(|_| AwsError::invalid_value(text, "validUntil")))
        .transpose()?;
    Ok(Market::Spot(SpotOptions {
        kind: option("SpotInstanceType").unwrap_or("one-time").to_owned(),
        max_price: option("MaxPrice").map(str::to_owned),
        valid_until: valid_until.map(|time| time.to_utc()),
        interruption: match option("InstanceInterruptionBehavior") {
            Some("stop") => InterruptionBehavior::Stop,
            Some("hibernate") => InterruptionBehavior::Hibernate,
            Some(_) | None => InterruptionBehavior::Terminate,
        },
    }))
}

fn parse_address(text: &str) -> Result<Ipv4Addr, AwsError> {
    text.parse().map_err(|_| AwsError::new("InvalidParameterValue", format!("Invalid IPv4 address: {text}")))
}

/// Reads the network interfaces, ordered by device index.
fn interfaces(form: &Form<'_>) -> Result<Vec<InterfaceSpec>, AwsError> {
    let mut specs: Vec<InterfaceSpec> = Vec::new();
    for member in form.members("NetworkInterface") {
        let get = |name: &str| form.optional(&format!("{member}.{name}"));
        let device_index = form.number(&format!("{member}.DeviceIndex"))?;
        let deletes = form.optional_flag(&format!("{member}.DeleteOnTermination"))?;
        specs.push(InterfaceSpec {
            device_index: device_index.ok_or_else(|| AwsError::missing("deviceIndex"))?,
            description: get("Description").unwrap_or_default().to_owned(),
            keeps: if deletes == Some(false) { Keeps::Always } else { Keeps::Never },
            subnet_id: get("SubnetId").map(str::to_owned),
            groups: form.list(&format!("{member}.SecurityGroupId")),
            private_ip: get("PrivateIpAddress").map(parse_address).transpose()?,
            associate_public_address: form.optional_flag(&format!("{member}.AssociatePublicIpAddress"))?,
        });
    }
    if specs.is_empty() {
        return Ok(specs);
    }
    specs.sort_by_key(|spec| spec.device_index);
    if specs[0].device_index != 0 {
        let message = "When specifying network interfaces, you must include a device at index 0.";
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    if specs.windows(2).any(|pair| pair[0].device_index == pair[1].device_index) {
        let message = "Each network interface requires a unique device index.";
        return Err(AwsError::new("InvalidParameterValue", message));
    }
    if specs.iter().any(|spec| spec.keeps == Keeps::Always) {
        let message = "This cloud has no network interfaces without an instance: DeleteOnTermination must be true.";
        return Err(AwsError::new("UnsupportedOperation", message));
    }
    if specs.len() > 1 && specs.iter().any(|spec| spec.associate_public_address == Some(true)) {
        let message = "The associatePublicIPAddress parameter cannot be specified when launching with multiple network \
                       interfaces.";
        return Err(combination(message));
    }
    for (name, what) in [("SubnetId", "subnet ID"), ("PrivateIpAddress", "private IP address")] {
        if form.optional(name).is_some() {
            let message =
                format!("Network interfaces and an instance-level {what} may not be specified on the same request");
            return Err(combination(message));
        }
    }
    if !form.list("SecurityGroupId").is_empty() || !form.list("SecurityGroup").is_empty() {
        let message =
            "Network interfaces and an instance-level security groups may not be specified on the same request";
        return Err(combination(message));
    }
    Ok(specs)
}

/// Reads the block device mappings. Mappings of the root device change the root volume of the image.
fn volumes(form: &Form<'_>) -> Result<Vec<VolumeSpec>, AwsError> {
    let mut volumes = vec![VolumeSpec::root()];
    for member in form.members("BlockDeviceMapping") {
        let device = form.need(&format!("{member}.DeviceName"))?;
        let is_root = device == volumes[0].device;
        if form.get(&format!("{member}.NoDevice")).is_some() {
            if is_root {
                return Err(combination("The root device cannot be suppressed."));
            }
            continue;
        }
        if !is_root && volumes.iter().any(|volume| volume.device == device) {
            let message = format!("The device '{device}' is used in more than one block-device mapping");
            return Err(AwsError::new("InvalidBlockDeviceMapping", message));
        }
        let prefix = format!("{member}.Ebs.");
        let base =
            if is_root { volumes[0].clone() } else { VolumeSpec { device: device.to_owned(), ..empty_volume() } };
        let spec = volume(form, &prefix, "VolumeSize", base)?;
        if is_root {
            volumes[0] = spec;
        } else {
            volumes.push(spec);
        }
    }
    Ok(volumes)
}

/// A volume before its size is known.
pub(super) fn empty_volume() -> VolumeSpec {
    VolumeSpec {
        device: String::new(),
        size: 0,
        kind: "gp2".to_owned(),
        iops: None,
        throughput: None,
        ..VolumeSpec::root()
    }
}

/// Reads the options of a volume on top of `base`.
pub(super) fn volume(form: &Form<'_>, prefix: &str, size: &str, base: VolumeSpec) -> Result<VolumeSpec, AwsError> {
    let name = |name: &str| format!("{prefix}{name}");
    let kind = form.optional(&name("VolumeType")).unwrap_or(&base.kind).to_owned();
    if !VOLUME_TYPES.contains(&kind.as_str()) {
        return Err(AwsError::new("InvalidParameterValue", format!("Invalid volume type: {kind}")));
    }
    let snapshot_id = form.optional(&name("SnapshotId")).map(str::to_owned);
    // The only snapshots are those of images, and as large as their root volumes.
    let base = if snapshot_id.is_some() { VolumeSpec { size: VolumeSpec::root().size, ..base } } else { base };
    let wanted = form.number::<u32>(&name(size))?;
    let bytes = wanted.unwrap_or(base.size);
    if !(1..=65_536).contains(&bytes) {
        return Err(match wanted {
            Some(size) => AwsError::new("InvalidParameterValue", format!("Volume of {size}GiB is invalid.")),
            None => AwsError::new("MissingParameter", "The request must contain the parameter size or snapshotId"),
        });
    }
    if base.size > bytes {
        let message = format!("Volume of size {bytes}GB is smaller than snapshot, expect size>= {}GB", base.size);
        return Err(AwsError::new("InvalidBlockDeviceMapping", message));
    }
    let iops = form.number::<u32>(&name("Iops"))?;
    if iops.is_some() && !matches!(kind.as_str(), "gp3" | "io1" | "io2") {
        return Err(combination(format!("The parameter iops is not supported for {kind} volumes.")));
    }
    if iops.is_none() && matches!(kind.as_str(), "io1" | "io2") {
        return Err(AwsError::new("MissingParameter", "The request must contain the parameter iops"));
    }
    let throughput = form.number::<u32>(&name("Throughput"))?;
    if throughput.is_some() && kind != "gp3" {
        return Err(combination(format!("The parameter throughput is not supported for {kind} volumes.")));
    }
    let encrypted = form.optional_flag(&name("Encrypted"))?.unwrap_or(base.encrypted);
    let of_kind = |default: u32| (kind == "gp3").then_some(default);
    Ok(VolumeSpec {
        size: bytes,
        iops: iops.or_else(|| of_kind(3000)),
        throughput: throughput.or_else(|| of_kind(125)),
        encrypted,
        delete_on_termination: form.optional_flag(&name("DeleteOnTermination"))?.unwrap_or(base.delete_on_termination),
        snapshot_id,
        kind,
        ..base
    })
}
