//! Tests of the AWS server over sockets: invalid input, concurrency, isolation and shutdown.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use fake_cloud::faults::{Action, Rule};
use fake_cloud::world::SeededRng;
use fake_cloud::{RequestFilter, RequestOutcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{self, Cloud, form, max_clients, signed};

#[tokio::test]
async fn invalid_forms_get_ec2_errors() {
    let cloud = Cloud::start().await;
    for (body, code) in [
        (&b""[..], "MissingParameter"),
        (b"Action=DescribeInstances&InstanceId.1=%4", "MalformedQueryString"),
        (b"Action=DescribeInstances&InstanceId.1=%ff%fe", "MalformedQueryString"),
        (b"Action=DescribeInstances&InstanceId.1=\xff", "MalformedQueryString"),
        (b"Action=DescribeInstances&InstanceId.1=%00", "MalformedQueryString"),
        (b"Action=RunInstances", "MissingParameter"),
        (b"Action=RunInstances&ImageId=ami-12345678&MinCount=-1&MaxCount=1", "InvalidParameterValue"),
        (b"Action=RunInstances&ImageId=ami-12345678&MinCount=1&MaxCount=99999999999999999999", "InvalidParameterValue"),
        (b"Action=TerminateInstances", "InvalidParameterCombination"),
        (b"Action=DescribeInstances&Banana=1", "UnknownParameter"),
        (b"Action=TerminateInstances&InstanceId.1=", "InvalidInstanceID.Malformed"),
        (b"Action=DescribeInstances&Filter.1.Value.1=x", "MissingParameter"),
        (b"Action=DescribeInstances&MaxResults=-1", "InvalidParameterValue"),
        (b"Action=DescribeInstances&DryRun=perhaps", "InvalidParameterValue"),
        (b"Action=DescribeInstances&InstanceId.1=i-12345678&MaxResults=5", "InvalidParameterCombination"),
        (b"Action=<script>", "InvalidAction"),
    ] {
        let response = cloud.send("ec2", &[], body).await;
        assert_eq!(response.status, 400, "{}", response.text());
        assert!(response.text().contains(&format!("<Code>{code}</Code>")), "{code}: {}", response.text());
        assert!(!response.text().contains("<script>"));
        assert!(response.head.contains("x-amzn-requestid"));
    }
    assert_eq!(cloud.ec2("DescribeInstances", &[]).await.status, 200);
}

#[tokio::test]
async fn large_bodies_are_rejected() {
    let cloud = Cloud::start().await;
    let huge = vec![b'a'; 3 * 1024 * 1024];
    let response = cloud.send("ec2", &[], &huge).await;
    assert_eq!(response.status, 413);
    assert!(response.text().contains("<Code>RequestEntityTooLarge</Code>"));

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![b' '; 16 * 1024 * 1024]).expect("compresses");
    let bomb = encoder.finish().expect("compresses");
    let headers = ["x-amz-target: GraniteServiceVersion20100801.PutMetricData", "content-encoding: gzip"];
    let response = cloud.send("monitoring", &headers, &bomb).await;
    assert_eq!(response.status, 413);
    assert!(response.text().contains("RequestEntityTooLarge"));
    assert_eq!(cloud.ec2("DescribeRegions", &[]).await.status, 200);
}

#[tokio::test]
async fn invalid_cbor_and_json_get_protocol_errors() {
    let cloud = Cloud::start().await;
    let deep = vec![0x81; 500_000];
    for body in [&b"\xff"[..], b"\xbf", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xa1\x61", &deep] {
        let response = cloud.cloudwatch_cbor("GetMetricData", body).await;
        assert_eq!(response.status, 400);
        assert!(response.head.contains("application/cbor"));
        assert!(response.head.contains("x-amzn-query-error: SerializationException;Sender"), "{}", response.head);
        assert!(ciborium::from_reader::<ciborium::Value, _>(&response.body[..]).is_ok());
    }
    let target = ["x-amz-target: GraniteServiceVersion20100801.GetMetricData"];
    for body in [&b""[..], b"{", b"{\"a\":\"\xff\"}", b"[1]"] {
        let response = cloud.send("monitoring", &target, body).await;
        assert_eq!(response.status, 400);
        assert!(response.text().contains("SerializationException"), "{}", response.text());
    }
    let response = cloud.send("monitoring", &[], b"Action=GetMetricData&StartTime=never").await;
    assert!(response.text().contains("<Code>InvalidParameterValue</Code>"), "{}", response.text());
    let response = cloud.send("monitoring", &["x-amz-target: Nonsense"], b"{}").await;
    assert_eq!(response.status, 404);
}

