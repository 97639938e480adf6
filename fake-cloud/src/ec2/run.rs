//! RunInstances.

use super::form::Form;
use super::instance_list::{InstanceList, reservation_head};
use super::{Request, Xml};
use crate::answer::Answer;
use crate::world::{AwsError, LaunchRequest, Monitoring, hash_text};

/// EC2's own limit on user data, as it travels: 16 KB in base64.
const LONGEST_USER_DATA: usize = 16 * 1024 * 4 / 3 + 4;

pub(super) fn run_instances(request: &Request<'_>) -> Result<Answer, AwsError> {
    let wish = decode(request.form)?;
    let intent = request.form.intent()?;
    let (launch, now) =
        request.world.with_ec2(|ec2, now| ec2.launch(request.region, wish, intent, now).map(|launch| (launch, now)))?;
    let before = |xml: &mut Xml| {
        reservation_head(xml, &launch.reservation_id);
        xml.open("instancesSet");
    };
    let instances = InstanceList::of_launch(launch.instances, launch.novelty, now);
    Ok(request.answer_with("RunInstances", before, instances, |xml| xml.close("instancesSet")))
}

fn decode(form: &Form<'_>) -> Result<LaunchRequest, AwsError> {
    let user_data = form.get("UserData").filter(|data| !data.is_empty());
    if user_data.is_some_and(|data| data.len() > LONGEST_USER_DATA) {
        return Err(AwsError::new("InvalidParameterValue", "User data is limited to 16384 bytes"));
    }
    let mut groups = form.list("SecurityGroupId");
    groups.extend(form.list("SecurityGroup"));
    groups.extend(form.list("NetworkInterface.1.SecurityGroupId"));
    let optional = |name: &str| form.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(LaunchRequest {
        image_id: form.need("ImageId")?.to_owned(),
        instance_type: form.get("InstanceType").unwrap_or("m1.small").to_owned(),
        min_count: form.need_count("MinCount")?,
        max_count: form.need_count("MaxCount")?,
        subnet_id: optional("SubnetId").or_else(|| optional("NetworkInterface.1.SubnetId")),
        groups,
        key_name: optional("KeyName"),
        profile: optional("IamInstanceProfile.Arn").or_else(|| optional("IamInstanceProfile.Name")),
        monitoring: if form.flag("Monitoring.Enabled")? { Monitoring::Detailed } else { Monitoring::Basic },
        client_token: optional("ClientToken"),
        tags: instance_tags(form)?,
        user_data_digest: user_data.map(hash_text),
    })
}

fn instance_tags(form: &Form<'_>) -> Result<Vec<(String, String)>, AwsError> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for specification in form.members("TagSpecification") {
        let kind = form.need(&format!("{specification}.ResourceType"))?;
        let mut own = Vec::new();
        for tag in form.members(&format!("{specification}.Tag")) {
            let key = form.need(&format!("{tag}.Key"))?;
            own.push((key.to_owned(), form.get(&format!("{tag}.Value")).unwrap_or_default().to_owned()));
        }
        match kind {
            "instance" => tags.extend(own),
            // Volumes and interfaces come with the instance here and carry no tags of their own.
            "volume" | "network-interface" | "spot-instances-request" | "elastic-gpu" => {}
            other => {
                let message = format!("'{other}' is not a valid taggable resource type for this operation.");
                return Err(AwsError::new("InvalidParameterValue", message));
            }
        }
    }
    for (place, (key, _)) in tags.iter().enumerate() {
        if tags[..place].iter().any(|(earlier, _)| earlier == key) {
            return Err(AwsError::new("InvalidParameterValue", format!("Duplicate tag key '{key}' specified.")));
        }
    }
    Ok(tags)
}
