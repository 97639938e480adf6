//! Ranges with all their options.

use etcd_client::{GetOptions, SortOrder, SortTarget};

use crate::session::Session;

/// Writes five keys whose order by key, version, creation, modification and value differs. Returns the revision before.
async fn five_keys(s: &mut Session) -> i64 {
    let before = s.client.get("none", None).await.expect("a response").header().expect("a header").revision();
    for (key, value) in [
        ("k/c", "3"),
        ("k/a", "9"),
        ("k/e", "1"),
        ("k/b", "5"),
        ("k/d", "7"),
        ("k/a", "4"),
        ("k/e", "8"),
        ("k/a", "6"),
        ("k/d", "0"),
        ("k/c", "2"),
        ("k/c", "2"),
        ("k/c", "2"),
    ] {
        s.client.put(key, value, None).await.expect("a response");
    }
    before
}

fn all() -> GetOptions {
    GetOptions::new().with_prefix()
}

pub(crate) async fn range_ends(mut s: Session) -> Session {
    five_keys(&mut s).await;
    s.call("one", async |c| c.get("k/a", None).await).await;
    s.call("none", async |c| c.get("k/x", None).await).await;
    s.call("prefix", async |c| c.get("k/", Some(all())).await).await;
    s.call("half open", async |c| c.get("k/b", Some(GetOptions::new().with_range("k/d"))).await).await;
    s.call("from", async |c| c.get("k/d", Some(GetOptions::new().with_from_key())).await).await;
    s.call("all", async |c| c.get("", Some(GetOptions::new().with_all_keys())).await).await;
    s.call("serializable", async |c| c.get("k/a", Some(GetOptions::new().with_serializable())).await).await;
    s
}

pub(crate) async fn all_sort_targets_and_orders(mut s: Session) -> Session {
    five_keys(&mut s).await;
    let targets = [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    for target in targets {
        for order in [SortOrder::None, SortOrder::Ascend, SortOrder::Descend] {
            let label = format!("{target:?} {order:?}");
            s.call(&label, async |c| c.get("k/", Some(all().with_sort(target, order))).await).await;
            let label = format!("{label}, the first two");
            s.call(&label, async |c| c.get("k/", Some(all().with_sort(target, order).with_limit(2))).await).await;
        }
    }
    s
}

pub(crate) async fn limit_sets_more(mut s: Session) -> Session {
    five_keys(&mut s).await;
    for limit in [0, 1, 4, 5, 6, -1] {
        s.call(&format!("{limit}"), async |c| c.get("k/", Some(all().with_limit(limit))).await).await;
    }
    s.call("one key", async |c| c.get("k/a", Some(GetOptions::new().with_limit(1))).await).await;
    s
}

pub(crate) async fn revision_filters_do_not_change_the_count(mut s: Session) -> Session {
    let before = five_keys(&mut s).await;
    for (label, options) in [
        ("modified late", all().with_min_mod_revision(before + 8)),
        ("modified early", all().with_max_mod_revision(before + 8)),
        ("created late", all().with_min_create_revision(before + 3)),
        ("created early", all().with_max_create_revision(before + 3)),
        ("created at once", all().with_min_create_revision(before + 2).with_max_create_revision(before + 2)),
        ("contradiction", all().with_min_mod_revision(before + 9).with_max_mod_revision(before + 2)),
        ("with a limit", all().with_min_create_revision(before + 2).with_limit(2)),
        ("limited below the number of matches", all().with_min_create_revision(before + 4).with_limit(2)),
        (
            "the predecessor",
            all().with_max_create_revision(before + 3).with_limit(1).with_sort(SortTarget::Create, SortOrder::Descend),
        ),
        ("in the past", all().with_revision(before + 6).with_min_mod_revision(before + 4)),
        ("counted only", all().with_min_mod_revision(before + 9).with_count_only()),
    ] {
        s.call(label, async |c| c.get("k/", Some(options)).await).await;
    }
    s
}

pub(crate) async fn keys_only_and_count_only(mut s: Session) -> Session {
    let before = five_keys(&mut s).await;
    s.call("keys", async |c| c.get("k/", Some(all().with_keys_only())).await).await;
    let by_value = all().with_keys_only().with_sort(SortTarget::Value, SortOrder::Descend);
    s.call("keys by value", async |c| c.get("k/", Some(by_value)).await).await;
    s.call("count", async |c| c.get("k/", Some(all().with_count_only())).await).await;
    s.call("count, limited", async |c| c.get("k/", Some(all().with_count_only().with_limit(2))).await).await;
    s.call("count of one", async |c| c.get("k/a", Some(GetOptions::new().with_count_only())).await).await;
    s.call("count of none", async |c| c.get("x", Some(GetOptions::new().with_count_only())).await).await;
    let past = all().with_count_only().with_revision(before + 3);
    s.call("count in the past", async |c| c.get("k/", Some(past)).await).await;
    s.call("both", async |c| c.get("k/", Some(all().with_keys_only().with_count_only())).await).await;
    s
}

pub(crate) async fn reversed_ranges_are_empty(mut s: Session) -> Session {
    let before = five_keys(&mut s).await;
    s.call("reversed range", async |c| c.get("k/d", Some(GetOptions::new().with_range("k/b"))).await).await;
    s.call("empty range", async |c| c.get("k/d", Some(GetOptions::new().with_range("k/d"))).await).await;
    s.call("the future", async |c| c.get("k/", Some(all().with_revision(before + 1000))).await).await;
    s.call("the beginning", async |c| c.get("k/", Some(all().with_revision(before + 1))).await).await;
    s
}
