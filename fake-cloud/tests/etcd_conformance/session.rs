//! Records the responses of one server to one client.

use std::fmt::Debug;
use std::future::Future;

use etcd_client::{Client, Error, WatchResponse, WatchStream};

use super::servers::TIMEOUT;

/// A client and the transcript of its calls. Ids that differ between any two servers are replaced by names: cluster
/// and member ids, and the leases given to [`name_lease`](Session::name_lease).
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The token that [`http`](Session::http) sends.
    pub(crate) authorization: Option<String>,
    leases: Vec<i64>,
    lines: Vec<String>,
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, authorization: None, leases: Vec::new(), lines: Vec::new() }
    }

    /// Replaces a lease id that the server chose by a name, numbered in the order of calls.
    pub(crate) fn name_lease(&mut self, id: i64) {
        self.leases.push(id);
    }

    /// Records a response or an error.
    pub(crate) fn record_result<T: Debug>(&mut self, label: &str, result: &Result<T, Error>) {
        let text = match result {
            Ok(response) => format!("{response:?}"),
            Err(Error::GRpcStatus(status)) => format!("rejected: {:?}: {}", status.code(), status.message()),
            Err(error) => format!("error: {error}"),
        };
        self.record(label, &text);
    }

    /// Makes a call, records its result, and returns the response if there is one.
    pub(crate) async fn call<T: Debug>(
        &mut self,
        label: &str,
        call: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Option<T> {
        let result = with_timeout(label, call(&mut self.client)).await;
        self.record_result(label, &result);
        result.ok()
    }

    /// Records the next message of a watch stream and returns it.
    pub(crate) async fn record_message(&mut self, label: &str, stream: &mut WatchStream) -> Option<WatchResponse> {
        let result = with_timeout(label, stream.message()).await;
        self.record_result(label, &result);
        result.ok().flatten()
    }

    /// Records a line of text.
    pub(crate) fn record(&mut self, label: &str, text: &str) {
        let line = bytes_as_text(text);
        self.lines.push(format!("{label}: {}", self.replace_ids(&line)));
    }

    /// The address of the server, as `host:port`.
    pub(crate) async fn endpoint(&mut self) -> String {
        let members = self.client.member_list().await.expect("a response");
        let started = members.members().iter().find(|member| !member.name().is_empty()).expect("a started member");
        started.client_urls()[0].trim_start_matches("http://").to_owned()
    }

    /// Sends a request over HTTP/1.1 and returns the status, the content type and, on the next lines, the body.
    pub(crate) async fn http(&mut self, method: &str, path: &str, body: &str) -> String {
        let response = self.send(method, path, body).await;
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap_or_default().to_owned());
        let status = response.status().as_u16();
        let body = with_timeout(path, response.text()).await.expect("a body");
        format!("{status} {}\n{body}", kind.unwrap_or_default())
    }

    /// Sends a request and returns the lines of its response as they arrive.
    pub(crate) async fn http_lines(&mut self, path: &str, body: &str) -> HttpLines {
        HttpLines { response: self.send("POST", path, body).await, buffer: Vec::new() }
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> reqwest::Response {
        let url = format!("http://{}{path}", self.endpoint().await);
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = reqwest::Client::new().request(method, url).body(body.to_owned());
        if let Some(token) = &self.authorization {
            request = request.header("authorization", token);
        }
        with_timeout(path, request.send()).await.expect("a response")
    }

    /// Replaces the ids in JSON that differ between any two servers.
    pub(crate) fn mask(&self, json: &str) -> String {
        let json = replace_number(json, "\"cluster_id\":\"", "CLUSTER");
        let json = replace_number(&json, "\"member_id\":\"", "MEMBER");
        // The hash of the whole database, which includes the Raft state of a real server.
        replace_number(&json, "\"hash\":", "HASH")
    }

    pub(crate) fn into_transcript(self) -> Vec<String> {
        self.lines
    }

    fn replace_ids(&self, line: &str) -> String {
        let mut line = replace_number(line, "cluster_id: ", "CLUSTER");
        line = replace_number(&line, "member_id: ", "MEMBER");
        for (index, id) in self.leases.iter().enumerate() {
            line = line.replace(&id.to_string(), &format!("LEASE{index}"));
            line = line.replace(&format!("{id:x}"), &format!("LEASE{index}"));
        }
        line
    }
}

/// The lines of a response that is still being sent.
pub(crate) struct HttpLines {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl HttpLines {
    /// Waits for the next line.
    pub(crate) async fn next(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let json: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
                return json.to_string();
            }
            let chunk = with_timeout("a line", self.response.chunk()).await.expect("a chunk").expect("another line");
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

pub(crate) async fn with_timeout<T>(label: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| panic!("timed out: {label}"))
}

/// Replaces the number after each `field`. A 0 is kept: both servers must leave out the id in the same responses.
fn replace_number(line: &str, field: &str, name: &str) -> String {
    let mut parts = line.split(field);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &part[..part.len() - rest.len()];
        replaced.push_str(field);
        replaced.push_str(if number == "0" { "0" } else { name });
        replaced.push_str(rest);
    }
    replaced
}

/// Replaces lists of bytes by text, and long lists by their length.
fn bytes_as_text(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('[') {
        let Some(end) = rest[start..].find(']').map(|end| start + end) else { break };
        let bytes: Option<Vec<u8>> = rest[start + 1..end].split(", ").map(|byte| byte.parse().ok()).collect();
        let Some(bytes) = bytes else {
            text.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        };
        text.push_str(&rest[..start]);
        if bytes.len() > 100 {
            text.push_str(&format!("<{} bytes>", bytes.len()));
        } else {
            text.push_str(&format!("\"{}\"", bytes.escape_ascii()));
        }
        rest = &rest[end + 1..];
    }
    text + rest
}
