//! Launch templates: stored parameters of RunInstances.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::described::Item;
use super::form::Form;
use super::instance_xml::{flag, tag_set};
use super::parse_launch::combination;
use super::volumes::missing_or_malformed;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, LaunchTemplate, Region, Tags, TemplateVersion, VersionOrigin};

/// Prefix of the launch parameters in CreateLaunchTemplate.
const DATA: &str = "LaunchTemplateData";

/// Parameters of a launch on top of its launch template.
pub(super) struct FromTemplate {
    pub(super) form: Form<'static>,
    /// Tags that name the template and its version on the instances.
    pub(super) tags: Vec<(String, String)>,
}

/// Returns the parameters of a launch on top of its launch template, if it names one.
///
/// # Errors
/// An unknown template or version.
pub(super) fn with_template(request: &Request<'_>) -> Result<Option<FromTemplate>, AwsError> {
    let form = request.form;
    let (id, name) =
        (form.optional("LaunchTemplate.LaunchTemplateId"), form.optional("LaunchTemplate.LaunchTemplateName"));
    if id.is_none() && name.is_none() {
        return match form.optional("LaunchTemplate.Version") {
            Some(_) => Err(AwsError::missing("LaunchTemplateName or LaunchTemplateId")),
            None => Ok(None),
        };
    }
    let (parameters, tags) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let template = &region.resources.templates[find(region, request.account, id, name)?];
        let version = version(template, form.optional("LaunchTemplate.Version").unwrap_or("$Default"))?;
        let tags = [("id", template.id.clone()), ("version", version.number.to_string())];
        let tags = tags.map(|(name, value)| (format!("aws:ec2launchtemplate:{name}"), value));
        Ok::<_, AwsError>((version.parameters.clone(), tags.into()))
    })?;
    Ok(Some(FromTemplate { form: merge(parameters, form), tags }))
}

/// Puts the parameters of a request on top of those of a template. A list or structure of the request replaces that of
/// the template, except for block devices, which are merged by device name.
fn merge(template: Vec<(String, String)>, form: &Form<'_>) -> Form<'static> {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    // Groups and interfaces exclude each other, so that each replaces all of them.
    let networks = ["NetworkInterface", "SecurityGroup", "SecurityGroupId", "SubnetId", "PrivateIpAddress"];
    let has_network = form.iter().any(|(name, _)| matches!(&*first(name), "NetworkInterface"));
    let devices: Vec<&str> = form
        .iter()
        .filter(|(name, _)| name.starts_with("BlockDeviceMapping.") && name.ends_with(".DeviceName"))
        .map(|(_, device)| device)
        .collect();
    let mut replaced_devices = Vec::new();
    for (name, value) in &template {
        if let Some(member) = name.strip_suffix(".DeviceName")
            && devices.contains(&value.as_str())
        {
            replaced_devices.push(format!("{member}."));
        }
    }
    let sent: Vec<String> = form.iter().map(|(name, _)| first(name)).collect();
    let mut merged: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in template {
        let top = first(&name);
        let is_replaced = match top.as_str() {
            "BlockDeviceMapping" => replaced_devices.iter().any(|member| name.starts_with(member.as_str())),
            "SecurityGroup" | "SecurityGroupId" => {
                has_network || sent.iter().any(|known| matches!(known.as_str(), "SecurityGroup" | "SecurityGroupId"))
            }
            top if networks.contains(&top) && has_network => true,
            top => sent.iter().any(|known| known == top),
        };
        if !is_replaced {
            // Numbers of the template's block devices are moved away from those of the request.
            let name = name.strip_prefix("BlockDeviceMapping.").map_or(name.clone(), |rest| {
                let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
                format!("BlockDeviceMapping.1000{number}.{rest}")
            });
            merged.insert(name, value);
        }
    }
    merged.extend(form.iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
    Form::from_parameters(merged)
}

/// Returns the position of the template that a request names.
fn find(region: &Region, account: &str, id: Option<&str>, name: Option<&str>) -> Result<usize, AwsError> {
    if id.is_some() && name.is_some() {
        return Err(combination("Only one of LaunchTemplateId and LaunchTemplateName can be specified."));
    }
    let is_named = |template: &LaunchTemplate| {
        *template.owner == *account
            && id.is_none_or(|id| template.id == id)
            && name.is_none_or(|name| template.name == name)
    };
    region.resources.templates.iter().position(is_named).ok_or_else(|| match (id, name) {
        (Some(id), _) => missing_or_malformed(id, "lt"),
        (None, name) => {
            let name = name.unwrap_or_default();
            let message = format!("The specified launch template, with template name {name}, does not exist.");
            AwsError::new("InvalidLaunchTemplateName.NotFoundException", message)
        }
    })
}

fn named(request: &Request<'_>, region: &Region) -> Result<usize, AwsError> {
    let (id, name) = (request.form.optional("LaunchTemplateId"), request.form.optional("LaunchTemplateName"));
    if id.is_none() && name.is_none() {
        return Err(AwsError::missing("LaunchTemplateId or LaunchTemplateName"));
    }
    find(region, request.account, id, name)
}

fn version<'a>(template: &'a LaunchTemplate, text: &str) -> Result<&'a TemplateVersion, AwsError> {
    let number = match text {
        "$Latest" => template.versions.iter().map(|version| version.number).max(),
        "$Default" => Some(template.default_version),
        digits => digits.parse().ok(),
    };
    template.versions.iter().find(|version| Some(version.number) == number).ok_or_else(|| {
        let id = &template.id;
        let message = format!("Could not find the specified version {text} for the launch template with ID {id}.");
        AwsError::new("InvalidLaunchTemplateId.VersionNotFound", message)
    })
}

