//! Responses of CML and the control plane, through the real clients over a socket.

use std::time::{Duration, Instant};

use lcm_sdk::{CallFailure, Secret};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::canned_server::{CannedServer, any_status, response};
use crate::cases::{any_bytes, any_json, check, like_bytes, like_json};

/// Secrets that the clients send and that the server repeats; no error may show them.
const SECRETS: [&str; 4] = ["canary-password", "canary-bearer", "canary-license", "canary-api-key"];

/// Longest body that the clients accept, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Longer than any call may take, on any machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Invalid JSON, HTML, errors that repeat the request, or arbitrary bytes.
fn any_response(examples: Vec<Value>) -> impl Strategy<Value = Vec<u8>> {
    let repeated = format!("<html><h1>{}</h1>\r\n{}", SECRETS.join(" "), "<p>so sorry</p>".repeat(200));
    let text = |value: Value| value.to_string().into_bytes();
    let body = prop_oneof![
        6 => like_json(examples.clone()).prop_map(text),
        2 => any_json().prop_map(text),
        1 => like_bytes(select(examples).prop_map(text)),
        1 => Just(repeated.into_bytes()),
        1 => Just(json!({"code": 400, "description": SECRETS.join(" ")}).to_string().into_bytes()),
        1 => any_bytes(),
        1 => (MAX_BODY - 10..MAX_BODY * 2).prop_map(|length| vec![b'7'; length]),
    ];
    let content_type = select(vec!["application/json", "text/html", "text/html; charset=utf-16"]);
    let complete = (any_status(), content_type, body)
        .prop_map(|(status, content_type, body)| response(status, content_type, &body))
        .boxed();
    prop_oneof![12 => complete.clone(), 2 => like_bytes(complete), 1 => any_bytes()]
}

/// Checks that a failure is short, on one line and free of secrets.
fn check_failure<T>(result: Result<T, CallFailure>, secrets: &[&str]) -> Result<(), TestCaseError> {
    let Err(failure) = result else { return Ok(()) };
    let text = format!("{failure} {failure:?}");
    for secret in secrets {
        prop_assert!(!text.contains(secret), "{text}");
    }
    prop_assert!(text.len() < 4_000, "a failure of {} bytes", text.len());
    prop_assert!(!failure.to_string().contains(['\n', '\r']), "a failure that forges a line of the log: {text:?}");
    Ok(())
}

