//! Licences: handed over once, to the right CML, and never waited for.

use std::time::Duration;

use fake_cloud::cml::{BootStage as Boot, CmlServer, Deregistration, Registration};
use fake_cloud::{RequestFilter, Service};
use lcm_sdk::lifecycle::LicenseOperation;
use lcm_sdk::{Outcome, WorkerStatus};
use serde_json::{Value, json};

use lcm_tests::harness::{Harness, REGION};

const TOKEN: &str = "smart-license-token-1";

/// A worker in service, with its CML up.
async fn in_service() -> (Harness, String, CmlServer) {
    let harness = Harness::with_manual_clock().await;
    let instance = harness.add_running_worker("w-1").await;
    // Idle detection has nothing to do with licences, and hours go by in these stories.
    harness.cloud.update_worker("w-1", json!({"is_idle_detection_enabled": false})).expect("a record");
    assert_eq!(harness.reconcile("w-1").await.outcome, Outcome::Success);
    let cml = harness.cloud.cml(&instance).expect("its CML");
    (harness, instance, cml)
}

/// The same with a licence registered.
async fn licensed() -> (Harness, String, CmlServer) {
    let (harness, instance, cml) = in_service().await;
    harness.request_registration("w-1", TOKEN);
    register_completely(&harness).await;
    (harness, instance, cml)
}

async fn register_completely(harness: &Harness) {
    assert_eq!(code(harness).await, "license_submitted");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(harness).await, "license_finished");
}

/// Why a pass ended as it did; for a licence that is always told.
async fn code(harness: &Harness) -> &'static str {
    harness.reconcile("w-1").await.reason.code.as_str()
}

fn license(harness: &Harness, field: &str) -> Value {
    harness.cloud.worker("w-1").expect("it exists").fields()["license"][field].clone()
}

fn told(harness: &Harness, word: &str) -> usize {
    let published = |event: &&String| event.contains(".license.") && event.contains(word);
    harness.events("w-1").iter().filter(published).count()
}

