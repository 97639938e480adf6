//! Conformance suite of [`Coordination`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout};

use crate::lifecycle::failure::FailureKind;
use crate::ports::{Claim, Coordination, Lease, Renewal, WatchStream, WatchUpdate};

/// Time limit for a watch update.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest lease that every etcd grants unchanged.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// Fixture of the suite: a server that the suite can change directly.
#[async_trait]
pub trait CoordinationWorld: Send + Sync {
    /// The port under test. Each call may return another client of the same server.
    fn coordination(&self) -> Arc<dyn Coordination>;
    /// Writes a key without a lease.
    async fn put(&self, key: &str, value: &str);
    /// Deletes a key, if it exists.
    async fn delete(&self, key: &str);
    /// Compacts all revisions before the current one.
    async fn compact(&self);
}

/// Checks all promises of the port, with keys that start with `/conformance/`.
///
/// # Panics
/// With the broken promise.
pub async fn suite(world: &dyn CoordinationWorld) {
    promise!(leases_live_until_they_are_revoked(world));
    promise!(keys_are_claimed_once(world));
    promise!(claims_need_a_live_lease(world));
    promise!(expired_leases_remove_their_keys(world));
    promise!(lists_are_consistent(world));
    promise!(watches_have_no_gaps(world));
    promise!(watch_calls_are_cancel_safe(world));
    promise!(compacted_revisions_are_reported(world));
    promise!(probes_return_progress(world));
}

async fn leases_live_until_they_are_revoked(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, Duration::from_millis(59_500)).await;
    assert!(lease.ttl >= Duration::from_millis(59_500), "a lease is not shorter than requested: {lease:?}");
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)), "a renewal returns the time to live");
    let other = world.coordination();
    assert_eq!(other.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)), "any client can renew a lease");
    assert_eq!(etcd.revoke(lease.id).await, Ok(()));
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Gone), "a revoked lease is gone");
    assert_eq!(etcd.revoke(lease.id).await, Ok(()), "revoking twice succeeds");
}

async fn keys_are_claimed_once(world: &dyn CoordinationWorld) {
    let (one, other) = (world.coordination(), world.coordination());
    let (first, second) = (granted(&*one, LONG).await, granted(&*other, LONG).await);
    let key = "/conformance/claim";
    let Ok(Claim::Won { revision: created }) = one.claim(key, "one", first.id).await else {
        panic!("the first claim wins")
    };
    match other.claim(key, "other", second.id).await {
        Ok(Claim::Held { by, revision }) => {
            assert_eq!(by, "one", "the holder is named");
            assert!(revision >= created, "at {revision}, before it was created at {created}");
        }
        unexpected => panic!("the second claim loses: {unexpected:?}"),
    }
    world.put("/conformance/unrelated", "1").await;
    let again = one.claim(key, "one", first.id).await;
    assert_eq!(again, Ok(Claim::Won { revision: created }), "repeating a claim returns it");
    let elsewhere = one.claim(key, "one", second.id).await;
    assert!(matches!(elsewhere, Ok(Claim::Held { .. })), "the same value with another lease is another holder");
    let renamed = one.claim(key, "two", first.id).await;
    assert!(matches!(renamed, Ok(Claim::Held { .. })), "another value is another holder");
    one.revoke(first.id).await.expect("revoked");
    match other.claim(key, "other", second.id).await {
        Ok(Claim::Won { revision }) => {
            assert!(revision > created, "the fencing token grows: {created}, then {revision}")
        }
        unexpected => panic!("a released key can be claimed: {unexpected:?}"),
    }
    other.revoke(second.id).await.expect("revoked");
}

async fn claims_need_a_live_lease(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, LONG).await;
    etcd.revoke(lease.id).await.expect("revoked");
    let failure = etcd.claim("/conformance/dead", "one", lease.id).await.expect_err("the lease is revoked");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    let listing = etcd.list("/conformance/dead").await.expect("a list");
    assert_eq!(listing.keys, [], "the key was not created");
}

async fn expired_leases_remove_their_keys(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let lease = granted(&*etcd, SHORT).await;
    let key = "/conformance/expires";
    let Ok(Claim::Won { revision }) = etcd.claim(key, "one", lease.id).await else { panic!("the key is free") };
    let mut watch = watched(&*etcd, key, revision + 1).await;
    tokio::time::sleep(SHORT / 2).await;
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Renewed(lease.ttl)));
    let renewed = Instant::now();
    assert_eq!(changed(&mut *watch).await, [key.as_bytes()], "the watch reports the expiry");
    let lived = renewed.elapsed();
    assert!(lived + Duration::from_millis(200) >= lease.ttl, "expired {lived:?} after a renewal");
    assert_eq!(etcd.renew(lease.id).await, Ok(Renewal::Gone));
}

