//! Tests with ten thousand resources and a thousand concurrent clients, over sockets.

#[expect(dead_code, reason = "parts are used by other tests only")]
mod support;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions};
use fake_cloud::control_plane::Generation;
use fake_cloud::{FakeCloud, Pace};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use self::support::max_clients;

/// Number of instances, keys and records.
const MANY: usize = 10_000;
/// Timeout of each step, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn start() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).start().await.expect("starts on free ports")
}

async fn with_timeout<T>(step: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| panic!("timeout: {step}"))
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

const SIGNATURE: &str = "AWS4-HMAC-SHA256 Credential=fake/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, \
                         Signature=0";

/// Sends a request to EC2, and panics unless it succeeds.
async fn ec2(client: &reqwest::Client, url: &str, form: String) -> String {
    let request = client.post(url).header("authorization", SIGNATURE).body(form).timeout(TIMEOUT);
    let response = request.send().await.expect("a response");
    let status = response.status();
    let text = response.text().await.expect("a body");
    assert_eq!(status, 200, "{}", text.get(..500).unwrap_or(&text));
    text
}

/// A client with one persistent connection. General HTTP clients are too expensive for thousands of them.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn connect(url: &str) -> Self {
        let address = url.trim_start_matches("http://");
        Self(BufReader::new(TcpStream::connect(address).await.expect("a connection")))
    }

    /// Sends a request to EC2, and panics unless it succeeds.
    async fn ec2(&mut self, form: &str) -> String {
        self.post("/", &format!("authorization: {SIGNATURE}"), form).await
    }

    /// Sends a POST request, and panics unless it succeeds.
    async fn post(&mut self, path: &str, header: &str, body: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        self.0.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).await.expect("a line"), 0, "the connection ended: {head}");
        }
        let lines = head.to_ascii_lowercase();
        let mut body = Vec::new();
        match lines.lines().find_map(|line| line.strip_prefix("content-length:")) {
            Some(length) => self.read(length.trim().parse().expect("a length"), &mut body).await,
            None => {
                assert!(lines.contains("transfer-encoding: chunked"), "{head}");
                while self.read_chunk(&mut body).await > 0 {}
            }
        }
        let body = String::from_utf8(body).expect("text");
        assert!(head.starts_with("HTTP/1.1 20"), "{head}{body}");
        body
    }
}

impl Connection {
    async fn read(&mut self, length: usize, body: &mut Vec<u8>) {
        let begin = body.len();
        body.resize(begin + length, 0);
        self.0.read_exact(&mut body[begin..]).await.expect("a body");
    }

    /// Reads a chunk and returns its length, which is 0 for the last chunk.
    async fn read_chunk(&mut self, body: &mut Vec<u8>) -> usize {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        let length = usize::from_str_radix(line.trim_end(), 16).expect("a length");
        self.read(length, body).await;
        line.clear();
        self.0.read_line(&mut line).await.expect("a line");
        assert_eq!(line, "\r\n");
        length
    }
}

/// Returns the content of all elements with this name.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).map(|rest| rest.split_once(&close).expect("a closing tag").0).collect()
}

