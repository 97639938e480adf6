//! Fuzz tests of EC2 and CloudWatch over a socket, in all protocols.

use std::cell::Cell;
use std::io::Write as _;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, any_text, check, like_bytes, like_json};
use crate::client::runtime;
use crate::support::{Cloud, Response};

/// Parameters of every action, and how the cloud treats them.
const PARAMETERS: &str = include_str!("../../src/ec2/parameters.txt");

/// An action with the names of its parameters, and the values to which some are limited.
#[derive(Debug, Clone, Default)]
struct Action {
    name: &'static str,
    parameters: Vec<(&'static str, Vec<&'static str>)>,
}

/// Reads the actions off the table. Refused parameters are left out, because they would hide the others of a request.
fn actions() -> Vec<Action> {
    let mut actions = vec![Action { name: "DescribeNothing", ..Action::default() }];
    for line in PARAMETERS.lines() {
        match (line.strip_prefix("  "), actions.last_mut()) {
            (Some(entry), Some(action)) => {
                let (name, rule) = entry.split_once(' ').unwrap_or((entry, ""));
                if !rule.starts_with('!') {
                    action.parameters.push((name, rule.split(' ').skip(1).collect()));
                }
            }
            _ => actions.push(Action { name: line, ..Action::default() }),
        }
    }
    actions
}

const NUMBERS: &[&str] = &["1", "2", "3", "0", "200", "4294967295", "4294967296", "-1", "01", "x", ""];

const FILTERS: &[&str] = &[
    "instance-state-name",
    "tag:Name",
    "tag-key",
    "image-id",
    "vpc-id",
    "name",
    "resource-id",
    "key",
    "tag:",
    "instance-id",
    "private-ip-address",
    "launch-time",
    "banana",
];

/// Generates EC2 forms with names of the action and arbitrary values.
fn any_form() -> impl Strategy<Value = Vec<u8>> {
    select(actions()).prop_flat_map(|action| {
        let mut names = action.parameters.clone();
        if names.is_empty() {
            names.push(("Banana", Vec::new()));
        }
        let is_unknown = proptest::bool::weighted(0.02);
        let name = (select(names), is_unknown, select(NUMBERS), select(NUMBERS), select(NUMBERS));
        let parameter = (name, any_value(), any::<bool>());
        (Just(action.name), proptest::collection::vec(parameter, 0..8)).prop_map(|(action, parameters)| {
            let mut form = format!("Action={action}&Version=2016-11-15");
            for (((name, accepted), is_unknown, one, two, three), value, is_escaped) in parameters {
                let mut name = name.to_owned();
                for number in [one, two, three] {
                    name = name.replacen(".N", &format!(".{number}"), 1);
                }
                let value = accepted.first().map_or(value, |accepted| (*accepted).to_owned());
                let value = if is_escaped { crate::client::segment(&value) } else { value };
                let suffix = if is_unknown { "Banana" } else { "" };
                form.push_str(&format!("&{name}{suffix}={value}"));
            }
            form.into_bytes()
        })
    })
}

fn any_value() -> impl Strategy<Value = String> {
    let known = vec!["IMAGE", "INSTANCE", "running", "instance", "m5.large", "1", "2", "true", "false", "tcp"];
    prop_oneof![
        3 => any_text(),
        2 => select(FILTERS).prop_map(str::to_owned),
        3 => select(known).prop_map(str::to_owned),
    ]
}

/// A served world with an image and an instance.
struct Fixture {
    cloud: Cloud,
    image: String,
    instance: String,
}

impl Fixture {
    async fn start() -> Self {
        let cloud = Cloud::start().await;
        let image = cloud.image();
        let parameters = [("ImageId", image.as_str()), ("MinCount", "1"), ("MaxCount", "1")];
        let instance = cloud.ec2("RunInstances", &parameters).await.between("<instanceId>", "</instanceId>");
        Self { cloud, image, instance }
    }

    /// Replaces the placeholders `IMAGE` and `INSTANCE` with existing ids.
    fn fill_in(&self, body: &[u8]) -> Vec<u8> {
        match std::str::from_utf8(body) {
            Ok(text) => text.replace("IMAGE", &self.image).replace("=INSTANCE", &format!("={}", self.instance)).into(),
            Err(_) => body.to_vec(),
        }
    }
}

