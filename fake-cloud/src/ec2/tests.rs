//! Tests of the response of every action: root element, request id, well-formed XML.

use std::time::Duration;

use super::*;
use crate::clock::{Clock, Pace};
use crate::world::{ACCOUNT, Delays, Settings};

const HERE: &str = "us-east-1";

fn world(delays: Delays) -> World {
    World::new(Settings { delays, ..Settings::with_clock(Clock::new(Pace::Manual)) })
}

fn request(world: &World, action: &str, parameters: &str) -> Result<String, AwsError> {
    let body = format!("{parameters}&Action={}", action.replace('&', "%26"));
    let form = Form::decode(body.as_bytes())?;
    let view = View::default();
    let account = world.account_of("fake");
    let request = Request { world, region: HERE, account: &account, form: &form, view: &view, request_id: "the-id" };
    let response = handle(&request)?;
    Ok(response.into_text())
}

fn launch(world: &World) -> String {
    let image = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").catalog.images[0].id.clone());
    world.console_add_key_pair(HERE, "a&b", ACCOUNT).expect("a key pair");
    let tag = "TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=%3Ck%3E&TagSpecification.1.Tag.1.Value=%26";
    request(world, "RunInstances", &format!("ImageId={image}&MinCount=2&MaxCount=2&KeyName=a%26b&{tag}"))
        .expect("it launches")
}

fn value<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
}

/// Returns the root element, and panics if the XML is not well-formed.
fn root(xml: &str) -> String {
    let mut open: Vec<&str> = Vec::new();
    let mut root = None;
    let body = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a declaration");
    for piece in body.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "an unescaped > in {text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            let name = tag.split(' ').next().expect("a name");
            root.get_or_insert(name);
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
    root.expect("a root").to_owned()
}

#[test]
fn responses_are_well_formed() {
    let world = world(Delays::default());
    let launched = launch(&world);
    assert_eq!(root(&launched), "RunInstancesResponse");
    let id = value(&launched, "instanceId").expect("an id").to_owned();
    world.clock().advance(Duration::from_secs(60));
    let one = format!("InstanceId.1={id}");
    let tag = format!("ResourceId.1={id}&Tag.1.Key=%3C%3E&Tag.1.Value=%26%22%27");
    for (action, parameters) in [
        ("DescribeInstances", ""),
        ("DescribeInstances", "MaxResults=5"),
        ("DescribeInstanceStatus", "IncludeAllInstances=true"),
        ("CreateTags", tag.as_str()),
        ("DescribeTags", ""),
        ("RebootInstances", one.as_str()),
        ("StopInstances", one.as_str()),
        ("DescribeInstances", ""),
        ("DeleteTags", tag.as_str()),
        ("TerminateInstances", one.as_str()),
        ("DescribeInstances", ""),
        ("DescribeImages", ""),
        ("DescribeRegions", ""),
        ("DescribeSubnets", ""),
        ("DescribeVpcs", ""),
        ("DescribeSecurityGroups", ""),
        ("DescribeAvailabilityZones", ""),
        ("DescribeInstanceTypes", ""),
        ("DescribeInstanceTypeOfferings", "LocationType=availability-zone"),
        ("DescribeAccountAttributes", ""),
        ("DescribeKeyPairs", "IncludePublicKey=true"),
        ("DescribeVolumes", ""),
        ("DescribeNetworkInterfaces", ""),
        ("DescribeAddresses", ""),
        ("CreateLaunchTemplate", "LaunchTemplateName=t%2F1&LaunchTemplateData.KeyName=%26%3C"),
        ("DescribeLaunchTemplates", ""),
        ("DescribeLaunchTemplateVersions", "LaunchTemplateName=t%2F1"),
        ("DescribeSpotInstanceRequests", ""),
    ] {
        let response = request(&world, action, parameters).expect(action);
        assert_eq!(root(&response), format!("{action}Response"));
        assert!(response.contains("xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\""));
        assert_eq!(value(&response, "requestId"), Some("the-id"));
    }
}

#[test]
fn error_with_markup_is_well_formed() {
    let error = request(&world(Delays::default()), "<Nonsense>&", "").expect_err("rejected");
    let error = String::from_utf8(encode_error(&error, "the-id")).expect("UTF-8");
    assert_eq!(root(&error), "Response");
}

#[test]
fn launch_reports_pending_without_delays() {
    let world = world(Delays::none());
    let launched = launch(&world);
    assert_eq!(value(&launched, "name"), Some("pending"));
    assert_eq!(value(&launched, "ipAddress"), None);
    let described = request(&world, "DescribeInstances", "").expect("a list");
    assert_eq!(value(&described, "name"), Some("running"));
    assert!(value(&described, "ipAddress").is_some());
}

#[test]
fn terminated_instance_has_no_network() {
    let world = world(Delays::none());
    let id = value(&launch(&world), "instanceId").expect("an id").to_owned();
    let terminated = request(&world, "TerminateInstances", &format!("InstanceId.1={id}")).expect("terminates");
    assert_eq!(value(&terminated, "currentState"), Some("<code>32</code><name>shutting-down</name>"));
    let described = request(&world, "DescribeInstances", &format!("InstanceId.1={id}")).expect("still there");
    for gone in ["privateIpAddress", "ipAddress", "subnetId", "vpcId"] {
        assert_eq!(value(&described, gone), None, "{gone}");
    }
    assert!(value(&described, "reason").expect("a reason").starts_with("User initiated ("));
}

#[test]
fn instances_of_one_launch_share_a_reservation() {
    let world = world(Delays::default());
    launch(&world);
    launch(&world);
    let described = request(&world, "DescribeInstances", "").expect("a list");
    assert_eq!(described.matches("<reservationId>").count(), 2);
    assert_eq!(described.matches("<instanceId>").count(), 4);
}

#[test]
fn errors_are_encoded_like_ec2() {
    let text = encode_error(&AwsError::unknown_instances(&["i-0c71"]), "0fb85e6a");
    assert_eq!(
        String::from_utf8(text).expect("UTF-8"),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code>\
         <Message>The instance ID 'i-0c71' does not exist</Message></Error></Errors>\
         <RequestID>0fb85e6a</RequestID></Response>"
    );
}

#[test]
fn client_token_makes_a_template_version_unique() {
    let world = world(Delays::default());
    request(&world, "CreateLaunchTemplate", "LaunchTemplateName=one&LaunchTemplateData.KeyName=a").expect("a template");
    let add = |parameters: &str| {
        let parameters = format!("LaunchTemplateName=one&SourceVersion=$Latest&{parameters}");
        let response = request(&world, "CreateLaunchTemplateVersion", &parameters)?;
        Ok::<_, AwsError>(value(&response, "versionNumber").expect("a number").to_owned())
    };
    let first = "ClientToken=t&LaunchTemplateData.InstanceType=m5.large";
    assert_eq!(add(first).as_deref(), Ok("2"));
    assert_eq!(add("LaunchTemplateData.InstanceType=c5.large").as_deref(), Ok("3"));
    assert_eq!(add(first).as_deref(), Ok("2"));
    let other = add("ClientToken=t&LaunchTemplateData.InstanceType=c5.large").expect_err("another request");
    assert_eq!(other.code, "IdempotentParameterMismatch");
    assert_eq!(add("ClientToken=u&LaunchTemplateData.InstanceType=m5.large").as_deref(), Ok("4"));
}
