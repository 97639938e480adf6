//! Injected faults, the clock, and shutdown of the fake.

use std::time::Duration;

use etcd_client::{Error, GetOptions, LeaseGrantOptions, PutOptions, WatchOptions};
use fake_cloud::etcd::{EtcdStore, Fault, Put};
use fake_cloud::{Clock, Pace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::servers::{FakeEtcd, connect};
use super::session::with_timeout;

fn code<T>(result: Result<T, Error>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::GRpcStatus(status)) => Some(format!("{:?}: {}", status.code(), status.message())),
        Err(error) => Some(error.to_string()),
    }
}

#[tokio::test]
async fn lease_expires_by_the_clock() {
    let clock = Clock::new(Pace::Manual);
    let fake = FakeEtcd::with_clock(clock.clone()).await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    client.lease_grant(30, Some(LeaseGrantOptions::new().with_id(7))).await.expect("a lease");
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.expect("a put");
    with_timeout("put", watch.message()).await.expect("a message");

    clock.advance(Duration::from_secs(29));
    let (mut keeper, mut responses) = client.lease_keep_alive(7).await.expect("the lease exists");
    clock.advance(Duration::from_secs(29));
    keeper.keep_alive().await.expect("a keep-alive");
    let renewed = with_timeout("keep-alive", responses.message()).await.expect("a response").expect("a stream");
    assert_eq!(renewed.ttl(), 30, "renewed");
    clock.advance(Duration::from_secs(29));
    assert_eq!(client.get("k", None).await.expect("a response").count(), 1);

    clock.advance(Duration::from_secs(1));
    // Leases expire also while no request arrives.
    let message = with_timeout("expiry", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.events().len(), 1);
    assert_eq!(message.events()[0].event_type(), etcd_client::EventType::Delete);
    assert_eq!(client.get("k", None).await.expect("a response").count(), 0);
    assert!(client.lease_keep_alive(7).await.is_err());
    fake.stop().await;
}

#[tokio::test]
async fn lost_lease_deletes_its_keys() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(7))).await.expect("a lease");
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.expect("a put");
    assert!(fake.store.inject(Fault::LeaseLost(Some(7))));
    assert!(!fake.store.inject(Fault::LeaseLost(Some(7))));
    assert_eq!(client.get("k", None).await.expect("a response").count(), 0);
    fake.stop().await;
}

#[tokio::test]
async fn injected_compaction_drops_old_revisions() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    for value in ["1", "2", "3"] {
        client.put("k", value, None).await.expect("a put");
    }
    fake.store.inject(Fault::Compact);
    fake.store.inject(Fault::Compact);
    let past = client.get("k", Some(GetOptions::new().with_revision(3))).await;
    let rejection = code(past).expect("an error");
    assert_eq!(rejection, "OutOfRange: etcdserver: mvcc: required revision has been compacted");
    assert_eq!(client.get("k", None).await.expect("a response").kvs()[0].value(), b"3");
    fake.stop().await;
}

#[tokio::test]
async fn stalled_watch_receives_missed_events_on_resume() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    fake.store.inject(Fault::WatchStall);
    client.put("k1", "a", None).await.expect("a put");
    client.put("k2", "b", None).await.expect("a put");
    let early = tokio::time::timeout(Duration::from_millis(200), watch.message()).await;
    assert!(early.is_err(), "a stalled watch received {early:?}");
    fake.store.inject(Fault::WatchResume);
    let message = with_timeout("missed", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.events().len(), 2);
    client.put("k3", "c", None).await.expect("a put");
    let message = with_timeout("live", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.events()[0].kv().expect("a key").key(), b"k3");
    fake.stop().await;
}

#[tokio::test]
async fn watch_stalled_over_a_compaction_is_canceled() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    fake.store.inject(Fault::WatchStall);
    client.put("k", "a", None).await.expect("a put");
    client.put("k", "b", None).await.expect("a put");
    fake.store.inject(Fault::Compact);
    fake.store.inject(Fault::WatchResume);
    let message = with_timeout("canceled", watch.message()).await.expect("a message").expect("a stream");
    assert!(message.canceled());
    assert_eq!(message.compact_revision(), 3);
    fake.stop().await;
}

#[tokio::test]
async fn new_watches_work_after_a_cut() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    fake.store.inject(Fault::WatchCut);
    let end = code(with_timeout("cut", watch.message()).await).expect("an end");
    assert_eq!(end, "Unavailable: etcdserver: no leader");
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    client.put("k", "v", None).await.expect("a put");
    let message = with_timeout("event", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.events().len(), 1);
    fake.stop().await;
}

#[tokio::test]
async fn unavailable_server_rejects_every_call() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    client.put("k", "v", None).await.expect("a put");
    fake.store.inject(Fault::Unavailable);
    let rejection = Some("Unavailable: etcdserver: no leader".to_owned());
    assert_eq!(code(client.put("k", "w", None).await), rejection);
    assert_eq!(code(client.get("k", None).await), rejection);
    assert_eq!(code(client.status().await), rejection);
    assert_eq!(code(client.watch("k", None).await), rejection);
    assert_eq!(code(client.lease_grant(10, None).await), rejection);
    assert_eq!(code(client.lock("k", None).await), rejection);
    fake.store.inject(Fault::Available);
    assert_eq!(client.get("k", None).await.expect("available again").kvs()[0].value(), b"v");
    fake.stop().await;
}

