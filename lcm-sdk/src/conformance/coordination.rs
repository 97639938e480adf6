//! What every [`Coordination`] must do.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout};

use crate::lifecycle::failure::FailureKind;
use crate::ports::{Claim, Coordination, Lease, Renewal, WatchStream, WatchUpdate};

/// How long anything may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// The shortest lease every etcd grants as asked.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// The far side, as far as the suite has to set it up behind the port's back.
#[async_trait]
pub trait CoordinationWorld: Send + Sync {
    /// The port under test. Every call may give another client of the same server.
    fn coordination(&self) -> Arc<dyn Coordination>;
    /// Writes a key.
    async fn put(&self, key: &str, value: &str);
    /// Deletes a key.
    async fn delete(&self, key: &str);
    /// Forgets everything before the current revision.
    async fn compact(&self);
}

/// Runs everything, one after the other, under keys that start with `/conformance/`.
///
/// # Panics
/// With what was broken.
pub async fn suite(world: &dyn CoordinationWorld) {
    promise!(a_lease_lives_until_it_is_revoked(world));
    promise!(a_key_is_claimed_once(world));
    promise!(a_claim_needs_a_lease_that_lives(world));
    promise!(a_lease_that_is_not_renewed_ends_and_takes_its_key_along(world));
    promise!(a_listing_is_of_one_revision_and_of_its_prefix_only(world));
    promise!(a_watch_has_no_gap(world));
    promise!(a_watch_can_be_left_and_taken_up_again(world));
    promise!(a_compacted_revision_is_told(world));
    promise!(a_sign_of_life_is_given_when_asked_for(world));
}

async fn a_lease_lives_until_it_is_revoked(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, Duration::from_millis(59_500)).await;
    assert!(lease.ttl >= Duration::from_millis(59_500), "a lease is never shorter than asked for: {lease:?}");
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)), "a renewal says how long it lives");
    let other = world.coordination();
    assert_eq!(other.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)), "whoever renews it");
    assert_eq!(etcd.revoke(lease.id).await, Ok(()));
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Gone), "a revoked lease is gone, which is an answer");
    assert_eq!(etcd.revoke(lease.id).await, Ok(()), "revoking it again is a success");
}

async fn a_key_is_claimed_once(world: &dyn CoordinationWorld) {
    let (one, other) = (world.coordination(), world.coordination());
    let (first, second) = (granted(&*one, LONG).await, granted(&*other, LONG).await);
    let key = "/conformance/claim";
    let Ok(Claim::Won { revision: created }) = one.claim(key, "one", first.id).await else { panic!("the first wins") };
    match other.claim(key, "other", second.id).await {
        Ok(Claim::Held { by, revision }) => {
            assert_eq!(by, "one", "the loser is told who holds it");
            assert!(revision >= created, "at {revision}, before it was created at {created}");
        }
        unexpected => panic!("the second loses: {unexpected:?}"),
    }
    world.put("/conformance/unrelated", "1").await;
    let again = one.claim(key, "one", first.id).await;
    assert_eq!(again, Ok(Claim::Won { revision: created }), "asking again after a lost answer finds the claim");
    let elsewhere = one.claim(key, "one", second.id).await;
    assert!(matches!(elsewhere, Ok(Claim::Held { .. })), "the same value under another lease is somebody else");
    let renamed = one.claim(key, "two", first.id).await;
    assert!(matches!(renamed, Ok(Claim::Held { .. })), "another value is somebody else");
    one.revoke(first.id).await.expect("revoked");
    match other.claim(key, "other", second.id).await {
        Ok(Claim::Won { revision }) => assert!(revision > created, "the token grows: {created}, then {revision}"),
        unexpected => panic!("a key that was given up can be claimed: {unexpected:?}"),
    }
    other.revoke(second.id).await.expect("revoked");
}

async fn a_claim_needs_a_lease_that_lives(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, LONG).await;
    etcd.revoke(lease.id).await.expect("revoked");
    let failure = etcd.claim("/conformance/dead", "one", lease.id).await.expect_err("the lease is gone");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    let listing = etcd.list("/conformance/dead").await.expect("a listing");
    assert_eq!(listing.keys, [], "nothing was done");
}

async fn a_lease_that_is_not_renewed_ends_and_takes_its_key_along(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, SHORT).await;
    let key = "/conformance/expires";
    let Ok(Claim::Won { revision }) = etcd.claim(key, "one", lease.id).await else { panic!("nobody else is there") };
    let mut watch = watched(&*etcd, key, revision + 1).await;
    tokio::time::sleep(SHORT / 2).await;
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)));
    let renewed = Instant::now();
    assert_eq!(changed(&mut *watch).await, [key.as_bytes()], "the watch tells of the end");
    let lived = renewed.elapsed();
    assert!(lived + Duration::from_millis(200) >= lease.ttl, "it ended after {lived:?} though it was renewed");
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Gone));
}

