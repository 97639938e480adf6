//! Conformance suite of [`Cml`].

use std::time::Duration;

use async_trait::async_trait;

use crate::lifecycle::failure::FailureKind;
use crate::lifecycle::secret::Secret;
use crate::ports::{Cml, CmlTarget};

/// Fixture of the suite: a CML system that the suite can change.
#[async_trait]
pub trait CmlWorld: Send + Sync {
    /// The port under test.
    fn cml(&self) -> &dyn Cml;
    /// A system that is ready and not registered, with one lab of two nodes that were never started. A registration takes
    /// 10 s.
    fn target(&self) -> CmlTarget;
    /// A target that refuses connections.
    fn nowhere(&self) -> CmlTarget;
    /// Makes the system respond with HTML pages, as while booting, or ready again.
    async fn set_booting(&self, booting: Booting);
    /// Advances the time of the system.
    async fn pass(&self, time: Duration);
    /// Starts the lab, as a user would.
    async fn start_lab(&self);
    /// Invalidates all login tokens.
    async fn end_logins(&self);
    /// Sets the result of the next registrations.
    async fn next_registration(&self, end: Registration);
}

/// Whether a system is booting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Booting {
    /// Only HTML pages are served.
    Yes,
    /// The API is served.
    No,
}

/// Result of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// The system is registered.
    Completes,
    /// The registration fails.
    Fails,
}

/// Checks all promises of the port.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn CmlWorld) {
    promise!(systems_report_metrics(world));
    promise!(unavailable_systems_never_refuse(world));
    promise!(wrong_passwords_are_retryable(world));
    promise!(telemetry_is_complete(world));
    promise!(registrations_are_replaced_and_ended(world));
    promise!(failed_registrations_are_reported(world));
}

async fn systems_report_metrics(world: &dyn CmlWorld) {
    let metrics = world.cml().system(&world.target()).await.expect("a ready system responds");
    assert!(metrics.cml_version.is_some_and(|version| version.starts_with("2.")), "a version");
    assert_eq!(metrics.ready, Some(true));
    assert_eq!((metrics.labs_count, metrics.nodes_count), (Some(1), Some(2)), "one lab, two nodes");
}

async fn unavailable_systems_never_refuse(world: &dyn CmlWorld) {
    let (cml, nowhere, target) = (world.cml(), world.nowhere(), world.target());
    let token = Secret::from("t0ken");
    assert_eq!(cml.system(&nowhere).await.expect_err("connection refused").kind, FailureKind::Unreachable);
    assert_eq!(cml.register(&nowhere, &token).await.expect_err("connection refused").kind, FailureKind::Unreachable);
    world.set_booting(Booting::Yes).await;
    assert_eq!(cml.system(&target).await.expect_err("an HTML page").kind, FailureKind::Unclear);
    assert_eq!(cml.registration(&target).await.expect_err("an HTML page").kind, FailureKind::Unclear);
    assert_eq!(cml.register(&target, &token).await.expect_err("an HTML page").kind, FailureKind::Unclear);
    assert_eq!(cml.deregister(&target).await.expect_err("an HTML page").kind, FailureKind::Unclear);
    world.set_booting(Booting::No).await;
    cml.system(&target).await.expect("a ready system responds");
}

async fn wrong_passwords_are_retryable(world: &dyn CmlWorld) {
    let wrong = CmlTarget { password: Secret::from("hunter2"), ..world.target() };
    let metrics = world.cml().system(&wrong).await.expect("public metrics are reported");
    assert!(metrics.ready.is_some() && metrics.labs_count.is_none(), "labs need a login: {metrics:?}");
    let failure = world.cml().register(&wrong, &Secret::from("t0ken")).await.expect_err("the login fails");
    assert!(failure.kind.is_retryable() && failure.kind.did_nothing(), "{failure:?}");
    let shown = format!("{failure} {failure:?} {wrong:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("t0ken"), "{shown}");
}

async fn telemetry_is_complete(world: &dyn CmlWorld) {
    let before = world.cml().telemetry(&world.target()).await.expect("telemetry");
    assert!(before.iter().all(|event| event["category"] != "start_lab"), "no lab was started: {before:?}");
    world.start_lab().await;
    // An expired token must not fail the call.
    world.end_logins().await;
    let after = world.cml().telemetry(&world.target()).await.expect("telemetry after another login");
    assert!(after.iter().any(|event| event["category"] == "start_lab"), "{after:?}");
}

async fn registrations_are_replaced_and_ended(world: &dyn CmlWorld) {
    let (cml, target) = (world.cml(), world.target());
    let status = async || cml.registration(&target).await.expect("a status");
    let fresh = status().await;
    assert_eq!((fresh.raw.as_str(), fresh.attempted), ("NOT_REGISTERED", None));
    cml.deregister(&target).await.expect("not registered is a success");
    cml.register(&target, &Secret::from("t0ken")).await.expect("accepted");
    let begun = status().await;
    assert_ne!(begun.raw, "COMPLETED", "accepted does not mean completed");
    assert!(begun.attempted.is_some(), "the time of the attempt is set");
    let again = cml.register(&target, &Secret::from("t0ken")).await.expect_err("one is in progress");
    assert_eq!(again.kind, FailureKind::Conflict, "{again}");
    world.pass(Duration::from_secs(15)).await;
    assert_eq!(status().await.raw, "COMPLETED");
    cml.reregister(&target, &Secret::from("an0ther")).await.expect("replaced");
    world.pass(Duration::from_secs(15)).await;
    let replaced = status().await;
    assert_eq!(replaced.raw, "COMPLETED");
    assert_ne!(replaced.attempted, begun.attempted, "a new attempt has a new time");
    cml.deregister(&target).await.expect("deregistered");
    assert_eq!(status().await.raw, "NOT_REGISTERED");
    cml.deregister(&target).await.expect("deregistering twice succeeds");
}

async fn failed_registrations_are_reported(world: &dyn CmlWorld) {
    let (cml, target) = (world.cml(), world.target());
    world.next_registration(Registration::Fails).await;
    cml.register(&target, &Secret::from("t0ken")).await.expect("accepted");
    world.pass(Duration::from_secs(15)).await;
    assert_eq!(cml.registration(&target).await.expect("a status").raw, "FAILED");
    world.next_registration(Registration::Completes).await;
}
