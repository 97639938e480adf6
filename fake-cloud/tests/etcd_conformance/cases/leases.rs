//! Leases.

use std::time::Duration;

use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, WatchOptions};

use crate::session::{Session, patiently};

async fn grant(s: &mut Session, id: i64, ttl: i64) {
    let options = LeaseGrantOptions::new().with_id(id);
    s.call("grant", async |c| c.lease_grant(ttl, Some(options)).await).await;
}

async fn put_on(s: &mut Session, key: &str, lease: i64) {
    s.call("put", async |c| c.put(key, "v", Some(PutOptions::new().with_lease(lease))).await).await;
}

/// How a lease stands, without the seconds that may have passed, and with its keys in order.
async fn status(s: &mut Session, what: &str, id: i64) {
    let options = LeaseTimeToLiveOptions::new().with_keys();
    let answer = s.client.lease_time_to_live(id, Some(options)).await.expect("an answer");
    let mut keys: Vec<_> = answer.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    keys.sort();
    let passed = answer.granted_ttl() - answer.ttl();
    let is_fresh = (1..=10).contains(&passed);
    let revision = answer.header().expect("a header").revision();
    s.line(
        what,
        &format!(
            "id {}, granted {}, fresh {is_fresh}, keys {keys:?}, revision {revision}",
            answer.id(),
            answer.granted_ttl()
        ),
    );
}

async fn list(s: &mut Session, what: &str) {
    s.call(what, async |c| c.leases().await).await;
}

pub(crate) async fn granting(mut s: Session) -> Session {
    let given = s.client.lease_grant(600, None).await.expect("a lease");
    s.name_lease(given.id());
    s.line("a positive id", &(given.id() > 0).to_string());
    s.note("an id of its choice", &Ok(given));
    for (id, ttl) in [(101, 600), (101, 600), (102, 1), (103, 0), (104, -5), (105, 9_000_000_000), (106, 9_000_000_001)]
    {
        grant(&mut s, id, ttl).await;
    }
    grant(&mut s, -7, 100).await;
    s
}

pub(crate) async fn living_and_dying(mut s: Session) -> Session {
    grant(&mut s, 201, 600).await;
    grant(&mut s, 202, 500).await;
    grant(&mut s, 203, 700).await;
    list(&mut s, "by the end of their lives").await;
    status(&mut s, "status", 201).await;
    let (mut keeper, mut beats) = s.client.lease_keep_alive(201).await.expect("a keeper");
    keeper.keep_alive().await.expect("a beat");
    let beat = patiently("beat", beats.message()).await;
    s.note("beat", &beat);
    s.call("revoke", async |c| c.lease_revoke(201).await).await;
    keeper.keep_alive().await.expect("a beat");
    let beat = patiently("beat", beats.message()).await;
    s.note("beat of the dead", &beat);
    list(&mut s, "the living").await;
    s
}

pub(crate) async fn keys_on_leases(mut s: Session) -> Session {
    grant(&mut s, 301, 600).await;
    for key in ["l/b", "l/a", "l/c"] {
        put_on(&mut s, key, 301).await;
    }
    s.call("get", async |c| c.get("l/a", None).await).await;
    status(&mut s, "three keys", 301).await;
    s.call("delete one", async |c| c.delete("l/b", None).await).await;
    status(&mut s, "two keys", 301).await;
    s.call("revoke", async |c| c.lease_revoke(301).await).await;
    s.call("gone", async |c| c.get("l/a", None).await).await;
    s.call("revoke again", async |c| c.lease_revoke(301).await).await;
    grant(&mut s, 302, 600).await;
    s.call("revoke without keys", async |c| c.lease_revoke(302).await).await;
    s
}

pub(crate) async fn keys_change_leases(mut s: Session) -> Session {
    grant(&mut s, 401, 600).await;
    grant(&mut s, 402, 600).await;
    put_on(&mut s, "c/1", 401).await;
    put_on(&mut s, "c/2", 401).await;
    put_on(&mut s, "c/1", 402).await;
    s.call("put on none", async |c| c.put("c/2", "v", None).await).await;
    status(&mut s, "left", 401).await;
    status(&mut s, "moved to", 402).await;
    s.call("revoke what was left", async |c| c.lease_revoke(401).await).await;
    s.call("still there", async |c| c.get("c/2", None).await).await;
    s.call("revoke", async |c| c.lease_revoke(402).await).await;
    s.call("gone", async |c| c.get("c/1", None).await).await;
    s
}

