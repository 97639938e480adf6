//! Licenses: tokens are submitted once, to the right CML, without blocking the reconcile.

use std::time::Duration;

use fake_cloud::cml::{BootStage as Boot, CmlServer, Deregistration, Registration};
use fake_cloud::control_plane::Generation::{self, Extended, Original};
use fake_cloud::{RequestFilter, Service};
use lcm_sdk::{Outcome, WorkerStatus};
use rstest::rstest;
use serde_json::{Value, json};

use lcm_tests::harness::{Harness, REGION};

const TOKEN: &str = "smart-license-token-1";

/// A running worker whose CML is available.
async fn running_worker(generation: Generation) -> (Harness, String, CmlServer) {
    let harness = Harness::with_manual_clock(generation).await;
    let instance = harness.add_running_worker("w-1").await;
    // Some tests advance the clock by hours, which idle detection would act on. The original server does not show the
    // first switch.
    let not_idle = json!({"is_idle_detection_enabled": false, "is_auto_pause_enabled": false});
    harness.cloud.update_worker("w-1", not_idle).expect("record is updated");
    assert_eq!(harness.reconcile("w-1").await.outcome, Outcome::Success);
    let cml = harness.cloud.cml(&instance).expect("CML exists");
    (harness, instance, cml)
}

/// A running worker with a registered license.
async fn licensed_worker(generation: Generation) -> (Harness, String, CmlServer) {
    let (harness, instance, cml) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);
    complete_registration(&harness).await;
    (harness, instance, cml)
}

async fn complete_registration(harness: &Harness) {
    assert_eq!(reconcile_code(harness).await, "license_submitted");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(harness).await, "license_finished");
}

/// Reconciles `w-1` and returns the reason code.
async fn reconcile_code(harness: &Harness) -> &'static str {
    harness.reconcile("w-1").await.reason.code.as_str()
}

fn license_field(harness: &Harness, field: &str) -> Value {
    harness.cloud.worker("w-1").expect("record exists").fields()["license"][field].clone()
}

fn count_license_events(harness: &Harness, word: &str) -> usize {
    let published = |event: &&String| event.contains(".license.") && event.contains(word);
    harness.events("w-1").iter().filter(published).count()
}

#[rstest]
#[tokio::test]
async fn registration_completes_over_several_reconciles(#[values(Original, Extended)] generation: Generation) {
    let (harness, instance, _) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);

    let submitted = harness.reconcile("w-1").await;
    assert_eq!((submitted.outcome, submitted.reason.code.as_str()), (Outcome::Requeue, "license_submitted"));
    assert_eq!(license_field(&harness, "operation_in_progress"), json!(true));
    assert_eq!(harness.cloud.cml_registration(&instance).as_deref(), Some("IN_PROGRESS"));
    for _ in 0..4 {
        let waiting = harness.reconcile("w-1").await;
        assert_eq!((waiting.outcome, waiting.reason.code.as_str()), (Outcome::Requeue, "license_in_progress"));
        harness.cloud.advance(Duration::from_secs(2)).await;
    }
    assert_eq!(harness.counter("license_registered_count"), 0, "accepted is not registered");
    harness.cloud.advance(Duration::from_secs(5)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!(license_field(&harness, "status"), json!("registered"));
    assert_eq!(
        (license_field(&harness, "token"), license_field(&harness, "pending_operation")),
        (json!(TOKEN), json!(null))
    );
    for _ in 0..3 {
        assert_eq!(reconcile_code(&harness).await, "in_service");
        harness.cloud.advance(Duration::from_secs(300)).await;
    }
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
    for call in ["start_registration", "complete_registration"] {
        assert_eq!(harness.control_plane_calls(call), 1, "{call}");
    }
    assert_eq!(harness.control_plane_calls("fail_registration"), 0);
}

#[rstest]
#[tokio::test]
async fn registration_is_submitted_once(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);
    // Duplicate triggers, all with the record as read before the first one.
    let worker = harness.worker("w-1").await;
    let reconciles = (0..8).map(|_| harness.reconciler().reconcile(&worker));
    let results = futures_util::future::join_all(reconciles).await;
    assert!(results.iter().all(|result| result.outcome == Outcome::Requeue), "{results:?}");
    assert_eq!(harness.cml_calls("register"), 1);

    // A new leader continues from the record.
    let harness = harness.with_policy(|_| {});
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
}

