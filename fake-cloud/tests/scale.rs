//! A large fleet, and a crowd: ten thousand of everything, a thousand clients at once, over real sockets.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions};
use fake_cloud::{FakeCloud, Pace};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// What is meant by many.
const MANY: usize = 10_000;
/// How long anything may take on a busy machine before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(120);

async fn start() -> FakeCloud {
    FakeCloud::builder().pace(Pace::Manual).start().await.expect("it starts on free ports")
}

async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// How many clients of so many sockets each fit beside everything else, up to a thousand.
fn crowd(sockets_each: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let most = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok()).unwrap_or(1024);
    let clients = (most.saturating_sub(600) / sockets_each).min(1000);
    assert!(clients >= 50, "only {most} files may be open here: raise `ulimit -n`");
    clients
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

const SIGNATURE: &str = "AWS4-HMAC-SHA256 Credential=fake/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, \
                         Signature=0";

/// Asks EC2; the answer must be a success.
async fn ec2(client: &reqwest::Client, url: &str, form: String) -> String {
    let request = client.post(url).header("authorization", SIGNATURE).body(form).timeout(PATIENCE);
    let response = request.send().await.expect("an answer");
    let status = response.status();
    let text = response.text().await.expect("a body");
    assert_eq!(status, 200, "{}", text.get(..500).unwrap_or(&text));
    text
}

/// One connection, kept open. A client of the usual kind costs more than what it calls, and here are thousands.
struct Caller(BufReader<TcpStream>);

impl Caller {
    async fn connect(url: &str) -> Self {
        let address = url.trim_start_matches("http://");
        Self(BufReader::new(TcpStream::connect(address).await.expect("a connection")))
    }

    /// Asks EC2; the answer must be a success.
    async fn ask(&mut self, form: &str) -> String {
        self.post("/", &format!("authorization: {SIGNATURE}"), form).await
    }

    /// Posts something; the answer must be a success.
    async fn post(&mut self, path: &str, header: &str, body: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        self.0.write_all(request.as_bytes()).await.expect("it is sent");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).await.expect("a line"), 0, "it ended: {head}");
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

impl Caller {
    async fn read(&mut self, length: usize, body: &mut Vec<u8>) {
        let begin = body.len();
        body.resize(begin + length, 0);
        self.0.read_exact(&mut body[begin..]).await.expect("a body");
    }

    /// Reads a chunk and says how long it was. The last is empty.
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

/// What stands in every element of a name.
fn all<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).map(|rest| rest.split_once(&close).expect("it ends").0).collect()
}

