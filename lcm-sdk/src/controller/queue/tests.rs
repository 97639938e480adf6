use super::*;
use crate::lifecycle::backoff::Backoff;

const SUCCESS: WorkResult = WorkResult::success();

fn retry() -> WorkResult {
    WorkResult::retry("throttled", "slow down")
}

fn queue() -> (WorkQueue<u8>, Instant) {
    let config = QueueConfig { backoff: Backoff::default(), patience: Duration::from_secs(10), next_cycle: None };
    (WorkQueue::new(config), Instant::now())
}

fn list_all(queue: &mut WorkQueue<u8>, began: Instant) {
    let known: Vec<Key> = queue.states().map(|state| state.resource_id).collect();
    queue.begin_listing();
    known.iter().for_each(|key| queue.rests(key));
    queue.end_listing(began);
}

fn names(queue: &mut WorkQueue<u8>, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.take(now)).map(|job| job.key.to_string()).collect()
}

#[test]
fn a_resource_never_runs_twice_at_once_and_no_trigger_is_lost() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.changed("a", now);
    queue.changed("a", now);
    assert!(!queue.offer("a", 1, now));
    assert!(queue.take(now).is_none(), "it runs already");
    assert!(queue.finish(&job.key, SUCCESS, 0.0, now), "once more");
    let again = queue.take(now).expect("again");
    assert!(!queue.finish(&again.key, SUCCESS, 0.0, now));
    assert!(queue.take(now).is_none());
}

#[test]
fn a_resync_that_meets_a_pass_under_way_has_it_looked_at_once_more() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    assert!(!queue.offer("a", 1, now), "it runs already");
    assert!(queue.finish(&job.key, SUCCESS, 0.0, now), "the pass may have begun on an older record");
    let again = queue.take(now).expect("again");
    assert_eq!((again.lane, again.resource), (Priority::Resync, None), "read anew");
    queue.offer("a", 1, now);
    assert!(!queue.finish(&again.key, retry(), 0.0, now), "a retry looks again by itself, after its backoff");
    assert!(queue.take(now).is_none());
}

#[test]
fn changed_before_due_before_resync_until_patience_ends() {
    let (mut queue, now) = queue();
    queue.offer("resync", 1, now);
    let due = queue.changed("due", now);
    assert!(due);
    let job = queue.take(now).expect("due");
    let soon = WorkResult { requeue: Requeue::After(Duration::from_secs(1)), ..SUCCESS };
    queue.finish(&job.key, soon, 0.0, now);
    queue.changed("changed", now);
    let later = now + Duration::from_secs(2);
    assert_eq!(names(&mut queue, later), ["changed", "due", "resync"]);

    let (mut queue, now) = self::queue();
    queue.offer("old", 1, now);
    let late = now + Duration::from_secs(11);
    queue.changed("new", late);
    assert_eq!(names(&mut queue, late), ["old", "new"]);
}

#[test]
fn a_resync_waits_for_the_backoff_and_a_change_does_not() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    for retries in 1..=3 {
        let job = queue.take(now).expect("a");
        queue.finish(&job.key, retry(), 1.0, now);
        assert_eq!(queue.state("a").expect("known").retry_count, retries);
        assert!(!queue.offer("a", 1, now), "in its backoff");
        queue.changed("a", now);
    }
    let job = queue.take(now).expect("changed");
    queue.finish(&job.key, retry(), 1.0, now);
    assert_eq!(queue.next_due(), Some(now + Duration::from_secs(8)));
    assert!(queue.take(now + Duration::from_secs(7)).is_none());
    assert_eq!(queue.take(now + Duration::from_secs(8)).map(|job| job.lane), Some(Priority::Due));
    queue.finish(&job.key, SUCCESS, 1.0, now);
    assert_eq!(queue.state("a").expect("known").retry_count, 0);
    assert!(queue.offer("a", 1, now));
}

#[test]
fn an_echo_leaves_the_plan_as_it_was() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.finish(&job.key, retry(), 1.0, now);
    let due = queue.next_due();
    queue.changed("a", now);
    let echo = queue.take(now).expect("told as changed");
    queue.put_back(&echo.key, now);
    assert_eq!(queue.next_due(), due);
    assert_eq!(queue.state("a").expect("known").retry_count, 1);
}

#[test]
fn what_no_listing_names_is_forgotten_unless_it_is_busy() {
    let (mut queue, now) = queue();
    for key in ["gone", "listed", "busy"] {
        queue.offer(key, 0, now);
    }
    let jobs: Vec<_> = std::iter::from_fn(|| queue.take(now)).collect();
    for job in jobs.iter().filter(|job| &*job.key != "busy") {
        queue.finish(&job.key, retry(), 0.5, now);
    }
    queue.begin_listing();
    queue.rests("listed");
    queue.rests("unknown");
    queue.end_listing(now + Duration::from_secs(1));
    let mut known: Vec<_> = queue.states().map(|state| state.resource_id.to_string()).collect();
    known.sort();
    assert_eq!(known, ["busy", "listed"]);
    assert_eq!((queue.running(), queue.due.len()), (1, 1));
}