pub(crate) async fn unknown_leases(mut s: Session) -> Session {
    s.call("time to live", async |c| c.lease_time_to_live(404, None).await).await;
    s.call("revoke", async |c| c.lease_revoke(404).await).await;
    s.call("revoke none", async |c| c.lease_revoke(0).await).await;
    let kept = s.client.lease_keep_alive(404).await.map(|_| ());
    s.note("keep alive", &kept);
    list(&mut s, "no leases").await;
    s
}

pub(crate) async fn expiry_deletes_all_keys_at_once(mut s: Session) -> Session {
    let mut watch = s.client.watch("x/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    s.watched("created", &mut watch).await;
    grant(&mut s, 501, 1).await;
    s.call("two keys", async |c| {
        let put = |key| etcd_client::TxnOp::put(key, "v", Some(PutOptions::new().with_lease(501)));
        c.txn(etcd_client::Txn::new().and_then([put("x/b"), put("x/a")])).await
    })
    .await;
    s.watched("put", &mut watch).await;
    s.watched("expired", &mut watch).await;
    s.call("gone", async |c| c.get("x/a", None).await).await;
    // The real one forgets the lease a moment after its keys.
    patiently("the lease to go", async {
        while !s.client.leases().await.expect("an answer").leases().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    s.call("time to live", async |c| c.lease_time_to_live(501, None).await).await;
    s
}

/// Every beat is answered, however fast they come; a stream outlives its lease, and serves the next one of that id.
pub(crate) async fn many_beats_on_one_stream(mut s: Session) -> Session {
    grant(&mut s, 601, 600).await;
    let (mut keeper, mut beats) = s.client.lease_keep_alive(601).await.expect("a keeper");
    for _ in 0..20 {
        keeper.keep_alive().await.expect("a beat");
    }
    for _ in 0..20 {
        let beat = patiently("beat", beats.message()).await;
        s.note("beat", &beat);
    }
    s.call("revoke", async |c| c.lease_revoke(601).await).await;
    keeper.keep_alive().await.expect("a beat");
    let beat = patiently("beat", beats.message()).await;
    s.note("beat of the dead", &beat);
    grant(&mut s, 601, 500).await;
    keeper.keep_alive().await.expect("a beat");
    let beat = patiently("beat", beats.message()).await;
    s.note("a new lease of the same id", &beat);
    s
}

/// A lease that is revoked while its key moves on leaves the key where it went.
pub(crate) async fn leases_in_transactions(mut s: Session) -> Session {
    use etcd_client::{Compare, CompareOp, Txn, TxnOp};
    grant(&mut s, 701, 600).await;
    grant(&mut s, 702, 600).await;
    let put = |key: &str, lease| TxnOp::put(key, "v", Some(PutOptions::new().with_lease(lease)));
    s.call("put", async |c| c.txn(Txn::new().and_then([put("t/1", 701), put("t/2", 702)])).await).await;
    let on = Compare::lease("t/1", CompareOp::Equal, 701);
    s.call("move", async |c| c.txn(Txn::new().when([on]).and_then([put("t/1", 702)])).await).await;
    status(&mut s, "empty", 701).await;
    status(&mut s, "both", 702).await;
    let keep = PutOptions::new().with_ignore_lease();
    s.call("keep", async |c| c.txn(Txn::new().and_then([TxnOp::put("t/1", "w", Some(keep))])).await).await;
    status(&mut s, "still both", 702).await;
    s.call("delete", async |c| c.txn(Txn::new().and_then([TxnOp::delete("t/1", None)])).await).await;
    status(&mut s, "one", 702).await;
    s.call("revoke", async |c| c.lease_revoke(702).await).await;
    grant(&mut s, 702, 600).await;
    status(&mut s, "a new one of the same id has no keys", 702).await;
    s
}
