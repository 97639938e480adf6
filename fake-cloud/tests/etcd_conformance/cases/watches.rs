//! Watch streams and their events.

use etcd_client::{
    CompactionOptions, Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp, WatchFilterType, WatchOptions,
    WatchStream,
};

use crate::session::{Session, with_timeout};

async fn revision(s: &mut Session) -> i64 {
    s.client.get("none", None).await.expect("a response").header().expect("a header").revision()
}

async fn put(s: &mut Session, key: &str, value: &str) {
    s.client.put(key, value, None).await.expect("a response");
}

async fn delete(s: &mut Session, key: &str) {
    s.client.delete(key, None).await.expect("a response");
}

async fn watch(s: &mut Session, key: &str, options: WatchOptions) -> WatchStream {
    let mut stream = s.client.watch(key, Some(options)).await.expect("a stream");
    s.record_message("created", &mut stream).await;
    stream
}

pub(crate) async fn created_precedes_events(mut s: Session) -> Session {
    put(&mut s, "w", "before").await;
    let mut stream = watch(&mut s, "w", WatchOptions::new()).await;
    put(&mut s, "w", "1").await;
    s.record_message("put", &mut stream).await;
    put(&mut s, "other", "1").await;
    put(&mut s, "w", "2").await;
    s.record_message("put again, nothing of the other", &mut stream).await;
    delete(&mut s, "w").await;
    s.record_message("delete", &mut stream).await;
    delete(&mut s, "w").await;
    put(&mut s, "w", "3").await;
    s.record_message("put anew", &mut stream).await;
    s
}

pub(crate) async fn history_is_one_message(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    put(&mut s, "h/1", "a").await;
    put(&mut s, "h/2", "b").await;
    put(&mut s, "other", "x").await;
    delete(&mut s, "h/1").await;
    put(&mut s, "h/1", "c").await;
    let from = |revision| WatchOptions::new().with_prefix().with_start_revision(revision);
    let mut stream = watch(&mut s, "h/", from(start)).await;
    s.record_message("all", &mut stream).await;
    put(&mut s, "h/3", "d").await;
    s.record_message("live", &mut stream).await;
    let mut stream = watch(&mut s, "h/", from(start + 3).with_prev_key()).await;
    s.record_message("part", &mut stream).await;
    let mut stream = watch(&mut s, "h/2", WatchOptions::new().with_start_revision(start)).await;
    s.record_message("one key", &mut stream).await;
    s
}

pub(crate) async fn watch_of_a_future_revision_waits(mut s: Session) -> Session {
    let now = revision(&mut s).await;
    let mut stream = watch(&mut s, "f", WatchOptions::new().with_start_revision(now + 3)).await;
    for value in ["1", "2", "3", "4"] {
        put(&mut s, "f", value).await;
    }
    s.record_message("the third", &mut stream).await;
    s.record_message("the fourth", &mut stream).await;
    s
}

pub(crate) async fn events_of_one_txn_are_one_message(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "t/", WatchOptions::new().with_prefix()).await;
    let mut one = watch(&mut s, "t/b", WatchOptions::new()).await;
    let puts = ["t/c", "t/a", "other", "t/b"].map(|key| TxnOp::put(key, "v", None));
    s.call("puts", async |c| c.txn(Txn::new().and_then(puts)).await).await;
    s.record_message("together, in the order of writing", &mut stream).await;
    s.record_message("its own", &mut one).await;
    s.call("delete", async |c| c.delete("t/", Some(DeleteOptions::new().with_prefix())).await).await;
    s.record_message("together", &mut stream).await;
    s.record_message("its own", &mut one).await;
    let nothing =
        Txn::new().when([Compare::version("t/a", CompareOp::Greater, 0)]).and_then([TxnOp::put("t/a", "", None)]);
    s.call("nothing", async |c| c.txn(nothing).await).await;
    put(&mut s, "t/b", "end").await;
    s.record_message("after the empty transaction", &mut stream).await;
    s
}

