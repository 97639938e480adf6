//! The AWS port over real sockets: bad input, many callers at once, isolation, a clean stop.

mod support;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use fake_cloud::faults::{Action, Rule};
use fake_cloud::world::SeededRng;
use fake_cloud::{RequestFilter, RequestOutcome};
use support::{Cloud, form, signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[tokio::test]
async fn bad_forms_get_ec2s_error_and_the_server_lives() {
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
        (b"Action=TerminateInstances", "MissingParameter"),
        (b"Action=TerminateInstances&InstanceId.1=", "InvalidInstanceID.Malformed"),
        (b"Action=DescribeInstances&Filter.1.Value.1=x", "MissingParameter"),
        (b"Action=DescribeInstances&MaxResults=-1", "InvalidParameterValue"),
        (b"Action=DescribeInstances&DryRun=perhaps", "InvalidParameterValue"),
        (b"Action=DescribeInstances&InstanceId.1=i-12345678&MaxResults=5", "InvalidParameterCombination"),
        (b"Action=<script>", "InvalidAction"),
    ] {
        let answer = cloud.send("ec2", &[], body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(&format!("<Code>{code}</Code>")), "{code}: {}", answer.text());
        assert!(!answer.text().contains("<script>"));
        assert!(answer.head.contains("x-amzn-requestid"));
    }
    assert_eq!(cloud.ec2("DescribeInstances", &[]).await.status, 200);
}

#[tokio::test]
async fn huge_bodies_are_refused_and_not_kept() {
    let cloud = Cloud::start().await;
    let huge = vec![b'a'; 3 * 1024 * 1024];
    let answer = cloud.send("ec2", &[], &huge).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("<Code>RequestEntityTooLarge</Code>"));

    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(&vec![b' '; 16 * 1024 * 1024]).expect("it packs");
    let bomb = packer.finish().expect("it packs");
    let headers = ["x-amz-target: GraniteServiceVersion20100801.PutMetricData", "content-encoding: gzip"];
    let answer = cloud.send("monitoring", &headers, &bomb).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("RequestEntityTooLarge"));
    assert_eq!(cloud.ec2("DescribeRegions", &[]).await.status, 200);
}

#[tokio::test]
async fn bad_cbor_and_json_get_their_protocols_error() {
    let cloud = Cloud::start().await;
    let deep = vec![0x81; 500_000];
    for body in [&b"\xff"[..], b"\xbf", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xa1\x61", &deep] {
        let answer = cloud.cloudwatch_cbor("GetMetricData", body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.head.contains("application/cbor"));
        assert!(answer.head.contains("x-amzn-query-error: SerializationException;Sender"), "{}", answer.head);
        assert!(ciborium::from_reader::<ciborium::Value, _>(&answer.body[..]).is_ok());
    }
    let target = ["x-amz-target: GraniteServiceVersion20100801.GetMetricData"];
    for body in [&b""[..], b"{", b"{\"a\":\"\xff\"}", b"[1]"] {
        let answer = cloud.send("monitoring", &target, body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("SerializationException"), "{}", answer.text());
    }
    let answer = cloud.send("monitoring", &[], b"Action=GetMetricData&StartTime=never").await;
    assert!(answer.text().contains("<Code>InvalidParameterValue</Code>"), "{}", answer.text());
    let answer = cloud.send("monitoring", &["x-amz-target: Nonsense"], b"{}").await;
    assert_eq!(answer.status, 404);
}

/// Good requests with bytes changed, lost and added: refused or served, but never an answer of the 500 kind.
#[tokio::test]
async fn noise_does_no_harm() {
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
            let answer = cloud.send(service, headers, &noisy(body, &mut rng)).await;
            assert!((200..500).contains(&answer.status), "{} {}", answer.status, answer.text());
        }
        let answer = cloud.cloudwatch_cbor("PutMetricData", &noisy(cbor, &mut rng)).await;
        assert!((200..500).contains(&answer.status), "{} {}", answer.status, answer.text());
    }
    assert_eq!(cloud.ec2("DescribeInstances", &[]).await.status, 200);
}

