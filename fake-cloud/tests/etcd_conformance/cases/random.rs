//! Random calls on few keys, so that they interact.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, EventType, GetOptions, LeaseGrantOptions, PutOptions, SortOrder, SortTarget,
    Txn, TxnOp, WatchOptions,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::session::{Session, with_timeout};

const SEEDS: u64 = 8;
const CALLS: usize = 200;
const END_KEY: &str = "~end";

/// Makes the same calls for the same seed, and records them and the events they cause.
pub(crate) async fn random_calls(mut s: Session) -> Session {
    for seed in 0..SEEDS {
        let mut random = Random(StdRng::seed_from_u64(seed));
        let watch = WatchOptions::new().with_all_keys().with_prev_key();
        let mut stream = s.client.watch("", Some(watch)).await.expect("a watch");
        s.record_message("created", &mut stream).await;
        let received = Arc::new(AtomicI64::new(revision(&mut s).await));
        let latest = Arc::clone(&received);
        let listener = tokio::spawn(async move {
            let mut events = Vec::new();
            while let Some(message) = stream.message().await.expect("a message") {
                for event in message.events() {
                    events.push(format!("{event:?}"));
                    latest.store(event.kv().map_or(0, |kv| kv.mod_revision()), Ordering::Relaxed);
                    let is_end = event.kv().is_some_and(|kv| kv.key() == END_KEY.as_bytes());
                    if is_end && event.event_type() == EventType::Put {
                        return events;
                    }
                }
            }
            events
        });
        for number in 0..CALLS {
            random_call(&mut s, &mut random, &received, &format!("seed {seed}, call {number}")).await;
        }
        s.call("the end", async |c| c.put(END_KEY, "", None).await).await;
        for event in with_timeout("the events", listener).await.expect("no panic") {
            s.record(&format!("seed {seed}, event"), &event);
        }
    }
    s
}

async fn revision(s: &mut Session) -> i64 {
    s.client.get("none", None).await.expect("a response").header().expect("a header").revision()
}