#[cfg(feature = "cml")]
#[test]
fn cml_response_is_parsed_or_fails_without_secrets() {
    use lcm_sdk::ports::{Cml as _, CmlTarget};
    use lcm_sdk::providers::cml::{CmlClient, CmlOptions, Security};

    let examples = vec![
        json!({"version": "2.9.0+build.1", "ready": true, "allow_ssh_pubkey_auth": false}),
        json!({"computes": {"c-1": {"stats": {"dominfo": {"total_nodes": 3.0, "running_nodes": 2}, "cpu": {"load": [0.1]}}}}}),
        json!(["lab-1", "lab-2"]),
        json!([{"category": "start_lab", "timestamp": "2026-02-06T08:00:00Z", "data": {"user_id": "u"}}]),
        json!({"registration": {"status": "COMPLETED", "register_time": {"attempted": 1.5, "success": null}},
               "authorization": {"status": "IN_COMPLIANCE"}}),
        json!("a-token"),
        json!({"code": 400, "description": "Node(s) have already been de-registered"}),
    ];
    let runtime = runtime();
    let server = CannedServer::start(&runtime);
    let options = CmlOptions::default()
        .with_security(Security::PlainHttp)
        .with_port(server.address.port())
        .with_timeout(Duration::from_secs(30))
        .with_max_body(MAX_BODY);
    let logged_in = response(200, "application/json", br#""canary-bearer""#);
    let login = prop_oneof![3 => Just(logged_in.clone()), 1 => any_response(examples.clone())];
    let case = (any_response(examples), login, 0_u8..6);
    check("responses of CML", 1_000, "tests/fuzz/seeds/cml.txt", case, |(response, login, call)| {
        let mut secrets = vec!["canary-password"];
        // The first call begins without a login.
        secrets.extend((call > 0 && login == logged_in).then_some("canary-bearer"));
        secrets.extend(matches!(call, 3 | 4).then_some("canary-license"));
        server.respond_with(response, Some(("/authenticate", login)));
        let client = CmlClient::new(options.clone()).expect("a client");
        let password = Secret::from("canary-password");
        let at = CmlTarget { address: "127.0.0.1".to_owned(), username: "admin".to_owned(), password };
        let token = Secret::from("canary-license");
        let started = Instant::now();
        runtime.block_on(async {
            match call {
                0 => check_failure(client.system(&at).await, &secrets),
                1 => check_failure(client.telemetry(&at).await, &secrets),
                2 => check_failure(client.registration(&at).await, &secrets),
                3 => check_failure(client.register(&at, &token).await, &secrets),
                4 => check_failure(client.reregister(&at, &token).await, &secrets),
                _ => check_failure(client.deregister(&at).await, &secrets),
            }
        })?;
        prop_assert!(started.elapsed() < DEADLINE);
        Ok(())
    });
}

#[cfg(feature = "control-plane")]
#[test]
fn control_plane_response_is_parsed_or_fails_without_secrets() {
    use lcm_sdk::lifecycle::{AutoPause, LicenseReport, SessionEnd};
    use lcm_sdk::ports::{ControlPlane as _, Fence, Scope, SessionMove};
    use lcm_sdk::providers::control_plane::{ControlPlaneClient, ControlPlaneOptions};

    let worker = json!({"id": "w-1", "status": "running", "version": 3, "ec2_instance_id": "i-1", "metadata": {}});
    let examples = vec![
        worker.clone(),
        json!([worker, {"id": "w-2", "status": "asleep"}]),
        json!({"items": [{"id": "w-1", "status": "running"}], "total": 1, "next": null, "has_more": false}),
        json!([{"id": "s-1", "worker_id": "w-1", "status": "running", "retry_count": 1}]),
        json!({"is_idle": true, "eligible_for_pause": true, "idle_minutes": 61.5, "auto_pause_triggered": false}),
        json!({"total_imported": 1, "skipped": [], "updated": 0.0}),
        json!({"name": "metal", "instance_type": "m5zn.metal", "drain_timeout_hours": 4}),
        json!({"enabled": true, "regions": ["us-east-1"], "ami_name_pattern": "cml*", "scan_interval_seconds": 300}),
        json!({"detail": "Not Found"}),
        json!({"error": "conflict", "message": "version mismatch"}),
    ];
    let runtime = runtime();
    let server = CannedServer::start(&runtime);
    let options = ControlPlaneOptions::new(format!("http://{}", server.address), Secret::from("canary-api-key"))
        .with_retries(Vec::new())
        .with_max_body(MAX_BODY);
    let client = ControlPlaneClient::new(options).expect("a client");
    let case = (any_response(examples), 0_u8..10);
    check("responses of the control plane", 1_500, "tests/fuzz/seeds/control_plane.txt", case, |(response, call)| {
        server.respond_with(response, None);
        let (id, session, fence) = ("w-1".into(), "s-1".into(), Fence(Some(7)));
        let started = Instant::now();
        runtime.block_on(async {
            match call {
                0 => check_failure(client.workers(&Scope::active()).await, &["canary-api-key"]),
                1 => check_failure(client.worker(&id).await, &["canary-api-key"]),
                2 => check_failure(client.sessions(&id).await, &["canary-api-key"]),
                3 => check_failure(client.template("metal").await, &["canary-api-key"]),
                4 => check_failure(client.discovery_settings().await, &["canary-api-key"]),
                5 => check_failure(client.idle_status(&id).await, &["canary-api-key"]),
                6 => check_failure(
                    client.detect_idle(&id, Some(Vec::new()), AutoPause::ServerDecides, fence).await,
                    &["canary-api-key"],
                ),
                7 => check_failure(
                    client.report_license(&id, LicenseReport::StartRegistration, fence).await,
                    &["canary-api-key"],
                ),
                8 => check_failure(
                    client.move_session(&session, SessionMove::Retry { attempt: 1 }, fence).await,
                    &["canary-api-key"],
                ),
                _ => check_failure(
                    client.terminate_session(&session, SessionEnd::MaxRetriesExceeded, fence).await,
                    &["canary-api-key"],
                ),
            }
        })?;
        prop_assert!(started.elapsed() < DEADLINE);
        Ok(())
    });
}