#[tokio::test]
async fn a_registration_is_accepted_now_and_completed_over_later_passes() {
    let (harness, instance, _) = in_service().await;
    harness.request_registration("w-1", TOKEN);

    let submitted = harness.reconcile("w-1").await;
    assert_eq!((submitted.outcome, submitted.reason.code.as_str()), (Outcome::Requeue, "license_submitted"));
    assert_eq!(license(&harness, "operation_in_progress"), json!(true));
    assert_eq!(harness.cloud.cml_registration(&instance).as_deref(), Some("IN_PROGRESS"));
    for _ in 0..4 {
        let waiting = harness.reconcile("w-1").await;
        assert_eq!((waiting.outcome, waiting.reason.code.as_str()), (Outcome::Requeue, "license_in_progress"));
        harness.cloud.advance(Duration::from_secs(2)).await;
    }
    assert_eq!(harness.counter("license_registered_count"), 0, "accepted is not registered");
    harness.cloud.advance(Duration::from_secs(5)).await;
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!(license(&harness, "status"), json!("registered"));
    assert_eq!((license(&harness, "token"), license(&harness, "pending_operation")), (json!(TOKEN), json!(null)));
    for _ in 0..3 {
        assert_eq!(code(&harness).await, "in_service");
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
    for call in ["start_registration", "complete_registration"] {
        assert_eq!(harness.control_plane_calls(call), 1, "{call}");
    }
    assert_eq!(harness.control_plane_calls("fail_registration"), 0);
}

#[tokio::test]
async fn a_registration_is_handed_over_once_however_many_passes_there_are() {
    let (harness, ..) = in_service().await;
    harness.request_registration("w-1", TOKEN);
    // Duplicate triggers, all with the record as it was before the first of them.
    let worker = harness.worker("w-1").await;
    let passes = (0..8).map(|_| harness.reconciler().reconcile(&worker));
    let results = futures_util::future::join_all(passes).await;
    assert!(results.iter().all(|result| result.outcome == Outcome::Requeue), "{results:?}");
    assert_eq!(harness.cml_calls("register"), 1);

    // Another leader takes over in the middle of it and goes on where the record stands.
    let harness = harness.with_policy(|_| {});
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
}

#[tokio::test]
async fn a_cml_that_still_boots_keeps_the_intent() {
    let (harness, _, cml) = in_service().await;
    harness.request_registration("w-1", TOKEN);
    for stage_of_boot in [Boot::Refused, Boot::BadGateway] {
        cml.hold_at(Some(stage_of_boot));
        harness.cloud.settle().await;
        for _ in 0..2 {
            let delayed = harness.reconcile("w-1").await;
            assert_eq!((delayed.outcome, delayed.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
            assert_eq!(delayed.to_status, WorkerStatus::Running);
        }
    }
    let worker = harness.worker("w-1").await;
    assert_eq!(worker.license.pending_operation, Some(LicenseOperation::Register));
    assert_eq!(license(&harness, "pending_token"), json!(TOKEN));
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("start_registration")), (0, 0));

    cml.hold_at(None);
    harness.cloud.settle().await;
    register_completely(&harness).await;
    assert_eq!((harness.cml_calls("register"), told(&harness, "failed")), (1, 0));
}

#[tokio::test]
async fn a_gateway_that_fails_at_the_very_call_keeps_the_intent_too() {
    let (harness, ..) = in_service().await;
    harness.request_registration("w-1", TOKEN);
    let page = json!({"kind": "custom", "name": "bad-gateway"});
    harness.inject(json!({"service": "cml", "operation": "register", "times": 1, "action": page}));
    let delayed = harness.reconcile("w-1").await;
    assert_eq!((delayed.outcome, delayed.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
    assert_eq!(license(&harness, "pending_token"), json!(TOKEN));
    register_completely(&harness).await;
    assert_eq!(harness.counter("license_registered_count"), 1);
}

/// CML took the token, and nobody heard it say so.
#[tokio::test]
async fn a_registration_whose_answer_was_lost_is_found_again_and_not_repeated() {
    let (harness, ..) = in_service().await;
    harness.request_registration("w-1", TOKEN);
    harness.inject(json!({"service": "cml", "operation": "register", "times": 1, "action": {"kind": "drop-response"}}));
    assert_eq!(code(&harness).await, "license_delayed");
    assert_eq!(code(&harness).await, "license_in_progress");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
    assert_eq!(license(&harness, "token"), json!(TOKEN));
}

#[tokio::test]
async fn a_final_refusal_is_reported_once() {
    // By the licensing server, after a while.
    let (harness, _, cml) = in_service().await;
    cml.set_registration(Registration::Fails);
    harness.request_registration("w-1", TOKEN);
    assert_eq!(code(&harness).await, "license_submitted");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(&harness).await, "license_finished");
    for _ in 0..3 {
        harness.cloud.advance(Duration::from_secs(60)).await;
        assert_eq!(code(&harness).await, "in_service");
    }
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("fail_registration")), (1, 1));
    assert_eq!(
        (license(&harness, "pending_operation"), license(&harness, "pending_token")),
        (json!(null), json!(null))
    );
    assert_eq!(harness.counter("license_registered_count"), 0);

    // By CML itself, at once.
    let (harness, ..) = in_service().await;
    harness.request_registration("w-1", "not a token at all!");
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!(code(&harness).await, "in_service");
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("fail_registration")), (1, 1));
    assert_eq!(license(&harness, "pending_operation"), json!(null));
}

#[tokio::test]
async fn a_second_token_replaces_the_first_and_is_not_taken_for_it() {
    let (harness, ..) = licensed().await;
    harness.cloud.advance(Duration::from_secs(3600)).await;
    harness.request_registration("w-1", "smart-license-token-2");
    assert_eq!(code(&harness).await, "license_submitted");
    assert_eq!(code(&harness).await, "license_in_progress");
    assert_eq!(license(&harness, "token"), json!(TOKEN), "until CML has the new one");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!(license(&harness, "token"), json!("smart-license-token-2"));
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (2, 2));
}