/// Valid requests with changed, lost and added bytes never cause a status of 500 or above.
#[tokio::test]
async fn corrupted_requests_cause_no_server_error() {
    let cloud = Cloud::start().await;
    let image = cloud.image();
    let run = form("RunInstances", &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "2"), ("ClientToken", "t")]);
    let list =
        form("DescribeInstances", &[("Filter.1.Name", "tag:a"), ("Filter.1.Value.1", "b*"), ("MaxResults", "5")]);
    let data = form("GetMetricData", &[("StartTime", "0"), ("MetricDataQueries.member.1.Id", "a"), ("EndTime", "60")]);
    let json =
        br#"{"Namespace":"A","MetricData":[{"MetricName":"m","Value":1,"Dimensions":[{"Name":"a","Value":"b"}]}]}"#;
    let cbor = b"\xbf\x69Namespace\x61A\x6aMetricData\x81\xbf\x6aMetricName\x61m\x65Value\xfb\0\0\0\0\0\0\0\0\xff\xff";
    let target = "x-amz-target: GraniteServiceVersion20100801.PutMetricData";
    let mut rng = SeededRng::new(1, "noise");
    for _ in 0..300 {
        for (body, service, headers) in [
            (&run[..], "ec2", &[][..]),
            (&list, "ec2", &[]),
            (&data, "monitoring", &[]),
            (json, "monitoring", &[target]),
            (json, "monitoring", &[target, "content-encoding: gzip"]),
        ] {
            let response = cloud.send(service, headers, &corrupt(body, &mut rng)).await;
            assert!((200..500).contains(&response.status), "{} {}", response.status, response.text());
        }
        let response = cloud.cloudwatch_cbor("PutMetricData", &corrupt(cbor, &mut rng)).await;
        assert!((200..500).contains(&response.status), "{} {}", response.status, response.text());
    }
    assert_eq!(cloud.ec2("DescribeInstances", &[]).await.status, 200);
}