pub(crate) async fn filters_drop_events(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    let no_puts = || WatchOptions::new().with_prefix().with_filters([WatchFilterType::NoPut]);
    let no_deletes = || WatchOptions::new().with_prefix().with_filters([WatchFilterType::NoDelete]);
    let mut deletes = watch(&mut s, "o/", no_puts()).await;
    let mut puts = watch(&mut s, "o/", no_deletes()).await;
    put(&mut s, "o/1", "a").await;
    delete(&mut s, "o/1").await;
    put(&mut s, "o/1", "b").await;
    delete(&mut s, "o/1").await;
    for _ in 0..2 {
        s.record_message("delete", &mut deletes).await;
        s.record_message("put", &mut puts).await;
    }
    let mixed = [TxnOp::put("o/2", "a", None), TxnOp::delete("o/1", None), TxnOp::put("o/3", "a", None)];
    put(&mut s, "o/1", "c").await;
    s.call("mixed", async |c| c.txn(Txn::new().and_then(mixed)).await).await;
    s.record_message("only the delete", &mut deletes).await;
    s.record_message("before it", &mut puts).await;
    s.record_message("only the puts", &mut puts).await;
    let mut history = watch(&mut s, "o/", no_puts().with_start_revision(start)).await;
    s.record_message("history of deletes", &mut history).await;
    let both = WatchOptions::new().with_filters([WatchFilterType::NoPut, WatchFilterType::NoDelete]);
    let mut nothing = watch(&mut s, "o/9", both).await;
    put(&mut s, "o/9", "x").await;
    nothing.request_progress().await.expect("a request");
    s.record_message("nothing but progress", &mut nothing).await;
    s
}

pub(crate) async fn prev_kv_is_sent_on_request(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "p", WatchOptions::new().with_prev_key()).await;
    for value in ["1", "2"] {
        put(&mut s, "p", value).await;
        s.record_message("put", &mut stream).await;
    }
    delete(&mut s, "p").await;
    s.record_message("delete", &mut stream).await;
    put(&mut s, "p", "3").await;
    s.record_message("anew", &mut stream).await;
    s
}

pub(crate) async fn several_watchers_on_one_stream(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "m/1", WatchOptions::new()).await;
    for key in ["m/2", "m/3"] {
        stream.watch(key, None).await.expect("a request");
        s.record_message("created", &mut stream).await;
    }
    for key in ["m/3", "m/1", "m/2"] {
        put(&mut s, key, "x").await;
        s.record_message("its own", &mut stream).await;
    }
    stream.cancel(77).await.expect("a request");
    stream.cancel(1).await.expect("a request");
    s.record_message("canceled", &mut stream).await;
    stream.cancel(1).await.expect("a request");
    put(&mut s, "m/2", "unseen").await;
    put(&mut s, "m/3", "seen").await;
    s.record_message("the others go on", &mut stream).await;
    stream.watch("m/4", None).await.expect("a request");
    s.record_message("the next id", &mut stream).await;
    s
}

pub(crate) async fn client_chosen_watch_ids(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "i", WatchOptions::new().with_watch_id(5)).await;
    for id in [5, 0, 1, 0, -3, -3] {
        stream.watch("i", Some(WatchOptions::new().with_watch_id(id))).await.expect("a request");
        s.record_message(&format!("id {id}"), &mut stream).await;
    }
    stream.cancel(5).await.expect("a request");
    s.record_message("canceled", &mut stream).await;
    stream.watch("i", Some(WatchOptions::new().with_watch_id(5))).await.expect("a request");
    s.record_message("taken again", &mut stream).await;
    s
}

pub(crate) async fn unusual_watch_ranges(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "r/b", WatchOptions::new().with_range("r/a")).await;
    stream.watch("r/b", Some(WatchOptions::new().with_range("r/b"))).await.expect("a request");
    s.record_message("empty range", &mut stream).await;
    stream.watch("", None).await.expect("a request");
    s.record_message("no key", &mut stream).await;
    put(&mut s, "\0", "the smallest").await;
    s.record_message("the smallest key", &mut stream).await;
    stream.watch("r", Some(WatchOptions::new().with_start_revision(-5))).await.expect("a request");
    s.record_message("a negative revision", &mut stream).await;
    s
}