async fn lists_are_consistent(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    for key in ["/conformance/list", "/conformance/list/a", "/conformance/list/b", "/conformance/list0"] {
        world.put(key, "1").await;
    }
    let before = etcd.list("/conformance/list/").await.expect("a list");
    let names: Vec<_> = before.keys.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    assert_eq!(names, ["/conformance/list/a", "/conformance/list/b"]);
    world.put("/conformance/list/b", "2").await;
    let after = etcd.list("/conformance/list/").await.expect("a list");
    assert!(after.revision > before.revision, "the revision grows with every change");
    assert_eq!(after.keys[0], before.keys[0], "an unchanged key keeps its revision");
    assert_eq!(after.keys[1].1, after.revision, "the last change has the revision of the server");
    world.delete("/conformance/list/b").await;
    let deleted = etcd.list("/conformance/list/").await.expect("a list");
    assert_eq!(deleted.keys, after.keys[..1]);
}

async fn watches_have_no_gaps(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/watch/").await.expect("a list").revision;
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
            unexpected => panic!("earlier changes are reported: {unexpected:?}"),
        }
    }
    let expected = ["/conformance/watch/a", "/conformance/watch/a", "/conformance/watch/b"];
    assert_eq!(seen, expected, "earlier changes and deletions are reported in order");
    world.put("/conformance/watch/c", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/watch/c"], "later changes are reported");
    let now = etcd.list("/conformance/watch/").await.expect("a list");
    let mut resumed = watched(&*etcd, "/conformance/watch/", last + 1).await;
    assert_eq!(changed(&mut *resumed).await, [b"/conformance/watch/c"], "a resumed watch misses nothing");
    assert!(now.revision > last);
}

async fn watch_calls_are_cancel_safe(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/left/").await.expect("a list").revision;
    let mut watch = watched(&*etcd, "/conformance/left/", start + 1).await;
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(20), watch.next()).await.is_err(), "there is no update");
    }
    world.put("/conformance/left/a", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/left/a"]);
}

async fn compacted_revisions_are_reported(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/compact/").await.expect("a list").revision;
    for value in ["1", "2", "3"] {
        world.put("/conformance/compact/a", value).await;
    }
    world.compact().await;
    let mut watch = watched(&*etcd, "/conformance/compact/", start + 1).await;
    match next(&mut *watch).await {
        WatchUpdate::Compacted { revision } => assert!(revision > start, "revision {revision} is compacted"),
        unexpected => panic!("a gap is reported: {unexpected:?}"),
    }
}

async fn probes_return_progress(world: &dyn CoordinationWorld) {
    let etcd = world.coordination();
    let start = etcd.list("/conformance/probe/").await.expect("a list").revision;
    let mut watch = watched(&*etcd, "/conformance/probe/", start + 1).await;
    watch.probe().await.expect("requested");
    match next(&mut *watch).await {
        WatchUpdate::Progress { revision } => assert!(revision >= start, "revision {revision} is outdated"),
        unexpected => panic!("a probe returns progress: {unexpected:?}"),
    }
    world.put("/conformance/probe/a", "1").await;
    assert_eq!(changed(&mut *watch).await, [b"/conformance/probe/a"], "the watch continues");
}

async fn granted(etcd: &dyn Coordination, ttl: Duration) -> Lease {
    etcd.grant(ttl).await.expect("a lease is granted")
}

async fn watched(etcd: &dyn Coordination, prefix: &str, from: i64) -> Box<dyn WatchStream> {
    etcd.watch(prefix, from).await.expect("a watch starts")
}

async fn next(watch: &mut dyn WatchStream) -> WatchUpdate {
    timeout(TIMEOUT, watch.next()).await.expect("an update arrives in time")
}

/// Keys of the next change.
async fn changed(watch: &mut dyn WatchStream) -> Vec<Vec<u8>> {
    loop {
        match next(watch).await {
            WatchUpdate::Changed { keys, .. } => return keys,
            WatchUpdate::Progress { .. } => {}
            unexpected => panic!("a change is reported: {unexpected:?}"),
        }
    }
}
