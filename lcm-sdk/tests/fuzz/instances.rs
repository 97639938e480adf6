//! Instances as EC2 describes them, read by us and by the client alone: both read the same.

use std::collections::BTreeMap;

use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_ec2::types;
use lcm_sdk::ports::Compute as _;
use lcm_sdk::providers::aws::{Account, Ec2, Tuning};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{Instance, InstanceId, Lookup, Secret};
use proptest::prelude::*;
use proptest::sample::select;
use xmlparser::{ElementEnd, Token, Tokenizer};

use crate::cases::{any_text, check, like_bytes};
use crate::parrot::{Parrot, response};

/// What is read of an instance, and some that is not.
const NAMES: &[&str] = &[
    "imageId",
    "reason",
    "ipAddress",
    "privateIpAddress",
    "clientToken",
    "instanceType",
    "architecture",
    "ec2:imageId",
    "imageId ",
];

fn ids() -> Vec<InstanceId> {
    (0..3).map(|number| format!("i-{number}123456789abcdef").into()).collect()
}

/// A text as it is, as XML escapes it, or quoted.
fn written() -> impl Strategy<Value = String> {
    (any_text(), 0_u8..4).prop_map(|(text, how)| match how {
        0 => text,
        1 => format!("<![CDATA[{text}]]>"),
        _ => text.replace('&', "&amp;").replace('<', "&lt;"),
    })
}

/// What stands in an instance beside its id.
fn inside() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => (select(NAMES), written()).prop_map(|(name, text)| format!("<{name}>{text}</{}>", name.trim())),
        1 => select(NAMES).prop_map(|name| format!("<{name}/>")),
        2 => select(vec!["pending", "running", "stopped", "terminated", "asleep", ""])
            .prop_map(|state| format!("<instanceState><code>16</code><name>{state}</name></instanceState>")),
        1 => written().prop_map(|text| format!("<stateReason><code>c</code><message>{text}</message></stateReason>")),
        1 => select(vec!["2026-02-06T08:00:00.000Z", "2026-02-06T08:00:00+02:00", "1970-01-01T00:00:00Z"])
            .prop_map(|time| format!("<launchTime>{time}</launchTime>")),
        2 => (written(), written())
            .prop_map(|(key, value)| format!("<tagSet><item><key>{key}</key><value>{value}</value></item></tagSet>")),
        1 => written().prop_map(|text| format!(
            "<networkInterfaceSet><item><ipAddress>{text}</ipAddress><a/></item></networkInterfaceSet>"
        )),
        1 => Just("<tagSet/><instanceState/>\n<!-- nobody -->".to_owned()),
        1 => Just("<monitoring a=\"/>\"><state>x</state></monitoring>".to_owned()),
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

fn listing() -> impl Strategy<Value = Vec<u8>> {
    (inside(), inside(), inside()).prop_map(|(first, second, third)| {
        let ids = ids();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>r</requestId>\
             <reservationSet><item><reservationId>r-1</reservationId><groupSet/><instancesSet>\
             <item><instanceId>{}</instanceId>{first}</item><item>{second}<instanceId>{}</instanceId></item>\
             </instancesSet></item><item><instancesSet><item><instanceId>{}</instanceId>{third}</item></instancesSet>\
             </item></reservationSet></DescribeInstancesResponse>",
            ids[0], ids[1], ids[2]
        )
        .into_bytes()
    })
}