#[rstest]
#[tokio::test]
async fn booting_cml_keeps_the_license_request(#[values(Original, Extended)] generation: Generation) {
    let (harness, _, cml) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);
    for stage in [Boot::Refused, Boot::BadGateway] {
        cml.pin_stage(Some(stage));
        harness.cloud.settle().await;
        for _ in 0..2 {
            let delayed = harness.reconcile("w-1").await;
            assert_eq!((delayed.outcome, delayed.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
            assert_eq!(delayed.to_status, WorkerStatus::Running);
        }
    }
    assert_eq!(license_field(&harness, "pending_operation"), json!("register"));
    assert_eq!(license_field(&harness, "pending_token"), json!(TOKEN));
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("start_registration")), (0, 0));

    cml.pin_stage(None);
    harness.cloud.settle().await;
    complete_registration(&harness).await;
    assert_eq!((harness.cml_calls("register"), count_license_events(&harness, "failed")), (1, 0));
}

#[rstest]
#[tokio::test]
async fn bad_gateway_keeps_the_license_request(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);
    let page = json!({"kind": "custom", "name": "bad-gateway"});
    harness.inject(json!({"service": "cml", "operation": "register", "times": 1, "action": page}));
    let delayed = harness.reconcile("w-1").await;
    assert_eq!((delayed.outcome, delayed.reason.code.as_str()), (Outcome::Retry, "license_delayed"));
    assert_eq!(license_field(&harness, "pending_token"), json!(TOKEN));
    complete_registration(&harness).await;
    assert_eq!(harness.counter("license_registered_count"), 1);
}

/// CML accepts the token, but the response is lost.
#[rstest]
#[tokio::test]
async fn registration_with_a_lost_response_is_not_repeated(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = running_worker(generation).await;
    harness.request_registration("w-1", TOKEN);
    harness.inject(json!({"service": "cml", "operation": "register", "times": 1, "action": {"kind": "drop-response"}}));
    assert_eq!(reconcile_code(&harness).await, "license_delayed");
    assert_eq!(reconcile_code(&harness).await, "license_in_progress");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (1, 1));
    assert_eq!(license_field(&harness, "token"), json!(TOKEN));
}

#[rstest]
#[tokio::test]
async fn final_rejection_is_reported_once(#[values(Original, Extended)] generation: Generation) {
    // Rejected by the licensing server, asynchronously.
    let (harness, _, cml) = running_worker(generation).await;
    cml.set_registration(Registration::Fails);
    harness.request_registration("w-1", TOKEN);
    assert_eq!(reconcile_code(&harness).await, "license_submitted");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    for _ in 0..3 {
        harness.cloud.advance(Duration::from_secs(60)).await;
        assert_eq!(reconcile_code(&harness).await, "in_service");
    }
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("fail_registration")), (1, 1));
    assert_eq!(
        (license_field(&harness, "pending_operation"), license_field(&harness, "pending_token")),
        (json!(null), json!(null))
    );
    assert_eq!(harness.counter("license_registered_count"), 0);
    assert_eq!(
        license_field(&harness, "last_error"),
        json!("CML has finished the license operation (registration FAILED).")
    );

    // Rejected by CML itself, immediately.
    let (harness, ..) = running_worker(generation).await;
    harness.request_registration("w-1", "not a token at all!");
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!(reconcile_code(&harness).await, "in_service");
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("fail_registration")), (1, 1));
    assert_eq!(license_field(&harness, "pending_operation"), json!(null));
}

