//! Sends arbitrary frames and messages to etcd's gRPC services.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use fake_cloud::etcd::{EtcdStore, serve};
use fake_cloud::{Clock, Pace};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use proptest::sample::select;
use tokio::net::{TcpListener, TcpStream};

use crate::cases::{any_bytes, check, like_bytes};
use crate::client::runtime;

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

/// Calls that stay open after their first response, or may wait forever.
const LASTING: &[&str] = &[
    "etcdserverpb.Watch/Watch",
    "etcdserverpb.Lease/LeaseKeepAlive",
    "v3electionpb.Election/Campaign",
    "v3electionpb.Election/Observe",
    "v3lockpb.Lock/Lock",
];

/// A valid protobuf message with plausible fields and unusual values.
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
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.expect("an HTTP/2 connection");
    tokio::spawn(connection);
    sender
}

/// Makes a call and returns its gRPC status.
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
fn etcd_responds_to_any_input_with_a_grpc_status() {
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
    // All calls share one connection, so that a call which breaks it fails the next one.
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
                    // Canceled after 2 ms, regardless of its response.
                    let mut other = sender.clone();
                    let canceled = call(&mut other, lasting, body.clone());
                    drop(tokio::time::timeout(Duration::from_millis(2), canceled).await);
                }
                let status = call(&mut sender, path, body).await?;
                prop_assert!((0..=16).contains(&status), "{path}: status {status}");
                // Data loss (15) is not a valid response to an invalid request.
                prop_assert_ne!(status, 15, "{}", path);
                // The server still responds.
                prop_assert_eq!(call(&mut sender, "etcdserverpb.Cluster/MemberList", framed(&[])).await?, 0);
                Ok(())
            })
        },
    );
}