pub(crate) async fn progress_on_request(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "q", WatchOptions::new().with_progress_notify()).await;
    stream.request_progress().await.expect("a request");
    s.record_message("progress", &mut stream).await;
    put(&mut s, "other", "x").await;
    stream.request_progress().await.expect("a request");
    s.record_message("progress", &mut stream).await;
    s
}

pub(crate) async fn watch_of_a_compacted_revision_is_canceled(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    for value in ["1", "2", "3"] {
        put(&mut s, "c", value).await;
    }
    delete(&mut s, "c").await;
    put(&mut s, "c", "4").await;
    // Without this option, real etcd compacts in the background.
    let physical = || Some(CompactionOptions::new().with_physical());
    s.call("compact", async |c| c.compact(start + 1, physical()).await).await;
    let from = |revision| WatchOptions::new().with_start_revision(revision).with_prev_key();
    let mut stream = watch(&mut s, "c", from(start)).await;
    s.record_message("compacted", &mut stream).await;
    let mut stream = watch(&mut s, "c", from(start + 1)).await;
    s.record_message("oldest kept revision", &mut stream).await;
    put(&mut s, "c", "5").await;
    s.record_message("live", &mut stream).await;
    s.call("compact at a deletion", async |c| c.compact(start + 3, physical()).await).await;
    let mut stream = watch(&mut s, "c", from(start + 3)).await;
    s.record_message("after the deletion", &mut stream).await;
    stream.watch("c", Some(from(1))).await.expect("a request");
    s.record_message("created", &mut stream).await;
    s.record_message("revision 1", &mut stream).await;
    stream.watch("c", None).await.expect("a request");
    s.record_message("the stream is open", &mut stream).await;
    s
}

pub(crate) async fn all_kinds_of_watch_ranges(mut s: Session) -> Session {
    let mut everything = watch(&mut s, "", WatchOptions::new().with_all_keys()).await;
    let mut from = watch(&mut s, "s/m", WatchOptions::new().with_from_key()).await;
    let mut between = watch(&mut s, "s/b", WatchOptions::new().with_range("s/n")).await;
    for key in ["s/a", "s/b", "s/m", "s/n", "z"] {
        put(&mut s, key, "x").await;
        s.record_message("everything", &mut everything).await;
    }
    for _ in 0..3 {
        s.record_message("from", &mut from).await;
    }
    for _ in 0..2 {
        s.record_message("between", &mut between).await;
    }
    s
}

pub(crate) async fn long_history_is_sent_in_steps(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    for i in 0..1500 {
        put(&mut s, "long", &i.to_string()).await;
    }
    let options = WatchOptions::new().with_start_revision(start);
    let mut stream = watch(&mut s, "long", options).await;
    let mut events = 0;
    while events < 1500 {
        let message = with_timeout("a message", stream.message()).await.expect("a message").expect("a stream");
        events += message.events().len();
        let last = message.events().last().and_then(|event| event.kv()).expect("an event").mod_revision();
        let (count, revision) = (message.events().len(), message.header().expect("a header").revision());
        s.record("message", &format!("{count} events, up to {last}, at {revision}"));
    }
    s
}

pub(crate) async fn revoked_lease_deletes_keys_in_order(mut s: Session) -> Session {
    s.client.lease_grant(600, Some(etcd_client::LeaseGrantOptions::new().with_id(901))).await.expect("a lease");
    for key in ["v/c", "v/a", "v/b"] {
        s.client.put(key, "x", Some(PutOptions::new().with_lease(901))).await.expect("a response");
    }
    let mut stream = watch(&mut s, "v/", WatchOptions::new().with_prefix().with_prev_key()).await;
    s.call("revoke", async |c| c.lease_revoke(901).await).await;
    s.record_message("all", &mut stream).await;
    s
}