/// CML never finishes the registration, and the leader changes in between.
#[rstest]
#[tokio::test]
async fn unfinished_registration_is_reported_as_failed(#[values(Original, Extended)] generation: Generation) {
    let (harness, _, cml) = running_worker(generation).await;
    cml.set_registration(Registration::Hangs);
    harness.request_registration("w-1", TOKEN);
    assert_eq!(reconcile_code(&harness).await, "license_submitted");
    assert_eq!(reconcile_code(&harness).await, "license_in_progress");
    harness.cloud.advance(Duration::from_secs(800)).await;
    let harness = harness.with_policy(|_| {});
    assert_eq!(reconcile_code(&harness).await, "license_in_progress");
    harness.cloud.advance(Duration::from_secs(100)).await;
    assert_eq!(reconcile_code(&harness).await, "license_timed_out");
    assert_eq!(license_field(&harness, "pending_operation"), json!(null));
    assert_eq!(
        license_field(&harness, "last_error"),
        json!("CML did not finish the registration in time (for 15 min).")
    );
    assert_eq!(reconcile_code(&harness).await, "in_service");
    assert_eq!((harness.cml_calls("register"), harness.control_plane_calls("fail_registration")), (1, 1));
}

#[rstest]
#[tokio::test]
async fn registration_without_a_token_is_reported_as_failed(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = running_worker(generation).await;
    let intent = json!({"license": {"pending_operation": "register", "pending_token": null}});
    harness.cloud.update_worker("w-1", intent).expect("record is updated");
    assert_eq!(reconcile_code(&harness).await, "license_token_missing");
    assert_eq!(license_field(&harness, "last_error"), json!("There is no token to register."));
    assert_eq!(reconcile_code(&harness).await, "in_service");
    assert_eq!(harness.control_plane_calls("fail_registration"), 1);
}

#[rstest]
#[tokio::test]
async fn new_token_replaces_the_registered_one(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = licensed_worker(generation).await;
    harness.cloud.advance(Duration::from_secs(3600)).await;
    match generation {
        Extended => harness.request_registration("w-1", "smart-license-token-2"),
        // Without the flag, the registration that CML shows is the requested one.
        Original => harness.request_reregistration("w-1", "smart-license-token-2"),
    }
    assert_eq!(reconcile_code(&harness).await, "license_submitted");
    assert_eq!(reconcile_code(&harness).await, "license_in_progress");
    assert_eq!(license_field(&harness, "token"), json!(TOKEN), "kept until CML has registered the new one");
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!(license_field(&harness, "token"), json!("smart-license-token-2"));
    assert_eq!((harness.cml_calls("register"), harness.counter("license_registered_count")), (2, 2));
}

#[rstest]
#[tokio::test]
async fn deregistration_accepts_every_success_response(#[values(Original, Extended)] generation: Generation) {
    for (response, status) in [(Deregistration::Done, 204), (Deregistration::LocalOnly, 202)] {
        let (harness, _, cml) = licensed_worker(generation).await;
        cml.set_deregistration(response);
        harness.request_deregistration("w-1");
        assert_eq!(reconcile_code(&harness).await, "license_finished");
        assert_eq!(reconcile_code(&harness).await, "in_service");
        assert_eq!(
            (harness.cml_calls("deregister"), harness.counter("license_deregistered_count")),
            (1, 1),
            "{status}"
        );
        assert_eq!(
            (license_field(&harness, "status"), license_field(&harness, "token")),
            (json!("unregistered"), json!(null))
        );
        assert_eq!(count_license_events(&harness, "failed"), 0);
    }

    // Already deregistered: CML would respond with 400.
    let (harness, ..) = running_worker(generation).await;
    harness.request_deregistration("w-1");
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    let requests = match generation {
        Extended => 1,
        // An operation of etcd that CML already shows as completed is reported, and not repeated.
        Original => 0,
    };
    assert_eq!((harness.cml_calls("deregister"), harness.counter("license_deregistered_count")), (requests, 1));
    assert_eq!(
        (license_field(&harness, "status"), count_license_events(&harness, "failed")),
        (json!("unregistered"), 0)
    );
}

