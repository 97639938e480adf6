//! Alarms, hashes, snapshots, and changes of members.

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, LeaseGrantOptions, MemberAddOptions, PutOptions,
    Txn, TxnOp,
};

use crate::session::{Session, with_timeout};

pub(crate) async fn hash_of_the_keys(mut s: Session) -> Session {
    // Earlier cases have keys named after leases that the server chose.
    let newest = s.client.get("none", None).await.expect("a response").header().expect("a header").revision();
    s.client.compact(newest, Some(CompactionOptions::new().with_physical())).await.expect("a response");
    s.call("empty", async |c| c.hash_kv(0).await).await;
    let first = s.client.put("h/1", "one", None).await.expect("a response").header().expect("a header").revision();
    s.client.put("h/2", "two", None).await.expect("a response");
    s.client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(91))).await.expect("a lease");
    s.client.put("h/3", "three", Some(PutOptions::new().with_lease(91))).await.expect("a response");
    s.call("three keys", async |c| c.hash_kv(0).await).await;
    s.call("the first", async |c| c.hash_kv(first).await).await;
    s.call("future", async |c| c.hash_kv(first + 100).await).await;
    let put = |key: &str| TxnOp::put(key, "txn", None);
    let txn = Txn::new().and_then([put("h/9"), put("h/1"), TxnOp::delete("h/2", None), put("h/4")]);
    s.client.txn(txn).await.expect("a response");
    s.call("several changes in one revision", async |c| c.hash_kv(0).await).await;
    s.client.delete("h/1", None).await.expect("a response");
    s.client.put("h/1", "again", None).await.expect("a response");
    s.call("deleted and put again", async |c| c.hash_kv(0).await).await;
    for _ in 0..3 {
        s.client.put("h/1", "more", None).await.expect("a response");
    }
    s.client.compact(first + 5, None).await.expect("a response");
    s.call("compacted", async |c| c.hash_kv(0).await).await;
    s.call("at the compaction", async |c| c.hash_kv(first + 5).await).await;
    s.call("after the compaction", async |c| c.hash_kv(first + 6).await).await;
    s
}

/// Hashes of the whole database differ between any two servers, but exist and change.
pub(crate) async fn hash_of_the_database(mut s: Session) -> Session {
    let before = s.client.hash().await.expect("a response");
    s.record_result("header", &Ok(before.header().cloned()));
    s.client.put("h", "v", None).await.expect("a response");
    let after = s.client.hash().await.expect("a response");
    s.record("changes", &(before.hash() != after.hash()).to_string());
    s
}

pub(crate) async fn alarms(mut s: Session) -> Session {
    let member = s.client.status().await.expect("a response").leader();
    let of = |member| {
        let mut options = AlarmOptions::new();
        options.with_member(member);
        Some(options)
    };
    s.call("none", async |c| c.alarm(AlarmAction::Get, AlarmType::None, None).await).await;
    for kind in [AlarmType::None, AlarmType::Nospace, AlarmType::Corrupt] {
        s.call("raise", async |c| c.alarm(AlarmAction::Activate, kind, of(7)).await).await;
        s.call("raise again", async |c| c.alarm(AlarmAction::Activate, kind, of(7)).await).await;
        s.call("list", async |c| c.alarm(AlarmAction::Get, kind, None).await).await;
        let errors = s.client.status().await.expect("a response").errors().to_vec();
        s.record("status", &format!("{errors:?}"));
        s.call("put", async |c| c.put("a", "v", None).await).await;
        s.call("get", async |c| c.get("a", None).await).await;
        s.call("delete", async |c| c.delete("a", None).await).await;
        s.call("txn", async |c| c.txn(Txn::new().and_then([TxnOp::put("a", "v", None)])).await).await;
        s.call("deleting txn", async |c| c.txn(Txn::new().and_then([TxnOp::delete("a", None)])).await).await;
        s.call("reading txn", async |c| c.txn(Txn::new().and_then([TxnOp::get("a", None)])).await).await;
        let id = LeaseGrantOptions::new().with_id(92);
        s.call("lease", async |c| c.lease_grant(600, Some(id)).await).await;
        s.call("revoke", async |c| c.lease_revoke(92).await).await;
        s.call("disarm", async |c| c.alarm(AlarmAction::Deactivate, kind, of(7)).await).await;
        s.call("disarm again", async |c| c.alarm(AlarmAction::Deactivate, kind, of(7)).await).await;
    }
    s.client.alarm(AlarmAction::Activate, AlarmType::Nospace, of(member)).await.expect("a response");
    let errors = s.client.status().await.expect("a response").errors().join("");
    s.record("own alarm", &errors.replace(&member.to_string(), "MEMBER"));
    for path in ["/health", "/health?exclude=NOSPACE", "/health?exclude=CORRUPT"] {
        let response = s.http("GET", path, "").await;
        s.record(path, &response);
    }
    s.client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, of(member)).await.expect("a response");
    s.call("put again", async |c| c.put("a", "v", None).await).await;
    s
}