#[test]
fn ec2_handles_arbitrary_forms() {
    let runtime = runtime();
    let fixture = runtime.block_on(Fixture::start());
    let body = prop_oneof![7 => any_form(), 2 => like_bytes(any_form()), 1 => any_bytes()];
    let (requests, unknown) = (Cell::new(0), Cell::new(0));
    check("forms to EC2", 2_500, "tests/fuzz/seeds/ec2.txt", body, |body| {
        let response = runtime.block_on(fixture.cloud.send("ec2", &[], &fixture.fill_in(&body)));
        requests.set(requests.get() + 1);
        unknown.set(unknown.get() + u32::from(response.text().contains("<Code>UnknownParameter</Code>")));
        check_xml(&response, "<Response><Errors><Error><Code>")
    });
    assert!(2 * unknown.get() < requests.get(), "{} of {} have unknown parameters", unknown.get(), requests.get());
    // The state is still consistent.
    assert_eq!(runtime.block_on(fixture.cloud.ec2("DescribeInstances", &[])).status, 200);
    runtime.block_on(fixture.cloud.stop());
}

/// Checks that a response is well-formed XML, and that an error contains `error_element`.
fn check_xml(response: &Response, error_element: &str) -> Result<(), TestCaseError> {
    let text =
        String::from_utf8(response.body.clone()).map_err(|_| TestCaseError::fail("the response is not UTF-8"))?;
    prop_assert!(response.status < 500, "{} {text}", response.status);
    prop_assert!(response.head.contains("content-type: text/xml"), "{}", response.head);
    let document = text.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").unwrap_or_default().trim_start();
    prop_assert!(is_well_formed(document), "{text}");
    if response.status >= 400 {
        prop_assert!(document.replace(char::is_whitespace, "").contains(error_element), "{text}");
    }
    Ok(())
}

/// Returns whether all elements are closed in order and the text has no characters that XML forbids.
fn is_well_formed(document: &str) -> bool {
    let mut open = Vec::new();
    let mut parts = document.split('<');
    if parts.next() != Some("") {
        return false;
    }
    for part in parts {
        let Some((tag, text)) = part.split_once('>') else { return false };
        let name = tag.split(' ').next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(closed) if open.pop() != Some(closed) => return false,
            Some(_) => {}
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
        let is_forbidden =
            |character: char| character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{7f}'..='\u{9f}');
        if text.contains(is_forbidden) || text.split('&').skip(1).any(|rest| !rest.contains(';')) {
            return false;
        }
    }
    open.is_empty()
}

const OPERATIONS: &[&str] = &["GetMetricData", "GetMetricStatistics", "PutMetricData", "ListMetrics", "Nothing", ""];

fn requests() -> Vec<Value> {
    let dimensions = json!([{"Name": "InstanceId", "Value": "i-1"}]);
    vec![
        json!({"StartTime": 0, "EndTime": 86_400.5, "MaxDatapoints": 10, "ScanBy": "TimestampDescending", "NextToken": "",
               "MetricDataQueries": [
                   {"Id": "a", "MetricStat": {"Metric": {"Namespace": "AWS/EC2", "MetricName": "CPUUtilization",
                    "Dimensions": dimensions}, "Period": 60, "Stat": "Average"}, "ReturnData": true},
                   {"Id": "b", "Expression": "SUM([a, a]) * 2 / (1 - 3)", "Label": "x"}]}),
        json!({"Namespace": "AWS/EC2", "MetricName": "CPUUtilization", "Dimensions": dimensions, "StartTime": 0,
               "EndTime": 600, "Period": 60, "Statistics": ["Average", "Sum"], "ExtendedStatistics": ["p99.9"],
               "Unit": "Percent"}),
        json!({"Namespace": "Mine", "MetricData": [{"MetricName": "m", "Value": 1.5, "Unit": "Count", "Timestamp": 60,
               "Dimensions": dimensions, "StatisticValues": {"SampleCount": 2, "Sum": 3, "Minimum": 1, "Maximum": 2},
               "Values": [1, 2.5], "Counts": [1, 3], "StorageResolution": 1}]}),
        json!({"Namespace": "AWS/EC2", "RecentlyActive": "PT3H", "NextToken": "x", "Dimensions": [{"Name": "InstanceId"}]}),
    ]
}

/// Encodes a tree in the query protocol.
fn flatten(value: &Value, name: &str, into: &mut String) {
    let child = |step: &str| if name.is_empty() { step.to_owned() } else { format!("{name}.{step}") };
    match value {
        Value::Object(members) => members.iter().for_each(|(step, part)| flatten(part, &child(step), into)),
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(index, part)| flatten(part, &child(&format!("member.{}", index + 1)), into));
        }
        Value::String(text) => into.push_str(&format!("&{name}={}", crate::client::segment(text))),
        Value::Null | Value::Bool(_) | Value::Number(_) => into.push_str(&format!("&{name}={value}")),
    }
}

fn to_cbor(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("valid CBOR");
    bytes
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("compresses")
}

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Cbor,
    Json,
    Query,
}