fn corrupt(body: &[u8], rng: &mut SeededRng) -> Vec<u8> {
    let mut bytes = body.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 if bytes.len() > 1 => drop(bytes.remove(at)),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

#[tokio::test]
async fn cbor_responses_contain_floats() {
    let cloud = Cloud::start().await;
    // {_ "Namespace": "Mine", "MetricData": [{_ "MetricName": "m", "Value": 2.0}]}
    let mut put = b"\xbf\x69Namespace\x64Mine\x6aMetricData\x81\xbf\x6aMetricName\x61m\x65Value\xfb".to_vec();
    put.extend(2.0_f64.to_be_bytes());
    put.extend(b"\xff\xff");
    let response = cloud.cloudwatch_cbor("PutMetricData", &put).await;
    assert_eq!((response.status, response.body.as_slice()), (200, &b"\xa0"[..]));
    assert!(response.head.contains("smithy-protocol: rpc-v2-cbor"));

    let now = cloud.world.clock().now().timestamp() as f64;
    let mut get =
        b"\xbf\x69Namespace\x64Mine\x6aMetricName\x61m\x66Period\x18\x3c\x6aStatistics\x81\x67Average".to_vec();
    for (name, timestamp) in [("StartTime", now - 600.0), ("EndTime", now + 60.0)] {
        get.push(0x60 + name.len() as u8);
        get.extend(name.as_bytes());
        get.extend(b"\xc1\xfb");
        get.extend(timestamp.to_be_bytes());
    }
    get.push(0xff);
    let response = cloud.cloudwatch_cbor("GetMetricStatistics", &get).await;
    assert_eq!(response.status, 200);
    let value: ciborium::Value = ciborium::from_reader(&response.body[..]).expect("valid CBOR");
    let text = format!("{value:?}");
    assert!(text.contains("Text(\"Average\"), Float(2.0)"), "{text}");
    assert!(text.contains("Tag(1, Float("), "{text}");
}

#[tokio::test]
async fn unsigned_requests_are_rejected() {
    let cloud = Cloud::start().await;
    let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 24\r\n\r\nAction=DescribeInstances";
    let response = cloud.raw(request).await;
    assert_eq!(response.status, 401);
    assert!(response.text().contains("<Code>AuthFailure</Code>"));
    let filter = RequestFilter { code: Some("AuthFailure".to_owned()), ..RequestFilter::default() };
    assert_eq!(cloud.world.request_log().find(&filter).len(), 1);
}

#[tokio::test]
async fn pages_match_the_complete_list() {
    let cloud = Cloud::start().await;
    let image = cloud.image();
    for _ in 0..10 {
        let parameters = [("ImageId", image.as_str()), ("MinCount", "1000"), ("MaxCount", "1000")];
        assert_eq!(cloud.ec2("RunInstances", &parameters).await.status, 200);
    }
    let instance_ids = |response: &support::Response| {
        response
            .text()
            .match_indices("<instanceId>")
            .map(|(at, tag)| response.text_at(at + tag.len(), 19))
            .collect::<Vec<_>>()
    };
    let whole = instance_ids(&cloud.ec2("DescribeInstances", &[]).await);
    assert_eq!(whole.iter().collect::<BTreeSet<_>>().len(), 10_000);
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = cloud.ec2("DescribeInstances", &[("MaxResults", "1000"), ("NextToken", &token)]).await;
        paged.extend(instance_ids(&page));
        if !page.text().contains("<nextToken>") {
            break;
        }
        token = page.between("<nextToken>", "</nextToken>");
    }
    assert_eq!(paged, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_lose_no_update() {
    let cloud = Arc::new(Cloud::start().await);
    let image = cloud.image();
    // Two clients share each token.
    let tokens = max_clients(2) / 2;
    let mut clients = JoinSet::new();
    for number in 0..2 * tokens {
        let (cloud, image) = (Arc::clone(&cloud), image.clone());
        clients.spawn(async move {
            let token = format!("token-{}", number / 2);
            let launched = cloud
                .ec2(
                    "RunInstances",
                    &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "1"), ("ClientToken", &token)],
                )
                .await;
            assert_eq!(launched.status, 200, "{}", launched.text());
            let id = launched.between("<instanceId>", "</instanceId>");
            let key = format!("key-{}", number % 2);
            let tagged =
                cloud.ec2("CreateTags", &[("ResourceId.1", &id), ("Tag.1.Key", &key), ("Tag.1.Value", "x")]).await;
            assert_eq!(tagged.status, 200, "{}", tagged.text());
            id
        });
    }
    let ids: BTreeSet<String> = clients.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), tokens, "one instance for each token");
    cloud.world.with_ec2(|ec2, now| {
        let region = ec2.region("us-east-1", now).expect("a region");
        assert_eq!(region.instances().count(), tokens);
        assert!(region.instances().all(|instance| instance.tags.len() == 2), "the tags of both clients are kept");
    });
    assert_eq!(cloud.world.request_log().total(), 4 * tokens as u64);
}

#[tokio::test]
async fn worlds_share_no_state() {
    let (one, other) = (Cloud::start().await, Cloud::start().await);
    let image = one.image();
    one.ec2("RunInstances", &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "1")]).await;
    one.world.faults().add(Rule::new(Action::Reset)).expect("a valid rule");
    let response = other.ec2("DescribeInstances", &[]).await;
    assert_eq!(response.status, 200);
    assert!(response.text().contains("<reservationSet></reservationSet>"));
    assert_eq!(one.world.request_log().find(&RequestFilter::default()).len(), 1);
}

