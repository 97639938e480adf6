//! The EC2 query API: decodes forms, calls the world and encodes XML.
//!
//! # Differences from EC2
//! Signatures are parsed but not verified: every key is accepted in every region, and unknown keys belong to the default
//! account. Rules of security groups filter no traffic, key pairs open no shell, and every instance profile exists unless
//! the admin API removed it. Addresses are not associated, and volumes not attached, after a launch.

mod attributes;
mod described;
mod form;
mod instance_types;
mod instance_xml;
mod instances;
mod keys;
mod network;
mod parameters;
mod parse_launch;
mod resources;
mod spot;
mod templates;
mod volumes;
mod xml;

use std::sync::Arc;

use crate::response::ResponseBody;
use crate::world::{AwsError, Direction, Monitoring, View, World};

pub(crate) use self::form::Form;
pub(crate) use self::parameters::{actions, is_common_parameter};
pub(crate) use self::xml::Xml;

use self::instance_xml::{INSTANCE_SIZE, InstanceList};

const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// A decoded request to EC2.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) region: &'a str,
    /// Id of the account of the caller.
    pub(crate) account: &'a Arc<str>,
    pub(crate) form: &'a Form<'a>,
    pub(crate) view: &'a View,
    pub(crate) request_id: &'a str,
}

impl Request<'_> {
    /// Encodes the response of an action. `size` is the approximate size of the content written by `content`.
    fn respond(&self, action: &str, size: usize, content: impl FnOnce(&mut Xml)) -> ResponseBody {
        let mut xml = Xml::document(size + 256);
        self.begin(&mut xml, action);
        content(&mut xml);
        end(&mut xml, action);
        xml.finish().into()
    }

    /// Encodes a response with a list of instances between `before` and `after`.
    fn respond_with_instances(
        &self,
        action: &str,
        before: impl FnOnce(&mut Xml),
        instances: InstanceList,
        after: impl FnOnce(&mut Xml),
    ) -> ResponseBody {
        let mut first = Xml::document(512);
        self.begin(&mut first, action);
        before(&mut first);
        let mut last = Xml::fragment();
        after(&mut last);
        end(&mut last, action);
        ResponseBody::list(first.finish(), instances, last.finish(), INSTANCE_SIZE)
    }

    fn begin(&self, xml: &mut Xml, action: &str) {
        xml.raw("<");
        xml.raw(action);
        xml.raw("Response xmlns=\"");
        xml.raw(NAMESPACE);
        xml.raw("\">");
        xml.text("requestId", self.request_id);
    }

    /// Encodes the response of an action without a result.
    fn respond_true(&self, action: &str) -> ResponseBody {
        self.respond(action, 0, |xml| xml.raw("<return>true</return>"))
    }
}

fn end(xml: &mut Xml, action: &str) {
    xml.raw("</");
    xml.raw(action);
    xml.raw("Response>");
}

/// Executes a request and encodes the response.
pub(crate) fn handle(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let action = request.form.get("Action").unwrap_or_default();
    parameters::check(action, request.form)?;
    match action {
        "RunInstances" => instances::run_instances(request),
        "DescribeInstances" => instances::describe_instances(request),
        "DescribeInstanceStatus" => instances::describe_instance_status(request),
        "StartInstances" => instances::start_instances(request),
        "StopInstances" => instances::stop_instances(request),
        "RebootInstances" => instances::reboot_instances(request),
        "TerminateInstances" => instances::terminate_instances(request),
        "DescribeInstanceAttribute" => attributes::describe(request),
        "ModifyInstanceAttribute" => attributes::modify(request),
        "ResetInstanceAttribute" => attributes::reset(request),
        "ModifyInstanceMetadataOptions" => attributes::modify_metadata(request),
        "MonitorInstances" => attributes::set_monitoring(request, action, Monitoring::Detailed),
        "UnmonitorInstances" => attributes::set_monitoring(request, action, Monitoring::Basic),
        "DescribeSpotInstanceRequests" => spot::describe(request),
        "CancelSpotInstanceRequests" => spot::cancel(request),
        "CreateTags" => resources::create_tags(request),
        "DeleteTags" => resources::delete_tags(request),
        "DescribeTags" => resources::describe_tags(request),
        "DescribeImages" => resources::describe_images(request),
        "DescribeRegions" => resources::describe_regions(request),
        "DescribeAvailabilityZones" => resources::describe_availability_zones(request),
        "DescribeAccountAttributes" => resources::describe_account_attributes(request),
        "DescribeInstanceTypes" => instance_types::describe_types(request),
        "DescribeInstanceTypeOfferings" => instance_types::describe_offerings(request),
        "DescribeVpcs" => network::describe_vpcs(request),
        "CreateVpc" => network::create_vpc(request),
        "DeleteVpc" => network::delete_vpc(request),
        "DescribeSubnets" => network::describe_subnets(request),
        "CreateSubnet" => network::create_subnet(request),
        "DeleteSubnet" => network::delete_subnet(request),
        "DescribeSecurityGroups" => network::describe_security_groups(request),
        "CreateSecurityGroup" => network::create_security_group(request),
        "DeleteSecurityGroup" => network::delete_security_group(request),
        "AuthorizeSecurityGroupIngress" => network::authorize(request, action, Direction::Ingress),
        "AuthorizeSecurityGroupEgress" => network::authorize(request, action, Direction::Egress),
        "RevokeSecurityGroupIngress" => network::revoke(request, action, Direction::Ingress),
        "RevokeSecurityGroupEgress" => network::revoke(request, action, Direction::Egress),
        "DescribeKeyPairs" => keys::describe(request),
        "CreateKeyPair" => keys::create(request),
        "ImportKeyPair" => keys::import(request),
        "DeleteKeyPair" => keys::delete(request),
        "DescribeVolumes" => volumes::describe_volumes(request),
        "CreateVolume" => volumes::create_volume(request),
        "DeleteVolume" => volumes::delete_volume(request),
        "DescribeAddresses" => volumes::describe_addresses(request),
        "AllocateAddress" => volumes::allocate_address(request),
        "ReleaseAddress" => volumes::release_address(request),
        "DescribeNetworkInterfaces" => volumes::describe_network_interfaces(request),
        "CreateLaunchTemplate" => templates::create(request),
        "CreateLaunchTemplateVersion" => templates::create_version(request),
        "DescribeLaunchTemplates" => templates::describe(request),
        "DescribeLaunchTemplateVersions" => templates::describe_versions(request),
        "ModifyLaunchTemplate" => templates::modify(request),
        "DeleteLaunchTemplate" => templates::delete(request),
        "DeleteLaunchTemplateVersions" => templates::delete_versions(request),
        unknown => {
            Err(AwsError::new("InvalidAction", format!("The action {unknown} is not valid for this web service.")))
        }
    }
}

/// Returns the instance ids in a request, which fault rules match.
pub(crate) fn named_instances(form: &Form<'_>) -> Vec<String> {
    let mut named = form.list("InstanceId");
    named.extend(form.list("ResourceId").into_iter().filter(|id| id.starts_with("i-")));
    named
}

/// Encodes an error. The element of the request id is `RequestID`, while responses have `requestId`.
pub(crate) fn encode_error(error: &AwsError, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::document(512);
    xml.element("Response", |xml| {
        xml.element("Errors", |xml| {
            xml.element("Error", |xml| {
                xml.text("Code", &error.code);
                xml.text("Message", &error.message);
            });
        });
        xml.text("RequestID", request_id);
    });
    xml.finish()
}

#[cfg(test)]
mod tests;
