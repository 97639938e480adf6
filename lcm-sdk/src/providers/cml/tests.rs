//! Tests against responses that deviate from the API documentation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wiremock::matchers::{body_json, header, method, path, query_param};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::*;

const PAGE: &str = "<html><head><title>502 Bad Gateway</title></head></html>";

fn client_for(server: &MockServer) -> (CmlClient, CmlTarget) {
    let port = server.address().port();
    let options = CmlOptions { security: Security::PlainHttp, port, ..CmlOptions::default() };
    let password = Secret::from("hunter2");
    let target = CmlTarget { address: "127.0.0.1".into(), username: "admin".into(), password };
    (CmlClient::new(options).expect("a client"), target)
}

fn response(status: u16, body: Value) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_json(body)
}

/// A server that accepts every login, with tokens `jwt-1`, `jwt-2` and so on.
async fn server() -> MockServer {
    struct Tokens(AtomicUsize);
    impl Respond for Tokens {
        fn respond(&self, _: &Request) -> ResponseTemplate {
            response(200, format!("jwt-{}", self.0.fetch_add(1, Ordering::SeqCst) + 1).into())
        }
    }
    let server = MockServer::start().await;
    let sign_in = Mock::given(method("POST")).and(path("/api/v0/authenticate"));
    sign_in.respond_with(Tokens(AtomicUsize::new(0))).mount(&server).await;
    server
}

async fn serve(server: &MockServer, verb: &str, at: &str, response: ResponseTemplate) {
    Mock::given(method(verb)).and(path(format!("/api/v0/{at}"))).respond_with(response).mount(server).await;
}

async fn logins(server: &MockServer) -> usize {
    let requests = server.received_requests().await.expect("recorded");
    requests.iter().filter(|request| request.url.path() == "/api/v0/authenticate").count()
}

