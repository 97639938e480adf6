//! Transactions and their compares.

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp};

use crate::session::Session;

const OPERATORS: [CompareOp; 4] = [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual];

fn put(key: &str, value: &str) -> TxnOp {
    TxnOp::put(key, value, None)
}

fn get(key: &str) -> TxnOp {
    TxnOp::get(key, None)
}

fn delete(key: &str) -> TxnOp {
    TxnOp::delete(key, None)
}

fn delete_prefix(key: &str) -> TxnOp {
    TxnOp::delete(key, Some(DeleteOptions::new().with_prefix().with_prev_key()))
}

fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

pub(crate) async fn branches_and_revisions(mut s: Session) -> Session {
    let create = || Txn::new().when([absent("t")]).and_then([put("t", "1"), put("u", "1")]).or_else([get("t")]);
    s.call("succeeds", async |c| c.txn(create()).await).await;
    s.call("fails", async |c| c.txn(create()).await).await;
    s.call("empty", async |c| c.txn(Txn::new()).await).await;
    s.call("only reads", async |c| c.txn(Txn::new().and_then([get("t"), get("u"), get("v")])).await).await;
    s.call("deletes nothing", async |c| c.txn(Txn::new().and_then([delete("v")])).await).await;
    s.call("deletes", async |c| c.txn(Txn::new().and_then([delete("t"), delete("u")])).await).await;
    s.call("nothing to do", async |c| c.txn(Txn::new().when([absent("zz")]).or_else([put("a", "b")])).await).await;
    let two = [absent("t"), Compare::version("u", CompareOp::Greater, 0)];
    s.call("all must hold", async |c| c.txn(Txn::new().when(two).and_then([put("w", "1")])).await).await;
    s
}

async fn all_compares(s: &mut Session, key: &str, version: i64, revision: i64) {
    for operator in OPERATORS {
        for offset in -1..=1 {
            for (label, compare) in [
                ("version", Compare::version(key, operator, version + offset)),
                ("create", Compare::create_revision(key, operator, revision + offset)),
                ("mod", Compare::mod_revision(key, operator, revision + offset)),
                ("lease", Compare::lease(key, operator, offset)),
            ] {
                let response = s.client.txn(Txn::new().when([compare])).await.expect("a response");
                s.record(&format!("{label} {operator:?} {offset}"), &response.succeeded().to_string());
            }
        }
        for value in ["", "m", "n", "o", "nn"] {
            let compare = Compare::value(key, operator, value);
            let response = s.client.txn(Txn::new().when([compare])).await.expect("a response");
            s.record(&format!("value {operator:?} {value}"), &response.succeeded().to_string());
        }
    }
}

pub(crate) async fn all_compares_of_an_existing_key(mut s: Session) -> Session {
    let response = s.client.put("there", "n", None).await.expect("a response");
    all_compares(&mut s, "there", 1, response.header().expect("a header").revision()).await;
    s
}

pub(crate) async fn all_compares_of_a_missing_key(mut s: Session) -> Session {
    all_compares(&mut s, "not there", 0, 0).await;
    s.client.put("was there", "n", None).await.expect("a response");
    s.client.delete("was there", None).await.expect("a response");
    all_compares(&mut s, "was there", 0, 0).await;
    s
}

pub(crate) async fn compares_of_ranges(mut s: Session) -> Session {
    for (key, value) in [("r/1", "x"), ("r/2", "x"), ("r/3", "y"), ("r/3", "y")] {
        s.client.put(key, value, None).await.expect("a response");
    }
    for (label, compare) in [
        ("all are x", Compare::value("r/", CompareOp::Equal, "x").with_prefix()),
        ("the first two are x", Compare::value("r/", CompareOp::Equal, "x").with_range("r/3")),
        ("all were written", Compare::version("r/", CompareOp::Greater, 0).with_prefix()),
        ("all were written once", Compare::version("r/", CompareOp::Equal, 1).with_prefix()),
        ("none is there", Compare::version("q/", CompareOp::Equal, 0).with_prefix()),
        ("none has a value", Compare::value("q/", CompareOp::NotEqual, "x").with_prefix()),
        ("reversed range", Compare::version("r/3", CompareOp::Equal, 0).with_range("r/1")),
    ] {
        s.call(label, async |c| c.txn(Txn::new().when([compare])).await).await;
    }
    s
}

