//! The EC2 query API: decodes forms, calls the world and encodes XML.
//!
//! # Differences from EC2
//! Signatures are parsed but not verified: every key is accepted in every region. Key pairs, instance profiles, user
//! data and block devices are accepted without validation. Unknown parameters are ignored, while EC2 rejects some of
//! them. Security groups do not filter traffic. Volumes and network interfaces exist as ids of their instance only.

mod form;
mod instance_xml;
mod instances;
mod resources;
mod xml;

use crate::response::ResponseBody;
use crate::world::{AwsError, View, World};

pub(crate) use self::form::Form;
pub(crate) use self::xml::Xml;

use self::instance_xml::{INSTANCE_SIZE, InstanceList};

const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// A decoded request to EC2.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) region: &'a str,
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
    match request.form.get("Action").unwrap_or_default() {
        "RunInstances" => instances::run_instances(request),
        "DescribeInstances" => instances::describe_instances(request),
        "DescribeInstanceStatus" => instances::describe_instance_status(request),
        "StartInstances" => instances::start_instances(request),
        "StopInstances" => instances::stop_instances(request),
        "RebootInstances" => instances::reboot_instances(request),
        "TerminateInstances" => instances::terminate_instances(request),
        "CreateTags" => resources::create_tags(request),
        "DeleteTags" => resources::delete_tags(request),
        "DescribeTags" => resources::describe_tags(request),
        "DescribeImages" => resources::describe_images(request),
        "DescribeRegions" => resources::describe_regions(request),
        "DescribeSubnets" => resources::describe_subnets(request),
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
