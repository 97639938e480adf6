//! A server that says what it was told to say, whatever it is asked.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// What it says: to whoever asks for a path that ends like this, and to everybody else.
#[derive(Debug, Default)]
struct Lines {
    special: Option<(&'static str, Vec<u8>)>,
    usual: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Parrot {
    pub(crate) address: SocketAddr,
    lines: Arc<Mutex<Lines>>,
}

impl Parrot {
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let lines = Arc::new(Mutex::new(Lines::default()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let told = Arc::clone(&lines);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&told)));
            }
        });
        Self { address, lines }
    }

    pub(crate) fn learn(&self, usual: Vec<u8>, special: Option<(&'static str, Vec<u8>)>) {
        *self.lines.lock() = Lines { special, usual };
    }
}

/// One request, one answer, the end.
async fn answer(mut stream: TcpStream, lines: Arc<Mutex<Lines>>) {
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    while !is_whole(&request) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&chunk[..read]),
        }
    }
    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let said = {
        let lines = lines.lock();
        match &lines.special {
            Some((end, special)) if path.ends_with(end) => special.clone(),
            Some(_) | None => lines.usual.clone(),
        }
    };
    drop(stream.write_all(&said).await);
    drop(stream.shutdown().await);
}

fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    request.len() >= end + 4 + length.unwrap_or(0)
}

/// An answer of HTTP with a body, which says its length or ends with the connection.
pub(crate) fn response(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A status that somebody may send.
pub(crate) fn any_status() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => Just(200_u16),
        3 => select(vec![201, 202, 204, 301, 304, 400, 401, 403, 404, 405, 409, 412, 413, 429, 500, 501, 502, 503, 504]),
        1 => 200_u16..600,
    ]
}
