//! etcd's gRPC services over a socket: frames and messages of any kind.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use fake_cloud::clock::{Clock, Pace};
use fake_cloud::etcd::{EtcdStore, serve};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use proptest::sample::select;
use tokio::net::{TcpListener, TcpStream};

use crate::asked::runtime;
use crate::cases::{any_bytes, check, like_bytes};

const CALLS: &[&str] = &[
    "etcdserverpb.KV/Range",
    "etcdserverpb.KV/Put",
    "etcdserverpb.KV/DeleteRange",
    "etcdserverpb.KV/Txn",
    "etcdserverpb.KV/Compact",
    "etcdserverpb.Lease/LeaseGrant",
    "etcdserverpb.Lease/LeaseRevoke",
    "etcdserverpb.Lease/LeaseTimeToLive",
    "etcdserverpb.Lease/LeaseLeases",
    "etcdserverpb.Cluster/MemberList",
    "etcdserverpb.Maintenance/Status",
    "etcdserverpb.Auth/Authenticate",
    "v3electionpb.Election/Leader",
    "v3electionpb.Election/Resign",
    "v3electionpb.Election/Proclaim",
    "v3lockpb.Lock/Unlock",
    "etcdserverpb.KV/Nothing",
];

/// Calls that go on after an answer, or wait for something that may never happen.
const LASTING: &[&str] = &[
    "etcdserverpb.Watch/Watch",
    "etcdserverpb.Lease/LeaseKeepAlive",
    "v3electionpb.Election/Campaign",
    "v3electionpb.Election/Observe",
    "v3lockpb.Lock/Lock",
];

/// A message in the grammar of protocol buffers: fields that may well be meant, with values that are not.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        (1_u64..16, select(vec![0, 1, 2, 5, 127, 128, u64::MAX, 1 << 63, 1 << 31, 9_000_000_001]))
            .prop_map(|(field, number)| [varint(field << 3), varint(number)].concat()),
        (
            1_u64..16,
            prop_oneof![
                Just(b"/workers/w-1".to_vec()),
                Just(b"\0".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..40)
            ]
        )
            .prop_map(|(field, bytes)| delimited(field, &bytes)),
        (1_u64..16, any::<[u8; 8]>()).prop_map(|(field, bytes)| [varint(field << 3 | 1), bytes.to_vec()].concat()),
    ];
    let message = |part: BoxedStrategy<Vec<u8>>| proptest::collection::vec(part, 0..6).prop_map(|parts| parts.concat());
    let leaf = leaf.boxed();
    let nested = leaf.clone().prop_recursive(4, 40, 4, move |inner| {
        (1_u64..8, proptest::collection::vec(inner, 0..4)).prop_map(|(field, parts)| delimited(field, &parts.concat()))
    });
    message(prop_oneof![leaf, nested].boxed())
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push((number as u8) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn delimited(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

async fn connect(address: SocketAddr) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("small requests do not wait for company");
    let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shaken.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    sender
}

/// The gRPC status of a call.
async fn call(sender: &mut http2::SendRequest<Full<Bytes>>, path: &str, body: Vec<u8>) -> Result<i32, TestCaseError> {
    let request = Request::post(format!("http://etcd/{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let response = sender.send_request(request).await.map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(response.status().as_u16(), 200);
    let in_head = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let status = in_head.or_else(|| body.trailers()?.get("grpc-status").cloned());
    let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
    status.ok_or_else(|| TestCaseError::fail("no gRPC status"))
}

#[test]
fn whatever_etcd_is_sent_it_answers_with_a_status_of_grpc_and_lives_on() {
    let runtime = runtime();
    let store = EtcdStore::new(Clock::new(Pace::Manual));
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(serve(listener, store, std::future::pending()));
        address
    });
    let body = prop_oneof![
        6 => any_message().prop_map(|message| framed(&message)),
        2 => like_bytes(any_message().prop_map(|message| framed(&message))),
        1 => any_bytes().prop_map(|message| framed(&message)),
        1 => any_bytes(),
    ];
    let lasting = proptest::option::weighted(0.2, select(LASTING));
    // All calls on one connection: what one of them does to it the next ones would feel.
    let sender = runtime.block_on(connect(address));
    check(
        "calls to etcd",
        1_500,
        "tests/fuzz/seeds/etcd.txt",
        (select(CALLS), lasting, body),
        |(path, lasting, body)| {
            runtime.block_on(async {
                let mut sender = sender.clone();
                if let Some(lasting) = lasting {
                    // Begun and given up, whatever it says.
                    let mut other = sender.clone();
                    let begun = call(&mut other, lasting, body.clone());
                    drop(tokio::time::timeout(Duration::from_millis(2), begun).await);
                }
                let status = call(&mut sender, path, body).await?;
                prop_assert!((0..=16).contains(&status), "{path}: status {status}");
                // Unknown (2) and data loss (15) are no answers to a request that is merely wrong.
                prop_assert_ne!(status, 15, "{}", path);
                // MemberList, with an empty message, is always answered.
                prop_assert_eq!(call(&mut sender, "etcdserverpb.Cluster/MemberList", framed(&[])).await?, 0);
                Ok(())
            })
        },
    );
}
