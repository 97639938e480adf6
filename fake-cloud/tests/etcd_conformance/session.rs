//! Records the responses of one server to one client.

use std::fmt::Debug;
use std::future::Future;

use etcd_client::{Client, Error, WatchResponse, WatchStream};

use super::servers::TIMEOUT;

/// A client and the transcript of its calls. Ids that differ between any two servers are replaced by names: cluster
/// and member ids, and the leases given to [`name_lease`](Session::name_lease).
pub(crate) struct Session {
    pub(crate) client: Client,
    leases: Vec<i64>,
    lines: Vec<String>,
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, leases: Vec::new(), lines: Vec::new() }
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