/// Waits until Raft has advanced past the last change of members: a real server drops a change that follows sooner.
async fn advance(s: &mut Session) {
    s.client.get("none", None).await.expect("a response");
}

/// A learner does not vote, so a real server goes on alone.
pub(crate) async fn learner_is_added_and_removed(mut s: Session) -> Session {
    let options = || Some(MemberAddOptions::new().with_is_learner());
    advance(&mut s).await;
    let added = s.client.member_add(["http://localhost:1"], options()).await.expect("a response");
    let id = added.member().expect("a member").id();
    s.record_result("header", &Ok(added.header().cloned()));
    let shape = |members: &[etcd_client::Member]| {
        let mut shown: Vec<_> = members.iter().map(|m| format!("{:?} {}", m.name(), m.is_learner())).collect();
        shown.sort();
        shown.join(", ")
    };
    s.record("members", &shape(added.member_list()));
    advance(&mut s).await;
    s.call("another learner", async |c| c.member_add(["http://localhost:2"], options()).await).await;
    advance(&mut s).await;
    s.call("promote", async |c| c.member_promote(id).await).await;
    s.call("move the leadership", async |c| c.move_leader(id).await).await;
    advance(&mut s).await;
    let updated = s.client.member_update(id, &["http://localhost:3".to_owned()]).await.expect("a response");
    let urls = updated.members().iter().find(|member| member.id() == id).expect("the learner").peer_urls().to_vec();
    s.record("updated", &format!("{urls:?}"));
    advance(&mut s).await;
    let removed = s.client.member_remove(id).await.expect("a response");
    s.record("removed", &shape(removed.members()));
    advance(&mut s).await;
    s.call("remove again", async |c| c.member_remove(id).await).await;
    s
}

/// The file of a real server has its own sizes; the messages have the same form.
pub(crate) async fn snapshot_ends_with_its_checksum(mut s: Session) -> Session {
    let mut stream = s.client.snapshot().await.expect("a stream");
    let mut messages = Vec::new();
    while let Some(message) = with_timeout("snapshot", stream.message()).await.expect("a message") {
        messages.push((message.blob().to_vec(), message.remaining_bytes()));
    }
    let (checksum, file) = messages.split_last().expect("messages");
    s.record("checksum", &format!("{} bytes, {} remaining", checksum.0.len(), checksum.1));
    s.record("last remaining", &file.last().expect("a file").1.to_string());
    s.record("first", &file[0].0[16..20].escape_ascii().to_string());
    s.record("chunks", &file[..file.len() - 1].iter().all(|(blob, _)| blob.len() == 32 * 1024).to_string());
    s
}

pub(crate) async fn second_client_sees_the_alarm(mut s: Session) -> Session {
    s.client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.expect("a response");
    let endpoint = s.endpoint().await;
    let mut other = Client::connect([endpoint], None).await.expect("a client");
    let rejected = other.put("k", "v", None).await;
    s.record_result("put", &rejected);
    s.call("disarm", async |c| c.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await).await;
    s
}