fn an_image(cloud: &FakeCloud) -> String {
    let region = "us-east-1";
    cloud.world().with_ec2(|ec2, now| ec2.region(region, now).expect("a region").catalog.images[0].id.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_keys_and_a_thousand_watchers_hear_everything_and_writers_do_not_wait() {
    const WATCHERS: usize = 1000;
    const OF_EVERYTHING: usize = 10;
    let cloud = start().await;
    let endpoint = cloud.endpoints().etcd_endpoint.as_str();
    let mut client = Client::connect([endpoint], None).await.expect("a client");
    let key = |number: usize| format!("/k/{:03}/{number:05}", number % WATCHERS);
    let fill = async |client: &mut Client, value: &str| {
        for first in (0..MANY).step_by(100) {
            let puts: Vec<_> = (first..first + 100).map(|number| TxnOp::put(key(number), value, None)).collect();
            patiently("a write", client.txn(Txn::new().and_then(puts))).await.expect("written");
        }
    };
    fill(&mut client, "old").await;

    let mut watchers = JoinSet::new();
    for number in 0..WATCHERS {
        let (prefix, expected) = match number < OF_EVERYTHING {
            true => ("/k/".to_owned(), MANY),
            false => (format!("/k/{number:03}/"), MANY / WATCHERS),
        };
        // Some share a connection, as the watchers of one client do.
        let mut watching = match number % 10 {
            0 => Client::connect([endpoint], None).await.expect("a client"),
            _ => client.clone(),
        };
        let options = WatchOptions::new().with_prefix().with_prev_key();
        let mut stream = patiently("a watch", watching.watch(prefix, Some(options))).await.expect("a watch");
        patiently("its creation", stream.message()).await.expect("created");
        watchers.spawn(async move {
            let (mut told, mut newest) = (0, 0);
            while told < expected {
                let message = stream.message().await.expect("a message").expect("a stream");
                for event in message.events() {
                    let (kv, before) = (event.kv().expect("a key"), event.prev_kv().expect("what was before"));
                    assert_eq!((kv.value(), before.value()), (b"new".as_slice(), b"old".as_slice()));
                    assert!(kv.mod_revision() >= newest, "events go back in time");
                    newest = kv.mod_revision();
                    told += 1;
                }
            }
            assert_eq!(told, expected, "nothing twice");
        });
    }
    fill(&mut client, "new").await;
    let begin = Instant::now();
    patiently("a put among watchers", client.put("elsewhere", "x", None)).await.expect("written");
    let counted = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(client.get("/k/", Some(counted)).await.expect("an answer").count(), MANY as i64);
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(10), "a put and a count took {waited:?} while watchers were told");
    patiently("the watchers", watchers.join_all()).await;
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_instances_are_launched_listed_and_changed() {
    let cloud = start().await;
    let (client, url) = (http(), cloud.endpoints().aws_url.clone());
    let ask = async |form: String| ec2(&client, &url, format!("{form}&Version=2016-11-15")).await;
    let image = an_image(&cloud);
    let mut launched = HashSet::new();
    for _ in 0..10 {
        let answer = ask(format!("Action=RunInstances&ImageId={image}&MinCount=1000&MaxCount=1000")).await;
        launched.extend(all(&answer, "instanceId").into_iter().map(str::to_owned));
    }
    assert_eq!(launched.len(), MANY, "every id is another");
    cloud.world().clock().advance(Duration::from_secs(3600));

    let listed = async |filter: &str| {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = ask(format!("Action=DescribeInstances&MaxResults=1000{filter}{token}")).await;
            found.extend(all(&page, "instanceId").into_iter().map(str::to_owned));
            match all(&page, "nextToken").first() {
                Some(next) => token = format!("&NextToken={next}"),
                None => return found,
            }
        }
    };
    let pages = listed("").await;
    assert_eq!(pages.len(), MANY);
    assert_eq!(pages.iter().cloned().collect::<HashSet<_>>(), launched, "no instance is missing, none comes twice");
    let whole = ask("Action=DescribeInstances".to_owned()).await;
    assert_eq!(all(&whole, "instanceId").len(), MANY);

    let ids: Vec<String> = pages;
    for (number, thousand) in ids.chunks(1000).enumerate() {
        let named = |name: &str| -> String {
            thousand.iter().enumerate().map(|(place, id)| format!("&{name}.{}={id}", place + 1)).collect()
        };
        let tags = format!("&Tag.1.Key=thousand&Tag.1.Value={number}");
        ask(format!("Action=CreateTags{}{tags}", named("ResourceId"))).await;
        if number % 2 == 0 {
            ask(format!("Action=StopInstances{}", named("InstanceId"))).await;
        }
    }
    cloud.world().clock().advance(Duration::from_secs(3600));
    let state = |state: &str| format!("&Filter.1.Name=instance-state-name&Filter.1.Value.1={state}");
    assert_eq!(listed(&state("stopped")).await.len(), MANY / 2);
    assert_eq!(listed(&state("running")).await.len(), MANY / 2);
    assert_eq!(listed("&Filter.1.Name=tag:thousand&Filter.1.Value.1=7").await, ids[7000..8000]);

    // Each running instance has a CML, as far as a laptop has sockets for them; looking again gives out no more.
    for id in &ids[1000..1003] {
        ask(format!("Action=StopInstances&InstanceId.1={id}")).await;
        let request = http().get(format!("{}state", cloud.endpoints().admin_url)).timeout(PATIENCE);
        let state: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        let laboratories = state["cml"].as_array().expect("a list of CMLs");
        let listening = laboratories.iter().filter(|laboratory| laboratory["address"].is_string()).count();
        assert!((1..=512).contains(&listening), "{listening} instances have a CML that listens");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    patiently("the end", cloud.stop()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_worker_records_are_made_listed_changed_and_mirrored() {
    let cloud = start().await;
    let url = cloud.endpoints().control_plane_url.clone();
    let key = cloud.endpoints().control_plane_api_key.clone();
    let each = async |work: fn(usize) -> (String, Value)| {
        // Sixteen at a time: as many as a controller would be.
        let mut lanes = JoinSet::new();
        for lane in 0..16 {
            let header = format!("x-api-key: {key}\r\ncontent-type: application/json");
            let url = url.clone();
            lanes.spawn(async move {
                let mut caller = Caller::connect(&url).await;
                for number in (lane..MANY).step_by(16) {
                    let (path, body) = work(number);
                    caller.post(&path, &header, &body.to_string()).await;
                }
            });
        }
        patiently("the writing", lanes.join_all()).await;
    };
    let list = async || -> BTreeMap<String, String> {
        let request = http().get(format!("{url}/api/internal/workers")).header("x-api-key", &key).timeout(PATIENCE);
        let listed: Value = request.send().await.expect("an answer").json().await.expect("JSON");
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
    assert!(listed.values().all(|status| status == "pending"), "as they were made");

    let mut etcd = Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a client");
    let mut watch = etcd.watch("/lcm/workers/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    patiently("its creation", watch.message()).await.expect("created");
    let told = tokio::spawn(async move {
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
    patiently("the mirror", told).await.expect("the watcher is told of every change");
    let counted = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(etcd.get("/workers/", Some(counted)).await.expect("an answer").count(), MANY as i64);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_at_once_lose_no_update_in_ec2_or_etcd() {
    // Few share a counter: whoever loses a race for it tries again.
    const COUNTERS: usize = 100;
    let cloud = start().await;
    // Both ends of a connection to EC2 and of one to etcd are in this process.
    let clients = crowd(4);
    let (image, url) = (an_image(&cloud), cloud.endpoints().aws_url.clone());
    let together = Arc::new(Barrier::new(clients));
    let mut crowd = JoinSet::new();
    for number in 0..clients {
        let (together, image, url) = (Arc::clone(&together), image.clone(), url.clone());
        let endpoint = cloud.endpoints().etcd_endpoint.clone();
        crowd.spawn(async move {
            let mut etcd = Client::connect([endpoint], None).await.expect("a client");
            together.wait().await;
            let mut aws = Caller::connect(&url).await;
            let launch = format!("Action=RunInstances&ImageId={image}&MinCount=1&MaxCount=1&ClientToken=t-{number}");
            let first = aws.ask(&launch).await;
            let again = aws.ask(&launch).await;
            let id = all(&first, "instanceId")[0];
            assert_eq!(all(&again, "instanceId"), [id], "the same launch");
            let tag = format!("Action=CreateTags&ResourceId.1={id}&Tag.1.Key=client&Tag.1.Value={number}");
            aws.ask(&tag).await;
            increment(&mut etcd, &format!("counter/{}", number % COUNTERS)).await;
            increment(&mut etcd, &format!("counter/{}", number % COUNTERS)).await;
        });
    }
    patiently("the crowd", crowd.join_all()).await;

    let found = ec2(&http(), &url, "Action=DescribeInstances".to_owned()).await;
    assert_eq!(all(&found, "instanceId").len(), clients);
    let owners: HashSet<&str> = all(&found, "value").into_iter().collect();
    assert_eq!(owners.len(), clients, "every client's tag is there");
    let mut etcd = Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("a client");
    let count = |kv: &etcd_client::KeyValue| kv.value_str().expect("text").parse::<usize>().expect("a number");
    let counters = etcd.get("counter/", Some(GetOptions::new().with_prefix())).await.expect("an answer");
    assert_eq!(counters.kvs().iter().map(count).sum::<usize>(), 2 * clients);
    patiently("the end", cloud.stop()).await;
}

/// Adds one to a counter, again and again until nobody was faster.
async fn increment(client: &mut Client, key: &str) {
    let (mut count, mut revision) = (0, 0);
    loop {
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, revision);
        let put = TxnOp::put(key, (count + 1_usize).to_string(), None);
        let look = TxnOp::get(key, None);
        let answer = client.txn(Txn::new().when([unchanged]).and_then([put]).or_else([look])).await.expect("an answer");
        if answer.succeeded() {
            return;
        }
        let found = answer.op_responses();
        let Some(etcd_client::TxnOpResponse::Get(found)) = found.first() else { panic!("a look at the counter") };
        let kv = found.kvs().first().expect("it was written meanwhile");
        (count, revision) = (kv.value_str().expect("text").parse().expect("a number"), kv.mod_revision());
    }
}