pub(crate) async fn large_messages_are_fragmented_on_request(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    for number in 0..3 {
        s.client.put(format!("big/{number}"), vec![b'x'; 900_000], None).await.expect("a response");
    }
    let options = || WatchOptions::new().with_prefix().with_start_revision(start);
    let mut stream = watch(&mut s, "big/", options()).await;
    s.record_message("whole", &mut stream).await;
    let mut stream = watch(&mut s, "big/", options().with_fragment()).await;
    s.record_message("the first piece", &mut stream).await;
    s.record_message("the last piece", &mut stream).await;
    s
}

/// A canceled watcher and a new one with the same id have separate options.
pub(crate) async fn reused_watch_id_has_its_own_options(mut s: Session) -> Session {
    put(&mut s, "again", "0").await;
    let mut stream = watch(&mut s, "again", WatchOptions::new().with_watch_id(7)).await;
    for round in 1..=5 {
        // Sent without waiting in between, so that the server receives both at once.
        stream.cancel(7).await.expect("a request");
        let options = WatchOptions::new().with_watch_id(7).with_prev_key();
        stream.watch("again", Some(options)).await.expect("a request");
        s.record_message("canceled", &mut stream).await;
        s.record_message("created", &mut stream).await;
        put(&mut s, "again", &round.to_string()).await;
        s.record_message("with prev_kv", &mut stream).await;
    }
    s
}

/// A history longer than one message, during further writes, has no gaps, duplicates or reordered events.
pub(crate) async fn history_continues_with_live_events(mut s: Session) -> Session {
    let start = revision(&mut s).await + 1;
    for number in 0..2500 {
        put(&mut s, &format!("over/{}", number % 7), "old").await;
    }
    let options = WatchOptions::new().with_prefix().with_start_revision(start);
    let mut stream = watch(&mut s, "over/", options).await;
    for number in 0..500 {
        put(&mut s, &format!("over/{}", number % 7), "new").await;
    }
    let mut expected = start;
    while expected < start + 3000 {
        let message = with_timeout("a message", stream.message()).await.expect("a message").expect("a stream");
        for event in message.events() {
            let revision = event.kv().expect("a key").mod_revision();
            assert_eq!(revision, expected, "a gap or a duplicate");
            expected += 1;
        }
    }
    s.record("received", &format!("{} revisions in a row", expected - start));
    stream.request_progress().await.expect("a request");
    s.record_message("progress", &mut stream).await;
    s
}

/// Every progress request has a response, and events are delivered in between.
pub(crate) async fn each_progress_request_has_a_response(mut s: Session) -> Session {
    let mut stream = watch(&mut s, "many", WatchOptions::new()).await;
    for _ in 0..50 {
        stream.request_progress().await.expect("a request");
    }
    for _ in 0..50 {
        s.record_message("progress", &mut stream).await;
    }
    put(&mut s, "many", "x").await;
    s.record_message("event", &mut stream).await;
    s
}

/// A delete of many keys reaches every watcher with the events of its range.
pub(crate) async fn large_delete_is_one_message_per_watcher(mut s: Session) -> Session {
    for number in 0..300 {
        put(&mut s, &format!("mass/{}/{number:03}", number % 3), "x").await;
    }
    let mut all = watch(&mut s, "mass/", WatchOptions::new().with_prefix()).await;
    let mut again = watch(&mut s, "mass/", WatchOptions::new().with_prefix()).await;
    let mut third = watch(&mut s, "mass/1/", WatchOptions::new().with_prefix()).await;
    let mut one = watch(&mut s, "mass/2/002", WatchOptions::new()).await;
    let mut some = watch(&mut s, "mass/0/1", WatchOptions::new().with_range("mass/1/15")).await;
    s.client.delete("mass/", Some(DeleteOptions::new().with_prefix())).await.expect("a response");
    for (label, stream) in [("all", &mut all), ("again", &mut again), ("a third", &mut third), ("one", &mut one)] {
        s.record_message(label, stream).await;
    }
    s.record_message("some", &mut some).await;
    s
}
