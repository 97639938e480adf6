//! Raw bytes on every port.

use std::net::SocketAddr;
use std::time::Duration;

use fake_cloud::FakeCloud;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cases::{any_bytes, check, like_bytes};
use crate::client::runtime;
use crate::support::exchange;

/// Valid requests, which the cases mutate.
const REQUESTS: &[&[u8]] = &[
    b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /_fake/clock/advance HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{\"seconds\": 60}",
    b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nActio\r\n3\r\nn=x\r\n0\r\n\r\n",
    b"PUT /api/internal/workers?a=b HTTP/1.0\r\nx-api-key: lcm-dev-key\r\ncontent-length: 2\r\n\r\n{}",
    // HTTP/2 preface, a SETTINGS frame and a HEADERS frame.
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x05\0\0\0\x01\x82\x86\x84\x41\x00",
];

#[test]
fn malformed_bytes_do_not_break_the_next_connection() {
    let runtime = runtime();
    let cloud = runtime.block_on(FakeCloud::start()).expect("a cloud");
    let at = |url: &str| url.trim_start_matches("http://").parse::<SocketAddr>().expect("an address");
    let endpoints = cloud.endpoints();
    let ports = [&endpoints.aws_url, &endpoints.control_plane_url, &endpoints.etcd_endpoint].map(|url| at(url));
    let good: [&[u8]; 3] = [
        b"GET /_fake/clock HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /api/internal/workers HTTP/1.1\r\nhost: x\r\nx-api-key: lcm-dev-key\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ];
    let bytes = prop_oneof![3 => like_bytes(select(REQUESTS).prop_map(<[u8]>::to_vec)), 1 => any_bytes()];
    let pieces = proptest::collection::vec(any::<Index>(), 0..3);
    check("bytes on a port", 600, "tests/fuzz/seeds/raw.txt", (bytes, pieces, 0_usize..3), |(bytes, cuts, port)| {
        runtime.block_on(async {
            let mut stream = TcpStream::connect(ports[port]).await.expect("listening");
            // In pieces, as a network delivers them.
            let mut cuts: Vec<usize> =
                cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            for piece in cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]) {
                if stream.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(stream.shutdown().await);
            let mut response = Vec::new();
            // Do not wait for a server that expects more bytes.
            drop(
                tokio::time::timeout(Duration::from_millis(20), (&mut stream).take(1 << 20).read_to_end(&mut response))
                    .await,
            );
            prop_assert!(!response.starts_with(b"HTTP/1.1 5"), "{}", String::from_utf8_lossy(&response));
            drop(stream);
            let next = exchange(ports[port], good[port]).await;
            prop_assert_eq!(next.map(|response| response.status), Some(200));
            Ok(())
        })
    });
    runtime.block_on(cloud.stop());
}