#[tokio::test]
async fn shutdown_ends_pend_requests() {
    let cloud = Cloud::start().await;
    let action = Action::Latency { seconds: 3600.0, on: fake_cloud::faults::WaitOn::World };
    cloud.world.faults().add(Rule::new(action)).expect("a valid rule");
    let address = cloud.address;
    let waiting =
        tokio::spawn(
            async move { support::exchange(address, &signed("ec2", &[], &form("DescribeRegions", &[]))).await },
        );
    support::eventually(|| cloud.world.faults().list()[0].applied == 1).await;
    cloud.stop().await;
    assert!(waiting.await.expect("the client task ends").is_none());
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn reset_and_dropped_response_end_the_connection() {
    let cloud = Cloud::start().await;
    let request = signed("ec2", &[], &form("DescribeRegions", &[]));
    for (action, kind, outcome) in [
        (Action::Reset, Some(ErrorKind::ConnectionReset), RequestOutcome::Reset),
        (Action::DropResponse, None, RequestOutcome::ResponseDropped),
    ] {
        cloud.world.reset();
        cloud.world.faults().add(Rule::new(action)).expect("a valid rule");
        let mut stream = TcpStream::connect(cloud.address).await.expect("a listener");
        stream.write_all(&request).await.expect("the request is sent");
        let end = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(end.as_ref().err().map(std::io::Error::kind), kind, "{end:?}");
        assert_eq!(end.unwrap_or(0), 0, "no part of a response");
        let records = cloud.world.request_log().find(&RequestFilter::default());
        assert_eq!(records.iter().map(|record| &record.outcome).collect::<Vec<_>>(), [&outcome]);
    }
}

#[tokio::test]
async fn abandoned_request_is_logged_and_not_executed() {
    let cloud = Cloud::start().await;
    let action = Action::Latency { seconds: 3600.0, on: fake_cloud::faults::WaitOn::World };
    cloud.world.faults().add(Rule::new(action)).expect("a valid rule");
    let image = cloud.image();
    let body = form("RunInstances", &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "1")]);
    let mut stream = TcpStream::connect(cloud.address).await.expect("a listener");
    stream.write_all(&signed("ec2", &[], &body)).await.expect("the request is sent");
    support::eventually(|| cloud.world.faults().list()[0].applied == 1).await;
    drop(stream);
    support::eventually(|| cloud.world.request_log().total() == 1).await;
    assert_eq!(cloud.world.request_log().find(&RequestFilter::default())[0].outcome, RequestOutcome::Abandoned);
    cloud.world.clock().advance(std::time::Duration::from_secs(7200));
    cloud.world.with_ec2(|ec2, now| {
        assert_eq!(ec2.region("us-east-1", now).expect("a region").instances().count(), 0);
    });
}

#[tokio::test]
async fn admin_api_rejects_cross_origin_requests() {
    let cloud = Cloud::start().await;
    let request = |origin: &str| {
        let origin = if origin.is_empty() { String::new() } else { format!("origin: {origin}\r\n") };
        format!("POST /_fake/reset HTTP/1.1\r\nhost: 127.0.0.1:4566\r\n{origin}content-length: 0\r\n\r\n").into_bytes()
    };
    for (origin, status) in [
        ("", 200),
        ("http://127.0.0.1:4566", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://x:4566", 403),
    ] {
        assert_eq!(cloud.raw(&request(origin)).await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn admin_api_rejects_invalid_requests_with_json() {
    let cloud = Cloud::start().await;
    let post = |path: &str, body: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    for (request, status) in [
        (post("/_fake/faults", "{"), 400),
        (post("/_fake/clock/advance", r#"{"seconds": -1}"#), 422),
        (post("/_fake/clock", r#"{"pace": "fast"}"#), 422),
        (post("/_fake/nowhere", "{}"), 404),
        (post("/_fake/console/stop", r#"{"region": "us-east-1", "instance": "i-12345678"}"#), 409),
        (b"GET /_fake/requests?color=blue HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), 400),
        (b"GET /_fake/ HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), 200),
    ] {
        let response = cloud.raw(&request).await;
        assert_eq!(response.status, status, "{}", response.text());
        assert!(serde_json::from_slice::<serde_json::Value>(&response.body).is_ok());
    }
}
