//! What can be done to the fake, and how it stops.

use std::time::Duration;

use etcd_client::{Error, GetOptions, LeaseGrantOptions, PutOptions, WatchOptions};
use fake_cloud::clock::{Clock, Pace};
use fake_cloud::etcd::{EtcdStore, Put};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::servers::{FakeEtcd, connect};
use super::session::patiently;

fn code<T>(result: Result<T, Error>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::GRpcStatus(status)) => Some(format!("{:?}: {}", status.code(), status.message())),
        Err(error) => Some(error.to_string()),
    }
}

#[tokio::test]
async fn a_lease_ends_when_the_clock_is_moved_and_not_before() {
    let clock = Clock::new(Pace::Manual);
    let fake = FakeEtcd::with_clock(clock.clone()).await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    client.lease_grant(30, Some(LeaseGrantOptions::new().with_id(7))).await.expect("a lease");
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.expect("a put");
    patiently("put", watch.message()).await.expect("a message");

    clock.advance(Duration::from_secs(29));
    let (mut keeper, mut beats) = client.lease_keep_alive(7).await.expect("it lives");
    clock.advance(Duration::from_secs(29));
    keeper.keep_alive().await.expect("a beat");
    let beat = patiently("beat", beats.message()).await.expect("an answer").expect("a stream");
    assert_eq!(beat.ttl(), 30, "kept alive");
    clock.advance(Duration::from_secs(29));
    assert_eq!(client.get("k", None).await.expect("an answer").count(), 1);

    clock.advance(Duration::from_secs(1));
    // Nobody asks: the watcher is told all the same.
    let told = patiently("expiry", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(told.events().len(), 1);
    assert_eq!(told.events()[0].event_type(), etcd_client::EventType::Delete);
    assert_eq!(client.get("k", None).await.expect("an answer").count(), 0);
    assert!(client.lease_keep_alive(7).await.is_err());
    fake.stop().await;
}

#[tokio::test]
async fn a_lost_lease_takes_its_keys_along() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(7))).await.expect("a lease");
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.expect("a put");
    assert!(fake.store.lose_lease(7));
    assert!(!fake.store.lose_lease(7));
    assert_eq!(client.get("k", None).await.expect("an answer").count(), 0);
    fake.stop().await;
}

#[tokio::test]
async fn a_compaction_out_of_the_blue_forgets_the_past() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    for value in ["1", "2", "3"] {
        client.put("k", value, None).await.expect("a put");
    }
    fake.store.compact_now();
    fake.store.compact_now();
    let past = client.get("k", Some(GetOptions::new().with_revision(3))).await;
    let refusal = code(past).expect("a refusal");
    assert_eq!(refusal, "OutOfRange: etcdserver: mvcc: required revision has been compacted");
    assert_eq!(client.get("k", None).await.expect("an answer").kvs()[0].value(), b"3");
    fake.stop().await;
}

#[tokio::test]
async fn stalled_watches_hear_what_they_missed_afterwards() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    fake.store.stall_watches(true);
    client.put("k1", "a", None).await.expect("a put");
    client.put("k2", "b", None).await.expect("a put");
    let silence = tokio::time::timeout(Duration::from_millis(200), watch.message()).await;
    assert!(silence.is_err(), "stalled, yet told {silence:?}");
    fake.store.stall_watches(false);
    let told = patiently("missed", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(told.events().len(), 2);
    client.put("k3", "c", None).await.expect("a put");
    let told = patiently("live", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(told.events()[0].kv().expect("a key").key(), b"k3");
    fake.stop().await;
}

#[tokio::test]
async fn a_watch_stalled_over_a_compaction_is_canceled() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    fake.store.stall_watches(true);
    client.put("k", "a", None).await.expect("a put");
    client.put("k", "b", None).await.expect("a put");
    fake.store.compact_now();
    fake.store.stall_watches(false);
    let told = patiently("canceled", watch.message()).await.expect("a message").expect("a stream");
    assert!(told.canceled());
    assert_eq!(told.compact_revision(), 3);
    fake.stop().await;
}

#[tokio::test]
async fn cut_watches_end_and_new_ones_work() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    fake.store.cut_watches();
    let end = code(patiently("cut", watch.message()).await).expect("an end");
    assert_eq!(end, "Unavailable: etcdserver: no leader");
    let mut watch = client.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    client.put("k", "v", None).await.expect("a put");
    let told = patiently("event", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(told.events().len(), 1);
    fake.stop().await;
}

#[tokio::test]
async fn an_unavailable_server_refuses_every_call_until_it_is_back() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    client.put("k", "v", None).await.expect("a put");
    fake.store.set_unavailable(true);
    let refusal = Some("Unavailable: etcdserver: no leader".to_owned());
    assert_eq!(code(client.put("k", "w", None).await), refusal);
    assert_eq!(code(client.get("k", None).await), refusal);
    assert_eq!(code(client.status().await), refusal);
    assert_eq!(code(client.watch("k", None).await), refusal);
    assert_eq!(code(client.lease_grant(10, None).await), refusal);
    assert_eq!(code(client.lock("k", None).await), refusal);
    fake.store.set_unavailable(false);
    assert_eq!(client.get("k", None).await.expect("it is back").kvs()[0].value(), b"v");
    fake.stop().await;
}

