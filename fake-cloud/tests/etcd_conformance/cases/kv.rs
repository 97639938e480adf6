//! Puts, deletes and compactions.

use etcd_client::{CompactionOptions, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp};

use crate::session::Session;

pub(crate) async fn new_store_is_at_revision_one(mut s: Session) -> Session {
    s.call("get", async |c| c.get("a", None).await).await;
    s
}

pub(crate) async fn put_creates_a_revision(mut s: Session) -> Session {
    s.call("put", async |c| c.put("a", "1", None).await).await;
    s.call("put again", async |c| c.put("a", "2", None).await).await;
    s.call("put the same", async |c| c.put("a", "2", None).await).await;
    s.call("put nothing", async |c| c.put("empty", "", None).await).await;
    s.call("get", async |c| c.get("a", None).await).await;
    s.call("get nothing", async |c| c.get("empty", None).await).await;
    s
}

pub(crate) async fn put_returns_the_previous_value(mut s: Session) -> Session {
    let prev_kv = || Some(PutOptions::new().with_prev_key());
    s.call("first", async |c| c.put("a", "1", prev_kv()).await).await;
    s.call("second", async |c| c.put("a", "2", prev_kv()).await).await;
    s.call("delete", async |c| c.delete("a", Some(DeleteOptions::new().with_prev_key())).await).await;
    s.call("after delete", async |c| c.put("a", "3", prev_kv()).await).await;
    s
}

pub(crate) async fn put_can_keep_value_or_lease(mut s: Session) -> Session {
    s.call("grant", async |c| c.lease_grant(600, Some(etcd_client::LeaseGrantOptions::new().with_id(71))).await).await;
    let keep_value = || PutOptions::new().with_ignore_value();
    let keep_lease = || PutOptions::new().with_ignore_lease();
    s.call("keep the value of nothing", async |c| c.put("k", "", Some(keep_value())).await).await;
    s.call("keep the lease of nothing", async |c| c.put("k", "v", Some(keep_lease())).await).await;
    s.call("put", async |c| c.put("k", "v", Some(PutOptions::new().with_lease(71))).await).await;
    s.call("keep lease", async |c| c.put("k", "w", Some(keep_lease())).await).await;
    s.call("get", async |c| c.get("k", None).await).await;
    s.call("keep value", async |c| c.put("k", "", Some(keep_value())).await).await;
    s.call("get", async |c| c.get("k", None).await).await;
    s.call("keep both", async |c| c.put("k", "", Some(keep_value().with_ignore_lease().with_prev_key())).await).await;
    s
}

pub(crate) async fn invalid_puts_are_rejected(mut s: Session) -> Session {
    s.call("no key", async |c| c.put("", "v", None).await).await;
    s.call("no key to get", async |c| c.get("", None).await).await;
    s.call("no key to delete", async |c| c.delete("", None).await).await;
    s.call("value to ignore", async |c| c.put("k", "v", Some(PutOptions::new().with_ignore_value())).await).await;
    let lease = PutOptions::new().with_lease(5).with_ignore_lease();
    s.call("lease to ignore", async |c| c.put("k", "v", Some(lease)).await).await;
    s.call("unknown lease", async |c| c.put("k", "v", Some(PutOptions::new().with_lease(5))).await).await;
    s
}

pub(crate) async fn delete_without_match_creates_no_revision(mut s: Session) -> Session {
    s.call("nothing there", async |c| c.delete("a", None).await).await;
    for key in ["a1", "a2", "a3", "b"] {
        s.call("put", async |c| c.put(key, key, None).await).await;
    }
    s.call("one", async |c| c.delete("a1", None).await).await;
    s.call("again", async |c| c.delete("a1", None).await).await;
    let prefix = DeleteOptions::new().with_prefix().with_prev_key();
    s.call("the rest", async |c| c.delete("a", Some(prefix)).await).await;
    s.call("reversed range", async |c| c.delete("c", Some(DeleteOptions::new().with_range("a"))).await).await;
    s.call("all", async |c| c.delete("", Some(DeleteOptions::new().with_all_keys())).await).await;
    s
}

pub(crate) async fn deleted_key_restarts_at_version_one(mut s: Session) -> Session {
    s.call("put", async |c| c.put("a", "1", None).await).await;
    s.call("put", async |c| c.put("a", "2", None).await).await;
    s.call("delete", async |c| c.delete("a", None).await).await;
    s.call("gone", async |c| c.get("a", None).await).await;
    s.call("put", async |c| c.put("a", "3", None).await).await;
    s.call("anew", async |c| c.get("a", None).await).await;
    s
}

pub(crate) async fn keys_and_values_may_be_any_bytes(mut s: Session) -> Session {
    let odd: &[&[u8]] = &[b"\0", b"\xff", b"\xff\xff", b"a\0b", "ключ".as_bytes(), b" "];
    for key in odd {
        s.call("put", async |c| c.put(*key, *key, None).await).await;
    }
    s.call("all", async |c| c.get("", Some(GetOptions::new().with_all_keys())).await).await;
    s.call("from the last", async |c| c.get(b"\xff".as_slice(), Some(GetOptions::new().with_from_key())).await).await;
    s.call("prefix 255", async |c| c.get(b"\xff".as_slice(), Some(GetOptions::new().with_prefix())).await).await;
    s
}

pub(crate) async fn large_puts_are_rejected(mut s: Session) -> Session {
    s.call("1 MB", async |c| c.put("big", vec![7; 1_000_000], None).await).await;
    s.call("get", async |c| c.get("big", None).await).await;
    s.call("just under the log's limit", async |c| c.put("big", vec![7; 1_572_800], None).await).await;
    s.call("over the log's limit", async |c| c.put("big", vec![7; 1_600_000], None).await).await;
    s.call("over the message limit", async |c| c.put("big", vec![7; 2_200_000], None).await).await;
    s.call("a key of 10 MB", async |c| c.put(vec![b'k'; 10_000_000], "v", None).await).await;
    s.call("a key of 10 MB to get", async |c| c.get(vec![b'k'; 10_000_000], None).await).await;
    s.call("alive", async |c| c.get("big", Some(GetOptions::new().with_keys_only())).await).await;
    s
}

