//! The rules of the store, without sockets. The conformance tests compare them with real etcd.

use chrono::{DateTime, TimeDelta, Utc};

use crate::etcd::alarm::{Alarm, AlarmKind};
use crate::etcd::watch::WatchMessage;
use crate::etcd::*;

use super::*;

const START: DateTime<Utc> = DateTime::UNIX_EPOCH;

fn after(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

fn put(store: &mut Store, key: &'static str, value: &'static str) -> i64 {
    store.put(&Put::new(key, value)).expect("a put").revision
}

fn put_on_lease(store: &mut Store, key: &'static str, lease: i64) {
    store.put(&Put { lease: Assign::Set(lease), ..Put::new(key, "v") }).expect("a put");
}

fn delete(store: &mut Store, keys: KeyRange) -> DeleteResponse {
    store.delete(&Delete { keys }).expect("a delete")
}

fn one(key: &'static str) -> KeyRange {
    KeyRange::One(key.into())
}

/// The keys and values at a revision, as text.
fn contents(store: &Store, revision: i64) -> String {
    let range = Range { revision, ..Range::new(KeyRange::prefix("")) };
    match store.range(&range) {
        Ok(response) => {
            let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
            let pairs = response.records.iter().map(|record| format!("{}={}", text(&record.key), text(&record.value)));
            pairs.collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

fn watch(store: &mut Store, keys: KeyRange, start_revision: i64) -> WatchReceiver {
    let stream = store.watch_open();
    store.watch_create(stream.stream, &WatchRequest::new(keys, start_revision));
    stream
}

/// The messages a stream has received so far, as text.
fn received(stream: &mut WatchReceiver) -> Vec<String> {
    let text = |message| match message {
        WatchMessage::Created { id, revision } => format!("created {id} at {revision}"),
        WatchMessage::Rejected { revision, reason } => format!("rejected at {revision}: {reason}"),
        WatchMessage::Canceled { id, revision } => format!("canceled {id} at {revision}"),
        WatchMessage::Compacted { id, compact_revision } => format!("canceled {id}, compacted {compact_revision}"),
        WatchMessage::Progress { id, revision } => format!("progress {id} at {revision}"),
        WatchMessage::Lagged => "lagged".to_owned(),
        WatchMessage::Events { id, revision, events, .. } => {
            let sign = |event: &Event| if event.is_delete() { '-' } else { '+' };
            let name = |event: &Event| String::from_utf8_lossy(&event.record.key).into_owned();
            let events = events.iter().map(|event| format!("{}{}", sign(event), name(event)));
            format!("{id} at {revision}: {}", events.collect::<Vec<_>>().join(" "))
        }
    };
    std::iter::from_fn(|| stream.try_recv().map(text)).collect()
}

/// The number of puts in the messages.
fn count_puts(messages: &[String]) -> usize {
    messages.iter().map(|message| message.matches('+').count()).sum()
}

#[test]
fn each_write_creates_one_revision() {
    let mut store = Store::new(1);
    assert_eq!(store.revision(), 1);
    assert_eq!(put(&mut store, "a", "1"), 2);
    assert_eq!(put(&mut store, "b", "1"), 3);
    assert_eq!(delete(&mut store, one("none")).revision, 3);
    assert_eq!(delete(&mut store, KeyRange::prefix("")).revision, 4);
    let two = vec![Operation::Put(Put::new("c", "1")), Operation::Put(Put::new("d", "1"))];
    let response = store.txn(&Txn { success: two, ..Txn::default() }).expect("a txn");
    assert_eq!((response.revision, store.revision()), (5, 5));
    let read = vec![Operation::Range(Range::new(one("c")))];
    assert_eq!(store.txn(&Txn { success: read, ..Txn::default() }).expect("a txn").revision, 5);
}

#[test]
fn old_revisions_are_readable_until_compacted() {
    let mut store = Store::new(1);
    put(&mut store, "a", "1");
    put(&mut store, "b", "1");
    put(&mut store, "a", "2");
    delete(&mut store, one("a"));
    put(&mut store, "a", "3");
    let seen: Vec<_> = (1..=7).map(|revision| contents(&store, revision)).collect();
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_eq!(seen, ["", "a=1", "a=1 b=1", "a=2 b=1", "b=1", "a=3 b=1", future]);

    store.compact(5).expect("a compaction");
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let seen: Vec<_> = (1..=6).map(|revision| contents(&store, revision)).collect();
    assert_eq!(seen, [compacted, compacted, compacted, compacted, "b=1", "a=3 b=1"]);
    assert_eq!(contents(&store, 0), "a=3 b=1");
}

#[test]
fn stepwise_compaction_equals_one_compaction() {
    let filled = || {
        let mut store = Store::new(1);
        for round in 0..4 {
            put(&mut store, "a", "x");
            put(&mut store, "b", "y");
            if round % 2 == 0 {
                delete(&mut store, KeyRange::prefix(""));
            }
        }
        store
    };
    let last = filled().revision();
    for target in 1..=last {
        let (mut stepwise, mut at_once) = (filled(), filled());
        for revision in 1..=target {
            stepwise.compact(revision).expect("a compaction");
        }
        at_once.compact(target).expect("a compaction");
        for revision in 1..=last {
            assert_eq!(
                contents(&stepwise, revision),
                contents(&at_once, revision),
                "{revision} after compaction at {target}"
            );
            let expected = if revision < target { contents(&at_once, revision) } else { contents(&filled(), revision) };
            assert_eq!(contents(&at_once, revision), expected);
        }
    }
}

#[test]
fn rejected_txn_changes_nothing() {
    let mut store = Store::new(1);
    let without_lease = Put { lease: Assign::Set(404), ..Put::new("b", "1") };
    let steps = vec![Operation::Put(Put::new("a", "1")), Operation::Put(without_lease)];
    let rejected = store.txn(&Txn { success: steps, ..Txn::default() });
    assert_eq!(rejected.err(), Some(EtcdError::LeaseNotFound));
    assert_eq!((store.revision(), contents(&store, 0)), (1, String::new()));
}

#[test]
fn expired_lease_deletes_its_keys_in_one_revision() {
    let mut store = Store::new(1);
    assert_eq!(store.lease_grant(7, 10, START), Ok(10));
    for key in ["c", "a", "b"] {
        put_on_lease(&mut store, key, 7);
    }
    let mut stream = watch(&mut store, KeyRange::prefix(""), 0);
    store.expire(after(9));
    assert_eq!(store.revision(), 4);
    assert_eq!(store.lease_keep_alive(7, after(9)), Some(10));
    store.expire(after(18));
    assert_eq!(store.lease_status(7, after(18)).map(|status| status.ttl), Some(1));
    assert_eq!(store.next_expiry(), Some(after(19)));
    store.expire(after(19));
    assert_eq!((store.revision(), store.next_expiry()), (5, None));
    assert_eq!(received(&mut stream), ["created 0 at 4", "0 at 5: -a -b -c"]);
    assert_eq!(store.lease_keep_alive(7, after(19)), None);
}

#[test]
fn lease_ttl_has_a_minimum_and_a_maximum() {
    let mut store = Store::new(1);
    for (id, ttl, granted) in [(1, 1, Ok(2)), (2, -9, Ok(2)), (3, 2, Ok(2)), (4, MAX_TTL, Ok(MAX_TTL))] {
        assert_eq!(store.lease_grant(id, ttl, START), granted);
    }
    assert_eq!(store.lease_grant(5, MAX_TTL + 1, START), Err(EtcdError::LeaseTooLong));
    assert_eq!(store.lease_grant(1, 60, START), Err(EtcdError::LeaseExists));
}

#[test]
fn key_is_attached_to_the_lease_of_its_last_put() {
    let mut store = Store::new(1);
    for id in [1, 2] {
        store.lease_grant(id, 60, START).expect("a lease");
    }
    put_on_lease(&mut store, "moved", 1);
    put_on_lease(&mut store, "moved", 2);
    put_on_lease(&mut store, "freed", 1);
    put(&mut store, "freed", "v");
    put_on_lease(&mut store, "kept", 1);
    store.put(&Put { lease: Assign::Keep, ..Put::new("kept", "w") }).expect("a put");
    let keys = |store: &Store, id| store.lease_status(id, START).map(|status| status.keys);
    assert_eq!(keys(&store, 1), Some(vec!["kept".into()]));
    assert_eq!(keys(&store, 2), Some(vec!["moved".into()]));
    store.lease_revoke(1).expect("a lease");
    assert_eq!(contents(&store, 0), "freed=v moved=v");
}

#[test]
fn watchers_receive_the_events_of_their_range() {
    let mut store = Store::new(1);
    let ranges = [
        one("a/1"),
        KeyRange::prefix("a/"),
        KeyRange::prefix(""),
        KeyRange::From("a/2".into()),
        KeyRange::new("a/0".into(), "a/2".into()),
    ];
    let mut streams: Vec<_> = ranges.map(|range| watch(&mut store, range, 0)).into();
    for key in ["a/1", "a/2", "b"] {
        put(&mut store, key, "x");
    }
    let messages: Vec<_> = streams.iter_mut().map(|stream| received(stream).split_off(1)).collect();
    let [first, second, third] = ["0 at 2: +a/1", "0 at 3: +a/2", "0 at 4: +b"];
    assert_eq!(
        messages,
        [vec![first], vec![first, second], vec![first, second, third], vec![second, third], vec![first]]
    );

    for stream in &streams {
        store.watch_close(stream.stream);
    }
    put(&mut store, "a/1", "x");
    assert!(streams.iter_mut().all(|stream| received(stream).is_empty()), "closed streams receive nothing");
}

#[test]
fn watch_from_the_past_has_no_gaps_or_duplicates() {
    let mut store = Store::new(1);
    for _ in 0..3 {
        put(&mut store, "k", "x");
    }
    for start in 1..=6 {
        let mut stream = watch(&mut store, one("k"), start);
        put(&mut store, "k", "x");
        put(&mut store, "k", "x");
        let puts = count_puts(&received(&mut stream));
        let first = start.max(2);
        assert_eq!(i64::try_from(puts), Ok(store.revision() - first + 1), "from {start}");
    }
}

#[test]
fn slow_reader_receives_skipped_events_from_history() {
    let mut store = Store::new(1);
    let mut stream = watch(&mut store, one("k"), 0);
    for _ in 0..10_000 {
        put(&mut store, "k", "x");
    }
    let messages = received(&mut stream);
    assert_eq!(messages.last().map(String::as_str), Some("lagged"));
    assert!(messages.len() < 5_000, "the queue is not bounded");
    put(&mut store, "k", "x");
    let mut rest = Vec::new();
    while rest.last().is_none_or(|line| line == "lagged") {
        store.watch_catch_up(stream.stream);
        rest.extend(received(&mut stream));
    }
    put(&mut store, "k", "x");
    rest.extend(received(&mut stream));
    assert_eq!(count_puts(&messages) + count_puts(&rest), 10_002);
    assert_eq!(rest.last().map(String::as_str), Some("0 at 10003: +k"));
}

#[test]
fn stalled_watchers_catch_up_unless_compacted() {
    let mut store = Store::new(1);
    let (mut slow, mut late) = (watch(&mut store, one("slow"), 0), watch(&mut store, one("late"), 0));
    store.watch_stall();
    put(&mut store, "slow", "x");
    put(&mut store, "other", "x");
    put(&mut store, "late", "x");
    store.watch_progress(late.stream);
    assert_eq!((received(&mut slow).len(), received(&mut late).len()), (1, 1), "only the created messages");
    store.compact(4).expect("a compaction");
    store.watch_resume();
    assert_eq!(received(&mut slow), ["canceled 0, compacted 4"]);
    assert_eq!(received(&mut late), ["0 at 4: +late", "progress -1 at 4"], "and the progress requested while stalled");
}

#[test]
fn queued_bytes_are_bounded() {
    let mut store = Store::new(1);
    let mut stream = watch(&mut store, one("k"), 0);
    for _ in 0..200 {
        store.put(&Put::new("k", vec![7; 1_000_000])).expect("a put");
    }
    let messages = received(&mut stream);
    assert!(messages.len() < 100, "{} messages of 1 MB were queued", messages.len());
    assert_eq!(messages.last().map(String::as_str), Some("lagged"));
    store.watch_catch_up(stream.stream);
    assert_eq!(count_puts(&messages) + count_puts(&received(&mut stream)), 200);
}

#[test]
fn long_history_is_sent_in_steps() {
    let mut store = Store::new(1);
    for _ in 0..3_500 {
        put(&mut store, "k", "x");
    }
    let mut stream = watch(&mut store, one("k"), 2);
    let mut sent = 0;
    let mut steps = 0;
    while sent < 3_500 {
        let events = count_puts(&received(&mut stream));
        assert!((1..=1000).contains(&events), "{events} events in one step");
        (sent, steps) = (sent + events, steps + 1);
        store.watch_catch_up(stream.stream);
    }
    assert_eq!((sent, steps), (3_500, 4));
}

#[test]
fn full_store_rejects_writes_until_disarmed() {
    let mut store = Store::with_quota(1, 10_000);
    while store.put(&Put::new("k", vec![7; 1_000])).is_ok() {
        assert!(store.revision() < 20, "the quota is not enforced");
    }
    assert_eq!(store.put(&Put::new("other", "x")).expect_err("full"), EtcdError::NoSpace);
    assert_eq!(store.lease_grant(7, 60, after(0)).expect_err("full"), EtcdError::NoSpace);
    let txn = Txn { success: vec![Operation::Put(Put::new("other", "x"))], ..Txn::default() };
    assert_eq!(store.txn(&txn).map(|_| ()).expect_err("full"), EtcdError::NoSpace);
    store
        .txn(&Txn { success: vec![Operation::Range(Range::new(one("k")))], ..Txn::default() })
        .expect("reads are not rejected");
    delete(&mut store, one("k"));
    store.compact(store.revision()).expect("a compaction");
    assert_eq!(store.put(&Put::new("other", "x")).expect_err("a file that is still large"), EtcdError::NoSpace);
    store.defragment();
    assert_eq!(store.put(&Put::new("other", "x")).expect_err("an alarm"), EtcdError::NoSpace);
    let alarm = Alarm { kind: AlarmKind::NoSpace, member: 1 };
    assert_eq!(store.alarms(None), [alarm]);
    assert!(store.disarm_alarm(alarm));
    put(&mut store, "other", "x");
}

#[test]
fn corrupt_store_rejects_writes() {
    let mut store = Store::new(1);
    put(&mut store, "k", "1");
    store.raise_alarm(Alarm { kind: AlarmKind::Corrupt, member: 9 });
    assert_eq!(store.put(&Put::new("k", "2")).expect_err("corrupt"), EtcdError::Corrupt);
    assert_eq!(store.delete(&Delete { keys: one("k") }).expect_err("corrupt"), EtcdError::Corrupt);
    assert_eq!(store.compact(2).expect_err("corrupt"), EtcdError::Corrupt);
    assert_eq!(store.range(&Range::new(one("k"))).expect("reads are not rejected").count, 1);
}

#[test]
fn watch_from_the_compacted_revision_has_no_previous_values() {
    let mut store = Store::new(1);
    put(&mut store, "k", "1");
    put(&mut store, "k", "2");
    store.compact(3).expect("a compaction");
    let mut stream = store.watch_open();
    store.watch_create(stream.stream, &WatchRequest::new(one("k"), 3));
    let mut seen = Vec::new();
    while let Some(message) = stream.try_recv() {
        if let WatchMessage::Events { events, .. } = message {
            seen.extend(events.iter().map(|event| (event.record.value.clone(), event.previous.is_some())));
        }
    }
    assert_eq!(seen, [("2".into(), false)]);
}
