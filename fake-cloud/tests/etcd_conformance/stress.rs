//! Many concurrent clients, and invalid input.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::servers::FakeEtcd;
use super::session::with_timeout;

/// Increments a counter, and retries until no other client has changed it in between.
async fn increment(client: &mut Client, key: &str) {
    loop {
        let found = client.get(key, None).await.expect("a response");
        let (count, revision) = match found.kvs().first() {
            Some(kv) => (kv.value_str().expect("text").parse::<u64>().expect("a number"), kv.mod_revision()),
            None => (0, 0),
        };
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, revision);
        let put = TxnOp::put(key, (count + 1).to_string(), None);
        if client.txn(Txn::new().when([unchanged]).and_then([put])).await.expect("a response").succeeded() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_updates_are_not_lost() {
    let fake = FakeEtcd::start().await;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let mut client = fake.client().await;
        clients.spawn(async move {
            for _ in 0..20 {
                increment(&mut client, "counter").await;
            }
        });
    }
    with_timeout("the counting", clients.join_all()).await;
    let found = fake.client().await.get("counter", None).await.expect("a response");
    assert_eq!(found.kvs()[0].value(), b"400");
    assert_eq!((found.kvs()[0].version(), found.header().expect("a header").revision()), (400, 401));
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_clients_lose_no_update() {
    let fake = FakeEtcd::start().await;
    let mut clients = JoinSet::new();
    for number in 0..1000 {
        let mut client = fake.client().await;
        clients.spawn(async move { increment(&mut client, &format!("counter/{}", number % 200)).await });
    }
    with_timeout("the counting", clients.join_all()).await;
    let all = GetOptions::new().with_prefix();
    let found = fake.client().await.get("counter/", Some(all)).await.expect("a response");
    assert_eq!(found.count(), 200);
    assert!(found.kvs().iter().all(|kv| kv.value() == b"5" && kv.version() == 5), "every counter is 5");
    assert_eq!(found.header().expect("a header").revision(), 1001);
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_watchers_receive_their_events_in_order() {
    const WATCHERS: usize = 1000;
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut everything = client.watch("", Some(WatchOptions::new().with_all_keys())).await.expect("a watch");
    let mut watchers = JoinSet::new();
    for number in 0..WATCHERS {
        let prefix = format!("/w/{number}/");
        let mut watch = client.watch(prefix.as_str(), Some(WatchOptions::new().with_prefix())).await.expect("a watch");
        watch.message().await.expect("created");
        watchers.spawn(async move {
            let mut keys = Vec::new();
            while keys.len() < 3 {
                let message = watch.message().await.expect("a message").expect("a stream");
                keys.extend(message.events().iter().map(|event| event.kv().expect("a key").key().to_vec()));
            }
            assert_eq!(keys, ["a", "b", "c"].map(|leaf| format!("{prefix}{leaf}").into_bytes()));
        });
    }
    for leaf in ["a", "b", "c"] {
        for number in 0..WATCHERS {
            client.put(format!("/w/{number}/{leaf}"), "x", None).await.expect("a put");
        }
    }
    with_timeout("the watchers", watchers.join_all()).await;
    let mut expected = 2;
    while expected <= 3 * WATCHERS as i64 + 1 {
        let message = with_timeout("everything", everything.message()).await.expect("a message").expect("a stream");
        for event in message.events() {
            assert_eq!(event.kv().expect("a key").mod_revision(), expected, "a gap or a duplicate");
            expected += 1;
        }
    }
    fake.stop().await;
}

/// A watcher that does not read delays no other client, and receives every event once it reads again.
#[tokio::test(flavor = "multi_thread")]
async fn slow_watcher_receives_every_event() {
    const PUTS: i64 = 12_000;
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut slow = fake.client().await.watch("k", None).await.expect("a watch");
    slow.message().await.expect("created");
    let value = vec![b'x'; 2000];
    for _ in 0..PUTS {
        fake.store.put(&fake_cloud::etcd::Put::new("k", value.clone())).expect("a put");
    }
    client.get("k", None).await.expect("other clients are served");
    let mut expected = 2;
    while expected < PUTS + 2 {
        let message = with_timeout("the slow watcher", slow.message()).await.expect("a message").expect("a stream");
        for event in message.events() {
            assert_eq!(event.kv().expect("a key").mod_revision(), expected, "a gap or a duplicate");
            expected += 1;
        }
    }
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_held_by_one_of_many_candidates() {
    let fake = FakeEtcd::start().await;
    let mut candidates = JoinSet::new();
    for number in 0..30 {
        let mut client = fake.client().await;
        candidates.spawn(async move {
            let lease = client.lease_grant(600, None).await.expect("a lease").id();
            let lock = etcd_client::LockOptions::new().with_lease(lease);
            let held = client.lock("door", Some(lock)).await.expect("the lock");
            let inside = client.get("inside", None).await.expect("a response");
            assert_eq!(inside.count(), 0, "another candidate holds the lock");
            client.put("inside", number.to_string(), None).await.expect("a put");
            client.delete("inside", None).await.expect("a delete");
            client.unlock(held.key()).await.expect("an unlock");
        });
    }
    with_timeout("the candidates", candidates.join_all()).await;
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_does_not_affect_other_clients() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    client.put("k", "v", None).await.expect("a put");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let noise: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for garbage in [
        noise.clone(),
        b"\0".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /etcdserverpb.KV/Put HTTP/1.1\r\nContent-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\xff\xff\xff\xff\xff".to_vec(),
        [preface.clone(), noise].concat(),
        [preface.clone(), vec![0xff; 9]].concat(),
        preface,
    ] {
        let mut stream = tokio::net::TcpStream::connect(&fake.endpoint).await.expect("a connection");
        // The server may close the connection before all of it is written.
        drop(stream.write_all(&garbage).await);
        let mut response = vec![0; 1024];
        drop(tokio::time::timeout(Duration::from_millis(200), stream.read(&mut response)).await);
    }
    assert_eq!(client.get("k", None).await.expect("still served").kvs()[0].value(), b"v");
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_keys_and_values_are_rejected() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut rejections: HashMap<String, usize> = HashMap::new();
    for size in [2_000_000, 3_000_000, 10_000_000] {
        for result in [
            client.put(vec![b'k'; size], "v", None).await.map(|_| ()),
            client.put("k", vec![b'v'; size], None).await.map(|_| ()),
        ] {
            let etcd_client::Error::GRpcStatus(status) = result.expect_err("rejected") else { panic!("not a status") };
            *rejections.entry(format!("{:?}", status.code())).or_default() += 1;
        }
    }
    assert_eq!(rejections, HashMap::from([("InvalidArgument".to_owned(), 2), ("ResourceExhausted".to_owned(), 4)]));
    assert_eq!(client.get("k", None).await.expect("still served").header().expect("a header").revision(), 1);
    let mut watch = client.watch(vec![b'w'; 10_000_000], None).await.expect("a stream");
    assert!(with_timeout("the watch", watch.message()).await.is_err(), "rejected");
    assert_eq!(client.get("k", None).await.expect("still served").count(), 0);
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_keys_are_listed_in_pages() {
    let fake = FakeEtcd::start().await;
    for number in 0..10_000 {
        fake.store.put(&fake_cloud::etcd::Put::new(format!("/k/{number:05}"), "v")).expect("a put");
    }
    let mut client = fake.client().await;
    let (mut from, mut seen) = (b"/k/".to_vec(), 0);
    loop {
        let page = GetOptions::new().with_range("/k0").with_limit(999);
        let page = client.get(from, Some(page)).await.expect("a page");
        seen += page.kvs().len();
        if !page.more() {
            break;
        }
        from = page.kvs().last().expect("a key").key().to_vec();
        from.push(0);
    }
    assert_eq!(seen, 10_000);
    fake.stop().await;
}

/// Clients with deadlines cancel calls, which must not close the connection for other calls.
#[tokio::test(flavor = "multi_thread")]
async fn canceled_calls_do_not_close_the_connection() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut watch = client.watch("k", None).await.expect("a watch");
    watch.message().await.expect("created");
    for _ in 0..20 {
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move { client.get("k", None).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        calls.iter().for_each(|call| call.abort());
    }
    client.put("k", "v", None).await.expect("a put");
    let message = with_timeout("the watch", watch.message()).await.expect("the connection is open").expect("a stream");
    assert_eq!(message.events().len(), 1);
    fake.stop().await;
}

/// Requests that arrive faster than their responses are read must not fill the queue of the stream.
#[tokio::test(flavor = "multi_thread")]
async fn unread_progress_responses_do_not_block_the_stream() {
    let fake = FakeEtcd::start().await;
    let mut watch = fake.client().await.watch("k", None).await.expect("a watch");
    watch.message().await.expect("created");
    let requests = async {
        for _ in 0..20_000 {
            watch.request_progress().await.expect("a request");
        }
        for _ in 0..20_000 {
            watch.message().await.expect("a response").expect("a stream");
        }
    };
    with_timeout("the responses", requests).await;
    fake.stop().await;
}