async fn random_call(s: &mut Session, random: &mut Random, received: &AtomicI64, label: &str) {
    match random.below(20) {
        0..6 => {
            let (key, value, options) = random.put();
            s.call(&format!("{label}: put"), async |c| c.put(key, value, Some(options)).await).await;
        }
        6..8 => {
            let (key, options) = random.delete();
            s.call(&format!("{label}: delete"), async |c| c.delete(key, Some(options)).await).await;
        }
        8..12 => {
            let now = revision(s).await;
            let (key, options) = random.get(now);
            s.call(&format!("{label}: get"), async |c| c.get(key, Some(options)).await).await;
        }
        12..17 => {
            let txn = random.txn(2);
            s.call(&format!("{label}: txn"), async |c| c.txn(txn).await).await;
        }
        17 => {
            let lease = LeaseGrantOptions::new().with_id(random.lease());
            s.call(&format!("{label}: grant"), async |c| c.lease_grant(600, Some(lease)).await).await;
        }
        18 => {
            let lease = random.lease();
            s.call(&format!("{label}: revoke"), async |c| c.lease_revoke(lease).await).await;
        }
        _ => {
            let now = revision(s).await;
            // Real etcd reads the previous version when it sends the event, which may be after the compaction.
            with_timeout("the listener", async {
                while received.load(Ordering::Relaxed) < now {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
            let revision = now - 20 + random.below(25);
            s.call(&format!("{label}: compact"), async |c| c.compact(revision, None).await).await;
        }
    }
}

struct Random(StdRng);

impl Random {
    fn below(&mut self, bound: i64) -> i64 {
        self.0.random_range(0..bound)
    }

    fn chance(&mut self) -> bool {
        self.0.random_range(0..4) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.0).expect("a choice")
    }

    fn key(&mut self) -> &'static str {
        self.pick(&["a", "a/1", "a/2", "b", "b/1", "c"])
    }

    fn lease(&mut self) -> i64 {
        self.pick(&[11, 12, 13])
    }

    /// A put that sets both fields. Transactions use only these, because etcd 3.5.1 crashes on a put that keeps the
    /// value of a key which the same transaction has deleted.
    fn plain_put(&mut self) -> (&'static str, &'static str, PutOptions) {
        let mut options = PutOptions::new();
        if self.chance() {
            options = options.with_lease(self.lease());
        }
        if self.chance() {
            options = options.with_prev_key();
        }
        (self.key(), self.pick(&["", "x", "y", "z"]), options)
    }

    fn put(&mut self) -> (&'static str, &'static str, PutOptions) {
        let (key, mut value, mut options) = self.plain_put();
        if self.chance() && self.chance() {
            options = options.with_ignore_lease();
        }
        if self.chance() && self.chance() {
            options = options.with_ignore_value();
            value = self.pick(&["", "", "", "x"]);
        }
        (key, value, options)
    }

    fn delete(&mut self) -> (&'static str, DeleteOptions) {
        let options = if self.chance() { DeleteOptions::new().with_prev_key() } else { DeleteOptions::new() };
        let options = match self.below(6) {
            0 => options.with_prefix(),
            1 => options.with_range(self.key()),
            2 => options.with_from_key(),
            _ => options,
        };
        (self.key(), options)
    }

    fn get(&mut self, now: i64) -> (&'static str, GetOptions) {
        let mut options = GetOptions::new();
        if self.chance() {
            options = options.with_revision(now - 10 + self.below(12));
        }
        if self.chance() {
            options = options.with_limit(self.below(4));
        }
        if self.chance() {
            let targets =
                [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
            let order = self.pick(&[SortOrder::None, SortOrder::Ascend, SortOrder::Descend]);
            options = options.with_sort(self.pick(&targets), order);
        }
        if self.chance() {
            options = options.with_min_mod_revision(now - self.below(10));
        }
        if self.chance() {
            options = options.with_max_create_revision(now - self.below(10));
        }
        if self.chance() {
            options = self.pick(&[GetOptions::with_keys_only as fn(_) -> _, GetOptions::with_count_only])(options);
        }
        let options = match self.below(5) {
            0 => options.with_prefix(),
            1 => options.with_range(self.key()),
            2 => options.with_from_key(),
            3 => options.with_all_keys(),
            _ => options,
        };
        (self.key(), options)
    }

    fn compare(&mut self) -> Compare {
        let operator = self.pick(&[CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual]);
        let (key, number) = (self.key(), self.below(3));
        let compare = match self.below(5) {
            0 => Compare::version(key, operator, number),
            1 => Compare::create_revision(key, operator, number * 50),
            2 => Compare::mod_revision(key, operator, number * 50),
            3 => Compare::value(key, operator, self.pick(&["", "x", "y"])),
            _ => Compare::lease(key, operator, number * 6),
        };
        if self.chance() { compare.with_prefix() } else { compare }
    }

    fn operations(&mut self, depth: usize) -> Vec<TxnOp> {
        let count = self.below(4);
        let operation = |_| match self.below(8) {
            0..3 => {
                let (key, value, options) = self.plain_put();
                TxnOp::put(key, value, Some(options))
            }
            3..5 => {
                let (key, options) = self.delete();
                TxnOp::delete(key, Some(options))
            }
            5 if depth > 0 => TxnOp::txn(self.txn(depth - 1)),
            _ => {
                let (key, options) = self.get(1);
                TxnOp::get(key, Some(options.with_revision(0)))
            }
        };
        (0..count).map(operation).collect()
    }

    fn txn(&mut self, depth: usize) -> Txn {
        let compares: Vec<_> = (0..self.below(3)).map(|_| self.compare()).collect();
        let (success, failure) = (self.operations(depth), self.operations(depth));
        Txn::new().when(compares).and_then(success).or_else(failure)
    }
}