/// Returns the launch parameters of a request, by their names in RunInstances.
fn data(form: &Form<'_>) -> Vec<(String, String)> {
    let own = form.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(DATA)?.strip_prefix('.')?;
        Some((name.to_owned(), value.to_owned()))
    });
    own.collect()
}

pub(super) fn create(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let name = form.need("LaunchTemplateName")?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"()./_-".contains(&byte);
    if !(3..=128).contains(&name.len()) || !name.bytes().all(is_allowed) {
        let message = format!("Invalid launch template name '{name}': expected 3 to 128 letters, digits or ()./_-");
        return Err(AwsError::new("InvalidLaunchTemplateName.MalformedException", message));
    }
    let parameters = data(form);
    if parameters.is_empty() {
        return Err(AwsError::missing("LaunchTemplateData"));
    }
    let tags = request.new_tags("launch-template")?;
    let client_token = form.optional("ClientToken").map(str::to_owned);
    let intent = form.intent()?;
    let template = request.world.with_ec2(|ec2, now| {
        let id = ec2.new_id("lt");
        let region = ec2.region(request.region, now)?;
        let templates = &mut region.resources.templates;
        if let Some(known) = templates.iter().find(|known| known.name == name && known.owner == *request.account) {
            if client_token.is_some() && known.client_token == client_token {
                let is_same = known.versions.first().is_some_and(|first| first.parameters == parameters);
                intent.proceed()?;
                return if is_same {
                    Ok(known.clone())
                } else {
                    Err(AwsError::from_code("IdempotentParameterMismatch"))
                };
            }
            let message = "Launch template name already in use.";
            return Err(AwsError::new("InvalidLaunchTemplateName.AlreadyExistsException", message));
        }
        intent.proceed()?;
        let template = LaunchTemplate {
            id: id.clone(),
            name: name.to_owned(),
            created_at: now,
            default_version: 1,
            latest_version: 1,
            versions: vec![new_version(form, 1, parameters, now)],
            client_token: client_token.clone(),
            owner: Arc::clone(request.account),
        };
        templates.push(template.clone());
        region.put_tags(&id, &tags);
        Ok::<_, AwsError>(template)
    })?;
    Ok(respond_template(request, "CreateLaunchTemplate", &template, &tags.into_iter().collect()))
}

fn new_version(
    form: &Form<'_>,
    number: u64,
    parameters: Vec<(String, String)>,
    created_at: DateTime<Utc>,
) -> TemplateVersion {
    let description = form.optional("VersionDescription").map(str::to_owned);
    TemplateVersion { number, description, created_at, parameters, origin: None }
}

/// Returns the version that an earlier call with this client token created.
fn created_by<'a>(template: &'a LaunchTemplate, client_token: &str) -> Option<&'a TemplateVersion> {
    template.versions.iter().find(|version| version.origin.as_ref().is_some_and(|one| one.client_token == client_token))
}

fn respond_template(request: &Request<'_>, action: &str, template: &LaunchTemplate, tags: &Tags) -> ResponseBody {
    request.respond(action, 512, |xml| {
        xml.element("launchTemplate", |xml| template_fields(xml, template, tags));
    })
}

fn template_fields(xml: &mut Xml, template: &LaunchTemplate, tags: &Tags) {
    xml.text("launchTemplateId", &template.id);
    xml.text("launchTemplateName", &template.name);
    xml.timestamp("createTime", template.created_at);
    xml.plain("createdBy", format_args!("arn:aws:iam::{}:user/fake", template.owner));
    xml.plain("defaultVersionNumber", template.default_version);
    xml.plain("latestVersionNumber", template.latest_version);
    xml.raw("<operator><managed>false</managed></operator>");
    tag_set(xml, tags);
}

