//! What etcd answers, through the real client over a socket: gRPC on HTTP/2, with something wrong in it.

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

/// A header as HPACK writes it when nothing is compressed. Short ones only.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// A whole answer to the first call on a connection.
fn answer(status: &str, told: &str, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let head = [vec![0x88], header("content-type", "application/grpc")].concat();
    let told: String = told.chars().filter(|sign| sign.is_ascii_graphic()).take(100).collect();
    let tail = [header("grpc-status", status), header("grpc-message", &told)].concat();
    [
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, &[&[0], &length[..], message].concat()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &tail),
    ]
    .concat()
}

/// A listing with two keys, as etcd writes it: header {revision: 7}, kvs, count.
fn listing() -> Vec<u8> {
    let key = |key: &str, revision| [&[0x0a, key.len() as u8], key.as_bytes(), &[0x10, 2, 0x18, revision]].concat();
    let kvs = [key("/workers/w-1", 3), key("/workers/w-2", 5)];
    let kvs = kvs.map(|kv| [&[0x12, kv.len() as u8], &kv[..]].concat()).concat();
    [&[0x0a, 2, 0x18, 7][..], &kvs, &[0x20, 2]].concat()
}

/// Waits for the first call, says what it was told to, and listens until the caller has gone.
async fn serve(mut stream: TcpStream, said: Vec<u8>) {
    drop(stream.write_all(&frame(SETTINGS, 0, 0, &[])).await);
    let (mut heard, mut chunk) = (Vec::new(), [0; 4096]);
    while !holds_a_call(&heard) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => heard.extend_from_slice(&chunk[..read]),
        }
    }
    drop(stream.write_all(&said).await);
    drop(stream.shutdown().await);
    while let Ok(1..) = stream.read(&mut chunk).await {}
}

/// Whether the data of a call has come.
fn holds_a_call(heard: &[u8]) -> bool {
    let mut rest = heard.get(PREFACE..).unwrap_or_default();
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
fn whatever_etcd_answers_it_is_a_listing_or_a_failure_in_few_words() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let said = Arc::new(Mutex::new(Vec::new()));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let told = Arc::clone(&said);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let said = told.lock().clone();
            tokio::spawn(serve(stream, said));
        }
    });
    let list = || {
        runtime.block_on(async {
            let options =
                EtcdOptions { call_timeout: Duration::from_secs(20), ..EtcdOptions::new([address.to_string()]) };
            Etcd::new(options).expect("options").list("/workers/").await
        })
    };

    // First as it should be: what follows begins there.
    *said.lock() = answer("0", "", &listing());
    let listed = list().expect("a good answer is understood");
    assert_eq!((listed.revision, listed.keys.len()), (7, 2));

    let message = prop_oneof![2 => like_bytes(Just(listing())), 1 => any_bytes()];
    let status = select(vec!["0", "0", "0", "2", "5", "8", "11", "13", "14", "16", "99", "x", ""]);
    let whole =
        (status, any_text(), message).prop_map(|(status, told, message)| answer(status, &told, &message)).boxed();
    let case = prop_oneof![4 => whole.clone(), 2 => like_bytes(whole), 1 => any_bytes()];
    check("answers of etcd", 400, "tests/fuzz/seeds/etcd.txt", case, |bytes| {
        *said.lock() = bytes;
        let begun = Instant::now();
        match list() {
            Ok(listing) => prop_assert!(listing.keys.len() < 100_000),
            Err(failure) => {
                let text = failure.to_string();
                prop_assert!(text.len() < 4_000 && !text.contains(['\n', '\r']), "{text:?}");
            }
        }
        prop_assert!(begun.elapsed() < Duration::from_secs(60));
        Ok(())
    });
}