fn noisy(body: &[u8], rng: &mut SeededRng) -> Vec<u8> {
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
async fn cbor_as_the_rust_sdk_sends_it_gets_cbor_back_with_floats() {
    let cloud = Cloud::start().await;
    // {_ "Namespace": "Mine", "MetricData": [{_ "MetricName": "m", "Value": 2.0}]}
    let mut put = b"\xbf\x69Namespace\x64Mine\x6aMetricData\x81\xbf\x6aMetricName\x61m\x65Value\xfb".to_vec();
    put.extend(2.0_f64.to_be_bytes());
    put.extend(b"\xff\xff");
    let answer = cloud.cloudwatch_cbor("PutMetricData", &put).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"\xa0"[..]));
    assert!(answer.head.contains("smithy-protocol: rpc-v2-cbor"));

    let now = cloud.world.clock().now().timestamp() as f64;
    let mut get =
        b"\xbf\x69Namespace\x64Mine\x6aMetricName\x61m\x66Period\x18\x3c\x6aStatistics\x81\x67Average".to_vec();
    for (name, moment) in [("StartTime", now - 600.0), ("EndTime", now + 60.0)] {
        get.push(0x60 + name.len() as u8);
        get.extend(name.as_bytes());
        get.extend(b"\xc1\xfb");
        get.extend(moment.to_be_bytes());
    }
    get.push(0xff);
    let answer = cloud.cloudwatch_cbor("GetMetricStatistics", &get).await;
    assert_eq!(answer.status, 200);
    let value: ciborium::Value = ciborium::from_reader(&answer.body[..]).expect("good cbor");
    let text = format!("{value:?}");
    assert!(text.contains("Text(\"Average\"), Float(2.0)"), "{text}");
    assert!(text.contains("Tag(1, Float("), "{text}");
}

#[tokio::test]
async fn requests_that_nobody_signed_are_refused() {
    let cloud = Cloud::start().await;
    let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 24\r\n\r\nAction=DescribeInstances";
    let answer = cloud.raw(request).await;
    assert_eq!(answer.status, 401);
    assert!(answer.text().contains("<Code>AuthFailure</Code>"));
    let refused = RequestFilter { code: Some("AuthFailure".to_owned()), ..RequestFilter::default() };
    assert_eq!(cloud.world.request_log().find(&refused).len(), 1);
}

#[tokio::test]
async fn ten_thousand_instances_are_listed_whole_and_in_pages() {
    let cloud = Cloud::start().await;
    let image = cloud.image();
    for _ in 0..10 {
        let wish = [("ImageId", image.as_str()), ("MinCount", "1000"), ("MaxCount", "1000")];
        assert_eq!(cloud.ec2("RunInstances", &wish).await.status, 200);
    }
    let ids_on = |answer: &support::Answer| {
        answer
            .text()
            .match_indices("<instanceId>")
            .map(|(at, mark)| answer.text_at(at + mark.len(), 19))
            .collect::<Vec<_>>()
    };
    let whole = ids_on(&cloud.ec2("DescribeInstances", &[]).await);
    assert_eq!(whole.iter().collect::<BTreeSet<_>>().len(), 10_000);
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = cloud.ec2("DescribeInstances", &[("MaxResults", "1000"), ("NextToken", &token)]).await;
        paged.extend(ids_on(&page));
        if !page.text().contains("<nextToken>") {
            break;
        }
        token = page.between("<nextToken>", "</nextToken>");
    }
    assert_eq!(paged, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_at_once_lose_no_update() {
    let cloud = Arc::new(Cloud::start().await);
    let image = cloud.image();
    let mut clients = JoinSet::new();
    for number in 0..1000 {
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
    assert_eq!(ids.len(), 500, "two clients share each token");
    cloud.world.with_ec2(|ec2, now| {
        let region = ec2.region("us-east-1", now).expect("a region");
        assert_eq!(region.instances().count(), 500);
        assert!(region.instances().all(|instance| instance.tags.len() == 2), "both tags of both clients are there");
    });
    assert_eq!(cloud.world.request_log().total(), 2000);
}

#[tokio::test]
async fn two_worlds_share_nothing() {
    let (one, other) = (Cloud::start().await, Cloud::start().await);
    let image = one.image();
    one.ec2("RunInstances", &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "1")]).await;
    one.world.faults().add(Rule::always(Action::Reset)).expect("a good rule");
    let answer = other.ec2("DescribeInstances", &[]).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("<reservationSet></reservationSet>"));
    assert_eq!(one.world.request_log().find(&RequestFilter::default()).len(), 1);
}

