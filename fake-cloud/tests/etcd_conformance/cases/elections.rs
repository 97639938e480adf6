//! Elections and locks.

use std::time::Duration;

use etcd_client::{Client, GetOptions, LeaderKey, LeaseGrantOptions, LockOptions, ProclaimOptions, ResignOptions};

use crate::session::{Session, patiently};

async fn grant(s: &mut Session, id: i64) {
    s.client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(id))).await.expect("a lease");
}

/// Waits until so many keys are under a prefix: until so many stand in line.
async fn line_of(client: &mut Client, prefix: &str, length: i64) {
    patiently("the line to form", async {
        let counted = || Some(GetOptions::new().with_prefix().with_count_only());
        while client.get(prefix, counted()).await.expect("an answer").count() != length {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn a_leader_is_elected_proclaims_and_resigns(mut s: Session) -> Session {
    grant(&mut s, 0xe1).await;
    let won = s.call("campaign", async |c| c.campaign("e", "first", 0xe1).await).await.expect("an answer");
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

pub(crate) async fn the_next_in_line_follows(mut s: Session) -> Session {
    for id in [0xa1, 0xa2, 0xa3] {
        grant(&mut s, id).await;
    }
    s.call("first", async |c| c.campaign("f", "one", 0xa1).await).await;
    let mut waiting = Vec::new();
    for (id, value, length) in [(0xa2, "two", 2), (0xa3, "three", 3)] {
        let mut client = s.client.clone();
        waiting.push(tokio::spawn(async move { client.campaign("f", value, id).await }));
        line_of(&mut s.client, "f/", length).await;
    }
    s.call("leader", async |c| c.leader("f").await).await;
    s.call("the first goes", async |c| c.lease_revoke(0xa1).await).await;
    let third = waiting.pop().expect("a candidate");
    let won = patiently("the second", waiting.remove(0)).await.expect("no panic");
    s.note("the second leads", &won);
    s.line("the third waits", &(!third.is_finished()).to_string());
    s.call("leader", async |c| c.leader("f").await).await;
    third.abort();
    line_of(&mut s.client, "f/", 1).await;
    s.call("who stops waiting leaves the line", async |c| c.leader("f").await).await;
    s
}

pub(crate) async fn nobody_leads(mut s: Session) -> Session {
    s.call("leader", async |c| c.leader("nobody").await).await;
    let key = || LeaderKey::new().with_name("nobody").with_key("nobody/1").with_rev(3).with_lease(5);
    s.call("proclaim", async |c| c.proclaim("x", Some(ProclaimOptions::new().with_leader(key()))).await).await;
    s.call("resign", async |c| c.resign(Some(ResignOptions::new().with_leader(key()))).await).await;
    s.call("proclaim for nobody", async |c| c.proclaim("x", Some(ProclaimOptions::new())).await).await;
    s.call("resign for nobody", async |c| c.resign(Some(ResignOptions::new())).await).await;
    s
}

pub(crate) async fn observers_see_every_leader(mut s: Session) -> Session {
    grant(&mut s, 0xb1).await;
    grant(&mut s, 0xb2).await;
    let first = s.call("campaign", async |c| c.campaign("o", "one", 0xb1).await).await.expect("an answer");
    let leader = || first.leader().cloned().expect("a leader");
    let mut seen = s.client.observe("o").await.expect("a stream");
    let told = patiently("one", seen.message()).await;
    s.note("the leader there is", &told);
    let by = Some(ProclaimOptions::new().with_leader(leader()));
    s.call("proclaim", async |c| c.proclaim("one again", by).await).await;
    let told = patiently("again", seen.message()).await;
    s.note("a new value", &told);
    s.call("resign", async |c| c.resign(Some(ResignOptions::new().with_leader(leader()))).await).await;
    s.call("the next", async |c| c.campaign("o", "two", 0xb2).await).await;
    let told = patiently("two", seen.message()).await;
    s.note("the next leader", &told);
    s
}

/// Who begins to look before anybody leads sees the first leader as of its election, whatever happens meanwhile.
pub(crate) async fn an_observer_waits_for_the_first_leader(mut s: Session) -> Session {
    for id in [0x91, 0x92] {
        grant(&mut s, id).await;
    }
    let mut observer = s.client.clone();
    // A real server says nothing at all before there is a leader.
    let first = tokio::spawn(async move {
        let mut seen = observer.observe("v").await.expect("a stream");
        (seen.message().await, seen)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    s.client.put("elsewhere", "x", None).await.expect("an answer");
    let all = [("v/91", 0x91), ("v/92", 0x92)]
        .map(|(key, lease)| etcd_client::TxnOp::put(key, "x", Some(etcd_client::PutOptions::new().with_lease(lease))));
    s.call("two at once", async |c| c.txn(etcd_client::Txn::new().and_then(all)).await).await;
    s.client.put("elsewhere", "y", None).await.expect("an answer");
    let (told, mut seen) = patiently("the first", first).await.expect("no panic");
    s.note("the first", &told);
    s.client.put("v/92", "unseen", None).await.expect("an answer");
    s.client.put("v/91", "seen", None).await.expect("an answer");
    let told = patiently("its value", seen.message()).await;
    s.note("its value", &told);
    s.call("it goes", async |c| c.delete("v/91", None).await).await;
    let told = patiently("the next", seen.message()).await;
    s.note("the next", &told);
    s
}

pub(crate) async fn candidates_need_a_lease_that_lives(mut s: Session) -> Session {
    s.call("campaign", async |c| c.campaign("n", "x", 404).await).await;
    s.call("lock", async |c| c.lock("n", Some(LockOptions::new().with_lease(404))).await).await;
    let own = s.client.campaign("n", "x", 0).await.expect("an answer");
    let lease = own.leader().expect("a leader").lease();
    s.name_lease(lease);
    s.note("no lease", &Ok(own));
    let status = s.client.lease_time_to_live(lease, None).await.expect("an answer");
    s.line("granted", &status.granted_ttl().to_string());
    s.call("revoke", async |c| c.lease_revoke(lease).await).await;
    s
}

pub(crate) async fn locks_are_held_by_one(mut s: Session) -> Session {
    grant(&mut s, 0xc1).await;
    grant(&mut s, 0xc2).await;
    let by = |lease| Some(LockOptions::new().with_lease(lease));
    let held = s.call("lock", async |c| c.lock("lo", by(0xc1)).await).await.expect("an answer");
    s.call("lock again", async |c| c.lock("lo", by(0xc1)).await).await;
    let mut client = s.client.clone();
    let second = tokio::spawn(async move { client.lock("lo", by(0xc2)).await });
    line_of(&mut s.client, "lo/", 2).await;
    s.line("the second waits", &(!second.is_finished()).to_string());
    s.call("the keys", async |c| c.get("lo/", Some(GetOptions::new().with_prefix())).await).await;
    s.call("unlock", async |c| c.unlock(held.key()).await).await;
    let second = patiently("the second", second).await.expect("no panic");
    s.note("the second holds it", &second);
    s.call("unlock again", async |c| c.unlock(held.key()).await).await;
    s.call("unlock nothing", async |c| c.unlock("").await).await;
    s
}

/// The second in line goes first: the third still waits for the first.
pub(crate) async fn somebody_in_the_middle_of_the_line_goes(mut s: Session) -> Session {
    for id in [0xd1, 0xd2, 0xd3] {
        grant(&mut s, id).await;
    }
    s.call("first", async |c| c.campaign("g", "one", 0xd1).await).await;
    let mut waiting = Vec::new();
    for (id, value, length) in [(0xd2, "two", 2), (0xd3, "three", 3)] {
        let mut client = s.client.clone();
        waiting.push(tokio::spawn(async move { client.campaign("g", value, id).await }));
        line_of(&mut s.client, "g/", length).await;
    }
    s.call("the second goes", async |c| c.lease_revoke(0xd2).await).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let third = waiting.pop().expect("a candidate");
    s.line("the third waits", &(!third.is_finished()).to_string());
    s.call("the first goes", async |c| c.lease_revoke(0xd1).await).await;
    let won = patiently("the third", third).await.expect("no panic");
    s.note("the third leads", &won);
    // Whose key is gone finds out, or leads without a key; either way the line moves on.
    let gone = patiently("the second", waiting.remove(0)).await.expect("no panic");
    s.note("the second, whose lease is gone", &gone);
    s
}

/// A lock whose lease ends while waiting is not held.
pub(crate) async fn a_lease_ends_in_line_for_a_lock(mut s: Session) -> Session {
    grant(&mut s, 0xf1).await;
    grant(&mut s, 0xf2).await;
    let by = |lease| Some(LockOptions::new().with_lease(lease));
    let held = s.call("lock", async |c| c.lock("lx", by(0xf1)).await).await.expect("an answer");
    let mut client = s.client.clone();
    let second = tokio::spawn(async move { client.lock("lx", by(0xf2)).await });
    line_of(&mut s.client, "lx/", 2).await;
    s.call("its lease ends", async |c| c.lease_revoke(0xf2).await).await;
    s.call("unlock", async |c| c.unlock(held.key()).await).await;
    let second = patiently("the second", second).await.expect("no panic");
    s.note("the second", &second);
    s
}