#[derive(Debug, Clone, Copy)]
enum Encoding {
    None,
    Gzip,
    /// The header names gzip, but the body is not compressed.
    FalseGzip,
    Unknown,
}

#[test]
fn cloudwatch_handles_arbitrary_requests() {
    let runtime = runtime();
    let fixture = runtime.block_on(Fixture::start());
    let tree = prop_oneof![5 => like_json(requests()), 1 => any_json()];
    let body = (select(vec![Protocol::Cbor, Protocol::Json, Protocol::Query]), tree, select(OPERATIONS)).prop_map(
        |(protocol, tree, operation)| {
            let body = match protocol {
                Protocol::Cbor => to_cbor(&tree),
                Protocol::Json => tree.to_string().into_bytes(),
                Protocol::Query => {
                    let mut form = format!("Action={operation}&Version=2010-08-01");
                    flatten(&tree, "", &mut form);
                    form.into_bytes()
                }
            };
            (protocol, operation, body)
        },
    );
    let mutated = body.prop_flat_map(|(protocol, operation, body)| {
        let bytes = prop_oneof![6 => Just(body.clone()), 2 => like_bytes(Just(body)), 1 => any_bytes()];
        (Just(protocol), Just(operation), bytes)
    });
    let encoding = prop_oneof![5 => Just(Encoding::None), 2 => Just(Encoding::Gzip), 1 => Just(Encoding::FalseGzip), 1 => Just(Encoding::Unknown)];
    check(
        "requests to CloudWatch",
        2_000,
        "tests/fuzz/seeds/cloudwatch.txt",
        (mutated, encoding),
        |(request, encoding)| {
            let (protocol, operation, body) = request;
            let (header, body) = match encoding {
                Encoding::None => (None, body),
                Encoding::Gzip => (Some("content-encoding: gzip"), compress(&body)),
                Encoding::FalseGzip => (Some("content-encoding: gzip"), body),
                Encoding::Unknown => (Some("content-encoding: br"), body),
            };
            let target = format!("x-amz-target: GraniteServiceVersion20100801.{operation}");
            let response = runtime.block_on(async {
                match protocol {
                    Protocol::Cbor => fixture.cloud.cloudwatch_cbor_with(operation, header.as_slice(), &body).await,
                    Protocol::Json => {
                        let headers: Vec<&str> = [target.as_str()].into_iter().chain(header).collect();
                        fixture.cloud.send("monitoring", &headers, &body).await
                    }
                    Protocol::Query => fixture.cloud.send("monitoring", header.as_slice(), &body).await,
                }
            });
            prop_assert!(response.status < 500, "{} {}", response.status, response.text());
            let is_error = match protocol {
                Protocol::Query => return check_xml(&response, "<ErrorResponse"),
                Protocol::Json => {
                    let value: Value =
                        serde_json::from_slice(&response.body).map_err(|_| TestCaseError::fail("no JSON"))?;
                    value["__type"].is_string()
                }
                Protocol::Cbor => {
                    let value: ciborium::Value =
                        ciborium::from_reader(&response.body[..]).map_err(|_| TestCaseError::fail("no CBOR"))?;
                    let members = value.as_map().cloned().unwrap_or_default();
                    members.iter().any(|(name, kind)| name.as_text() == Some("__type") && kind.is_text())
                }
            };
            prop_assert_eq!(response.status >= 400, is_error, "{}", response.text());
            Ok(())
        },
    );
    runtime.block_on(fixture.cloud.stop());
}

#[test]
fn arbitrary_headers_cause_no_server_error() {
    let runtime = runtime();
    let fixture = runtime.block_on(Fixture::start());
    let good = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=0";
    let authorization = prop_oneof![
        like_bytes(Just(good.as_bytes().to_vec())).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        any_text(),
    ];
    let name = select(vec![
        "amz-sdk-request",
        "amz-sdk-invocation-id",
        "user-agent",
        "x-amz-target",
        "content-type",
        "smithy-protocol",
    ]);
    let headers = (authorization, proptest::collection::vec((name, any_text()), 0..4));
    check("signatures and headers", 600, "tests/fuzz/seeds/headers.txt", headers, |(authorization, others)| {
        // Control characters would end the header line.
        let is_valid = |text: &str| !text.contains(|character: char| character.is_control());
        let mut head = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 22\r\n".to_owned();
        let all = others.into_iter().chain([("authorization", authorization)]);
        for (name, value) in all.filter(|(_, value)| is_valid(value)) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let response = runtime.block_on(fixture.cloud.raw(format!("{head}\r\nAction=DescribeRegions").as_bytes()));
        prop_assert!(response.status < 500, "{} {}", response.status, response.text());
        Ok(())
    });
    runtime.block_on(fixture.cloud.stop());
}
