//! Lease calls, and the keys attached to leases.

use std::time::Duration;

use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, WatchOptions};

use crate::session::{Session, with_timeout};

async fn grant(s: &mut Session, id: i64, ttl: i64) {
    let options = LeaseGrantOptions::new().with_id(id);
    s.call("grant", async |c| c.lease_grant(ttl, Some(options)).await).await;
}

async fn put_on(s: &mut Session, key: &str, lease: i64) {
    s.call("put", async |c| c.put(key, "v", Some(PutOptions::new().with_lease(lease))).await).await;
}

/// Records the state of a lease, without the remaining seconds, and with its keys in order.
async fn status(s: &mut Session, label: &str, id: i64) {
    let options = LeaseTimeToLiveOptions::new().with_keys();
    let response = s.client.lease_time_to_live(id, Some(options)).await.expect("a response");
    let mut keys: Vec<_> = response.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    keys.sort();
    let passed = response.granted_ttl() - response.ttl();
    let is_fresh = (1..=10).contains(&passed);
    let revision = response.header().expect("a header").revision();
    s.record(
        label,
        &format!(
            "id {}, granted {}, fresh {is_fresh}, keys {keys:?}, revision {revision}",
            response.id(),
            response.granted_ttl()
        ),
    );
}

async fn list(s: &mut Session, label: &str) {
    s.call(label, async |c| c.leases().await).await;
}

pub(crate) async fn lease_grant(mut s: Session) -> Session {
    let given = s.client.lease_grant(600, None).await.expect("a lease");
    s.name_lease(given.id());
    s.record("the id is positive", &(given.id() > 0).to_string());
    s.record_result("server-chosen id", &Ok(given));
    for (id, ttl) in [(101, 600), (101, 600), (102, 1), (103, 0), (104, -5), (105, 9_000_000_000), (106, 9_000_000_001)]
    {
        grant(&mut s, id, ttl).await;
    }
    grant(&mut s, -7, 100).await;
    s
}

pub(crate) async fn lease_keep_alive_and_revoke(mut s: Session) -> Session {
    grant(&mut s, 201, 600).await;
    grant(&mut s, 202, 500).await;
    grant(&mut s, 203, 700).await;
    list(&mut s, "in order of expiry").await;
    status(&mut s, "status", 201).await;
    let (mut keeper, mut responses) = s.client.lease_keep_alive(201).await.expect("a keeper");
    keeper.keep_alive().await.expect("a keep-alive");
    let renewed = with_timeout("keep-alive", responses.message()).await;
    s.record_result("keep-alive", &renewed);
    s.call("revoke", async |c| c.lease_revoke(201).await).await;
    keeper.keep_alive().await.expect("a keep-alive");
    let renewed = with_timeout("keep-alive", responses.message()).await;
    s.record_result("keep-alive of a revoked lease", &renewed);
    list(&mut s, "remaining").await;
    s
}

pub(crate) async fn revoked_lease_deletes_its_keys(mut s: Session) -> Session {
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

pub(crate) async fn key_moves_to_the_lease_of_its_last_put(mut s: Session) -> Session {
    grant(&mut s, 401, 600).await;
    grant(&mut s, 402, 600).await;
    put_on(&mut s, "c/1", 401).await;
    put_on(&mut s, "c/2", 401).await;
    put_on(&mut s, "c/1", 402).await;
    s.call("put on none", async |c| c.put("c/2", "v", None).await).await;
    status(&mut s, "left", 401).await;
    status(&mut s, "moved to", 402).await;
    s.call("revoke the remaining lease", async |c| c.lease_revoke(401).await).await;
    s.call("still there", async |c| c.get("c/2", None).await).await;
    s.call("revoke", async |c| c.lease_revoke(402).await).await;
    s.call("gone", async |c| c.get("c/1", None).await).await;
    s
}

pub(crate) async fn missing_leases(mut s: Session) -> Session {
    s.call("time to live", async |c| c.lease_time_to_live(404, None).await).await;
    s.call("revoke", async |c| c.lease_revoke(404).await).await;
    s.call("revoke none", async |c| c.lease_revoke(0).await).await;
    let kept = s.client.lease_keep_alive(404).await.map(|_| ());
    s.record_result("keep alive", &kept);
    list(&mut s, "no leases").await;
    s
}

pub(crate) async fn expired_lease_deletes_its_keys_in_one_revision(mut s: Session) -> Session {
    let mut watch = s.client.watch("x/", Some(WatchOptions::new().with_prefix())).await.expect("a watch");
    s.record_message("created", &mut watch).await;
    grant(&mut s, 501, 1).await;
    s.call("two keys", async |c| {
        let put = |key| etcd_client::TxnOp::put(key, "v", Some(PutOptions::new().with_lease(501)));
        c.txn(etcd_client::Txn::new().and_then([put("x/b"), put("x/a")])).await
    })
    .await;
    s.record_message("put", &mut watch).await;
    s.record_message("expired", &mut watch).await;
    s.call("gone", async |c| c.get("x/a", None).await).await;
    // Real etcd removes the lease shortly after its keys.
    with_timeout("the lease to go", async {
        while !s.client.leases().await.expect("a response").leases().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    s.call("time to live", async |c| c.lease_time_to_live(501, None).await).await;
    s
}

/// Every keep-alive has a response. The stream stays open after the lease is revoked, and serves a new lease with the
/// same id.
pub(crate) async fn many_keep_alives_on_one_stream(mut s: Session) -> Session {
    grant(&mut s, 601, 600).await;
    let (mut keeper, mut responses) = s.client.lease_keep_alive(601).await.expect("a keeper");
    for _ in 0..20 {
        keeper.keep_alive().await.expect("a keep-alive");
    }
    for _ in 0..20 {
        let renewed = with_timeout("keep-alive", responses.message()).await;
        s.record_result("keep-alive", &renewed);
    }
    s.call("revoke", async |c| c.lease_revoke(601).await).await;
    keeper.keep_alive().await.expect("a keep-alive");
    let renewed = with_timeout("keep-alive", responses.message()).await;
    s.record_result("keep-alive of a revoked lease", &renewed);
    grant(&mut s, 601, 500).await;
    keeper.keep_alive().await.expect("a keep-alive");
    let renewed = with_timeout("keep-alive", responses.message()).await;
    s.record_result("a new lease of the same id", &renewed);
    s
}

/// Transactions attach keys to leases, move them and detach them.
pub(crate) async fn leases_in_txns(mut s: Session) -> Session {
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