#[tokio::test]
async fn it_stops_when_asked_even_with_a_request_under_way() {
    let cloud = Cloud::start().await;
    let action = Action::Latency { seconds: 3600.0, on: fake_cloud::faults::WaitOn::World };
    cloud.world.faults().add(Rule::always(action)).expect("a good rule");
    let address = cloud.address;
    let waiting =
        tokio::spawn(
            async move { support::exchange(address, &signed("ec2", &[], &form("DescribeRegions", &[]))).await },
        );
    support::eventually(|| cloud.world.faults().list()[0].struck == 1).await;
    cloud.stop().await;
    assert!(waiting.await.expect("the caller is told").is_none());
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_reset_is_a_reset_and_a_dropped_answer_is_a_closed_connection() {
    let cloud = Cloud::start().await;
    let request = signed("ec2", &[], &form("DescribeRegions", &[]));
    for (action, kind, outcome) in [
        (Action::Reset, Some(ErrorKind::ConnectionReset), RequestOutcome::Reset),
        (Action::DropResponse, None, RequestOutcome::ResponseDropped),
    ] {
        cloud.world.reset();
        cloud.world.faults().add(Rule::always(action)).expect("a good rule");
        let mut stream = TcpStream::connect(cloud.address).await.expect("somebody listens");
        stream.write_all(&request).await.expect("it is sent");
        let ending = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(ending.as_ref().err().map(std::io::Error::kind), kind, "{ending:?}");
        assert_eq!(ending.unwrap_or(0), 0, "not a byte of an answer");
        let records = cloud.world.request_log().find(&RequestFilter::default());
        assert_eq!(records.iter().map(|record| &record.outcome).collect::<Vec<_>>(), [&outcome]);
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_is_recorded_as_such_and_nothing_is_done() {
    let cloud = Cloud::start().await;
    let action = Action::Latency { seconds: 3600.0, on: fake_cloud::faults::WaitOn::World };
    cloud.world.faults().add(Rule::always(action)).expect("a good rule");
    let image = cloud.image();
    let body = form("RunInstances", &[("ImageId", &image), ("MinCount", "1"), ("MaxCount", "1")]);
    let mut stream = TcpStream::connect(cloud.address).await.expect("somebody listens");
    stream.write_all(&signed("ec2", &[], &body)).await.expect("it is sent");
    support::eventually(|| cloud.world.faults().list()[0].struck == 1).await;
    drop(stream);
    support::eventually(|| cloud.world.request_log().total() == 1).await;
    assert_eq!(cloud.world.request_log().find(&RequestFilter::default())[0].outcome, RequestOutcome::Abandoned);
    cloud.world.clock().advance(std::time::Duration::from_secs(7200));
    cloud.world.with_ec2(|ec2, now| {
        assert_eq!(ec2.region("us-east-1", now).expect("a region").instances().count(), 0);
    });
}

#[tokio::test]
async fn the_admin_api_does_not_answer_pages_from_elsewhere() {
    let cloud = Cloud::start().await;
    let ask = |origin: &str| {
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
        assert_eq!(cloud.raw(&ask(origin)).await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn the_admin_api_refuses_nonsense_kindly() {
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
        (b"GET /_fake/requests?colour=blue HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), 400),
        (b"GET /_fake/ HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), 200),
    ] {
        let answer = cloud.raw(&request).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok());
    }
}
