//! The JSON gateway.

use serde_json::Value;

use crate::session::Session;

/// Sends a request and records the status and the JSON of the response, line by line, with its fields in order.
async fn post(s: &mut Session, path: &str, body: &str) {
    let response = s.http("POST", path, body).await;
    let (head, text) = response.split_once('\n').unwrap_or((&response, ""));
    let line = |line: &str| serde_json::from_str(line).map_or_else(|_| line.to_owned(), |json: Value| json.to_string());
    let shown = s.mask(&text.lines().map(line).collect::<Vec<_>>().join(" "));
    s.record(path, &format!("{head} {shown}"));
}

pub(crate) async fn json_of_keys(mut s: Session) -> Session {
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy"}"#).await;
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmF6", "prevKv": true}"#).await;
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9w", "value": "", "prev_kv": true, "unknown": 1}"#).await;
    post(&mut s, "/v3/kv/range", r#"{"key": "Zm9v"}"#).await;
    post(&mut s, "/v3/kv/range", r#"{"key": "Zg==", "range_end": "Zw==", "limit": "1", "sort_order": "DESCEND"}"#)
        .await;
    post(&mut s, "/v3/kv/range", r#"{"key": "Zg==", "rangeEnd": "Zw==", "countOnly": true, "sort_target": 2}"#).await;
    post(&mut s, "/v3/kv/range", "{}").await;
    post(&mut s, "/v3/kv/range", "").await;
    post(&mut s, "/v3/kv/range", r#"{"key": "Zm9v", "revision": 1000}"#).await;
    post(
        &mut s,
        "/v3/kv/txn",
        r#"{"compare": [{"key": "Zm9v", "target": "VERSION", "result": "GREATER", "version": "0"}],
            "success": [{"request_range": {"key": "Zm9v"}}, {"requestPut": {"key": "Zm94", "value": "MQ=="}}],
            "failure": [{"request_delete_range": {"key": "Zm9v"}}]}"#,
    )
    .await;
    post(&mut s, "/v3/kv/txn", r#"{"success": [{"request_delete_range": {"key": "Zm94", "prev_kv": true}}]}"#).await;
    post(&mut s, "/v3/kv/deleterange", r#"{"key": "Zm9v", "prev_kv": true}"#).await;
    post(&mut s, "/v3/kv/deleterange", r#"{"key": "bm9uZQ=="}"#).await;
    post(&mut s, "/v3/kv/compaction", r#"{"revision": "1000"}"#).await;
    s
}

pub(crate) async fn json_of_leases(mut s: Session) -> Session {
    post(&mut s, "/v3/lease/grant", r#"{"TTL": "600", "ID": 961}"#).await;
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy", "lease": 961}"#).await;
    post(&mut s, "/v3/lease/keepalive", r#"{"ID": 961}"#).await;
    post(&mut s, "/v3/lease/keepalive", r#"{"ID": 961}{"ID": "7"}"#).await;
    post(&mut s, "/v3/lease/leases", "{}").await;
    post(&mut s, "/v3/kv/lease/revoke", r#"{"ID": 961}"#).await;
    post(&mut s, "/v3/lease/revoke", r#"{"ID": "961"}"#).await;
    post(&mut s, "/v3/lease/timetolive", r#"{"ID": "961"}"#).await;
    s
}

pub(crate) async fn json_of_users(mut s: Session) -> Session {
    post(&mut s, "/v3/auth/user/add", r#"{"name": "root", "password": "x"}"#).await;
    post(&mut s, "/v3/auth/user/add", r#"{"name": "root", "password": "x"}"#).await;
    post(&mut s, "/v3/auth/role/add", r#"{"name": "r"}"#).await;
    let permission = r#"{"name": "r", "perm": {"permType": "READWRITE", "key": "Zg==", "range_end": "Zw=="}}"#;
    post(&mut s, "/v3/auth/role/grant", permission).await;
    post(&mut s, "/v3/auth/role/get", r#"{"role": "r"}"#).await;
    post(&mut s, "/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#).await;
    post(&mut s, "/v3/auth/user/get", r#"{"name": "root"}"#).await;
    post(&mut s, "/v3/auth/authenticate", r#"{"name": "root", "password": "x"}"#).await;
    post(&mut s, "/v3/auth/enable", "{}").await;
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy"}"#).await;
    s.authorization = Some("wrong".to_owned());
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy"}"#).await;
    s.authorization = None;
    let login = s.http("POST", "/v3/auth/authenticate", r#"{"name": "root", "password": "x"}"#).await;
    let json: Value = login.split_once('\n').and_then(|(_, text)| serde_json::from_str(text).ok()).expect("JSON");
    s.authorization = json["token"].as_str().map(ToOwned::to_owned);
    post(&mut s, "/v3/kv/put", r#"{"key": "Zm9v", "value": "YmFy"}"#).await;
    post(&mut s, "/v3/auth/status", "{}").await;
    post(&mut s, "/v3/auth/disable", "{}").await;
    s.authorization = None;
    post(&mut s, "/v3/auth/user/delete", r#"{"name": "root"}"#).await;
    post(&mut s, "/v3/auth/role/delete", r#"{"role": "r"}"#).await;
    s
}

pub(crate) async fn json_of_the_server(mut s: Session) -> Session {
    post(&mut s, "/v3/maintenance/alarm", r#"{"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "7"}"#).await;
    post(&mut s, "/v3/maintenance/alarm", r#"{"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": "7"}"#).await;
    post(&mut s, "/v3/maintenance/defragment", "{}").await;
    post(&mut s, "/v3/maintenance/hash", "{}").await;
    post(&mut s, "/v3/maintenance/transfer-leadership", r#"{"targetID": "7"}"#).await;
    post(&mut s, "/v3/cluster/member/remove", r#"{"ID": "7"}"#).await;
    post(&mut s, "/v3/nothing", "{}").await;
    post(&mut s, "/v3/election/leader", r#"{"name": "bm9uZQ=="}"#).await;
    for path in ["/v3/kv/put", "/v3/nothing"] {
        let response = s.http("GET", path, "").await;
        s.record(path, &response);
    }
    s
}

/// A watch over HTTP: the head, its creation, and an event.
pub(crate) async fn json_watch_streams_events(mut s: Session) -> Session {
    let mut lines = s.http_lines("/v3/watch", r#"{"create_request": {"key": "Zm9v", "prev_kv": true}}"#).await;
    let created = lines.next().await;
    let shown = s.mask(&created);
    s.record("created", &shown);
    s.client.put("foo", "bar", None).await.expect("a response");
    let event = lines.next().await;
    let shown = s.mask(&event);
    s.record("put", &shown);
    s.client.delete("foo", None).await.expect("a response");
    let event = lines.next().await;
    let shown = s.mask(&event);
    s.record("delete", &shown);
    s
}