pub(crate) async fn old_revisions_are_readable_until_compacted(mut s: Session) -> Session {
    let first = s.call("put", async |c| c.put("a", "1", None).await).await.expect("a response");
    let base = first.header().expect("a header").revision();
    s.call("put", async |c| c.put("b", "1", None).await).await;
    s.call("put", async |c| c.put("a", "2", None).await).await;
    s.call("delete", async |c| c.delete("a", None).await).await;
    s.call("put", async |c| c.put("a", "3", None).await).await;
    let at = |revision| Some(GetOptions::new().with_all_keys().with_revision(revision));
    for back in 0..7 {
        s.call(&format!("at {back}"), async |c| c.get("", at(base - 1 + back)).await).await;
    }
    s.call("compact", async |c| c.compact(base + 2, None).await).await;
    for back in 0..7 {
        s.call(&format!("compacted, at {back}"), async |c| c.get("", at(base - 1 + back)).await).await;
    }
    s.call("compact the deletion", async |c| c.compact(base + 3, None).await).await;
    s.call("at the deletion", async |c| c.get("", at(base + 3)).await).await;
    s.call("now", async |c| c.get("", at(0)).await).await;
    s.call("a negative revision", async |c| c.get("", at(-1)).await).await;
    s
}

pub(crate) async fn invalid_compactions_are_rejected(mut s: Session) -> Session {
    let put = s.call("put", async |c| c.put("a", "1", None).await).await.expect("a response");
    let revision = put.header().expect("a header").revision();
    s.call("the future", async |c| c.compact(revision + 1, None).await).await;
    s.call("now", async |c| c.compact(revision, Some(CompactionOptions::new().with_physical())).await).await;
    s.call("again", async |c| c.compact(revision, None).await).await;
    s.call("before", async |c| c.compact(revision - 1, None).await).await;
    s.call("zero", async |c| c.compact(0, None).await).await;
    s.call("negative", async |c| c.compact(-3, None).await).await;
    s.call("get", async |c| c.get("a", None).await).await;
    s
}

pub(crate) async fn large_requests_of_other_kinds(mut s: Session) -> Session {
    let large = || vec![b'k'; 1_600_000];
    s.call("delete", async |c| c.delete(large(), None).await).await;
    s.call("get", async |c| c.get(large(), None).await).await;
    let get = || TxnOp::get(large(), None);
    s.call("a transaction that reads", async |c| c.txn(Txn::new().and_then([get()])).await).await;
    s.call("one that might write", async |c| c.txn(Txn::new().and_then([get()]).or_else([put("a")])).await).await;
    s.call("one that deletes", async |c| c.txn(Txn::new().and_then([TxnOp::delete(large(), None)])).await).await;
    s.call("nested", async |c| c.txn(Txn::new().and_then([TxnOp::txn(Txn::new().and_then([get()]))])).await).await;
    s
}

fn put(key: &str) -> TxnOp {
    TxnOp::put(key, "x", None)
}

/// A request with two errors is rejected with the one that the server checks first.
pub(crate) async fn first_of_two_errors_is_returned(mut s: Session) -> Session {
    let valued = || TxnOp::put("k", "v", Some(PutOptions::new().with_ignore_value()));
    let leased = || TxnOp::put("k", "v", Some(PutOptions::new().with_lease(5).with_ignore_lease()));
    let absent = |key: &str| Compare::version(key, CompareOp::Equal, 0);
    let too_many = || (0..129).map(|number| put(&format!("m/{number}"))).collect::<Vec<_>>();
    for (label, txn) in [
        ("no compared key, a value", Txn::new().when([absent("")]).and_then([valued()])),
        ("a value, too many elsewhere", Txn::new().and_then([valued()]).or_else(too_many())),
        ("a value, and twice", Txn::new().and_then([put("a"), put("a"), valued()])),
        ("a lease elsewhere, and twice", Txn::new().and_then([put("a"), put("a")]).or_else([leased()])),
        ("no key, then a value", Txn::new().and_then([put(""), valued()])),
        ("a value, then no key", Txn::new().and_then([valued(), put("")])),
        (
            "a nested value, no compared key",
            Txn::new().when([absent("")]).and_then([TxnOp::txn(Txn::new().and_then([valued()]))]),
        ),
        ("too large, and twice", Txn::new().and_then([TxnOp::put("a", vec![7; 1_600_000], None), put("a")])),
        (
            "too large, and nothing there",
            Txn::new().and_then([TxnOp::put("a", vec![7; 1_600_000], Some(PutOptions::new().with_lease(404)))]),
        ),
    ] {
        s.call(label, async |c| c.txn(txn).await).await;
    }
    let both = PutOptions::new().with_ignore_value().with_lease(5).with_ignore_lease();
    s.call("value and lease", async |c| c.put("k", "v", Some(both.clone())).await).await;
    s.call("no key, value and lease", async |c| c.put("", "v", Some(both)).await).await;
    let unknown = PutOptions::new().with_lease(404).with_ignore_value();
    s.call("nothing to keep, unknown lease", async |c| c.put("k", "", Some(unknown)).await).await;
    s.call("put", async |c| c.put("k", "v", None).await).await;
    let unknown = PutOptions::new().with_lease(404).with_ignore_value();
    s.call("kept, unknown lease", async |c| c.put("k", "", Some(unknown)).await).await;
    s
}