#[test]
fn whatever_ec2_tells_of_instances_it_is_read_as_the_client_reads_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let parrot = Parrot::start(&runtime);
    let url = format!("http://{}", parrot.address);
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(&url)
        .credentials_provider(Credentials::new("AKIA", "secret", None, None, "test"))
        .retry_config(RetryConfig::disabled());
    let client = aws_sdk_ec2::Client::from_conf(config.build());
    let body = prop_oneof![4 => listing(), 1 => like_bytes(listing())];
    check("instances of EC2", 400, "tests/fuzz/seeds/instances.txt", body, |body| {
        parrot.learn(response(200, "text/xml;charset=UTF-8", &body), None);
        let tuning = Tuning { attempts: 1, speed: 1e6, ..Tuning::default() };
        let account = Account::at(&url, "AKIA", &Secret::from("secret"), tuning, &Telemetry::default());
        let answers = runtime.block_on(Ec2::new(account).instances("us-east-1", &ids()));
        if !is_xml(&body) {
            // The client gives what comes before the place where it is no XML, as if that were all.
            for (id, answer) in ids().iter().zip(answers) {
                let named = String::from_utf8_lossy(&body).contains(&format!("<instanceId>{id}</instanceId>"));
                prop_assert!(!named || answer != Lookup::Absent, "{id} is there");
            }
            return Ok(());
        }
        // What the client alone cannot read may be something that nobody reads here.
        let Ok(page) = runtime.block_on(client.describe_instances().send()) else { return Ok(()) };
        let told: Vec<&types::Instance> = page.reservations().iter().flat_map(|some| some.instances()).collect();
        let by_id: BTreeMap<&str, &types::Instance> =
            told.iter().filter_map(|instance| Some((instance.instance_id()?, *instance))).collect();
        prop_assume!(by_id.len() == told.len() && page.next_token().is_none());
        for (id, answer) in ids().iter().zip(answers) {
            match (by_id.get(id.as_str()), answer) {
                (Some(told), Lookup::Found(read)) => same(told, &read)?,
                (None, Lookup::Absent) => {}
                (told, answer) => return Err(TestCaseError::fail(format!("{told:?} was read as {answer:?}"))),
            }
        }
        Ok(())
    });
}

/// Whether all of it is XML whose elements end where they should.
fn is_xml(body: &[u8]) -> bool {
    let mut open = Vec::new();
    let fits = |token: Result<Token<'_>, _>| match token {
        Ok(Token::ElementStart { span, .. }) => {
            open.push(span.as_str()[1..].to_owned());
            true
        }
        Ok(Token::ElementEnd { end: ElementEnd::Empty, .. }) => open.pop().is_some(),
        Ok(Token::ElementEnd { end: ElementEnd::Close(..), span }) => {
            open.pop().is_some_and(|name| span.as_str()[2..].trim_end_matches('>').trim_end() == name)
        }
        Ok(_) => true,
        Err(_) => false,
    };
    std::str::from_utf8(body).is_ok_and(|body| Tokenizer::from(body).all(fits)) && open.is_empty()
}

fn same(told: &types::Instance, read: &Instance) -> Result<(), TestCaseError> {
    let text = |told: Option<&str>| told.filter(|text| !text.is_empty()).map(str::to_owned);
    let state = told.state().and_then(|state| state.name()).map_or("", |name| name.as_str());
    prop_assert_eq!(lcm_sdk::Ec2State::from_wire(state), read.state);
    prop_assert_eq!(text(told.image_id()), read.image_id.clone());
    prop_assert_eq!(text(told.public_ip_address()), read.public_ip.clone());
    prop_assert_eq!(text(told.private_ip_address()), read.private_ip.clone());
    prop_assert_eq!(text(told.client_token()), read.client_token.clone());
    prop_assert_eq!(text(told.instance_type().map(types::InstanceType::as_str)), read.instance_type.clone());
    prop_assert_eq!(told.launch_time().map(|at| at.secs()), read.launched_at.map(|at| at.timestamp()));
    let reason = text(told.state_reason().and_then(|reason| reason.message()));
    prop_assert_eq!(reason.or_else(|| text(told.state_transition_reason())), read.state_reason.clone());
    let tag = |tag: &types::Tag| Some((tag.key()?.to_owned(), tag.value().unwrap_or_default().to_owned()));
    prop_assert_eq!(told.tags().iter().filter_map(tag).collect::<BTreeMap<_, _>>(), read.tags.clone());
    Ok(())
}
