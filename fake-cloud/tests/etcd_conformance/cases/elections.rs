//! Elections and locks.

use std::time::Duration;

use etcd_client::{Client, GetOptions, LeaderKey, LeaseGrantOptions, LockOptions, ProclaimOptions, ResignOptions};

use crate::session::{Session, with_timeout};

async fn grant(s: &mut Session, id: i64) {
    s.client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(id))).await.expect("a lease");
}

/// Waits until `count` contenders have a key under the prefix.
async fn wait_for_contenders(client: &mut Client, prefix: &str, count: i64) {
    with_timeout("the contenders", async {
        let count_only = || Some(GetOptions::new().with_prefix().with_count_only());
        while client.get(prefix, count_only()).await.expect("a response").count() != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn leader_proclaims_and_resigns(mut s: Session) -> Session {
    grant(&mut s, 0xe1).await;
    let won = s.call("campaign", async |c| c.campaign("e", "first", 0xe1).await).await.expect("a response");
    let leader = || won.leader().cloned().expect("a leader");
    s.call("leader", async |c| c.leader("e").await).await;
    s.call("the key", async |c| c.get("e/", Some(GetOptions::new().with_prefix())).await).await;
    s.call("campaign again", async |c| c.campaign("e", "first", 0xe1).await).await;
    s.call("campaign with another value", async |c| c.campaign("e", "second", 0xe1).await).await;
    let by = || Some(ProclaimOptions::new().with_leader(leader()));
    s.call("proclaim", async |c| c.proclaim("third", by()).await).await;
    s.call("leader", async |c| c.leader("e").await).await;
    s.call("resign", async |c| c.resign(Some(ResignOptions::new().with_leader(leader()))).await).await;
    s.call("no leader", async |c| c.leader("e").await).await;
    s.call("proclaim too late", async |c| c.proclaim("fourth", by()).await).await;
    s.call("resign again", async |c| c.resign(Some(ResignOptions::new().with_leader(leader()))).await).await;
    s
}

pub(crate) async fn next_candidate_is_elected(mut s: Session) -> Session {
    for id in [0xa1, 0xa2, 0xa3] {
        grant(&mut s, id).await;
    }
    s.call("first", async |c| c.campaign("f", "one", 0xa1).await).await;
    let mut waiting = Vec::new();
    for (id, value, length) in [(0xa2, "two", 2), (0xa3, "three", 3)] {
        let mut client = s.client.clone();
        waiting.push(tokio::spawn(async move { client.campaign("f", value, id).await }));
        wait_for_contenders(&mut s.client, "f/", length).await;
    }
    s.call("leader", async |c| c.leader("f").await).await;
    s.call("revoke the first lease", async |c| c.lease_revoke(0xa1).await).await;
    let third = waiting.pop().expect("a candidate");
    let won = with_timeout("the second", waiting.remove(0)).await.expect("no panic");
    s.record_result("the second leads", &won);
    s.record("the third waits", &(!third.is_finished()).to_string());
    s.call("leader", async |c| c.leader("f").await).await;
    third.abort();
    wait_for_contenders(&mut s.client, "f/", 1).await;
    s.call("a canceled campaign withdraws", async |c| c.leader("f").await).await;
    s
}

pub(crate) async fn election_without_a_leader(mut s: Session) -> Session {
    s.call("leader", async |c| c.leader("none").await).await;
    let key = || LeaderKey::new().with_name("none").with_key("none/1").with_rev(3).with_lease(5);
    s.call("proclaim", async |c| c.proclaim("x", Some(ProclaimOptions::new().with_leader(key()))).await).await;
    s.call("resign", async |c| c.resign(Some(ResignOptions::new().with_leader(key()))).await).await;
    s.call("proclaim without a leader", async |c| c.proclaim("x", Some(ProclaimOptions::new())).await).await;
    s.call("resign without a leader", async |c| c.resign(Some(ResignOptions::new())).await).await;
    s
}

pub(crate) async fn observer_receives_every_leader(mut s: Session) -> Session {
    grant(&mut s, 0xb1).await;
    grant(&mut s, 0xb2).await;
    let first = s.call("campaign", async |c| c.campaign("o", "one", 0xb1).await).await.expect("a response");
    let leader = || first.leader().cloned().expect("a leader");
    let mut seen = s.client.observe("o").await.expect("a stream");
    let message = with_timeout("one", seen.message()).await;
    s.record_result("current leader", &message);
    let by = Some(ProclaimOptions::new().with_leader(leader()));
    s.call("proclaim", async |c| c.proclaim("one again", by).await).await;
    let message = with_timeout("again", seen.message()).await;
    s.record_result("a new value", &message);
    s.call("resign", async |c| c.resign(Some(ResignOptions::new().with_leader(leader()))).await).await;
    s.call("the next", async |c| c.campaign("o", "two", 0xb2).await).await;
    let message = with_timeout("two", seen.message()).await;
    s.record_result("the next leader", &message);
    s
}

/// An observer without a leader receives the first leader at the revision of its election.
pub(crate) async fn observer_waits_for_the_first_leader(mut s: Session) -> Session {
    for id in [0x91, 0x92] {
        grant(&mut s, id).await;
    }
    let mut observer = s.client.clone();
    // Real etcd sends no headers before there is a leader.
    let first = tokio::spawn(async move {
        let mut seen = observer.observe("v").await.expect("a stream");
        (seen.message().await, seen)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    s.client.put("other", "x", None).await.expect("a response");
    let all = [("v/91", 0x91), ("v/92", 0x92)]
        .map(|(key, lease)| etcd_client::TxnOp::put(key, "x", Some(etcd_client::PutOptions::new().with_lease(lease))));
    s.call("two at once", async |c| c.txn(etcd_client::Txn::new().and_then(all)).await).await;
    s.client.put("other", "y", None).await.expect("a response");
    let (message, mut seen) = with_timeout("the first", first).await.expect("no panic");
    s.record_result("the first", &message);
    s.client.put("v/92", "unseen", None).await.expect("a response");
    s.client.put("v/91", "seen", None).await.expect("a response");
    let message = with_timeout("its value", seen.message()).await;
    s.record_result("its value", &message);
    s.call("delete its key", async |c| c.delete("v/91", None).await).await;
    let message = with_timeout("the next", seen.message()).await;
    s.record_result("the next", &message);
    s
}

pub(crate) async fn candidate_needs_an_existing_lease(mut s: Session) -> Session {
    s.call("campaign", async |c| c.campaign("n", "x", 404).await).await;
    s.call("lock", async |c| c.lock("n", Some(LockOptions::new().with_lease(404))).await).await;
    let own = s.client.campaign("n", "x", 0).await.expect("a response");
    let lease = own.leader().expect("a leader").lease();
    s.name_lease(lease);
    s.record_result("no lease", &Ok(own));
    let status = s.client.lease_time_to_live(lease, None).await.expect("a response");
    s.record("granted", &status.granted_ttl().to_string());
    s.call("revoke", async |c| c.lease_revoke(lease).await).await;
    s
}

pub(crate) async fn lock_has_one_owner(mut s: Session) -> Session {
    grant(&mut s, 0xc1).await;
    grant(&mut s, 0xc2).await;
    let by = |lease| Some(LockOptions::new().with_lease(lease));
    let held = s.call("lock", async |c| c.lock("lo", by(0xc1)).await).await.expect("a response");
    s.call("lock again", async |c| c.lock("lo", by(0xc1)).await).await;
    let mut client = s.client.clone();
    let second = tokio::spawn(async move { client.lock("lo", by(0xc2)).await });
    wait_for_contenders(&mut s.client, "lo/", 2).await;
    s.record("the second waits", &(!second.is_finished()).to_string());
    s.call("the keys", async |c| c.get("lo/", Some(GetOptions::new().with_prefix())).await).await;
    s.call("unlock", async |c| c.unlock(held.key()).await).await;
    let second = with_timeout("the second", second).await.expect("no panic");
    s.record_result("the second holds it", &second);
    s.call("unlock again", async |c| c.unlock(held.key()).await).await;
    s.call("unlock nothing", async |c| c.unlock("").await).await;
    s
}

/// The second candidate withdraws: the third still waits for the first.
pub(crate) async fn waiting_candidate_withdraws(mut s: Session) -> Session {
    for id in [0xd1, 0xd2, 0xd3] {
        grant(&mut s, id).await;
    }
    s.call("first", async |c| c.campaign("g", "one", 0xd1).await).await;
    let mut waiting = Vec::new();
    for (id, value, length) in [(0xd2, "two", 2), (0xd3, "three", 3)] {
        let mut client = s.client.clone();
        waiting.push(tokio::spawn(async move { client.campaign("g", value, id).await }));
        wait_for_contenders(&mut s.client, "g/", length).await;
    }
    s.call("revoke the second lease", async |c| c.lease_revoke(0xd2).await).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let third = waiting.pop().expect("a candidate");
    s.record("the third waits", &(!third.is_finished()).to_string());
    s.call("revoke the first lease", async |c| c.lease_revoke(0xd1).await).await;
    let won = with_timeout("the third", third).await.expect("no panic");
    s.record_result("the third leads", &won);
    // Real etcd may report an error or elect a candidate without a key; the fake does the same.
    let gone = with_timeout("the second", waiting.remove(0)).await.expect("no panic");
    s.record_result("the second, whose lease is gone", &gone);
    s
}

/// A waiting lock request fails if its lease is revoked.
pub(crate) async fn lock_fails_if_its_lease_ends_while_waiting(mut s: Session) -> Session {
    grant(&mut s, 0xf1).await;
    grant(&mut s, 0xf2).await;
    let by = |lease| Some(LockOptions::new().with_lease(lease));
    let held = s.call("lock", async |c| c.lock("lx", by(0xf1)).await).await.expect("a response");
    let mut client = s.client.clone();
    let second = tokio::spawn(async move { client.lock("lx", by(0xf2)).await });
    wait_for_contenders(&mut s.client, "lx/", 2).await;
    s.call("revoke its lease", async |c| c.lease_revoke(0xf2).await).await;
    s.call("unlock", async |c| c.unlock(held.key()).await).await;
    let second = with_timeout("the second", second).await.expect("no panic");
    s.record_result("the second", &second);
    s
}