#[test]
fn a_listing_is_outdated_by_a_change() {
    let (mut queue, now) = queue();
    queue.offer("a", 1, now);
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    assert_eq!((job.lane, job.resource), (Priority::Due, None), "both look at it, and it is read again");
    assert!(queue.take(now).is_none(), "the place in the other lane is empty");
    assert_eq!(queue.waiting().map(|(_, waiting)| waiting), [0, 0, 0]);
}

fn later() -> WorkResult {
    WorkResult { requeue: Requeue::After(Duration::from_secs(1)), ..SUCCESS }
}

#[test]
fn what_is_due_is_looked_at_although_the_change_that_was_told_is_none() {
    let (mut queue, now) = queue();
    let after = now + Duration::from_secs(2);
    for told_at in [now, after] {
        queue.demand("a", now);
        let job = queue.take(now).expect("demanded");
        queue.finish(&job.key, later(), 0.0, now);
        queue.changed("a", told_at);
        let job = queue.take(told_at).expect("told as changed");
        // Its time comes while it is read, or came while it waited.
        queue.take(after);
        if job.lane == Priority::Changed {
            assert!(queue.put_back(&job.key, after), "it is due");
            let job = queue.take(after).expect("due");
            assert_eq!(job.lane, Priority::Due);
        }
        queue.finish(&job.key, SUCCESS, 0.0, after);
        assert!(queue.take(after).is_none());
    }
}

#[test]
fn a_demand_during_a_pass_is_no_mere_change() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.demand("a", now);
    queue.changed("a", now);
    assert!(queue.finish(&job.key, SUCCESS, 0.0, now));
    assert_eq!(queue.take(now).map(|job| job.lane), Some(Priority::Due));
}

#[test]
fn a_resync_that_meets_a_told_change_is_owed_a_look() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    queue.offer("a", 1, now);
    assert_eq!(queue.take(now).map(|job| job.lane), Some(Priority::Due));
}

#[test]
fn what_did_not_exist_and_is_told_of_again_is_looked_at_again() {
    let (mut queue, now) = queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.changed("a", now);
    assert!(queue.gone(&job.key, now), "it may have come into being");
    let job = queue.take(now).expect("again");
    assert!(!queue.gone(&job.key, now));
    assert_eq!((queue.len(), queue.running()), (0, 0));
}

#[test]
fn what_is_younger_than_a_listing_is_not_forgotten_because_of_it() {
    let (mut queue, began) = queue();
    queue.changed("new", began);
    let job = queue.take(began).expect("new");
    let ended = began + Duration::from_secs(1);
    queue.finish(&job.key, later(), 0.0, ended);
    queue.begin_listing();
    queue.end_listing(began);
    assert_eq!(queue.next_due(), Some(ended + Duration::from_secs(1)));
    queue.begin_listing();
    queue.end_listing(ended + Duration::from_secs(1));
    assert!(queue.is_empty());
}

#[test]
fn triggers_that_nobody_can_serve_take_no_more_room() {
    let (mut queue, now) = queue();
    queue.offer("first", 0, now);
    for _ in 0..10_000 {
        queue.changed("a", now);
        queue.demand("a", now);
        let job = queue.take(now).expect("a");
        queue.finish(&job.key, SUCCESS, 0.0, now);
        queue.offer("a", 0, now);
    }
    let places: usize = queue.lanes.iter().map(VecDeque::len).sum();
    assert!(places < 500, "{places} places for two resources");
}

#[test]
fn a_place_that_somebody_left_is_not_his_who_comes_after_him() {
    let (mut queue, now) = queue();
    queue.offer("a", 1, now);
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.gone(&job.key, now);
    queue.changed("b", now);
    assert_eq!(names(&mut queue, now), ["b"]);
    assert_eq!(queue.state("a"), None);
}