fn image_id(cloud: &FakeCloud) -> String {
    let region = "us-east-1";
    cloud.world().with_ec2(|ec2, now| ec2.region(region, now).expect("a region").catalog.images[0].id.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_watchers_receive_all_events() {
    const WATCHERS: usize = 1000;
    const ALL_KEYS: usize = 10;
    let cloud = start().await;
    let endpoint = cloud.endpoints().etcd_endpoint.as_str();
    let mut client = Client::connect([endpoint], None).await.expect("a client");
    let key = |number: usize| format!("/k/{:03}/{number:05}", number % WATCHERS);
    let fill = async |client: &mut Client, value: &str| {
        for first in (0..MANY).step_by(100) {
            let puts: Vec<_> = (first..first + 100).map(|number| TxnOp::put(key(number), value, None)).collect();
            with_timeout("a write", client.txn(Txn::new().and_then(puts))).await.expect("written");
        }
    };
    fill(&mut client, "old").await;

    let mut watchers = JoinSet::new();
    for number in 0..WATCHERS {
        let (prefix, expected) = match number < ALL_KEYS {
            true => ("/k/".to_owned(), MANY),
            false => (format!("/k/{number:03}/"), MANY / WATCHERS),
        };
        // Most watchers share a connection.
        let mut watching = match number % 10 {
            0 => Client::connect([endpoint], None).await.expect("a client"),
            _ => client.clone(),
        };
        let options = WatchOptions::new().with_prefix().with_prev_key();
        let mut stream = with_timeout("a watch", watching.watch(prefix, Some(options))).await.expect("a watch");
        with_timeout("its creation", stream.message()).await.expect("created");
        watchers.spawn(async move {
            let (mut received, mut newest) = (0, 0);
            while received < expected {
                let message = stream.message().await.expect("a message").expect("a stream");
                for event in message.events() {
                    let (kv, before) = (event.kv().expect("a key"), event.prev_kv().expect("the previous value"));
                    assert_eq!((kv.value(), before.value()), (b"new".as_slice(), b"old".as_slice()));
                    assert!(kv.mod_revision() >= newest, "events are ordered");
                    newest = kv.mod_revision();
                    received += 1;
                }
            }
            assert_eq!(received, expected, "no event is duplicated");
        });
    }
    fill(&mut client, "new").await;
    let begin = Instant::now();
    with_timeout("a put among watchers", client.put("elsewhere", "x", None)).await.expect("written");
    let counted = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(client.get("/k/", Some(counted)).await.expect("a response").count(), MANY as i64);
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(10), "a put and a count took {waited:?} while events were delivered");
    with_timeout("the watchers", watchers.join_all()).await;
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_instances_are_managed() {
    let cloud = start().await;
    let (client, url) = (http(), cloud.endpoints().aws_url.clone());
    let send = async |form: String| ec2(&client, &url, format!("{form}&Version=2016-11-15")).await;
    let image = image_id(&cloud);
    let mut launched = HashSet::new();
    for _ in 0..10 {
        let response = send(format!("Action=RunInstances&ImageId={image}&MinCount=1000&MaxCount=1000")).await;
        launched.extend(elements(&response, "instanceId").into_iter().map(str::to_owned));
    }
    assert_eq!(launched.len(), MANY, "ids are unique");
    cloud.world().clock().advance(Duration::from_secs(3600));

    let listed = async |filter: &str| {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = send(format!("Action=DescribeInstances&MaxResults=1000{filter}{token}")).await;
            found.extend(elements(&page, "instanceId").into_iter().map(str::to_owned));
            match elements(&page, "nextToken").first() {
                Some(next) => token = format!("&NextToken={next}"),
                None => return found,
            }
        }
    };
    let pages = listed("").await;
    assert_eq!(pages.len(), MANY);
    assert_eq!(pages.iter().cloned().collect::<HashSet<_>>(), launched, "every instance is listed once");
    let whole = send("Action=DescribeInstances".to_owned()).await;
    assert_eq!(elements(&whole, "instanceId").len(), MANY);

    let ids: Vec<String> = pages;
    for (number, thousand) in ids.chunks(1000).enumerate() {
        let named = |name: &str| -> String {
            thousand.iter().enumerate().map(|(index, id)| format!("&{name}.{}={id}", index + 1)).collect()
        };
        let tags = format!("&Tag.1.Key=thousand&Tag.1.Value={number}");
        send(format!("Action=CreateTags{}{tags}", named("ResourceId"))).await;
        if number % 2 == 0 {
            send(format!("Action=StopInstances{}", named("InstanceId"))).await;
        }
    }
    cloud.world().clock().advance(Duration::from_secs(3600));
    let state = |state: &str| format!("&Filter.1.Name=instance-state-name&Filter.1.Value.1={state}");
    assert_eq!(listed(&state("stopped")).await.len(), MANY / 2);
    assert_eq!(listed(&state("running")).await.len(), MANY / 2);
    assert_eq!(listed("&Filter.1.Name=tag:thousand&Filter.1.Value.1=7").await, ids[7000..8000]);

    // The number of CML servers stays within the limit.
    for id in &ids[1000..1003] {
        send(format!("Action=StopInstances&InstanceId.1={id}")).await;
        let request = http().get(format!("{}state", cloud.endpoints().admin_url)).timeout(TIMEOUT);
        let state: Value = request.send().await.expect("a response").json().await.expect("JSON");
        let servers = state["cml"].as_array().expect("a list of CML servers");
        let listening = servers.iter().filter(|server| server["address"].is_string()).count();
        assert!((1..=512).contains(&listening), "{listening} CML servers listen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    with_timeout("the end", cloud.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_records_are_managed_and_mirrored() {
    let builder = FakeCloud::builder().pace(Pace::Manual).control_plane(Generation::Extended);
    let cloud = builder.start().await.expect("starts on free ports");
    let url = cloud.endpoints().control_plane_url.clone();
    let key = cloud.endpoints().control_plane_api_key.clone();
    let each = async |work: fn(usize) -> (String, Value)| {
        // Sixteen concurrent connections, like a controller.
        let mut connections = JoinSet::new();
        for first in 0..16 {
            let header = format!("x-api-key: {key}\r\ncontent-type: application/json");
            let url = url.clone();
            connections.spawn(async move {
                let mut connection = Connection::connect(&url).await;
                for number in (first..MANY).step_by(16) {
                    let (path, body) = work(number);
                    connection.post(&path, &header, &body.to_string()).await;
                }
            });
        }
        with_timeout("the writes", connections.join_all()).await;
    };
    let list = async || -> BTreeMap<String, String> {
        let request = http().get(format!("{url}/api/internal/workers")).header("x-api-key", &key).timeout(TIMEOUT);
        let listed: Value = request.send().await.expect("a response").json().await.expect("JSON");
        let workers = listed.as_array().or_else(|| listed["workers"].as_array()).expect("a list of workers");
        let text = |worker: &Value, field: &str| worker[field].as_str().expect("text").to_owned();
        workers.iter().map(|worker| (text(worker, "id"), text(worker, "status"))).collect()
    };
    each(|number| {
        ("/api/internal/workers".to_owned(), json!({"id": format!("w-{number:05}"), "aws_region": "us-east-1"}))
    })
    .await;
    let listed = list().await;
    assert_eq!(listed.len(), MANY);
    assert!(listed.values().all(|status| status == "pending"), "the initial status");

    let mut etcd = Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a client");
    let mut watch = etcd.watch("/lcm/workers/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    with_timeout("its creation", watch.message()).await.expect("created");
    let watcher = tokio::spawn(async move {
        let mut changed = HashSet::new();
        while changed.len() < MANY {
            let message = watch.message().await.expect("a message").expect("a stream");
            for event in message.events() {
                let kv = event.kv().expect("a key");
                if kv.key().ends_with(b"/state") && kv.value() == b"provisioning" {
                    changed.insert(kv.key().to_vec());
                }
            }
        }
    });
    each(|number| (format!("/api/internal/workers/w-{number:05}/status"), json!({"status": "provisioning"}))).await;
    let listed = list().await;
    assert_eq!(listed.values().filter(|status| *status == "provisioning").count(), MANY);
    with_timeout("the mirror", watcher).await.expect("the watcher receives every change");
    let counted = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(etcd.get("/workers/", Some(counted)).await.expect("a response").count(), MANY as i64);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_lose_no_update() {
    // Few clients share a counter, because the loser of a race retries.
    const COUNTERS: usize = 100;
    let cloud = start().await;
    // Both ends of a connection to EC2 and of one to etcd are in this process.
    let clients = max_clients(4);
    let (image, url) = (image_id(&cloud), cloud.endpoints().aws_url.clone());
    let barrier = Arc::new(Barrier::new(clients));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let (barrier, image, url) = (Arc::clone(&barrier), image.clone(), url.clone());
        let endpoint = cloud.endpoints().etcd_endpoint.clone();
        tasks.spawn(async move {
            let mut etcd = Client::connect([endpoint], None).await.expect("a client");
            barrier.wait().await;
            let mut aws = Connection::connect(&url).await;
            let launch = format!("Action=RunInstances&ImageId={image}&MinCount=1&MaxCount=1&ClientToken=t-{number}");
            let first = aws.ec2(&launch).await;
            let again = aws.ec2(&launch).await;
            let id = elements(&first, "instanceId")[0];
            assert_eq!(elements(&again, "instanceId"), [id], "the launch is idempotent");
            let tag = format!("Action=CreateTags&ResourceId.1={id}&Tag.1.Key=client&Tag.1.Value={number}");
            aws.ec2(&tag).await;
            increment(&mut etcd, &format!("counter/{}", number % COUNTERS)).await;
            increment(&mut etcd, &format!("counter/{}", number % COUNTERS)).await;
        });
    }
    with_timeout("the clients", tasks.join_all()).await;

    let found = ec2(&http(), &url, "Action=DescribeInstances".to_owned()).await;
    assert_eq!(elements(&found, "instanceId").len(), clients);
    let owners: HashSet<&str> = elements(&found, "value").into_iter().collect();
    assert_eq!(owners.len(), clients, "no tag is lost");
    let mut etcd = Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a client");
    let count = |kv: &etcd_client::KeyValue| kv.value_str().expect("text").parse::<usize>().expect("a number");
    let counters = etcd.get("counter/", Some(GetOptions::new().with_prefix())).await.expect("a response");
    assert_eq!(counters.kvs().iter().map(count).sum::<usize>(), 2 * clients);
    with_timeout("the end", cloud.stop()).await;
}

/// Increments a counter, and retries until no other client was faster.
async fn increment(client: &mut Client, key: &str) {
    let (mut count, mut revision) = (0, 0);
    loop {
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, revision);
        let put = TxnOp::put(key, (count + 1_usize).to_string(), None);
        let get = TxnOp::get(key, None);
        let response =
            client.txn(Txn::new().when([unchanged]).and_then([put]).or_else([get])).await.expect("a response");
        if response.succeeded() {
            return;
        }
        let found = response.op_responses();
        let Some(etcd_client::TxnOpResponse::Get(found)) = found.first() else { panic!("no counter in the response") };
        let kv = found.kvs().first().expect("a counter");
        (count, revision) = (kv.value_str().expect("text").parse().expect("a number"), kv.mod_revision());
    }
}