pub(super) fn describe(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let (ids, names) = (request.form.list("LaunchTemplateId"), request.form.list("LaunchTemplateName"));
    request.form.flag("IncludeManagedResources")?;
    let templates: Vec<(LaunchTemplate, Tags)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.resources.templates.iter().filter(|template| template.owner == *request.account);
        Ok::<_, AwsError>(own.map(|one| (one.clone(), region.tags_of(&one.id).clone())).collect())
    })?;
    if names.iter().any(|name| !templates.iter().any(|(known, _)| known.name == **name)) {
        let message = "At least one of the launch templates specified in the request does not exist.";
        return Err(AwsError::new("InvalidLaunchTemplateName.NotFoundException", message));
    }
    let selected = templates.iter().filter(|(template, _)| names.is_empty() || names.contains(&template.name));
    let items = selected.map(|(one, tags)| Item::new(&one.id, |xml| template_fields(xml, one, tags)));
    request.respond_items("DescribeLaunchTemplates", "launchTemplates", items.collect(), &ids, |id| {
        missing_or_malformed(id, "lt")
    })
}

pub(super) fn create_version(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let parameters = data(form);
    let source_version = form.optional("SourceVersion");
    let origin = form.optional("ClientToken").map(|token| VersionOrigin {
        client_token: token.to_owned(),
        source: source_version.map(str::to_owned),
        parameters: parameters.clone(),
        description: form.optional("VersionDescription").map(str::to_owned),
    });
    let intent = form.intent()?;
    let (template, number) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = named(request, region)?;
        let template = &mut region.resources.templates[position];
        if let Some(repeated) = origin.as_ref().and_then(|origin| created_by(template, &origin.client_token)) {
            intent.proceed()?;
            if repeated.origin != origin {
                return Err(AwsError::from_code("IdempotentParameterMismatch"));
            }
            return Ok((template.clone(), repeated.number));
        }
        let source = source_version.map(|text| version(template, text)).transpose()?;
        if parameters.is_empty() && source.is_none() {
            return Err(AwsError::missing("LaunchTemplateData"));
        }
        let merged = match source {
            Some(source) => {
                let own = Form::from_parameters(parameters);
                let merged = merge(source.parameters.clone(), &own);
                merged.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
            }
            None => parameters,
        };
        intent.proceed()?;
        template.latest_version += 1;
        let number = template.latest_version;
        template.versions.push(TemplateVersion { origin: origin.clone(), ..new_version(form, number, merged, now) });
        Ok((template.clone(), number))
    })?;
    let added = version(&template, &number.to_string())?;
    Ok(request.respond("CreateLaunchTemplateVersion", 1024, |xml| {
        xml.element("launchTemplateVersion", |xml| version_fields(xml, &template, added));
    }))
}

pub(super) fn describe_versions(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    form.flag("IncludeManagedResources")?;
    let wanted = form.list("LaunchTemplateVersion");
    let (from, to) = (form.number::<u64>("MinVersion")?, form.number::<u64>("MaxVersion")?);
    let is_named = form.optional("LaunchTemplateId").is_some() || form.optional("LaunchTemplateName").is_some();
    let is_alias = |text: &String| matches!(text.as_str(), "$Latest" | "$Default");
    if !is_named && (wanted.is_empty() || !wanted.iter().all(is_alias)) {
        return Err(AwsError::missing("LaunchTemplateId or LaunchTemplateName"));
    }
    let templates: Vec<LaunchTemplate> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        if is_named {
            return Ok(vec![region.resources.templates[named(request, region)?].clone()]);
        }
        let own = region.resources.templates.iter().filter(|template| template.owner == *request.account);
        Ok::<_, AwsError>(own.cloned().collect())
    })?;
    let mut items = Vec::new();
    for template in &templates {
        let mut selected: Vec<&TemplateVersion> = Vec::new();
        if wanted.is_empty() {
            selected.extend(&template.versions);
        }
        for text in &wanted {
            selected.push(version(template, text)?);
        }
        selected.retain(|one| from.is_none_or(|from| one.number >= from) && to.is_none_or(|to| one.number <= to));
        // The latest version comes first.
        selected.sort_by_key(|one| std::cmp::Reverse(one.number));
        selected.dedup_by_key(|one| one.number);
        items.extend(selected.iter().map(|one| Item::new(&template.id, |xml| version_fields(xml, template, one))));
    }
    request.respond_items("DescribeLaunchTemplateVersions", "launchTemplateVersionSet", items, &[], |id| {
        missing_or_malformed(id, "lt")
    })
}

fn version_fields(xml: &mut Xml, template: &LaunchTemplate, version: &TemplateVersion) {
    xml.text("launchTemplateId", &template.id);
    xml.text("launchTemplateName", &template.name);
    xml.plain("versionNumber", version.number);
    if let Some(description) = &version.description {
        xml.text("versionDescription", description);
    }
    xml.timestamp("createTime", version.created_at);
    xml.plain("createdBy", format_args!("arn:aws:iam::{}:user/fake", template.owner));
    flag(xml, "defaultVersion", version.number == template.default_version);
    xml.element("launchTemplateData", |xml| Tree::new(&version.parameters).write(xml, ""));
}

