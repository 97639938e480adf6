//! What every [`Cml`] does.

use std::time::Duration;

use async_trait::async_trait;

use crate::lifecycle::failure::FailureKind;
use crate::lifecycle::secret::Secret;
use crate::ports::{Cml, CmlTarget};

/// One CML, and a hand that moves it.
#[async_trait]
pub trait CmlWorld: Send + Sync {
    /// The port under test.
    fn cml(&self) -> &dyn Cml;
    /// The CML: ready, not registered, with one lab that has two nodes, none of which was ever started. A
    /// registration takes it ten seconds.
    fn target(&self) -> CmlTarget;
    /// Somewhere nobody listens.
    fn nowhere(&self) -> CmlTarget;
    /// Puts the CML back to where only a page of HTML answers, or lets it be ready again.
    async fn set_booting(&self, booting: Booting);
    /// Lets time pass for it.
    async fn pass(&self, time: Duration);
    /// Somebody starts a lab.
    async fn start_lab(&self);
    /// Makes the tokens it has given out worthless.
    async fn end_logins(&self);
    /// Says how the next registrations end.
    async fn next_registration(&self, end: Registration);
}

/// Whether a CML is still booting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Booting {
    /// It is.
    Yes,
    /// It is not.
    No,
}

/// How a registration ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// With a licence.
    Completes,
    /// With a no.
    Fails,
}

/// Runs the whole suite.
///
/// # Panics
/// When the port does not do what its docs say.
pub async fn suite(world: &dyn CmlWorld) {
    promise!(a_system_tells_about_itself(world));
    promise!(nobody_home_and_booting_are_never_refusals(world));
    promise!(a_wrong_password_is_no_refusal_and_is_not_shown(world));
    promise!(telemetry_is_told_as_it_is(world));
    promise!(a_licence_comes_and_goes(world));
    promise!(a_registration_can_fail(world));
}

async fn a_system_tells_about_itself(world: &dyn CmlWorld) {
    let told = world.cml().system(&world.target()).await.expect("a ready CML answers");
    assert!(told.version.is_some_and(|version| version.starts_with("2.")), "a version");
    assert_eq!(told.ready, Some(true));
    assert_eq!((told.labs_count, told.nodes_count), (Some(1), Some(2)), "one lab, two nodes");
}

async fn nobody_home_and_booting_are_never_refusals(world: &dyn CmlWorld) {
    let (cml, nowhere, target) = (world.cml(), world.nowhere(), world.target());
    let token = Secret::from("t0ken");
    assert_eq!(cml.system(&nowhere).await.expect_err("nobody").kind, FailureKind::Unreachable);
    assert_eq!(cml.register(&nowhere, &token).await.expect_err("nobody").kind, FailureKind::Unreachable);
    world.set_booting(Booting::Yes).await;
    assert_eq!(cml.system(&target).await.expect_err("a page").kind, FailureKind::Unclear);
    assert_eq!(cml.registration(&target).await.expect_err("a page").kind, FailureKind::Unclear);
    assert_eq!(cml.register(&target, &token).await.expect_err("a page").kind, FailureKind::Unclear);
    assert_eq!(cml.deregister(&target).await.expect_err("a page").kind, FailureKind::Unclear);
    world.set_booting(Booting::No).await;
    cml.system(&target).await.expect("it is back");
}

async fn a_wrong_password_is_no_refusal_and_is_not_shown(world: &dyn CmlWorld) {
    let wrong = CmlTarget { password: Secret::from("hunter2"), ..world.target() };
    let told = world.cml().system(&wrong).await.expect("what is open to all is told");
    assert!(told.ready.is_some() && told.labs_count.is_none(), "labs are not: {told:?}");
    let failure = world.cml().register(&wrong, &Secret::from("t0ken")).await.expect_err("not let in");
    assert!(failure.kind.is_retryable() && failure.kind.did_nothing(), "{failure:?}");
    let shown = format!("{failure} {failure:?} {wrong:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("t0ken"), "{shown}");
}

async fn telemetry_is_told_as_it_is(world: &dyn CmlWorld) {
    let before = world.cml().telemetry(&world.target()).await.expect("telemetry");
    assert!(before.iter().all(|event| event["category"] != "start_lab"), "nobody started a lab yet: {before:?}");
    world.start_lab().await;
    // A token that is no longer good must not read as a CML that cannot be asked.
    world.end_logins().await;
    let after = world.cml().telemetry(&world.target()).await.expect("telemetry after signing in again");
    assert!(after.iter().any(|event| event["category"] == "start_lab"), "{after:?}");
}

async fn a_licence_comes_and_goes(world: &dyn CmlWorld) {
    let (cml, target) = (world.cml(), world.target());
    let status = async || cml.registration(&target).await.expect("a status");
    let fresh = status().await;
    assert_eq!((fresh.word.as_str(), fresh.attempted), ("NOT_REGISTERED", None));
    cml.deregister(&target).await.expect("what is not there is given back");
    cml.register(&target, &Secret::from("t0ken")).await.expect("accepted");
    let begun = status().await;
    assert_ne!(begun.word, "COMPLETED", "accepted is not done");
    assert!(begun.attempted.is_some(), "an attempt leaves its mark");
    let again = cml.register(&target, &Secret::from("t0ken")).await.expect_err("one is in progress");
    assert_eq!(again.kind, FailureKind::Conflict, "{again}");
    world.pass(Duration::from_secs(15)).await;
    assert_eq!(status().await.word, "COMPLETED");
    cml.reregister(&target, &Secret::from("an0ther")).await.expect("replaced");
    world.pass(Duration::from_secs(15)).await;
    let replaced = status().await;
    assert_eq!(replaced.word, "COMPLETED");
    assert_ne!(replaced.attempted, begun.attempted, "a new attempt has a new mark");
    cml.deregister(&target).await.expect("given back");
    assert_eq!(status().await.word, "NOT_REGISTERED");
    cml.deregister(&target).await.expect("given back already");
}

async fn a_registration_can_fail(world: &dyn CmlWorld) {
    let (cml, target) = (world.cml(), world.target());
    world.next_registration(Registration::Fails).await;
    cml.register(&target, &Secret::from("t0ken")).await.expect("accepted all the same");
    world.pass(Duration::from_secs(15)).await;
    assert_eq!(cml.registration(&target).await.expect("a status").word, "FAILED");
    world.next_registration(Registration::Completes).await;
}
