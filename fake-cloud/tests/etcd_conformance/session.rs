//! One client's conversation with one server, written down.

use std::fmt::Debug;
use std::future::Future;

use etcd_client::{Client, Error, WatchResponse, WatchStream};

use super::servers::PATIENCE;

/// A client, and the transcript of what it was told. What differs between any two servers is written by name:
/// cluster and member ids, and the leases that were [named](Session::name_lease).
pub(crate) struct Session {
    pub(crate) client: Client,
    leases: Vec<i64>,
    lines: Vec<String>,
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, leases: Vec::new(), lines: Vec::new() }
    }

    /// Gives a lease whose id the server chose a name, in the order of calls.
    pub(crate) fn name_lease(&mut self, id: i64) {
        self.leases.push(id);
    }

    /// Writes down an answer or a refusal.
    pub(crate) fn note<T: Debug>(&mut self, what: &str, result: &Result<T, Error>) {
        let told = match result {
            Ok(answer) => format!("{answer:?}"),
            Err(Error::GRpcStatus(status)) => format!("refused: {:?}: {}", status.code(), status.message()),
            Err(error) => format!("error: {error}"),
        };
        self.line(what, &told);
    }

    /// Makes a call, writes down how it went, and returns the answer if there was one.
    pub(crate) async fn call<T: Debug>(
        &mut self,
        what: &str,
        call: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Option<T> {
        let result = patiently(what, call(&mut self.client)).await;
        self.note(what, &result);
        result.ok()
    }

    /// Writes down the next message of a watch and returns it.
    pub(crate) async fn watched(&mut self, what: &str, stream: &mut WatchStream) -> Option<WatchResponse> {
        let result = patiently(what, stream.message()).await;
        self.note(what, &result);
        result.ok().flatten()
    }

    /// Writes down something that was found out.
    pub(crate) fn line(&mut self, what: &str, told: &str) {
        let line = readable(told);
        self.lines.push(format!("{what}: {}", self.without_identity(&line)));
    }

    pub(crate) fn into_transcript(self) -> Vec<String> {
        self.lines
    }

    fn without_identity(&self, line: &str) -> String {
        let mut line = replace_number(line, "cluster_id: ", "CLUSTER");
        line = replace_number(&line, "member_id: ", "MEMBER");
        for (place, id) in self.leases.iter().enumerate() {
            line = line.replace(&id.to_string(), &format!("LEASE{place}"));
            line = line.replace(&format!("{id:x}"), &format!("LEASE{place}"));
        }
        line
    }
}

pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// Replaces the number after each `label`, unless it is 0: that a server does not name itself is worth comparing.
fn replace_number(line: &str, label: &str, name: &str) -> String {
    let mut parts = line.split(label);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &part[..part.len() - rest.len()];
        replaced.push_str(label);
        replaced.push_str(if number == "0" { "0" } else { name });
        replaced.push_str(rest);
    }
    replaced
}

/// Writes lists of bytes as text, and long ones short.
fn readable(line: &str) -> String {
    let mut told = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('[') {
        let Some(end) = rest[start..].find(']').map(|end| start + end) else { break };
        let bytes: Option<Vec<u8>> = rest[start + 1..end].split(", ").map(|byte| byte.parse().ok()).collect();
        let Some(bytes) = bytes else {
            told.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        };
        told.push_str(&rest[..start]);
        if bytes.len() > 100 {
            told.push_str(&format!("<{} bytes>", bytes.len()));
        } else {
            told.push_str(&format!("\"{}\"", bytes.escape_ascii()));
        }
        rest = &rest[end + 1..];
    }
    told + rest
}
