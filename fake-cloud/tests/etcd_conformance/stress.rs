//! Many clients at once, and clients that mean no good.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::servers::FakeEtcd;
use super::session::patiently;

/// Adds one to a counter, again and again until nobody was faster.
async fn increment(client: &mut Client, key: &str) {
    loop {
        let found = client.get(key, None).await.expect("an answer");
        let (count, revision) = match found.kvs().first() {
            Some(kv) => (kv.value_str().expect("text").parse::<u64>().expect("a number"), kv.mod_revision()),
            None => (0, 0),
        };
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, revision);
        let put = TxnOp::put(key, (count + 1).to_string(), None);
        if client.txn(Txn::new().when([unchanged]).and_then([put])).await.expect("an answer").succeeded() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_among_many_clients() {
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
    patiently("the counting", clients.join_all()).await;
    let found = fake.client().await.get("counter", None).await.expect("an answer");
    assert_eq!(found.kvs()[0].value(), b"400");
    assert_eq!((found.kvs()[0].version(), found.header().expect("a header").revision()), (400, 401));
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_at_once_lose_nothing() {
    let fake = FakeEtcd::start().await;
    let mut clients = JoinSet::new();
    for number in 0..1000 {
        let mut client = fake.client().await;
        clients.spawn(async move { increment(&mut client, &format!("counter/{}", number % 200)).await });
    }
    patiently("the counting", clients.join_all()).await;
    let all = GetOptions::new().with_prefix();
    let found = fake.client().await.get("counter/", Some(all)).await.expect("an answer");
    assert_eq!(found.count(), 200);
    assert!(found.kvs().iter().all(|kv| kv.value() == b"5" && kv.version() == 5), "each counted to 5");
    assert_eq!(found.header().expect("a header").revision(), 1001);
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_watchers_on_one_connection_hear_their_own_and_in_order() {
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
            let mut told = Vec::new();
            while told.len() < 3 {
                let message = watch.message().await.expect("a message").expect("a stream");
                told.extend(message.events().iter().map(|event| event.kv().expect("a key").key().to_vec()));
            }
            assert_eq!(told, ["a", "b", "c"].map(|leaf| format!("{prefix}{leaf}").into_bytes()));
        });
    }
    for leaf in ["a", "b", "c"] {
        for number in 0..WATCHERS {
            client.put(format!("/w/{number}/{leaf}"), "x", None).await.expect("a put");
        }
    }
    patiently("the watchers", watchers.join_all()).await;
    let mut expected = 2;
    while expected <= 3 * WATCHERS as i64 + 1 {
        let message = patiently("everything", everything.message()).await.expect("a message").expect("a stream");
        for event in message.events() {
            assert_eq!(event.kv().expect("a key").mod_revision(), expected, "no gap, no repetition");
            expected += 1;
        }
    }
    fake.stop().await;
}

/// A watcher that does not read must cost others nothing, and gets everything when it reads again.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_sleeps_hears_everything_later() {
    const PUTS: i64 = 12_000;
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut sleeper = fake.client().await.watch("k", None).await.expect("a watch");
    sleeper.message().await.expect("created");
    let value = vec![b'x'; 2000];
    for _ in 0..PUTS {
        fake.store.put(&fake_cloud::etcd::Put::new("k", value.clone())).expect("a put");
    }
    client.get("k", None).await.expect("others are served");
    let mut expected = 2;
    while expected < PUTS + 2 {
        let message = patiently("the sleeper", sleeper.message()).await.expect("a message").expect("a stream");
        for event in message.events() {
            assert_eq!(event.kv().expect("a key").mod_revision(), expected, "no gap, no repetition");
            expected += 1;
        }
    }
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_candidates_lead_one_after_the_other() {
    let fake = FakeEtcd::start().await;
    let mut candidates = JoinSet::new();
    for number in 0..30 {
        let mut client = fake.client().await;
        candidates.spawn(async move {
            let lease = client.lease_grant(600, None).await.expect("a lease").id();
            let lock = etcd_client::LockOptions::new().with_lease(lease);
            let held = client.lock("door", Some(lock)).await.expect("the lock");
            let inside = client.get("inside", None).await.expect("an answer");
            assert_eq!(inside.count(), 0, "somebody else is inside");
            client.put("inside", number.to_string(), None).await.expect("a put");
            client.delete("inside", None).await.expect("a delete");
            client.unlock(held.key()).await.expect("an unlock");
        });
    }
    patiently("the candidates", candidates.join_all()).await;
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_concerns_nobody_else() {
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
        // The server may hang up in the middle of it.
        drop(stream.write_all(&garbage).await);
        let mut answer = vec![0; 1024];
        drop(tokio::time::timeout(Duration::from_millis(200), stream.read(&mut answer)).await);
    }
    assert_eq!(client.get("k", None).await.expect("alive").kvs()[0].value(), b"v");
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_keys_and_values_are_refused_and_the_server_lives() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    let mut refusals: HashMap<String, usize> = HashMap::new();
    for size in [2_000_000, 3_000_000, 10_000_000] {
        for result in [
            client.put(vec![b'k'; size], "v", None).await.map(|_| ()),
            client.put("k", vec![b'v'; size], None).await.map(|_| ()),
        ] {
            let etcd_client::Error::GRpcStatus(status) = result.expect_err("a refusal") else { panic!("not refused") };
            *refusals.entry(format!("{:?}", status.code())).or_default() += 1;
        }
    }
    assert_eq!(refusals, HashMap::from([("InvalidArgument".to_owned(), 2), ("ResourceExhausted".to_owned(), 4)]));
    assert_eq!(client.get("k", None).await.expect("alive").header().expect("a header").revision(), 1);
    let mut watch = client.watch(vec![b'w'; 10_000_000], None).await.expect("a stream");
    assert!(patiently("the watch", watch.message()).await.is_err(), "refused");
    assert_eq!(client.get("k", None).await.expect("alive").count(), 0);
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

/// Calls that are given up are normal among clients with deadlines, and must not end the connection for the others on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_given_up_at_once_leave_the_connection_alone() {
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
    let told = patiently("the watch", watch.message()).await.expect("the connection lives").expect("a stream");
    assert_eq!(told.events().len(), 1);
    fake.stop().await;
}

/// A stream that asks and asks is told in between, so what it has not been told yet does not pile up.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_asks_without_end_is_told_in_between() {
    let fake = FakeEtcd::start().await;
    let mut watch = fake.client().await.watch("k", None).await.expect("a watch");
    watch.message().await.expect("created");
    let asked = async {
        for _ in 0..20_000 {
            watch.request_progress().await.expect("a request");
        }
        for _ in 0..20_000 {
            watch.message().await.expect("an answer").expect("a stream");
        }
    };
    patiently("the answers", asked).await;
    fake.stop().await;
}