#[rstest]
#[tokio::test]
async fn deregistration_waits_until_nodes_have_stopped(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = licensed_worker(generation).await;
    let message = "Licensing issue: Cannot de-register when nodes are running.";
    let busy = json!({"kind": "error", "code": "400", "message": message});
    harness.inject(json!({"service": "cml", "operation": "deregister", "times": 2, "action": busy}));
    harness.request_deregistration("w-1");
    for _ in 0..2 {
        let busy = harness.reconcile("w-1").await;
        assert_eq!((busy.outcome, busy.reason.code.as_str()), (Outcome::Retry, "license_delayed"), "{}", busy.reason);
    }
    assert_eq!(license_field(&harness, "pending_operation"), json!("deregister"));
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!((harness.counter("license_deregistered_count"), count_license_events(&harness, "failed")), (1, 0));
}

/// EC2 has reassigned the worker's old address to another instance, and the record is outdated.
#[rstest]
#[tokio::test]
async fn token_is_sent_only_to_the_current_ec2_address(#[values(Original, Extended)] generation: Generation) {
    let (harness, instance, _) = running_worker(generation).await;
    let other_instance = harness.cloud.run_instance(REGION, &[]).expect("instance launches");
    harness.cloud.advance(Duration::from_secs(60)).await;
    let now = harness.cloud.now();
    let foreign_address = harness
        .cloud
        .instance(REGION, &other_instance.id)
        .and_then(|found| found.public_ip(now))
        .expect("instance has an address");
    let own_address = harness.worker("w-1").await.address().expect("worker has an address").to_owned();
    let outdated = json!({"public_ip": foreign_address, "ip_address": foreign_address});
    harness.cloud.update_worker("w-1", outdated).expect("record is updated");
    harness.request_registration("w-1", TOKEN);
    harness.cloud.advance(Duration::from_secs(61)).await;

    assert_eq!(reconcile_code(&harness).await, "license_submitted");
    assert_eq!(harness.worker("w-1").await.address(), Some(own_address.as_str()), "recorded in the same reconcile");
    assert_eq!(harness.cloud.cml_registration(&instance).as_deref(), Some("IN_PROGRESS"));
    assert_eq!(harness.cloud.cml_registration(&other_instance.id).as_deref(), Some("NOT_REGISTERED"));
    let count_requests = |subject: &str| {
        let (service, subject) = (Some(Service::Cml), Some(subject.to_owned()));
        harness.cloud.requests(&RequestFilter { service, subject, ..RequestFilter::default() }).len()
    };
    assert!(count_requests(&instance) > 0);
    assert_eq!(count_requests(&other_instance.id), 0, "no request, not even a login");
}

#[rstest]
#[tokio::test]
async fn restarted_instance_gets_its_token_at_the_new_address(#[values(Original, Extended)] generation: Generation) {
    let (harness, instance, _) = running_worker(generation).await;
    let before = harness.worker("w-1").await.address().expect("worker has an address").to_owned();
    harness.cloud.stop_instance(REGION, &instance).expect("instance stops");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.cloud.start_instance(REGION, &instance).expect("instance starts");
    harness.cloud.advance(Duration::from_secs(60)).await;
    harness.request_registration("w-1", TOKEN);

    assert_eq!(reconcile_code(&harness).await, "license_submitted");
    let after = harness.worker("w-1").await.address().expect("worker has an address").to_owned();
    assert_ne!(before, after);
    harness.cloud.advance(Duration::from_secs(20)).await;
    assert_eq!(reconcile_code(&harness).await, "license_finished");
    assert_eq!(harness.cml_calls("register"), 1);
}

#[rstest]
#[tokio::test]
async fn stopped_worker_keeps_its_license_request(#[values(Original, Extended)] generation: Generation) {
    let (harness, ..) = running_worker(generation).await;
    harness.cloud.update_worker("w-1", json!({"desired_status": "stopped"})).expect("desired status is accepted");
    harness.reconcile_until("w-1", WorkerStatus::Stopped).await;
    harness.request_registration("w-1", TOKEN);
    assert_eq!(reconcile_code(&harness).await, "at_rest");
    assert_eq!((harness.cml_calls("register"), license_field(&harness, "pending_token")), (0, json!(TOKEN)));

    harness.cloud.update_worker("w-1", json!({"desired_status": "running"})).expect("desired status is accepted");
    harness.reconcile_until("w-1", WorkerStatus::Running).await;
    complete_registration(&harness).await;
    assert_eq!(harness.cml_calls("register"), 1);
}
