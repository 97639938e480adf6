//! Every action's answer: the right root, a request id, and XML that holds together whatever is in it.

use std::time::Duration;

use super::*;
use crate::clock::{Clock, Pace};
use crate::world::{Delays, Settings};

const HERE: &str = "us-east-1";

fn world(delays: Delays) -> World {
    World::new(Settings { clock: Clock::new(Pace::Manual), delays, ..Settings::default() })
}

fn ask(world: &World, action: &str, parameters: &str) -> Result<String, AwsError> {
    let body = format!("{parameters}&Action={}", action.replace('&', "%26"));
    let form = Form::decode(body.as_bytes())?;
    let view = View::default();
    let answer = handle(&Request { world, region: HERE, form: &form, view: &view, request_id: "the-id" })?;
    Ok(answer.into_text())
}

fn launch(world: &World) -> String {
    let image = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").catalog.images[0].id.clone());
    let tag = "TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=%3Ck%3E&TagSpecification.1.Tag.1.Value=%26";
    ask(world, "RunInstances", &format!("ImageId={image}&MinCount=2&MaxCount=2&KeyName=a%26b&{tag}"))
        .expect("it launches")
}

fn value<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
}

/// Goes through the tags and checks that each one that opens closes in its turn.
fn root_of(xml: &str) -> String {
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
    assert!(open.is_empty(), "{open:?} stay open");
    root.expect("a root").to_owned()
}

#[test]
fn every_answer_holds_together_under_the_right_root() {
    let world = world(Delays::default());
    let launched = launch(&world);
    assert_eq!(root_of(&launched), "RunInstancesResponse");
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
    ] {
        let answer = ask(&world, action, parameters).expect(action);
        assert_eq!(root_of(&answer), format!("{action}Response"));
        assert!(answer.contains("xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\""));
        assert_eq!(value(&answer, "requestId"), Some("the-id"));
    }
}

#[test]
fn a_refusal_holds_together_whatever_was_asked() {
    let error = ask(&world(Delays::default()), "<Nonsense>&", "").expect_err("refused");
    let refusal = String::from_utf8(encode_error(&error, "the-id")).expect("UTF-8");
    assert_eq!(root_of(&refusal), "Response");
}

#[test]
fn a_launch_answers_pending_even_where_nothing_takes_time() {
    let world = world(Delays::none());
    let launched = launch(&world);
    assert_eq!(value(&launched, "name"), Some("pending"));
    assert_eq!(value(&launched, "ipAddress"), None);
    let described = ask(&world, "DescribeInstances", "").expect("a list");
    assert_eq!(value(&described, "name"), Some("running"));
    assert!(value(&described, "ipAddress").is_some());
}

#[test]
fn what_has_ended_has_given_its_network_back() {
    let world = world(Delays::none());
    let id = value(&launch(&world), "instanceId").expect("an id").to_owned();
    let ended = ask(&world, "TerminateInstances", &format!("InstanceId.1={id}")).expect("it ends");
    assert_eq!(value(&ended, "currentState"), Some("<code>32</code><name>shutting-down</name>"));
    let described = ask(&world, "DescribeInstances", &format!("InstanceId.1={id}")).expect("still there");
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
    let described = ask(&world, "DescribeInstances", "").expect("a list");
    assert_eq!(described.matches("<reservationId>").count(), 2);
    assert_eq!(described.matches("<instanceId>").count(), 4);
}