#[tokio::test]
async fn two_servers_share_nothing_and_stopping_one_ends_its_streams() {
    let (one, other) = (FakeEtcd::start().await, FakeEtcd::start().await);
    let (mut first, mut second) = (one.client().await, other.client().await);
    first.put("k", "v", None).await.expect("a put");
    let seen = second.get("k", None).await.expect("an answer");
    assert_eq!((seen.count(), seen.header().expect("a header").revision()), (0, 1));
    let ids = |header: &etcd_client::ResponseHeader| (header.cluster_id(), header.member_id());
    let header = first.get("k", None).await.expect("an answer").take_header().expect("a header");
    assert_ne!(ids(&header), ids(seen.header().expect("a header")));

    let mut watch = first.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    let mut beats = first.lease_grant(60, None).await.expect("a lease");
    let (_keeper, mut kept) = first.lease_keep_alive(beats.id()).await.expect("a keeper");
    let _ = beats.take_header();
    let mut campaigner = first.clone();
    first.campaign("e", "x", 0).await.expect("a leader");
    let waiting = tokio::spawn(async move { campaigner.campaign("e", "y", 0).await });
    let endpoint = one.endpoint.clone();
    one.stop().await;
    assert!(patiently("the watch to end", watch.message()).await.map_or(true, |message| message.is_none()));
    assert!(patiently("the keeper to end", kept.message()).await.map_or(true, |message| message.is_none()));
    assert!(patiently("the candidate to give up", waiting).await.expect("no panic").is_err());
    assert!(connect(&endpoint).await.get("k", None).await.is_err(), "nobody is there any more");
    second.get("k", None).await.expect("the other lives");
    other.stop().await;
}

#[tokio::test]
async fn the_store_can_be_written_from_the_inside_and_watchers_hear_it() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("/lcm/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    fake.store.put(&Put::new("/lcm/workers/w-1", "ready")).expect("a put");
    let told = patiently("event", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(told.events()[0].kv().expect("a key").value(), b"ready");
    fake.stop().await;
}

async fn http(endpoint: &str, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(endpoint).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    patiently("the answer", stream.read_to_string(&mut answer)).await.expect("an answer");
    answer
}

#[tokio::test]
async fn health_and_version_are_told_over_plain_http() {
    let fake = FakeEtcd::start().await;
    let answer = http(&fake.endpoint, "/health").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"health":"true","reason":""}"#), "{answer}");
    let answer = http(&fake.endpoint, "/version").await;
    assert!(answer.ends_with(r#"{"etcdserver":"3.5.1","etcdcluster":"3.5.0"}"#), "{answer}");
    assert!(http(&fake.endpoint, "/nothing").await.starts_with("HTTP/1.1 404"));
    fake.store.set_unavailable(true);
    assert!(http(&fake.endpoint, "/health").await.starts_with("HTTP/1.1 503"));
    fake.stop().await;
}

/// In a real etcd the event is often there before the answer to the put. Clients must not rely on either order.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_may_come_before_the_answer_to_the_put_that_caused_it() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    let mut events_first = 0;
    for _ in 0..500 {
        let mut put = std::pin::pin!(client.put("k", "v", None));
        let is_event_first = tokio::select! {
            biased;
            answer = &mut put => answer.map(|_| false).expect("a put"),
            event = watch.message() => event.map(|_| true).expect("an event"),
        };
        if is_event_first {
            put.await.expect("a put");
            events_first += 1;
        } else {
            patiently("the event", watch.message()).await.expect("an event");
        }
    }
    println!("{events_first} of 500 events came first");
    assert!(events_first > 0);
    fake.stop().await;
}

#[tokio::test]
async fn an_idle_watcher_that_asked_for_it_is_told_how_far_it_is_every_ten_minutes() {
    let clock = Clock::new(Pace::Manual);
    let fake = FakeEtcd::with_clock(clock.clone()).await;
    let mut client = fake.client().await;
    let options = WatchOptions::new().with_progress_notify();
    let mut watch = client.watch("k", Some(options)).await.expect("a watch");
    patiently("created", watch.message()).await.expect("a message");
    client.put("elsewhere", "v", None).await.expect("a put");
    clock.advance(Duration::from_secs(600));
    let told = patiently("progress", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!((told.watch_id(), told.events().len()), (0, 0));
    assert_eq!(told.header().expect("a header").revision(), 2);
    fake.stop().await;
}

#[tokio::test]
async fn the_same_seed_gives_the_same_ids() {
    let ids = async |seed| {
        let store = EtcdStore::with_seed(Clock::new(Pace::Manual), seed);
        (store.lease_grant(0, 10), store.lease_grant(0, 10))
    };
    assert_eq!(ids(1).await, ids(1).await);
    assert_ne!(ids(1).await, ids(2).await);
}