async fn a_listing_is_of_one_revision_and_of_its_prefix_only(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    for key in ["/conformance/list", "/conformance/list/a", "/conformance/list/b", "/conformance/list0"] {
        world.put(key, "1").await;
    }
    let before = etcd.list("/conformance/list/").await.expect("a listing");
    let names: Vec<_> = before.keys.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    assert_eq!(names, ["/conformance/list/a", "/conformance/list/b"]);
    world.put("/conformance/list/b", "2").await;
    let after = etcd.list("/conformance/list/").await.expect("a listing");
    assert!(after.revision > before.revision, "the revision grows with every change");
    assert_eq!(after.keys[0], before.keys[0], "what did not change keeps its revision");
    assert_eq!(after.keys[1].1, after.revision, "what changed last has the server's");
    world.delete("/conformance/list/b").await;
    let deleted = etcd.list("/conformance/list/").await.expect("a listing");
    assert_eq!(deleted.keys, after.keys[..1]);
}

async fn a_watch_has_no_gap(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/watch/").await.expect("a listing").revision;
    world.put("/conformance/watch/a", "1").await;
    world.put("/conformance/watched", "1").await;
    world.delete("/conformance/watch/a").await;
    world.put("/conformance/watch/b", "1").await;
    let mut watch = watched(&*etcd, "/conformance/watch/", start + 1).await;
    let (mut seen, mut last) = (Vec::new(), start);
    while seen.len() < 3 {
        match next(&mut *watch).await {
            WatchUpdate::Changed { revision, keys } => {
                assert!(revision > last, "revisions grow: {last}, then {revision}");
                last = revision;
                seen.extend(keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()));
            }
            WatchUpdate::Progress { .. } => {}
            unexpected => panic!("the past is told: {unexpected:?}"),
        }
    }
    let expected = ["/conformance/watch/a", "/conformance/watch/a", "/conformance/watch/b"];
    assert_eq!(seen, expected, "the past is told in order, deletions too, and nothing else");
    world.put("/conformance/watch/c", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/watch/c"], "then the present");
    let now = etcd.list("/conformance/watch/").await.expect("a listing");
    let mut resumed = watched(&*etcd, "/conformance/watch/", last + 1).await;
    assert_eq!(
        changed(&mut *resumed).await,
        [b"/conformance/watch/c"],
        "whoever goes on behind what they saw misses nothing"
    );
    assert!(now.revision > last);
}

async fn a_watch_can_be_left_and_taken_up_again(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/left/").await.expect("a listing").revision;
    let mut watch = watched(&*etcd, "/conformance/left/", start + 1).await;
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(20), watch.next()).await.is_err(), "there is nothing to hear");
    }
    world.put("/conformance/left/a", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/left/a"]);
}

async fn a_compacted_revision_is_told(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/compact/").await.expect("a listing").revision;
    for value in ["1", "2", "3"] {
        world.put("/conformance/compact/a", value).await;
    }
    world.compact().await;
    let mut watch = watched(&*etcd, "/conformance/compact/", start + 1).await;
    match next(&mut *watch).await {
        WatchUpdate::Compacted { revision } => assert!(revision > start, "{revision} is gone too"),
        unexpected => panic!("a gap is told and not skipped: {unexpected:?}"),
    }
}

async fn a_sign_of_life_is_given_when_asked_for(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/probe/").await.expect("a listing").revision;
    let mut watch = watched(&*etcd, "/conformance/probe/", start + 1).await;
    watch.probe().await.expect("asked");
    match next(&mut *watch).await {
        WatchUpdate::Progress { revision } => assert!(revision >= start, "{revision} was long ago"),
        unexpected => panic!("a probe is answered: {unexpected:?}"),
    }
    world.put("/conformance/probe/a", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/probe/a"], "and the watch goes on");
}

async fn granted(etcd: &dyn Coordination, ttl: Duration) -> Lease {
    etcd.grant(ttl).await.expect("a lease is granted")
}

async fn watched(etcd: &dyn Coordination, prefix: &str, from: i64) -> Box<dyn WatchStream> {
    etcd.watch(prefix, from).await.expect("a watch begins")
}

async fn next(watch: &mut dyn WatchStream) -> WatchUpdate {
    timeout(PATIENCE, watch.next()).await.expect("a watch that has something to tell tells it")
}

/// The keys of the next change.
async fn changed(watch: &mut dyn WatchStream) -> Vec<Vec<u8>> {
    loop {
        match next(watch).await {
            WatchUpdate::Changed { keys, .. } => return keys,
            WatchUpdate::Progress { .. } => {}
            unexpected => panic!("a change is told: {unexpected:?}"),
        }
    }
}