#[tokio::test]
async fn stopped_server_closes_its_streams() {
    let (one, other) = (FakeEtcd::start().await, FakeEtcd::start().await);
    let (mut first, mut second) = (one.client().await, other.client().await);
    first.put("k", "v", None).await.expect("a put");
    let seen = second.get("k", None).await.expect("a response");
    assert_eq!((seen.count(), seen.header().expect("a header").revision()), (0, 1));
    let ids = |header: &etcd_client::ResponseHeader| (header.cluster_id(), header.member_id());
    let header = first.get("k", None).await.expect("a response").take_header().expect("a header");
    assert_ne!(ids(&header), ids(seen.header().expect("a header")));

    let mut watch = first.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    let lease = first.lease_grant(60, None).await.expect("a lease");
    let (_keeper, mut kept) = first.lease_keep_alive(lease.id()).await.expect("a keeper");
    let mut campaigner = first.clone();
    first.campaign("e", "x", 0).await.expect("a leader");
    let waiting = tokio::spawn(async move { campaigner.campaign("e", "y", 0).await });
    let endpoint = one.endpoint.clone();
    one.stop().await;
    assert!(with_timeout("the watch to end", watch.message()).await.map_or(true, |message| message.is_none()));
    assert!(with_timeout("the keeper to end", kept.message()).await.map_or(true, |message| message.is_none()));
    assert!(with_timeout("the campaign to fail", waiting).await.expect("no panic").is_err());
    assert!(connect(&endpoint).await.get("k", None).await.is_err(), "the port is closed");
    second.get("k", None).await.expect("the other server still runs");
    other.stop().await;
}

#[tokio::test]
async fn in_process_writes_reach_watchers() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("/lcm/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    fake.store.put(&Put::new("/lcm/workers/w-1", "ready")).expect("a put");
    let message = with_timeout("event", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.events()[0].kv().expect("a key").value(), b"ready");
    fake.stop().await;
}

async fn http(endpoint: &str, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(endpoint).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    with_timeout("the response", stream.read_to_string(&mut response)).await.expect("a response");
    response
}

#[tokio::test]
async fn health_and_version_are_served_over_http() {
    let fake = FakeEtcd::start().await;
    let response = http(&fake.endpoint, "/health").await;
    assert!(
        response.starts_with("HTTP/1.1 200") && response.ends_with(r#"{"health":"true","reason":""}"#),
        "{response}"
    );
    let response = http(&fake.endpoint, "/version").await;
    assert!(response.ends_with(r#"{"etcdserver":"3.5.1","etcdcluster":"3.5.0"}"#), "{response}");
    assert!(http(&fake.endpoint, "/nothing").await.starts_with("HTTP/1.1 404"));
    fake.store.inject(Fault::Unavailable);
    assert!(http(&fake.endpoint, "/health").await.starts_with("HTTP/1.1 503"));
    fake.stop().await;
}

/// With real etcd the event often arrives before the response to the put. Clients must not rely on either order.
#[tokio::test(flavor = "multi_thread")]
async fn event_may_precede_the_put_response() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    let mut events_first = 0;
    for _ in 0..500 {
        let mut put = std::pin::pin!(client.put("k", "v", None));
        let is_event_first = tokio::select! {
            biased;
            response = &mut put => response.map(|_| false).expect("a put"),
            event = watch.message() => event.map(|_| true).expect("an event"),
        };
        if is_event_first {
            put.await.expect("a put");
            events_first += 1;
        } else {
            with_timeout("the event", watch.message()).await.expect("an event");
        }
    }
    println!("{events_first} of 500 events came first");
    assert!(events_first > 0);
    fake.stop().await;
}

#[tokio::test]
async fn idle_watcher_receives_progress_every_ten_minutes() {
    let clock = Clock::new(Pace::Manual);
    let fake = FakeEtcd::with_clock(clock.clone()).await;
    let mut client = fake.client().await;
    let options = WatchOptions::new().with_progress_notify();
    let mut watch = client.watch("k", Some(options)).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    client.put("other", "v", None).await.expect("a put");
    clock.advance(Duration::from_secs(600));
    let message = with_timeout("progress", watch.message()).await.expect("a message").expect("a stream");
    assert_eq!((message.watch_id(), message.events().len()), (0, 0));
    assert_eq!(message.header().expect("a header").revision(), 2);
    fake.stop().await;
}

#[tokio::test]
async fn same_seed_gives_the_same_ids() {
    let ids = async |seed| {
        let store = EtcdStore::with_seed(Clock::new(Pace::Manual), seed);
        (store.lease_grant(0, 10), store.lease_grant(0, 10))
    };
    assert_eq!(ids(1).await, ids(1).await);
    assert_ne!(ids(1).await, ids(2).await);
}

#[tokio::test]
async fn reset_store_is_empty_and_still_served() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    with_timeout("created", watch.message()).await.expect("a message");
    client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(7))).await.expect("a lease");
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.expect("a put");
    fake.store.inject(Fault::WatchStall);
    fake.store.inject(Fault::Unavailable);
    fake.store.reset();
    let fresh = client.get("k", None).await.expect("still served");
    assert_eq!((fresh.count(), fresh.header().expect("a header").revision()), (0, 1));
    assert!(client.leases().await.expect("a response").leases().is_empty());
    let mut anew = client.watch("k", None).await.expect("a watch");
    with_timeout("created", anew.message()).await.expect("a message");
    drop(watch);
    client.put("k", "v", None).await.expect("a put");
    let message = with_timeout("event", anew.message()).await.expect("a message").expect("a stream");
    assert_eq!(message.header().expect("a header").revision(), 2);
    fake.stop().await;
}