mod properties {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Changed(u8),
        Demand(u8),
        Offer(u8),
        Take,
        /// The oldest one taken ends.
        Finish(Requeue, bool),
        /// The oldest one taken, if it was only told as changed, has not.
        PutBack,
        Gone,
        Pass(u64),
        Listed,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let requeue = prop_oneof![
            Just(Requeue::Now),
            (1..5_u64).prop_map(|seconds| Requeue::After(Duration::from_secs(seconds))),
            Just(Requeue::NextCycle),
            Just(Requeue::OnChange),
        ];
        let step = prop_oneof![
            (0..4_u8).prop_map(Step::Changed),
            (0..4_u8).prop_map(Step::Demand),
            (0..4_u8).prop_map(Step::Offer),
            Just(Step::Take),
            Just(Step::Take),
            (requeue, any::<bool>()).prop_map(|(requeue, retry)| Step::Finish(requeue, retry)),
            Just(Step::PutBack),
            Just(Step::Gone),
            (1..4_u64).prop_map(Step::Pass),
            Just(Step::Listed),
        ];
        proptest::collection::vec(step, 1..120)
    }

    /// What the queue has promised about each resource, kept in the simplest way.
    #[derive(Default)]
    struct Promises {
        told: BTreeSet<String>,
        owed: BTreeSet<String>,
        /// Whom a resync met in the middle of a pass, which may have begun on something older.
        met: BTreeSet<String>,
        /// Whose time has come. A pass that ends settles that, whatever it was made for.
        ripe: BTreeSet<String>,
        due: BTreeMap<String, Instant>,
        taken: Vec<WorkItem<u8>>,
    }

    impl Promises {
        fn is_taken(&self, key: &str) -> bool {
            self.taken.iter().any(|job| &*job.key == key)
        }

        fn promote(&mut self, now: Instant) {
            let ripe: Vec<_> = self.due.iter().filter(|(_, due)| **due <= now).map(|(key, _)| key.clone()).collect();
            for key in ripe {
                self.due.remove(&key);
                self.ripe.insert(key);
            }
        }

        fn took(&mut self, job: WorkItem<u8>) {
            let key = job.key.to_string();
            assert!(!self.is_taken(&key), "{key} runs twice at once");
            let owed = self.owed.contains(&key) || self.ripe.contains(&key);
            assert!(owed || self.told.contains(&key), "{key} is taken for nothing");
            self.told.remove(&key);
            if job.lane != Priority::Changed {
                self.owed.remove(&key);
                self.ripe.remove(&key);
            } else {
                assert!(!owed, "{key} might be passed over as an echo");
            }
            self.taken.push(job);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn nothing_runs_twice_and_no_promise_is_forgotten(steps in steps()) {
            let (mut queue, mut now) = queue();
            let mut promises = Promises::default();
            for step in steps {
                match step {
                    Step::Changed(key) => {
                        queue.changed(&key.to_string(), now);
                        promises.told.insert(key.to_string());
                    }
                    Step::Demand(key) => {
                        queue.demand(&key.to_string(), now);
                        promises.owed.insert(key.to_string());
                    }
                    Step::Offer(key) => {
                        let key = key.to_string();
                        if queue.offer(&key, 0, now) {
                            promises.owed.insert(key);
                        } else if promises.is_taken(&key) {
                            promises.met.insert(key);
                        }
                    }
                    Step::Take => {
                        promises.promote(now);
                        if let Some(job) = queue.take(now) {
                            promises.took(job);
                        }
                    }
                    Step::Finish(requeue, retry) if !promises.taken.is_empty() => {
                        let job = promises.taken.remove(0);
                        let outcome = if retry { Outcome::Retry } else { Outcome::Success };
                        queue.finish(&job.key, WorkResult { outcome, requeue, ..SUCCESS }, 1.0, now);
                        if promises.met.remove(&*job.key) && !retry {
                            promises.owed.insert(job.key.to_string());
                        }
                        promises.due.remove(&*job.key);
                        promises.ripe.remove(&*job.key);
                        // What was told or demanded during the pass stays; what was due was looked at.
                        promises.due.extend(queue.state(&job.key).and_then(|state| state.next_retry_at).map(|due| (job.key.to_string(), due)));
                    }
                    Step::PutBack if promises.taken.first().is_some_and(|job| job.lane == Priority::Changed) => {
                        let job = promises.taken.remove(0);
                        promises.promote(now);
                        queue.take(now).into_iter().for_each(|job| promises.took(job));
                        promises.met.remove(&*job.key);
                        if queue.put_back(&job.key, now) {
                            promises.told.insert(job.key.to_string());
                        }
                    }
                    Step::Gone if !promises.taken.is_empty() => {
                        let job = promises.taken.remove(0);
                        queue.gone(&job.key, now);
                        promises.met.remove(&*job.key);
                        promises.due.remove(&*job.key);
                        promises.ripe.remove(&*job.key);
                    }
                    Step::Pass(seconds) => now += Duration::from_secs(seconds),
                    Step::Listed => list_all(&mut queue, now - Duration::from_secs(3600)),
                    Step::Finish(..) | Step::PutBack | Step::Gone => {}
                }
                prop_assert_eq!(queue.running(), promises.taken.len());
                let waiting: usize = queue.waiting().iter().map(|(_, waiting)| waiting).sum();
                let shown = queue.states().filter(|state| state.status == ResourceStatus::Pending).count();
                prop_assert!(waiting <= shown, "{} wait, {} are shown as pending", waiting, shown);
            }
            // In the end everything that was promised is kept.
            for job in promises.taken.drain(..) {
                queue.finish(&job.key, WorkResult { requeue: Requeue::OnChange, ..SUCCESS }, 1.0, now);
                if promises.met.remove(&*job.key) {
                    promises.owed.insert(job.key.to_string());
                }
                promises.due.remove(&*job.key);
                promises.ripe.remove(&*job.key);
            }
            now += Duration::from_secs(3600);
            promises.promote(now);
            while let Some(job) = queue.take(now) {
                promises.took(job);
            }
            prop_assert!(promises.told.is_empty(), "changes were lost: {:?}", promises.told);
            prop_assert!(promises.owed.is_empty(), "looks were lost: {:?}", promises.owed);
            prop_assert!(promises.ripe.is_empty(), "times were lost: {:?}", promises.ripe);
        }
    }
}