/// Parameters as a tree: structures by member name, lists by number.
#[derive(Debug, Default)]
struct Tree {
    text: Option<String>,
    members: BTreeMap<String, Tree>,
    items: BTreeMap<u64, Tree>,
}

impl Tree {
    fn new(parameters: &[(String, String)]) -> Self {
        let mut root = Self::default();
        for (name, value) in parameters {
            let leaf = name.split('.').fold(&mut root, |tree, part| match part.parse() {
                Ok(number) => tree.items.entry(number).or_default(),
                Err(_) => tree.members.entry(part.to_owned()).or_default(),
            });
            leaf.text = Some(value.clone());
        }
        root
    }

    /// Writes the content of an element. Lists have other names in responses than in requests.
    fn write(&self, xml: &mut Xml, parent: &str) {
        if let Some(text) = &self.text {
            xml.escaped(text);
        }
        for item in self.items.values() {
            let is_group = parent == "NetworkInterface.SecurityGroupId";
            xml.element(if is_group { "groupId" } else { "item" }, |xml| {
                item.write(xml, parent.rsplit('.').next().unwrap_or_default());
            });
        }
        for (name, member) in &self.members {
            let element = match (parent, name.as_str()) {
                ("NetworkInterface", "SecurityGroupId") => "groupSet".to_owned(),
                (_, "PrivateIpAddresses" | "Ipv6Addresses") => format!("{}Set", uncapitalized(name)),
                _ if member.items.is_empty() => uncapitalized(name),
                _ => format!("{}Set", uncapitalized(name)),
            };
            let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
            xml.element(&element, |xml| member.write(xml, &path));
        }
    }
}

fn uncapitalized(name: &str) -> String {
    let mut characters = name.chars();
    characters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(characters).collect()
}

pub(super) fn modify(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let wanted = request.form.optional("SetDefaultVersion");
    let intent = request.form.intent()?;
    let (template, tags) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = named(request, region)?;
        let number = match wanted {
            Some(text) => version(&region.resources.templates[position], text)?.number,
            None => return Err(AwsError::missing("DefaultVersion")),
        };
        intent.proceed()?;
        let template = &mut region.resources.templates[position];
        template.default_version = number;
        let template = template.clone();
        let tags = region.tags_of(&template.id).clone();
        Ok((template, tags))
    })?;
    Ok(respond_template(request, "ModifyLaunchTemplate", &template, &tags))
}

pub(super) fn delete(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let intent = request.form.intent()?;
    let (template, tags) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = named(request, region)?;
        intent.proceed()?;
        let template = region.resources.templates.remove(position);
        let tags = region.resources.tags.remove(&template.id).unwrap_or_default();
        Ok::<_, AwsError>((template, tags))
    })?;
    Ok(respond_template(request, "DeleteLaunchTemplate", &template, &tags))
}

pub(super) fn delete_versions(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let numbers = request.form.need_list("LaunchTemplateVersion")?;
    let intent = request.form.intent()?;
    let (template, outcomes) = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = named(request, region)?;
        intent.proceed()?;
        let template = &mut region.resources.templates[position];
        let mut outcomes = Vec::new();
        for text in &numbers {
            let problem = match version(template, text).map(|version| version.number) {
                Ok(number) if number == template.default_version => {
                    Some(("launchTemplateVersionIsDefault", "The default version cannot be deleted."))
                }
                Ok(number) => {
                    template.versions.retain(|version| version.number != number);
                    None
                }
                Err(_) => Some(("launchTemplateVersionDoesNotExist", "The version does not exist.")),
            };
            outcomes.push((text.clone(), problem));
        }
        Ok::<_, AwsError>((template.clone(), outcomes))
    })?;
    Ok(request.respond("DeleteLaunchTemplateVersions", outcomes.len() * 256, |xml| {
        let sets = [
            ("successfullyDeletedLaunchTemplateVersionSet", false),
            ("unsuccessfullyDeletedLaunchTemplateVersionSet", true),
        ];
        for (set, has_problem) in sets {
            xml.element(set, |xml| {
                for (number, problem) in outcomes.iter().filter(|(_, problem)| problem.is_some() == has_problem) {
                    xml.element("item", |xml| {
                        xml.text("launchTemplateId", &template.id);
                        xml.text("launchTemplateName", &template.name);
                        xml.text("versionNumber", number);
                        if let Some((code, message)) = problem {
                            xml.element("responseError", |xml| {
                                xml.text("code", code);
                                xml.text("message", message);
                            });
                        }
                    });
                }
            });
        }
    }))
}
