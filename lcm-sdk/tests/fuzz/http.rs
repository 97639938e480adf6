//! What CML and the control plane answer, through the real clients over a socket.

use std::time::{Duration, Instant};

use lcm_sdk::{CallFailure, Secret};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cases::{any_bytes, any_json, check, like_bytes, like_json};
use crate::parrot::{Parrot, any_status, response};

/// What the clients know and must not tell, though the far side repeats it.
const SECRETS: [&str; 4] = ["canary-password", "canary-bearer", "canary-licence", "canary-api-key"];

/// The longest answer the clients may take in.
const LONGEST: usize = 64 * 1024;

/// Longer than any call may take, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// An answer: JSON with something wrong, a page of HTML, an error that repeats what it was sent, or bytes.
fn any_answer(examples: Vec<Value>) -> impl Strategy<Value = Vec<u8>> {
    let repeated = format!("<html><h1>{}</h1>\r\n{}", SECRETS.join(" "), "<p>so sorry</p>".repeat(200));
    let text = |value: Value| value.to_string().into_bytes();
    let body = prop_oneof![
        6 => like_json(examples.clone()).prop_map(text),
        2 => any_json().prop_map(text),
        1 => like_bytes(select(examples).prop_map(text)),
        1 => Just(repeated.into_bytes()),
        1 => Just(json!({"code": 400, "description": SECRETS.join(" ")}).to_string().into_bytes()),
        1 => any_bytes(),
        1 => (LONGEST - 10..LONGEST * 2).prop_map(|length| vec![b'7'; length]),
    ];
    let kind = select(vec!["application/json", "text/html", "text/html; charset=utf-16"]);
    let whole = (any_status(), kind, body).prop_map(|(status, kind, body)| response(status, kind, &body)).boxed();
    prop_oneof![12 => whole.clone(), 2 => like_bytes(whole), 1 => any_bytes()]
}

/// What the failure of a call may look like that was made with these secrets.
fn discreet<T>(told: Result<T, CallFailure>, secrets: &[&str]) -> Result<(), TestCaseError> {
    let Err(failure) = told else { return Ok(()) };
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
fn whatever_cml_answers_it_is_understood_or_a_failure_that_tells_no_secret() {
    use lcm_sdk::ports::{Cml as _, CmlTarget};
    use lcm_sdk::providers::cml::{CmlClient, Options, Security};

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
    let parrot = Parrot::start(&runtime);
    let options = Options {
        security: Security::PlainHttp,
        port: parrot.address.port(),
        timeout: Duration::from_secs(30),
        max_body: LONGEST,
        ..Options::default()
    };
    let signed_in = response(200, "application/json", br#""canary-bearer""#);
    let sign_in = prop_oneof![3 => Just(signed_in.clone()), 1 => any_answer(examples.clone())];
    let case = (any_answer(examples), sign_in, 0_u8..6);
    check("answers of CML", 1_000, "tests/fuzz/seeds/cml.txt", case, |(answer, sign_in, call)| {
        let mut secrets = vec!["canary-password"];
        // Not of the first call, whose first question is put without signing in.
        secrets.extend((call > 0 && sign_in == signed_in).then_some("canary-bearer"));
        secrets.extend(matches!(call, 3 | 4).then_some("canary-licence"));
        parrot.learn(answer, Some(("/authenticate", sign_in)));
        let client = CmlClient::new(options.clone()).expect("a client");
        let password = Secret::from("canary-password");
        let at = CmlTarget { address: "127.0.0.1".to_owned(), username: "admin".to_owned(), password };
        let token = Secret::from("canary-licence");
        let begun = Instant::now();
        runtime.block_on(async {
            match call {
                0 => discreet(client.system(&at).await, &secrets),
                1 => discreet(client.telemetry(&at).await, &secrets),
                2 => discreet(client.registration(&at).await, &secrets),
                3 => discreet(client.register(&at, &token).await, &secrets),
                4 => discreet(client.reregister(&at, &token).await, &secrets),
                _ => discreet(client.deregister(&at).await, &secrets),
            }
        })?;
        prop_assert!(begun.elapsed() < PATIENCE);
        Ok(())
    });
}

#[cfg(feature = "control-plane")]
#[test]
fn whatever_the_control_plane_answers_it_is_understood_or_a_failure_that_tells_no_secret() {
    use lcm_sdk::lifecycle::event::SessionEnd;
    use lcm_sdk::lifecycle::idle::AutoPause;
    use lcm_sdk::lifecycle::license::LicenseReport;
    use lcm_sdk::ports::{ControlPlane as _, Fence, Scope, SessionMove};
    use lcm_sdk::providers::control_plane::{ControlPlaneClient, Options};

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
        json!({"error": "conflict", "message": "somebody wrote"}),
    ];
    let runtime = runtime();
    let parrot = Parrot::start(&runtime);
    let mut options = Options::new(format!("http://{}", parrot.address), Secret::from("canary-api-key"));
    (options.retries, options.max_body) = (Vec::new(), LONGEST);
    let client = ControlPlaneClient::new(options).expect("a client");
    let case = (any_answer(examples), 0_u8..10);
    check("answers of the control plane", 1_500, "tests/fuzz/seeds/control_plane.txt", case, |(answer, call)| {
        parrot.learn(answer, None);
        let (id, session, fence) = ("w-1".into(), "s-1".into(), Fence(Some(7)));
        let begun = Instant::now();
        runtime.block_on(async {
            match call {
                0 => discreet(client.workers(&Scope::living()).await, &["canary-api-key"]),
                1 => discreet(client.worker(&id).await, &["canary-api-key"]),
                2 => discreet(client.sessions(&id).await, &["canary-api-key"]),
                3 => discreet(client.template("metal").await, &["canary-api-key"]),
                4 => discreet(client.discovery_settings().await, &["canary-api-key"]),
                5 => discreet(client.idle_status(&id).await, &["canary-api-key"]),
                6 => discreet(
                    client.detect_idle(&id, Some(Vec::new()), AutoPause::ServerDecides, fence).await,
                    &["canary-api-key"],
                ),
                7 => discreet(
                    client.report_license(&id, LicenseReport::StartRegistration, fence).await,
                    &["canary-api-key"],
                ),
                8 => discreet(
                    client.move_session(&session, SessionMove::Retry { attempt: 1 }, fence).await,
                    &["canary-api-key"],
                ),
                _ => discreet(
                    client.terminate_session(&session, SessionEnd::MaxRetriesExceeded, fence).await,
                    &["canary-api-key"],
                ),
            }
        })?;
        prop_assert!(begun.elapsed() < PATIENCE);
        Ok(())
    });
}
