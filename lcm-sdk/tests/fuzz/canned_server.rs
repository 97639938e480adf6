//! An HTTP server that sends canned bytes for every request.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

#[derive(Debug, Default)]
struct Responses {
    /// Sent for paths with this suffix.
    special: Option<(&'static str, Vec<u8>)>,
    /// Sent for every other path.
    default: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct CannedServer {
    pub(crate) address: SocketAddr,
    responses: Arc<Mutex<Responses>>,
}

impl CannedServer {
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let responses = Arc::new(Mutex::new(Responses::default()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let served = Arc::clone(&responses);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self { address, responses }
    }

    /// Replaces the responses; `special` goes to requests whose path has its suffix.
    pub(crate) fn respond_with(&self, default: Vec<u8>, special: Option<(&'static str, Vec<u8>)>) {
        *self.responses.lock() = Responses { special, default };
    }
}

/// Reads one request, sends one response and closes the connection.
async fn serve(mut stream: TcpStream, responses: Arc<Mutex<Responses>>) {
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    while !is_complete(&request) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&chunk[..read]),
        }
    }
    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let bytes = {
        let responses = responses.lock();
        match &responses.special {
            Some((suffix, special)) if path.ends_with(suffix) => special.clone(),
            Some(_) | None => responses.default.clone(),
        }
    };
    drop(stream.write_all(&bytes).await);
    drop(stream.shutdown().await);
}

fn is_complete(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    request.len() >= end + 4 + length.unwrap_or(0)
}

/// An HTTP response with a body and its length.
pub(crate) fn response(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} Canned\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Mostly successes, some of the usual errors, now and then any status.
pub(crate) fn any_status() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => Just(200_u16),
        3 => select(vec![201, 202, 204, 301, 304, 400, 401, 403, 404, 405, 409, 412, 413, 429, 500, 501, 502, 503, 504]),
        1 => 200_u16..600,
    ]
}