#[tokio::test]
async fn concurrent_calls_share_one_login() {
    let server = server().await;
    serve(&server, "GET", "telemetry/events", response(200, json!([]))).await;
    let (client, target) = client_for(&server);
    let client = Arc::new(client);
    let calls = (0..20).map(|_| {
        let (client, target) = (Arc::clone(&client), target.clone());
        tokio::spawn(async move { client.telemetry(&target).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect("telemetry");
    }
    assert_eq!(logins(&server).await, 1);
}

#[tokio::test]
async fn expired_token_is_replaced_once() {
    let server = server().await;
    let good = Mock::given(path("/api/v0/telemetry/events")).and(header("authorization", "Bearer jwt-2"));
    good.respond_with(response(200, json!([{"category": "start_lab"}]))).mount(&server).await;
    serve(&server, "GET", "telemetry/events", response(401, json!({"code": 401, "description": "expired"}))).await;
    let (client, target) = client_for(&server);
    assert_eq!(client.telemetry(&target).await.expect("with the second token").len(), 1);
    assert_eq!(logins(&server).await, 2);
    client.telemetry(&target).await.expect("the second token is kept");
    assert_eq!(logins(&server).await, 2);
}

#[tokio::test]
async fn login_is_not_repeated_without_limit() {
    let server = server().await;
    serve(&server, "GET", "licensing", response(401, json!({"code": 401, "description": "no"}))).await;
    let (client, target) = client_for(&server);
    let failure = client.registration(&target).await.expect_err("never let in");
    assert_eq!(failure.kind, FailureKind::Unreachable);
    assert_eq!(logins(&server).await, 2);
}

#[tokio::test]
async fn floats_and_missing_fields_are_accepted() {
    let server = server().await;
    serve(&server, "GET", "system_information", response(200, json!({"version": "2.9.1+build.7"}))).await;
    let stats = json!({"computes": {
        "a": {"stats": {"dominfo": {"total_nodes": 3.0}}},
        "b": {"stats": {"dominfo": {"total_nodes": 2}}},
        "c": {"stats": {}}, "d": null,
    }});
    serve(&server, "GET", "system_stats", response(200, stats)).await;
    let all = Mock::given(path("/api/v0/labs")).and(query_param("show_all", "true"));
    all.respond_with(response(200, json!(["lab-1", "lab-2"]))).mount(&server).await;
    let (client, target) = client_for(&server);
    let metrics = client.system(&target).await.expect("a response");
    assert_eq!((metrics.nodes_count, metrics.labs_count, metrics.ready), (Some(5), Some(2), None));
}

#[tokio::test]
async fn html_is_never_a_refusal() {
    for status in [200, 400, 403, 404, 502, 503, 504] {
        let server = MockServer::start().await;
        let page = ResponseTemplate::new(status).set_body_raw(PAGE, "text/html");
        Mock::given(wiremock::matchers::any()).respond_with(page).mount(&server).await;
        let (client, target) = client_for(&server);
        let token = Secret::from("t0ken");
        let failures = [
            client.system(&target).await.expect_err("a page"),
            client.telemetry(&target).await.expect_err("a page"),
            client.register(&target, &token).await.expect_err("a page"),
            client.deregister(&target).await.expect_err("a page"),
        ];
        for failure in failures {
            assert!(failure.kind.is_retryable(), "{status}: {failure:?}");
        }
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (server, elsewhere) = (MockServer::start().await, MockServer::start().await);
    let moved =
        ResponseTemplate::new(307).insert_header("location", format!("{}/api/v0/authenticate", elsewhere.uri()));
    Mock::given(wiremock::matchers::any()).respond_with(moved).mount(&server).await;
    let (client, target) = client_for(&server);
    let failure = client.telemetry(&target).await.expect_err("moved");
    assert_eq!(failure.kind, FailureKind::Unclear);
    assert!(elsewhere.received_requests().await.expect("recorded").is_empty());
}

#[tokio::test]
async fn completed_deregistration_is_recognized() {
    let described = |text: &str| response(400, json!({"code": 400, "description": text}));
    let cases = [
        (ResponseTemplate::new(204), None),
        (ResponseTemplate::new(202), None),
        (described("Licensing issue: The product has already been de-registered."), None),
        (described("Licensing issue: Cannot de-register when nodes are running."), Some(FailureKind::Conflict)),
        (described("Licensing issue: Something else."), Some(FailureKind::Refused)),
        (response(409, json!({"code": 409, "description": "not now"})), Some(FailureKind::Conflict)),
    ];
    for (response, expected) in cases {
        let server = server().await;
        serve(&server, "DELETE", "licensing/deregistration", response).await;
        let (client, target) = client_for(&server);
        assert_eq!(client.deregister(&target).await.err().map(|failure| failure.kind), expected);
    }
}

#[tokio::test]
async fn registration_sends_the_reregister_flag() {
    let server = server().await;
    for reregister in [false, true] {
        let matching = Mock::given(method("POST")).and(path("/api/v0/licensing/registration"));
        let matching = matching.and(body_json(json!({"token": "t0ken", "reregister": reregister})));
        matching.respond_with(ResponseTemplate::new(204)).expect(1).mount(&server).await;
    }
    let (client, target) = client_for(&server);
    client.register(&target, &Secret::from("t0ken")).await.expect("accepted");
    client.reregister(&target, &Secret::from("t0ken")).await.expect("accepted");
}

#[tokio::test]
async fn echoed_secrets_are_redacted() {
    let server = server().await;
    let repeats = json!({"code": 400, "description": "bad token t0ken of a user with password hunter2 and jwt-1"});
    serve(&server, "POST", "licensing/registration", response(400, repeats)).await;
    let (client, target) = client_for(&server);
    let failure = client.register(&target, &Secret::from("t0ken")).await.expect_err("refused");
    assert_eq!(failure.kind, FailureKind::Refused);
    let shown = format!("{failure} {failure:?} {client:?} {target:?}");
    for secret in ["t0ken", "hunter2", "jwt-1"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn malformed_responses_are_failures() {
    let server = server().await;
    serve(&server, "GET", "telemetry/events", response(200, json!({"events": []}))).await;
    serve(&server, "GET", "licensing", response(200, json!({"registration": {}}))).await;
    serve(&server, "GET", "system_information", ResponseTemplate::new(200).set_body_string("\"x".repeat(9_000_000)))
        .await;
    let (client, target) = client_for(&server);
    let failures = [
        client.telemetry(&target).await.expect_err("no list"),
        client.registration(&target).await.expect_err("no status"),
        client.system(&target).await.expect_err("too long"),
    ];
    for failure in failures {
        assert_eq!(failure.kind, FailureKind::Unparsable, "{failure}");
        assert!(failure.message.len() < 500, "{failure}");
    }
}

#[tokio::test]
async fn hanging_call_times_out() {
    let server = server().await;
    let late = response(200, json!([])).set_delay(Duration::from_secs(60));
    serve(&server, "GET", "telemetry/events", late).await;
    let (client, target) = client_for(&server);
    let options = CmlOptions { timeout: Duration::from_millis(200), ..client.options };
    let failure = CmlClient::new(options).expect("a client").telemetry(&target).await.expect_err("late");
    assert_eq!(failure.kind, FailureKind::Unclear, "{failure}");
}

#[tokio::test]
async fn failed_metrics_request_leaves_the_others() {
    let server = server().await;
    serve(&server, "GET", "system_information", response(200, json!({"version": "2.9.1", "ready": true}))).await;
    let late = response(200, json!({})).set_delay(Duration::from_secs(60));
    serve(&server, "GET", "system_stats", late).await;
    serve(&server, "GET", "labs", response(200, json!(["lab-1"]))).await;
    let (client, target) = client_for(&server);
    let options = CmlOptions { timeout: Duration::from_secs(3), ..client.options };
    let metrics = CmlClient::new(options).expect("a client").system(&target).await.expect("the rest");
    assert_eq!((metrics.ready, metrics.labs_count, metrics.nodes_count), (Some(true), Some(1), None));
}

#[tokio::test]
async fn system_info_and_health_are_read() {
    let server = server().await;
    serve(&server, "GET", "system_information", response(200, json!({"version": "2.9.1", "ready": true}))).await;
    let size = |total: f64| json!({"used": total / 4.0, "free": total * 0.75, "total": total});
    let stats = json!({
        "computes": {"c-1": {"hostname": "cml", "stats": {"dominfo": {"total_nodes": 5}}}},
        "all": {"cpu": {"count": 8.0, "percent": 12.5}, "memory": size(1024.0), "disk": {"total": 100}},
    });
    serve(&server, "GET", "system_stats", response(200, stats.clone())).await;
    serve(&server, "GET", "system_health", response(200, json!({"valid": true, "is_licensed": null}))).await;
    serve(&server, "GET", "labs", response(200, json!([]))).await;
    let licensing = json!({"registration": {"status": "COMPLETED"}, "features": []});
    serve(&server, "GET", "licensing", response(200, licensing.clone())).await;
    let (client, target) = client_for(&server);
    let metrics = client.system(&target).await.expect("metrics");
    assert_eq!(metrics.license_info.map(Value::from), Some(licensing));
    assert_eq!(metrics.cml_version.as_deref(), Some("2.9.1"));
    let expected = json!({
        "all_cpu_count": 8, "all_cpu_percent": 12.5, "all_memory_total": 1024, "all_memory_used": 256,
        "all_memory_free": 768, "all_disk_total": 100, "computes": stats["computes"],
    });
    assert_eq!(metrics.system_info.map(Value::from), Some(expected));
    assert_eq!(metrics.system_health.map(Value::from), Some(json!({"valid": true, "is_licensed": null})));
}

#[test]
fn address_with_extra_parts_is_refused() {
    // Not the default, because the machine may have no certificate authorities.
    let options = CmlOptions { security: Security::Unverified, ..CmlOptions::default() };
    let client = CmlClient::new(options).expect("a client");
    let url = |address: &str| {
        let target = CmlTarget { address: address.into(), username: "a".into(), password: Secret::from("b") };
        client.url(&target, &["labs"]).map(String::from)
    };
    assert_eq!(url("203.0.113.7").expect("fine"), "https://203.0.113.7/api/v0/labs");
    assert_eq!(url("2001:db8::1").expect("fine"), "https://[2001:db8::1]/api/v0/labs");
    for odd in ["", "user@evil.example", "evil.example/path", "evil.example:8443", "evil?x", "a b"] {
        assert_eq!(url(odd).expect_err(odd).kind, FailureKind::Refused);
    }
}

#[test]
fn invalid_authorities_file_is_named() {
    let file = std::env::temp_dir().join(format!("lcm-no-authority-{}.pem", std::process::id()));
    std::fs::write(&file, "nothing here").expect("written");
    let made = |path: &std::path::Path| {
        CmlClient::new(CmlOptions { security: Security::VerifiedWith(path.to_owned()), ..CmlOptions::default() })
    };
    let empty = made(&file).expect_err("no certificate").to_string();
    std::fs::remove_file(&file).expect("removed");
    assert!(empty.contains("holds no certificate"), "{empty}");
    let gone = made(&file).expect_err("no file").to_string();
    assert!(gone.contains("cannot read"), "{gone}");
}