#[tokio::test]
async fn a_licence_is_given_back_whichever_way_cml_says_so() {
    for (answer, status) in [(Deregistration::Done, 204), (Deregistration::LocalOnly, 202)] {
        let (harness, _, cml) = licensed().await;
        cml.set_deregistration(answer);
        harness.request_deregistration("w-1");
        assert_eq!(code(&harness).await, "license_finished");
        assert_eq!(code(&harness).await, "in_service");
        assert_eq!(
            (harness.cml_calls("deregister"), harness.counter("license_deregistered_count")),
            (1, 1),
            "{status}"
        );
        assert_eq!((license(&harness, "status"), license(&harness, "token")), (json!("unregistered"), json!(null)));
        assert_eq!(told(&harness, "failed"), 0);
    }

    // Somebody was faster: 400, already de-registered.
    let (harness, ..) = in_service().await;
    harness.request_deregistration("w-1");
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!((harness.cml_calls("deregister"), harness.counter("license_deregistered_count")), (1, 1));
    assert_eq!((license(&harness, "status"), told(&harness, "failed")), (json!("unregistered"), 0));
}

#[tokio::test]
async fn a_licence_in_use_is_given_back_once_the_nodes_have_stopped() {
    let (harness, ..) = licensed().await;
    let message = "Licensing issue: Cannot de-register when nodes are running.";
    let busy = json!({"kind": "error", "code": "400", "message": message});
    harness.inject(json!({"service": "cml", "operation": "deregister", "times": 2, "action": busy}));
    harness.request_deregistration("w-1");
    for _ in 0..2 {
        let busy = harness.reconcile("w-1").await;
        assert_eq!((busy.outcome, busy.reason.code.as_str()), (Outcome::Retry, "license_delayed"), "{}", busy.reason);
    }
    assert_eq!(license(&harness, "pending_operation"), json!("deregister"));
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!((harness.counter("license_deregistered_count"), told(&harness, "failed")), (1, 0));
}

/// EC2 gave the worker's old address to somebody else. What the record says is an hour old.
#[tokio::test]
async fn a_token_goes_to_the_address_ec2_shows_now_and_to_nobody_else() {
    let (harness, instance, _) = in_service().await;
    let stranger = harness.cloud.run_instance(REGION, &[]).expect("it launches");
    harness.cloud.advance(Duration::from_secs(60)).await;
    let now = harness.cloud.now();
    let theirs = harness.cloud.instance(REGION, &stranger.id).and_then(|found| found.public_ip(now)).expect("it runs");
    let ours = harness.worker("w-1").await.address().expect("it serves").to_owned();
    let outdated = json!({"public_ip": theirs, "ip_address": theirs});
    harness.cloud.update_worker("w-1", outdated).expect("an outdated record");
    harness.request_registration("w-1", TOKEN);
    harness.cloud.advance(Duration::from_secs(61)).await;

    assert_eq!(code(&harness).await, "license_submitted");
    assert_eq!(harness.worker("w-1").await.address(), Some(ours.as_str()), "recorded in the same pass");
    assert_eq!(harness.cloud.cml_registration(&instance).as_deref(), Some("IN_PROGRESS"));
    assert_eq!(harness.cloud.cml_registration(&stranger.id).as_deref(), Some("NOT_REGISTERED"));
    let asked = |subject: &str| {
        let (service, subject) = (Some(Service::Cml), Some(subject.to_owned()));
        harness.cloud.requests(&RequestFilter { service, subject, ..RequestFilter::default() }).len()
    };
    assert!(asked(&instance) > 0);
    assert_eq!(asked(&stranger.id), 0, "not even a password");
}

#[tokio::test]
async fn an_instance_restarted_from_outside_gets_its_token_at_its_new_address() {
    let (harness, instance, _) = in_service().await;
    let before = harness.worker("w-1").await.address().expect("it serves").to_owned();
    harness.cloud.stop_instance(REGION, &instance).expect("it stops");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.start_instance(REGION, &instance).expect("it starts");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.request_registration("w-1", TOKEN);

    assert_eq!(code(&harness).await, "license_submitted");
    let after = harness.worker("w-1").await.address().expect("it serves").to_owned();
    assert_ne!(before, after);
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(code(&harness).await, "license_finished");
    assert_eq!(harness.cml_calls("register"), 1);
}

#[tokio::test]
async fn a_worker_that_does_not_run_keeps_its_intent_until_it_does() {
    let (harness, ..) = in_service().await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "stopped"})).expect("an operator's wish");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    harness.request_registration("w-1", TOKEN);
    assert_eq!(code(&harness).await, "at_rest");
    assert_eq!((harness.cml_calls("register"), license(&harness, "pending_token")), (0, json!(TOKEN)));

    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("an operator's wish");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    register_completely(&harness).await;
    assert_eq!(harness.cml_calls("register"), 1);
}
