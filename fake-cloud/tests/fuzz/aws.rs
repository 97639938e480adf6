//! EC2 and CloudWatch over a socket, in all their protocols.

use std::io::Write as _;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::cases::{any_bytes, any_json, any_text, check, like_bytes, like_json};
use crate::client::runtime;
use crate::support::{Answer, Cloud};

const ACTIONS: &[&str] = &[
    "RunInstances",
    "DescribeInstances",
    "DescribeInstanceStatus",
    "StartInstances",
    "StopInstances",
    "RebootInstances",
    "TerminateInstances",
    "CreateTags",
    "DeleteTags",
    "DescribeTags",
    "DescribeImages",
    "DescribeRegions",
    "DescribeSubnets",
    "DescribeNothing",
];

const NAMES: &[&str] = &[
    "ImageId",
    "MinCount",
    "MaxCount",
    "ClientToken",
    "InstanceType",
    "SubnetId",
    "UserData",
    "KeyName",
    "DryRun",
    "Force",
    "MaxResults",
    "NextToken",
    "InstanceId.#",
    "ResourceId.#",
    "ImageId.#",
    "RegionName.#",
    "SubnetId.#",
    "Owner.#",
    "SecurityGroupId.#",
    "Tag.#.Key",
    "Tag.#.Value",
    "Filter.#.Name",
    "Filter.#.Value.#",
    "Filter.#",
    "Filter.#.Value",
    "TagSpecification.#.ResourceType",
    "TagSpecification.#.Tag.#.Key",
    "TagSpecification.#.Tag.#.Value",
    "BlockDeviceMapping.#.Ebs.VolumeSize",
    "NetworkInterface.#.SubnetId",
    "IncludeAllInstances",
    "AllRegions",
];

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

/// A form in the grammar of EC2, with everything in the wrong place.
fn any_form() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        3 => any_text(),
        2 => select(FILTERS).prop_map(str::to_owned),
        1 => select(vec!["IMAGE", "INSTANCE", "running", "instance", "m5.large", "1", "2"]).prop_map(str::to_owned),
    ];
    let parameter = (select(NAMES), select(NUMBERS), select(NUMBERS), value, any::<bool>());
    (select(ACTIONS), proptest::collection::vec(parameter, 0..12)).prop_map(|(action, parameters)| {
        let mut form = format!("Action={action}&Version=2016-11-15");
        for (name, one, two, value, is_escaped) in parameters {
            let name = name.replacen('#', one, 1).replacen('#', two, 1);
            let value = if is_escaped { crate::client::segment(&value) } else { value };
            form.push_str(&format!("&{name}={value}"));
        }
        form.into_bytes()
    })
}

/// A world with an image and an instance to name.
struct Stage {
    cloud: Cloud,
    image: String,
    instance: String,
}

impl Stage {
    async fn set() -> Self {
        let cloud = Cloud::start().await;
        let image = cloud.image();
        let wish = [("ImageId", image.as_str()), ("MinCount", "1"), ("MaxCount", "1")];
        let instance = cloud.ec2("RunInstances", &wish).await.between("<instanceId>", "</instanceId>");
        Self { cloud, image, instance }
    }

    /// Puts what exists where a generated text stands for it.
    fn name(&self, body: &[u8]) -> Vec<u8> {
        match std::str::from_utf8(body) {
            Ok(text) => text.replace("IMAGE", &self.image).replace("=INSTANCE", &format!("={}", self.instance)).into(),
            Err(_) => body.to_vec(),
        }
    }
}

#[test]
fn whatever_form_ec2_is_sent_it_serves_or_refuses_in_its_own_words() {
    let runtime = runtime();
    let stage = runtime.block_on(Stage::set());
    let body = prop_oneof![7 => any_form(), 2 => like_bytes(any_form()), 1 => any_bytes()];
    check("forms to EC2", 2_500, "tests/fuzz/seeds/ec2.txt", body, |body| {
        let answer = runtime.block_on(stage.cloud.send("ec2", &[], &stage.name(&body)));
        xml_or_refusal(&answer, "<Response><Errors><Error><Code>")
    });
    // Nothing was left behind that a later request would trip over.
    assert_eq!(runtime.block_on(stage.cloud.ec2("DescribeInstances", &[])).status, 200);
    runtime.block_on(stage.cloud.stop());
}

fn xml_or_refusal(answer: &Answer, refusal: &str) -> Result<(), TestCaseError> {
    let text = String::from_utf8(answer.body.clone()).map_err(|_| TestCaseError::fail("the answer is no UTF-8"))?;
    prop_assert!(answer.status < 500, "{} {text}", answer.status);
    prop_assert!(answer.head.contains("content-type: text/xml"), "{}", answer.head);
    let document = text.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").unwrap_or_default().trim_start();
    prop_assert!(is_well_formed(document), "{text}");
    if answer.status >= 400 {
        prop_assert!(document.replace(char::is_whitespace, "").contains(refusal), "{text}");
    }
    Ok(())
}

