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
