//! EC2's protocol: form in, XML out. What happens in between is the world's business.
//!
//! # Caveats
//! Signatures are read, not checked: any key will do, in any region there is. Key pairs, instance profiles, user data
//! and block devices are taken as they come. Parameters nobody here knows are ignored, where EC2 refuses some of them.
//! Security groups open and close nothing. Volumes and network interfaces exist only as ids on their instance.

mod error;
mod form;
mod images;
mod instance_list;
mod instance_xml;
mod instances;
mod lifecycle;
mod network;
mod run;
mod status;
mod tags;
mod xml;

use crate::answer::Answer;
use crate::world::{AwsError, View, World};

pub(crate) use self::error::encode as encode_error;
pub(crate) use self::form::Form;
pub(crate) use self::xml::Xml;

use self::instance_list::InstanceList;
use self::instance_xml::INSTANCE_SIZE;

const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// A request to EC2 and what it may see.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) region: &'a str,
    pub(crate) form: &'a Form<'a>,
    pub(crate) view: &'a View,
    pub(crate) request_id: &'a str,
}

impl Request<'_> {
    /// The answer: a document of about `size`, with whatever `inside` writes.
    fn answer(&self, action: &str, size: usize, inside: impl FnOnce(&mut Xml)) -> Answer {
        let mut xml = Xml::document(size + 256);
        self.begin(&mut xml, action);
        inside(&mut xml);
        end(&mut xml, action);
        xml.finish().into()
    }

    /// The same for instances, of which there may be many, with something before and after them.
    fn answer_with(
        &self,
        action: &str,
        before: impl FnOnce(&mut Xml),
        instances: InstanceList,
        after: impl FnOnce(&mut Xml),
    ) -> Answer {
        let mut first = Xml::document(512);
        self.begin(&mut first, action);
        before(&mut first);
        let mut last = Xml::fragment();
        after(&mut last);
        end(&mut last, action);
        Answer::list(first.finish(), instances, last.finish(), INSTANCE_SIZE)
    }

    fn begin(&self, xml: &mut Xml, action: &str) {
        xml.raw("<");
        xml.raw(action);
        xml.raw("Response xmlns=\"");
        xml.raw(NAMESPACE);
        xml.raw("\">");
        xml.text("requestId", self.request_id);
    }

    /// The answer of actions that have nothing to say.
    fn done(&self, action: &str) -> Answer {
        self.answer(action, 0, |xml| xml.raw("<return>true</return>"))
    }
}

fn end(xml: &mut Xml, action: &str) {
    xml.raw("</");
    xml.raw(action);
    xml.raw("Response>");
}

/// Carries a request out and encodes the answer.
pub(crate) fn handle(request: &Request<'_>) -> Result<Answer, AwsError> {
    match request.form.get("Action").unwrap_or_default() {
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
pub(crate) fn named_instances(form: &Form<'_>) -> Vec<String> {
    let mut named = form.list("InstanceId");
    named.extend(form.list("ResourceId").into_iter().filter(|id| id.starts_with("i-")));
    named
}

#[cfg(test)]
mod tests;