pub(crate) async fn operations_see_earlier_operations(mut s: Session) -> Session {
    s.call("put", async |c| c.put("o/1", "old", None).await).await;
    let prefix = || TxnOp::get("o/", Some(GetOptions::new().with_prefix()));
    let previous = PutOptions::new().with_prev_key();
    let steps = vec![prefix(), TxnOp::put("o/1", "new", Some(previous)), prefix(), put("o/2", "new"), get("o/2")];
    s.call("writes and reads", async |c| c.txn(Txn::new().and_then(steps)).await).await;
    let steps = vec![delete("none"), get("o/1"), delete_prefix("o/"), prefix(), delete_prefix("o/"), get("o/1")];
    s.call("deletes and reads", async |c| c.txn(Txn::new().and_then(steps)).await).await;
    s
}

pub(crate) async fn nested_txns(mut s: Session) -> Session {
    let inner = |key: &str| {
        TxnOp::txn(Txn::new().when([absent(key)]).and_then([put(key, "made"), get(key)]).or_else([get(key)]))
    };
    s.call("two levels", async |c| c.txn(Txn::new().and_then([put("n/0", "outer"), inner("n/1")])).await).await;
    s.call("again", async |c| c.txn(Txn::new().and_then([put("n/0", "outer"), inner("n/1")])).await).await;
    let deep = TxnOp::txn(Txn::new().and_then([inner("n/2"), inner("n/3")]));
    s.call("three levels", async |c| c.txn(Txn::new().and_then([deep, inner("n/1")])).await).await;
    // The inner compare sees the store before the outer put.
    let outer = Txn::new().and_then([put("n/9", "outer"), TxnOp::txn(Txn::new().when([absent("n/9")]))]);
    s.call("before", async |c| c.txn(outer).await).await;
    let reads = Txn::new().and_then([TxnOp::txn(Txn::new().and_then([get("n/0")]))]);
    s.call("only reads", async |c| c.txn(reads).await).await;
    s
}

pub(crate) async fn key_must_not_be_written_twice(mut s: Session) -> Session {
    let nested = |success: Vec<TxnOp>, failure: Vec<TxnOp>| TxnOp::txn(Txn::new().and_then(success).or_else(failure));
    for (label, steps) in [
        ("put and put", vec![put("d/1", "a"), put("d/1", "b")]),
        ("put and delete", vec![put("d/1", "a"), delete("d/1")]),
        ("delete and put", vec![delete("d/1"), put("d/1", "a")]),
        ("delete a prefix and put", vec![delete_prefix("d/"), put("d/1", "a")]),
        ("delete a prefix and put elsewhere", vec![delete_prefix("d/"), put("e/1", "a")]),
        ("delete twice", vec![delete("d/1"), delete_prefix("d/")]),
        ("put and nested put", vec![put("d/1", "a"), nested(vec![put("d/1", "b")], vec![])]),
        ("put and nested put in the other branch", vec![put("d/1", "a"), nested(vec![], vec![put("d/1", "b")])]),
        ("nested put in both branches", vec![nested(vec![put("d/1", "a")], vec![put("d/1", "b")])]),
        ("nested twice", vec![nested(vec![put("d/1", "a")], vec![]), nested(vec![put("d/1", "b")], vec![])]),
        ("nested delete and put", vec![nested(vec![delete("d/2")], vec![]), put("d/2", "a")]),
        ("delete and nested put", vec![delete("d/3"), nested(vec![put("d/3", "a")], vec![])]),
        (
            "nested put, then nested delete",
            vec![nested(vec![put("d/4", "a")], vec![]), nested(vec![delete("d/4")], vec![])],
        ),
        (
            "nested delete, then nested put",
            vec![nested(vec![delete("d/4")], vec![]), nested(vec![put("d/4", "a")], vec![])],
        ),
        ("delete all and put", vec![TxnOp::delete("", Some(DeleteOptions::new().with_all_keys())), put("d/5", "a")]),
        (
            "delete from and put before",
            vec![TxnOp::delete("d/5", Some(DeleteOptions::new().with_from_key())), put("d/4", "a")],
        ),
    ] {
        s.call(label, async |c| c.txn(Txn::new().and_then(steps)).await).await;
    }
    let branches = Txn::new().and_then([put("d/6", "a")]).or_else([put("d/6", "b")]);
    s.call("once in each branch", async |c| c.txn(branches).await).await;
    let idle = Txn::new().or_else([put("d/7", "a"), put("d/7", "b")]);
    s.call("twice in the branch not taken", async |c| c.txn(idle).await).await;
    s
}

