//! Serves a world on a socket, with an HTTP client that sends exactly the given bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::aws;
use fake_cloud::world::{Settings, World};
use fake_cloud::{Clock, Pace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A served world.
pub(crate) struct Cloud {
    /// The world behind the server.
    pub(crate) world: Arc<World>,
    /// Address of the server.
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<std::io::Result<()>>,
}

/// An HTTP response.
pub(crate) struct Response {
    /// HTTP status code.
    pub(crate) status: u16,
    /// Status line and headers.
    pub(crate) head: String,
    /// Body without transfer encoding.
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns `length` bytes of the body from `at`.
    pub(crate) fn text_at(&self, at: usize, length: usize) -> String {
        String::from_utf8_lossy(&self.body[at..at + length]).into_owned()
    }

    /// Returns the text between two markers.
    pub(crate) fn between(&self, before: &str, after: &str) -> String {
        let text = self.text();
        let (_, rest) = text.split_once(before).expect("the first marker");
        rest.split_once(after).expect("the second marker").0.to_owned()
    }
}

impl Cloud {
    /// Serves a world with a manual clock.
    pub(crate) async fn start() -> Self {
        let world = Arc::new(World::new(Settings::with_clock(Clock::new(Pace::Manual))));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&world);
        let server = tokio::spawn(async move { aws::serve(listener, served, async { drop(stopped.await) }).await });
        Self { world, address, stop, server }
    }

    /// Stops the server and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("a running server");
        self.server.await.expect("the task ends").expect("the server ends without an error");
    }

    /// Sends exactly these bytes.
    pub(crate) async fn raw(&self, request: &[u8]) -> Response {
        exchange(self.address, request).await.expect("a response")
    }

    /// Sends a signed request.
    pub(crate) async fn send(&self, service: &str, headers: &[&str], body: &[u8]) -> Response {
        self.raw(&signed(service, headers, body)).await
    }

    /// Sends a request that an access key signs.
    pub(crate) async fn send_as(&self, access_key: &str, service: &str, body: &[u8]) -> Response {
        self.raw(&signed_with(access_key, service, "/", &[], body)).await
    }

    /// Sends a request to EC2.
    pub(crate) async fn ec2(&self, action: &str, parameters: &[(&str, &str)]) -> Response {
        self.send("ec2", &[], &form(action, parameters)).await
    }

    /// Sends a request to CloudWatch in the protocol of the Rust SDK.
    pub(crate) async fn cloudwatch_cbor(&self, operation: &str, body: &[u8]) -> Response {
        self.cloudwatch_cbor_with(operation, &[], body).await
    }

    /// Sends a CBOR request with additional headers.
    pub(crate) async fn cloudwatch_cbor_with(&self, operation: &str, more: &[&str], body: &[u8]) -> Response {
        let path = format!("/service/GraniteServiceVersion20100801/operation/{operation}");
        let headers = [&["content-type: application/cbor", "smithy-protocol: rpc-v2-cbor"], more].concat();
        self.raw(&signed_for("monitoring", &path, &headers, body)).await
    }

    /// Returns the id of an image in us-east-1.
    pub(crate) fn image(&self) -> String {
        self.world.with_ec2(|ec2, now| ec2.region("us-east-1", now).expect("a region").catalog.images[0].id.clone())
    }
}

/// Encodes a form. The values must not need escaping.
pub(crate) fn form(action: &str, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("Action={action}&Version=2016-11-15");
    for (name, value) in parameters {
        text.push_str(&format!("&{name}={value}"));
    }
    text.into_bytes()
}

/// Encodes a request with a signature for a service in us-east-1.
pub(crate) fn signed(service: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    signed_for(service, "/", headers, body)
}

fn signed_for(service: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    signed_with("AKIA", service, path, headers, body)
}

fn signed_with(access_key: &str, service: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let scope = format!("{access_key}/20260101/us-east-1/{service}/aws4_request");
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, \
         Signature=0\r\ncontent-length: {}\r\n",
        body.len()
    );
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Sends bytes and reads the response; `None` if the connection ends without one.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Option<Response> {
    let stream = TcpStream::connect(address).await.expect("a listener");
    let (mut reading, mut writing) = stream.into_split();
    // The server may respond before it has read everything, so a failed write is not an error.
    let (_, response) = tokio::join!(writing.write_all(request), read_response(&mut reading));
    response
}

async fn read_response(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Response> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        if let Some(response) = parse(&bytes) {
            return Some(response);
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let body = match length {
        Some(length) => bytes.get(end + 4..end + 4 + length.parse::<usize>().ok()?)?.to_vec(),
        None if head.contains("transfer-encoding: chunked") => join_chunks(&bytes[end + 4..])?,
        None => return None,
    };
    Some(Response { status, head, body })
}

/// Joins chunks; `None` if the last chunk is missing.
fn join_chunks(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).ok()?, 16).ok()?;
        let after = chunks.get(end + 2 + length + 2..)?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunks[end + 2..end + 2 + length]);
        chunks = after;
    }
}

/// Waits up to 20 seconds until a condition holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not become true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the number of clients with this many sockets each that the file limit allows, up to 1,000.
pub(crate) fn max_clients(sockets_each: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let max_files = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok()).unwrap_or(1024);
    let clients = (max_files.saturating_sub(600) / sockets_each).min(1000);
    assert!(clients >= 50, "the limit of {max_files} open files is too low: raise `ulimit -n`");
    clients
}
