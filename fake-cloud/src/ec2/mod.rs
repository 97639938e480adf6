//! EC2's protocol: form in, XML out. What happens in between is the world's business.
//!
//! # Caveats
//! Signatures are read, not checked: any key will do, in any region there is. Key pairs, instance profiles, user data
//! and block devices are taken as they come. Parameters nobody here knows are ignored, where EC2 refuses some of them.
//! Security groups open and close nothing. Volumes and network interfaces exist only as ids on their instance.

mod error;
mod form;
mod images;
mod instance_xml;
mod instances;
mod lifecycle;
mod network;
mod run;
mod status;
mod tags;
mod xml;

use crate::world::{AwsError, View, World};

pub(crate) use self::error::encode as encode_error;
pub(crate) use self::form::Form;
pub(crate) use self::xml::Xml;

const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// A request to EC2 and what it may see.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) region: &'a str,
    pub(crate) form: &'a Form,
    pub(crate) view: &'a View,
    pub(crate) request_id: &'a str,
}

impl Request<'_> {
    /// The answer: a document of about `size`, with whatever `inside` writes.
    fn answer(&self, action: &str, size: usize, inside: impl FnOnce(&mut Xml)) -> String {
        let mut xml = Xml::document(size + 256);
        xml.raw("<");
        xml.raw(action);
        xml.raw("Response xmlns=\"");
        xml.raw(NAMESPACE);
        xml.raw("\">");
        xml.text("requestId", self.request_id);
        inside(&mut xml);
        xml.raw("</");
        xml.raw(action);
        xml.raw("Response>");
        xml.finish()
    }

    /// The answer of actions that have nothing to say.
    fn done(&self, action: &str) -> String {
        self.answer(action, 0, |xml| xml.raw("<return>true</return>"))
    }
}

/// Carries a request out and encodes the answer.
pub(crate) fn handle(action: &str, request: &Request<'_>) -> Result<String, AwsError> {
    match action {
        "RunInstances" => run::run_instances(request),
        "DescribeInstances" => instances::describe_instances(request),
        "DescribeInstanceStatus" => status::describe_instance_status(request),
        "StartInstances" => lifecycle::start_instances(request),
        "StopInstances" => lifecycle::stop_instances(request),
        "RebootInstances" => lifecycle::reboot_instances(request),
        "TerminateInstances" => lifecycle::terminate_instances(request),
        "CreateTags" => tags::create_tags(request),
        "DeleteTags" => tags::delete_tags(request),
        "DescribeTags" => tags::describe_tags(request),
        "DescribeImages" => images::describe_images(request),
        "DescribeRegions" => network::describe_regions(request),
        "DescribeSubnets" => network::describe_subnets(request),
        unknown => {
            Err(AwsError::new("InvalidAction", format!("The action {unknown} is not valid for this web service.")))
        }
    }
}

/// The instances a request names, for fault rules that look at them.
pub(crate) fn named_instances(form: &Form) -> Vec<String> {
    let mut named = form.list("InstanceId");
    named.extend(form.list("ResourceId").into_iter().filter(|id| id.starts_with("i-")));
    named
}

#[cfg(test)]
mod tests;