pub(crate) async fn too_many_operations(mut s: Session) -> Session {
    let puts = |count: usize| (0..count).map(|i| put(&format!("m/{i}"), "x")).collect::<Vec<_>>();
    let compares = |count: usize| (0..count).map(|i| absent(&format!("m/{i}"))).collect::<Vec<_>>();
    s.call("128", async |c| c.txn(Txn::new().and_then(puts(128))).await).await;
    s.call("129", async |c| c.txn(Txn::new().and_then(puts(129))).await).await;
    s.call("129 in the other branch", async |c| c.txn(Txn::new().or_else(puts(129))).await).await;
    s.call("129 compares", async |c| c.txn(Txn::new().when(compares(129))).await).await;
    let mut steps = puts(100);
    steps.push(TxnOp::txn(Txn::new().and_then([get("a")])));
    let nested = |count: usize| {
        let mut steps = puts(99);
        steps.push(TxnOp::txn(Txn::new().and_then((0..count).map(|_| get("a")).collect::<Vec<_>>())));
        Txn::new().and_then(steps)
    };
    let response = s.client.txn(nested(28)).await.map(|response| response.succeeded());
    s.record_result("100 and 28 nested", &response);
    let response = s.client.txn(nested(29)).await.map(|response| response.succeeded());
    s.record_result("100 and 29 nested", &response);
    s
}

pub(crate) async fn failed_operation_rejects_the_txn(mut s: Session) -> Session {
    let on_lease = TxnOp::put("s/2", "x", Some(PutOptions::new().with_lease(404)));
    s.call("unknown lease", async |c| c.txn(Txn::new().and_then([put("s/1", "x"), on_lease])).await).await;
    let keeps = TxnOp::put("s/2", "", Some(PutOptions::new().with_ignore_value()));
    s.call("keeps nothing", async |c| c.txn(Txn::new().and_then([put("s/1", "x"), keeps])).await).await;
    let future = TxnOp::get("s/1", Some(GetOptions::new().with_revision(1_000_000)));
    s.call("the future", async |c| c.txn(Txn::new().and_then([put("s/1", "x"), future.clone()])).await).await;
    s.call("only the future", async |c| c.txn(Txn::new().and_then([future.clone()])).await).await;
    s.call("the future, not taken", async |c| c.txn(Txn::new().or_else([future])).await).await;
    let inner = TxnOp::txn(Txn::new().and_then([TxnOp::put("s/2", "x", Some(PutOptions::new().with_lease(404)))]));
    s.call("nested", async |c| c.txn(Txn::new().and_then([put("s/1", "x"), inner])).await).await;
    s.call("nothing was written", async |c| c.get("s/", Some(GetOptions::new().with_prefix())).await).await;
    s
}

pub(crate) async fn empty_keys_are_rejected(mut s: Session) -> Session {
    s.call("compare", async |c| c.txn(Txn::new().when([absent("")])).await).await;
    s.call("put", async |c| c.txn(Txn::new().and_then([put("", "x")])).await).await;
    s.call("get", async |c| c.txn(Txn::new().and_then([get("")])).await).await;
    s.call("delete", async |c| c.txn(Txn::new().or_else([delete("")])).await).await;
    let valued = TxnOp::put("k", "v", Some(PutOptions::new().with_ignore_value()));
    s.call("value to ignore", async |c| c.txn(Txn::new().and_then([valued])).await).await;
    s
}