/// Whether every element is closed, in order, and nothing stands in the text that XML cannot carry.
fn is_well_formed(document: &str) -> bool {
    let mut open = Vec::new();
    let mut pieces = document.split('<');
    if pieces.next() != Some("") {
        return false;
    }
    for piece in pieces {
        let Some((tag, text)) = piece.split_once('>') else { return false };
        let name = tag.split(' ').next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(closed) if open.pop() != Some(closed) => return false,
            Some(_) => {}
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
        let is_foreign = |sign: char| sign.is_control() && !matches!(sign, '\t' | '\n' | '\r' | '\u{7f}'..='\u{9f}');
        if text.contains(is_foreign) || text.split('&').skip(1).any(|rest| !rest.contains(';')) {
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

/// A tree as the older protocol writes it.
fn flattened(value: &Value, name: &str, into: &mut String) {
    let below = |step: &str| if name.is_empty() { step.to_owned() } else { format!("{name}.{step}") };
    match value {
        Value::Object(members) => members.iter().for_each(|(step, part)| flattened(part, &below(step), into)),
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(index, part)| flattened(part, &below(&format!("member.{}", index + 1)), into));
        }
        Value::String(text) => into.push_str(&format!("&{name}={}", crate::client::segment(text))),
        Value::Null | Value::Bool(_) | Value::Number(_) => into.push_str(&format!("&{name}={value}")),
    }
}

fn as_cbor(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("JSON is CBOR too");
    bytes
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).and_then(|()| packer.finish()).expect("it packs")
}

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Cbor,
    Json,
    Query,
}

#[derive(Debug, Clone, Copy)]
enum Packing {
    None,
    Gzip,
    /// Said to be packed, and is not.
    Claimed,
    Unknown,
}

#[test]
fn whatever_cloudwatch_is_sent_it_serves_or_refuses_in_the_protocol_it_was_asked_in() {
    let runtime = runtime();
    let stage = runtime.block_on(Stage::set());
    let tree = prop_oneof![5 => like_json(requests()), 1 => any_json()];
    let body = (select(vec![Protocol::Cbor, Protocol::Json, Protocol::Query]), tree, select(OPERATIONS)).prop_map(
        |(protocol, tree, operation)| {
            let body = match protocol {
                Protocol::Cbor => as_cbor(&tree),
                Protocol::Json => tree.to_string().into_bytes(),
                Protocol::Query => {
                    let mut form = format!("Action={operation}&Version=2010-08-01");
                    flattened(&tree, "", &mut form);
                    form.into_bytes()
                }
            };
            (protocol, operation, body)
        },
    );
    let noisy = body.prop_flat_map(|(protocol, operation, body)| {
        let bytes = prop_oneof![6 => Just(body.clone()), 2 => like_bytes(Just(body)), 1 => any_bytes()];
        (Just(protocol), Just(operation), bytes)
    });
    let packing = prop_oneof![5 => Just(Packing::None), 2 => Just(Packing::Gzip), 1 => Just(Packing::Claimed), 1 => Just(Packing::Unknown)];
    check("requests to CloudWatch", 2_000, "tests/fuzz/seeds/cloudwatch.txt", (noisy, packing), |(client, packing)| {
        let (protocol, operation, body) = client;
        let (encoding, body) = match packing {
            Packing::None => (None, body),
            Packing::Gzip => (Some("content-encoding: gzip"), packed(&body)),
            Packing::Claimed => (Some("content-encoding: gzip"), body),
            Packing::Unknown => (Some("content-encoding: br"), body),
        };
        let target = format!("x-amz-target: GraniteServiceVersion20100801.{operation}");
        let answer = runtime.block_on(async {
            match protocol {
                Protocol::Cbor => stage.cloud.cloudwatch_cbor_with(operation, encoding.as_slice(), &body).await,
                Protocol::Json => {
                    let headers: Vec<&str> = [target.as_str()].into_iter().chain(encoding).collect();
                    stage.cloud.send("monitoring", &headers, &body).await
                }
                Protocol::Query => stage.cloud.send("monitoring", encoding.as_slice(), &body).await,
            }
        });
        prop_assert!(answer.status < 500, "{} {}", answer.status, answer.text());
        let kind = match protocol {
            Protocol::Query => return xml_or_refusal(&answer, "<ErrorResponse"),
            Protocol::Json => {
                let told: Value = serde_json::from_slice(&answer.body).map_err(|_| TestCaseError::fail("no JSON"))?;
                told["__type"].is_string()
            }
            Protocol::Cbor => {
                let told: ciborium::Value =
                    ciborium::from_reader(&answer.body[..]).map_err(|_| TestCaseError::fail("no CBOR"))?;
                let members = told.as_map().cloned().unwrap_or_default();
                members.iter().any(|(name, kind)| name.as_text() == Some("__type") && kind.is_text())
            }
        };
        prop_assert_eq!(answer.status >= 400, kind, "{}", answer.text());
        Ok(())
    });
    runtime.block_on(stage.cloud.stop());
}

#[test]
fn whoever_signs_it_and_whatever_stands_in_its_headers_a_request_is_served_or_refused() {
    let runtime = runtime();
    let stage = runtime.block_on(Stage::set());
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
        // What no client can send is left out: lines that would end the head.
        let fits = |text: &str| !text.contains(|sign: char| sign.is_control());
        let mut head = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 22\r\n".to_owned();
        let all = others.into_iter().chain([("authorization", authorization)]);
        for (name, value) in all.filter(|(_, value)| fits(value)) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let answer = runtime.block_on(stage.cloud.raw(format!("{head}\r\nAction=DescribeRegions").as_bytes()));
        prop_assert!(answer.status < 500, "{} {}", answer.status, answer.text());
        Ok(())
    });
    runtime.block_on(stage.cloud.stop());
}
