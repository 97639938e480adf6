//! Corrupted gRPC responses of etcd, through the real client over a socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lcm_sdk::ports::Coordination as _;
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::cases::{any_bytes, any_text, check, like_bytes};

const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// An uncompressed HPACK header; name and value are shorter than 128 bytes.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// A complete response to the first call on a connection.
fn response(status: &str, error: &str, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let head = [vec![0x88], header("content-type", "application/grpc")].concat();
    let error: String = error.chars().filter(|sign| sign.is_ascii_graphic()).take(100).collect();
    let tail = [header("grpc-status", status), header("grpc-message", &error)].concat();
    [
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, &[&[0], &length[..], message].concat()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &tail),
    ]
    .concat()
}

/// A `RangeResponse` with two keys at revision 7.
fn range_response() -> Vec<u8> {
    let key = |key: &str, revision| [&[0x0a, key.len() as u8], key.as_bytes(), &[0x10, 2, 0x18, revision]].concat();
    let kvs = [key("/workers/w-1", 3), key("/workers/w-2", 5)];
    let kvs = kvs.map(|kv| [&[0x12, kv.len() as u8], &kv[..]].concat()).concat();
    [&[0x0a, 2, 0x18, 7][..], &kvs, &[0x20, 2]].concat()
}

/// Waits for the first call, sends the canned bytes, and reads until the client disconnects.
async fn serve(mut stream: TcpStream, canned: Vec<u8>) {
    drop(stream.write_all(&frame(SETTINGS, 0, 0, &[])).await);
    let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
    while !has_call(&received) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => received.extend_from_slice(&chunk[..read]),
        }
    }
    drop(stream.write_all(&canned).await);
    drop(stream.shutdown().await);
    while let Ok(1..) = stream.read(&mut chunk).await {}
}

/// Whether the data of a call was received.
fn has_call(received: &[u8]) -> bool {
    let mut rest = received.get(PREFACE..).unwrap_or_default();
    while let [high, middle, low, kind, ..] = rest {
        if *kind == DATA {
            return true;
        }
        let length = 9 + u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        rest = rest.get(length..).unwrap_or_default();
    }
    false
}

#[test]
fn etcd_response_is_parsed_or_fails_with_a_short_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let canned = Arc::new(Mutex::new(Vec::new()));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let served = Arc::clone(&canned);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let bytes = served.lock().clone();
            tokio::spawn(serve(stream, bytes));
        }
    });
    let list = || {
        runtime.block_on(async {
            let options = EtcdOptions::new([address.to_string()]).with_call_timeout(Duration::from_secs(20));
            Etcd::new(options).expect("options").list("/workers/").await
        })
    };

    // The valid response that the cases are derived from.
    *canned.lock() = response("0", "", &range_response());
    let listed = list().expect("a valid response is parsed");
    assert_eq!((listed.revision, listed.keys.len()), (7, 2));

    let message = prop_oneof![2 => like_bytes(Just(range_response())), 1 => any_bytes()];
    let status = select(vec!["0", "0", "0", "2", "5", "8", "11", "13", "14", "16", "99", "x", ""]);
    let complete =
        (status, any_text(), message).prop_map(|(status, error, message)| response(status, &error, &message)).boxed();
    let case = prop_oneof![4 => complete.clone(), 2 => like_bytes(complete), 1 => any_bytes()];
    check("responses of etcd", 400, "tests/fuzz/seeds/etcd.txt", case, |bytes| {
        *canned.lock() = bytes;
        let started = Instant::now();
        match list() {
            Ok(listing) => prop_assert!(listing.keys.len() < 100_000),
            Err(failure) => {
                let text = failure.to_string();
                prop_assert!(text.len() < 4_000 && !text.contains(['\n', '\r']), "{text:?}");
            }
        }
        prop_assert!(started.elapsed() < Duration::from_secs(60));
        Ok(())
    });
}
