use super::*;
use crate::controller::result::WorkReason;
use crate::lifecycle::backoff::Backoff;

const SUCCESS: WorkResult = WorkResult::success();

fn retry() -> WorkResult {
    WorkResult::retry(WorkReason::Custom("throttled"), "slow down")
}

fn empty_queue() -> (WorkQueue<u8>, Instant) {
    let config = QueueConfig { backoff: Backoff::default(), patience: Duration::from_secs(10), next_cycle: None };
    (WorkQueue::new(config), Instant::now())
}

fn list_all(queue: &mut WorkQueue<u8>, began: Instant) {
    let known: Vec<Key> = queue.states().map(|state| state.resource_id).collect();
    queue.begin_listing();
    known.iter().for_each(|key| queue.mark_idle(key));
    queue.end_listing(began);
}

fn names(queue: &mut WorkQueue<u8>, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.take(now)).map(|job| job.key.to_string()).collect()
}

#[test]
fn trigger_during_a_reconcile_runs_it_once_more() {
    let (mut queue, now) = empty_queue();
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
fn resync_during_a_reconcile_runs_it_once_more() {
    let (mut queue, now) = empty_queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    assert!(!queue.offer("a", 1, now), "it runs already");
    assert!(queue.finish(&job.key, SUCCESS, 0.0, now), "the reconcile may have begun with an older record");
    let again = queue.take(now).expect("again");
    assert_eq!((again.priority, again.resource), (Priority::Resync, None), "read anew");
    queue.offer("a", 1, now);
    assert!(!queue.finish(&again.key, retry(), 0.0, now), "a retry follows its backoff");
    assert!(queue.take(now).is_none());
}

#[test]
fn priorities_hold_until_patience_ends() {
    let (mut queue, now) = empty_queue();
    queue.offer("resync", 1, now);
    let due = queue.changed("due", now);
    assert!(due);
    let job = queue.take(now).expect("due");
    let soon = WorkResult { requeue: Requeue::After(Duration::from_secs(1)), ..SUCCESS };
    queue.finish(&job.key, soon, 0.0, now);
    queue.changed("changed", now);
    let later = now + Duration::from_secs(2);
    assert_eq!(names(&mut queue, later), ["changed", "due", "resync"]);

    let (mut queue, now) = empty_queue();
    queue.offer("old", 1, now);
    let late = now + Duration::from_secs(11);
    queue.changed("new", late);
    assert_eq!(names(&mut queue, late), ["old", "new"]);
}

#[test]
fn change_overrides_the_backoff_but_resync_does_not() {
    let (mut queue, now) = empty_queue();
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
    assert_eq!(queue.take(now + Duration::from_secs(8)).map(|job| job.priority), Some(Priority::Due));
    queue.finish(&job.key, SUCCESS, 1.0, now);
    assert_eq!(queue.state("a").expect("known").retry_count, 0);
    assert!(queue.offer("a", 1, now));
}

#[test]
fn echo_leaves_the_schedule_unchanged() {
    let (mut queue, now) = empty_queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.finish(&job.key, retry(), 1.0, now);
    let due = queue.next_due();
    queue.changed("a", now);
    let echo = queue.take(now).expect("reported as changed");
    queue.release(&echo.key, now);
    assert_eq!(queue.next_due(), due);
    assert_eq!(queue.state("a").expect("known").retry_count, 1);
}

#[test]
fn unlisted_idle_resources_are_removed() {
    let (mut queue, now) = empty_queue();
    for key in ["gone", "listed", "busy"] {
        queue.offer(key, 0, now);
    }
    let jobs: Vec<_> = std::iter::from_fn(|| queue.take(now)).collect();
    for job in jobs.iter().filter(|job| &*job.key != "busy") {
        queue.finish(&job.key, retry(), 0.5, now);
    }
    queue.begin_listing();
    queue.mark_idle("listed");
    queue.mark_idle("unknown");
    queue.end_listing(now + Duration::from_secs(1));
    let mut known: Vec<_> = queue.states().map(|state| state.resource_id.to_string()).collect();
    known.sort();
    assert_eq!(known, ["busy", "listed"]);
    assert_eq!((queue.running(), queue.due.len()), (1, 1));
}

#[test]
fn change_outdates_a_listed_resource() {
    let (mut queue, now) = empty_queue();
    queue.offer("a", 1, now);
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    assert_eq!((job.priority, job.resource), (Priority::Due, None), "both triggers are served, and it is fetched");
    assert!(queue.take(now).is_none(), "the place in the other lane is outdated");
    assert_eq!(queue.waiting().map(|(_, waiting)| waiting), [0, 0, 0]);
}

fn later() -> WorkResult {
    WorkResult { requeue: Requeue::After(Duration::from_secs(1)), ..SUCCESS }
}

#[test]
fn echo_does_not_drop_a_due_reconcile() {
    let (mut queue, now) = empty_queue();
    let after = now + Duration::from_secs(2);
    for changed_at in [now, after] {
        queue.enqueue("a", now);
        let job = queue.take(now).expect("requested");
        queue.finish(&job.key, later(), 0.0, now);
        queue.changed("a", changed_at);
        let job = queue.take(changed_at).expect("reported as changed");
        // The delay ends while it is fetched, or ended while it waited.
        queue.take(after);
        if job.priority == Priority::Changed {
            assert!(queue.release(&job.key, after), "it is due");
            let job = queue.take(after).expect("due");
            assert_eq!(job.priority, Priority::Due);
        }
        queue.finish(&job.key, SUCCESS, 0.0, after);
        assert!(queue.take(after).is_none());
    }
}

#[test]
fn request_during_a_reconcile_is_not_an_echo() {
    let (mut queue, now) = empty_queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.enqueue("a", now);
    queue.changed("a", now);
    assert!(queue.finish(&job.key, SUCCESS, 0.0, now));
    assert_eq!(queue.take(now).map(|job| job.priority), Some(Priority::Due));
}

#[test]
fn resync_of_a_changed_resource_is_owed() {
    let (mut queue, now) = empty_queue();
    queue.changed("a", now);
    queue.offer("a", 1, now);
    assert_eq!(queue.take(now).map(|job| job.priority), Some(Priority::Due));
}

#[test]
fn missing_resource_reported_again_is_fetched_again() {
    let (mut queue, now) = empty_queue();
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.changed("a", now);
    assert!(queue.remove_missing(&job.key, now), "it may have been created");
    let job = queue.take(now).expect("again");
    assert!(!queue.remove_missing(&job.key, now));
    assert_eq!((queue.len(), queue.running()), (0, 0));
}

#[test]
fn resource_younger_than_a_listing_is_kept() {
    let (mut queue, began) = empty_queue();
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
fn unserved_triggers_do_not_grow_the_queue() {
    let (mut queue, now) = empty_queue();
    queue.offer("first", 0, now);
    for _ in 0..10_000 {
        queue.changed("a", now);
        queue.enqueue("a", now);
        let job = queue.take(now).expect("a");
        queue.finish(&job.key, SUCCESS, 0.0, now);
        queue.offer("a", 0, now);
    }
    let places: usize = queue.lanes.iter().map(VecDeque::len).sum();
    assert!(places < 500, "{places} places for two resources");
}

#[test]
fn reused_slot_does_not_inherit_a_place() {
    let (mut queue, now) = empty_queue();
    queue.offer("a", 1, now);
    queue.changed("a", now);
    let job = queue.take(now).expect("a");
    queue.remove_missing(&job.key, now);
    queue.changed("b", now);
    assert_eq!(names(&mut queue, now), ["b"]);
    assert_eq!(queue.state("a"), None);
}

#[test]
fn changes_within_the_debounce_are_one_change() {
    let (mut queue, now) = empty_queue();
    let debounce = Duration::from_millis(500);
    assert!(queue.changed_after("a", debounce, now), "a task has to wait for the deadline");
    for elapsed in [100, 200, 400] {
        let later = now + Duration::from_millis(elapsed);
        assert!(!queue.changed_after("a", debounce, later), "further changes do not postpone it");
        assert!(queue.take(later).is_none());
    }
    assert_eq!(queue.next_due(), Some(now + debounce));
    assert_eq!(names(&mut queue, now + debounce), ["a"]);
    assert_eq!((queue.debounced(), queue.next_due()), (0, None));
}

#[test]
fn change_without_a_debounce_is_taken_at_once() {
    let (mut queue, now) = empty_queue();
    assert!(queue.changed_after("a", Duration::ZERO, now));
    assert_eq!(names(&mut queue, now), ["a"]);
}

#[test]
fn debounce_outlives_a_missing_resource_and_a_listing() {
    let (mut queue, now) = empty_queue();
    let debounce = Duration::from_secs(1);
    queue.enqueue("a", now);
    let item = queue.take(now).expect("requested");
    queue.changed_after("a", debounce, now);
    assert!(!queue.remove_missing(&item.key, now));
    queue.begin_listing();
    queue.end_listing(now + debounce);
    assert_eq!(names(&mut queue, now + debounce), ["a"]);
}

#[test]
fn dropped_debounces_leave_nothing_due() {
    let (mut queue, now) = empty_queue();
    for key in ["a", "b", "c"] {
        queue.changed_after(key, Duration::from_secs(1), now);
    }
    assert_eq!(queue.debounced(), 3);
    queue.drop_debounced();
    assert_eq!((queue.debounced(), queue.next_due()), (0, None));
    queue.begin_listing();
    queue.end_listing(now);
    assert!(queue.is_empty());
}

mod properties {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Changed(u8),
        ChangedAfter(u8, u64),
        Enqueue(u8),
        Offer(u8),
        Take,
        /// The oldest item taken ends.
        Finish(Requeue, bool),
        /// The oldest item taken, if it was only reported as changed, is an echo.
        Release,
        Gone,
        Sleep(u64),
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
            (0..4_u8, 1..3_u64).prop_map(|(key, seconds)| Step::ChangedAfter(key, seconds)),
            (0..4_u8).prop_map(Step::Enqueue),
            (0..4_u8).prop_map(Step::Offer),
            Just(Step::Take),
            Just(Step::Take),
            (requeue, any::<bool>()).prop_map(|(requeue, retry)| Step::Finish(requeue, retry)),
            Just(Step::Release),
            Just(Step::Gone),
            (1..4_u64).prop_map(Step::Sleep),
            Just(Step::Listed),
        ];
        proptest::collection::vec(step, 1..120)
    }

    /// Obligations of the queue towards each resource, kept in the simplest way.
    #[derive(Default)]
    struct Promises {
        changed: BTreeSet<String>,
        debounced: BTreeMap<String, Instant>,
        owed: BTreeSet<String>,
        /// Resources that a resync listed during a reconcile, which may have begun with an older record.
        relisted: BTreeSet<String>,
        /// Resources whose delay is over. Any reconcile that ends settles that.
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
            let changed: Vec<_> =
                self.debounced.iter().filter(|(_, due)| **due <= now).map(|(key, _)| key.clone()).collect();
            for key in changed {
                self.debounced.remove(&key);
                self.changed.insert(key);
            }
        }

        fn took(&mut self, job: WorkItem<u8>) {
            let key = job.key.to_string();
            assert!(!self.is_taken(&key), "{key} runs twice at once");
            let owed = self.owed.contains(&key) || self.ripe.contains(&key);
            assert!(owed || self.changed.contains(&key), "{key} is taken for nothing");
            self.changed.remove(&key);
            if job.priority != Priority::Changed {
                self.owed.remove(&key);
                self.ripe.remove(&key);
            } else {
                assert!(!owed, "{key} might be dropped as an echo");
            }
            self.taken.push(job);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn no_trigger_is_lost_and_none_runs_twice(steps in steps()) {
            let (mut queue, mut now) = empty_queue();
            let mut promises = Promises::default();
            for step in steps {
                match step {
                    Step::Changed(key) => {
                        queue.changed(&key.to_string(), now);
                        promises.changed.insert(key.to_string());
                    }
                    Step::ChangedAfter(key, seconds) => {
                        let key = key.to_string();
                        if queue.changed_after(&key, Duration::from_secs(seconds), now) {
                            let due = promises.debounced.insert(key, now + Duration::from_secs(seconds));
                            prop_assert_eq!(due, None, "the debounce is postponed");
                        } else {
                            let obligations = [&promises.changed, &promises.owed, &promises.ripe];
                            let waits = obligations.iter().any(|keys| keys.contains(&key)) && !promises.is_taken(&key);
                            prop_assert!(waits || promises.debounced.contains_key(&key), "a change of {} is lost", key);
                        }
                    }
                    Step::Enqueue(key) => {
                        queue.enqueue(&key.to_string(), now);
                        promises.owed.insert(key.to_string());
                    }
                    Step::Offer(key) => {
                        let key = key.to_string();
                        if queue.offer(&key, 0, now) {
                            promises.owed.insert(key);
                        } else if promises.is_taken(&key) {
                            promises.relisted.insert(key);
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
                        if promises.relisted.remove(&*job.key) && !retry {
                            promises.owed.insert(job.key.to_string());
                        }
                        promises.due.remove(&*job.key);
                        promises.ripe.remove(&*job.key);
                        // Triggers during the reconcile stay; the delay is settled.
                        promises.due.extend(queue.state(&job.key).and_then(|state| state.next_retry_at).map(|due| (job.key.to_string(), due)));
                    }
                    Step::Release if promises.taken.first().is_some_and(|job| job.priority == Priority::Changed) => {
                        let job = promises.taken.remove(0);
                        promises.promote(now);
                        queue.take(now).into_iter().for_each(|job| promises.took(job));
                        promises.relisted.remove(&*job.key);
                        if queue.release(&job.key, now) {
                            promises.changed.insert(job.key.to_string());
                        }
                    }
                    Step::Gone if !promises.taken.is_empty() => {
                        let job = promises.taken.remove(0);
                        queue.remove_missing(&job.key, now);
                        promises.relisted.remove(&*job.key);
                        promises.due.remove(&*job.key);
                        promises.ripe.remove(&*job.key);
                    }
                    Step::Sleep(seconds) => now += Duration::from_secs(seconds),
                    Step::Listed => list_all(&mut queue, now - Duration::from_secs(3600)),
                    Step::Finish(..) | Step::Release | Step::Gone => {}
                }
                prop_assert_eq!(queue.running(), promises.taken.len());
                let waiting: usize = queue.waiting().iter().map(|(_, waiting)| waiting).sum();
                let shown = queue.states().filter(|state| state.status == ResourceStatus::Pending).count();
                prop_assert!(waiting <= shown, "{} wait, {} are shown as pending", waiting, shown);
            }
            // In the end every obligation is met.
            for job in promises.taken.drain(..) {
                queue.finish(&job.key, WorkResult { requeue: Requeue::OnChange, ..SUCCESS }, 1.0, now);
                if promises.relisted.remove(&*job.key) {
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
            prop_assert!(promises.changed.is_empty(), "changes were lost: {:?}", promises.changed);
            prop_assert!(promises.owed.is_empty(), "reconciles were lost: {:?}", promises.owed);
            prop_assert!(promises.ripe.is_empty(), "delays were lost: {:?}", promises.ripe);
        }
    }
}
