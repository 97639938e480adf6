use super::*;
use crate::controller::result::WorkReason;
use crate::lifecycle::backoff::Backoff;

const SUCCESS: WorkResult = WorkResult::success();

fn retry() -> WorkResult {
    WorkResult::retry(WorkReason::Custom("throttled"), "slow down")
}

fn empty_queue() -> (WorkQueue<u8>, Instant) {
    (WorkQueue::new(QueueConfig::default().with_patience(Duration::from_secs(10))), Instant::now())
}

/// Lists all resources as at rest. Returns those that are queued all the same.
fn list_all(queue: &mut WorkQueue<u8>, now: Instant) -> Vec<String> {
    let known: Vec<Key> = queue.states().map(|state| state.resource_id).collect();
    queue.begin_listing();
    let queued = known.iter().filter(|key| queue.mark_idle(key, now)).map(ToString::to_string).collect();
    queue.end_listing(now);
    queued
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
fn urgent_resources_come_first() {
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
}

#[test]
fn overdue_resources_get_every_fourth_turn() {
    let (mut queue, now) = empty_queue();
    for key in ["old-1", "old-2"] {
        queue.offer(key, 1, now);
    }
    let late = now + Duration::from_secs(11);
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        queue.changed(key, late);
    }
    assert_eq!(names(&mut queue, late), ["a", "b", "c", "old-1", "d", "e", "f", "old-2", "g"]);
}

#[test]
fn slots_kept_for_changes_are_not_taken_by_a_backlog() {
    let now = Instant::now();
    let mut queue = WorkQueue::<u8>::new(QueueConfig::default().with_background_limit(2));
    for key in ["a", "b", "c"] {
        queue.offer(key, 1, now);
    }
    let first = queue.take(now).expect("a");
    assert!(queue.take(now).is_some());
    assert!(queue.take(now).is_none(), "the remaining slots are kept");
    queue.changed("x", now);
    let change = queue.take(now).expect("x");
    assert_eq!(&*change.key, "x");
    queue.finish(&change.key, SUCCESS, 0.0, now);
    assert!(queue.take(now).is_none(), "a change that ends leaves no slot to the backlog");
    queue.finish(&first.key, SUCCESS, 0.0, now);
    assert_eq!(names(&mut queue, now), ["c"]);
}

fn ended(status: &'static str, outcome: Outcome, requeue: Requeue) -> WorkResult {
    WorkResult { outcome, requeue, status: Some(status), ..SUCCESS }
}

/// Reconciles a resource as often as it is due within ten minutes, and returns when.
fn reconciled_at(queue: &mut WorkQueue<u8>, began: Instant, mut result: impl FnMut(usize) -> WorkResult) -> Vec<u64> {
    let (mut now, mut times) = (began, Vec::new());
    queue.enqueue("a", now);
    while now < began + Duration::from_secs(600) && times.len() < 100 {
        if let Some(item) = queue.take(now) {
            queue.finish(&item.key, result(times.len()), 1.0, now);
            times.push((now - began).as_secs());
        }
        let Some(due) = queue.next_due() else { break };
        now = due.max(now);
    }
    times
}

#[test]
fn reconcile_at_once_without_progress_is_a_retry() {
    let stuck = |_| ended("pending", Outcome::Requeue, Requeue::Now);
    let (mut queue, now) = empty_queue();
    let times = reconciled_at(&mut queue, now, stuck);
    assert_eq!(times[..7], [0, 0, 1, 3, 7, 15, 31], "{times:?}");
    assert!(times.len() < 20, "{times:?}");

    let to_and_fro = |count| ended(["stopped", "stopping"][count % 2], Outcome::Success, Requeue::Now);
    let (mut queue, now) = empty_queue();
    let times = reconciled_at(&mut queue, now, to_and_fro);
    assert!(times.len() < 20, "{times:?}");
}

#[test]
fn steps_that_make_progress_follow_at_once() {
    let (mut queue, now) = empty_queue();
    let steps = [("stopping", Requeue::Now), ("stopped", Requeue::Now), ("terminated", Requeue::OnChange)];
    let times = reconciled_at(&mut queue, now, |count| ended(steps[count].0, Outcome::Success, steps[count].1));
    assert_eq!(times, [0, 0, 0]);
    assert_eq!(queue.state("a").expect("known").retry_count, 0);
}

#[test]
fn short_delay_without_progress_lasts_a_second() {
    let (mut queue, now) = empty_queue();
    let after = Requeue::After(Duration::from_millis(1));
    let times = reconciled_at(&mut queue, now, |_| ended("pending", Outcome::Requeue, after));
    assert_eq!(times[..4], [0, 0, 1, 2]);
}

#[test]
fn only_success_resets_the_retries() {
    let (mut queue, now) = empty_queue();
    let outcomes = [Outcome::Retry, Outcome::Requeue, Outcome::Retry, Outcome::Skip, Outcome::Success];
    let mut counts = Vec::new();
    for outcome in outcomes {
        queue.changed("a", now);
        let item = queue.take(now).expect("changed");
        queue.finish(&item.key, ended("pending", outcome, Requeue::Backoff), 1.0, now);
        counts.push(queue.state("a").expect("known").retry_count);
    }
    assert_eq!(counts, [1, 1, 2, 2, 0]);
}

#[test]
fn explicit_delay_is_not_cut_by_a_listing() {
    let (mut queue, now) = empty_queue();
    queue.enqueue("a", now);
    let item = queue.take(now).expect("requested");
    let delay = Duration::from_secs(300);
    queue.finish(&item.key, ended("pending", Outcome::Requeue, Requeue::After(delay)), 1.0, now);
    for cycle in 1..10 {
        let at = now + Duration::from_secs(30) * cycle;
        assert!(!queue.offer("a", 1, at));
        assert!(queue.take(at).is_none());
    }
    let slot = queue.listed("a");
    assert!(queue.offer_listed(slot, 1, Novelty::New, now + Duration::from_secs(30)), "a change does not wait");
    let item = queue.take(now + delay).expect("listed");
    assert_eq!(item.resource, Some(1));
}

#[test]
fn unfinished_resource_at_rest_is_reconciled_next_cycle() {
    for (outcome, again) in [(Outcome::Requeue, true), (Outcome::Success, false), (Outcome::Skip, false)] {
        let (mut queue, now) = empty_queue();
        queue.enqueue("a", now);
        let item = queue.take(now).expect("requested");
        queue.finish(&item.key, ended("stopped", outcome, Requeue::NextCycle), 1.0, now);
        queue.begin_listing();
        assert_eq!(queue.mark_idle("a", now), again, "{outcome}");
        queue.end_listing(now);
        assert_eq!(queue.take(now).is_some(), again, "{outcome}");
    }
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
    assert!(!queue.mark_idle("listed", now));
    assert!(!queue.mark_idle("unknown", now));
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

#[test]
fn state_shows_the_last_result() {
    let (mut queue, now) = empty_queue();
    let ended_at = now + Duration::from_secs(1);
    queue.changed("a", now);
    assert_eq!(queue.state("a").map(|state| state.status), Some(ResourceStatus::Pending), "it waits");
    for (outcome, status, is_reconciled) in [
        (Outcome::Retry, ResourceStatus::Failed, false),
        (Outcome::Requeue, ResourceStatus::Pending, true),
        (Outcome::Skip, ResourceStatus::Success, true),
        (Outcome::Success, ResourceStatus::Success, true),
    ] {
        let (mut queue, now) = (WorkQueue::<u8>::new(QueueConfig::default()), now);
        queue.changed("a", now);
        let item = queue.take(now).expect("changed");
        assert_eq!(queue.state("a").map(|state| state.status), Some(ResourceStatus::InProgress));
        queue.finish(&item.key, ended("running", outcome, Requeue::OnChange), 1.0, ended_at);
        let state = queue.state("a").expect("known");
        assert_eq!((state.status, state.last_ended_at), (status, Some(ended_at)), "{outcome}");
        assert_eq!(state.last_reconciled_at.is_some(), is_reconciled, "{outcome}");
        assert_eq!(state.last.map(|last| last.outcome), Some(outcome));
        queue.changed("a", ended_at);
        assert_eq!(queue.state("a").map(|state| state.status), Some(ResourceStatus::Pending), "it waits again");
    }
}

#[test]
fn waiting_resources_and_deadlines_are_pending() {
    let (mut queue, now) = empty_queue();
    assert!(!queue.has_pending() && queue.is_empty());
    queue.offer("a", 1, now);
    queue.enqueue("b", now);
    queue.changed("c", now);
    assert!(queue.has_pending());
    assert_eq!(queue.waiting(), [("changed", 1), ("due", 1), ("resync", 1)]);
    let taken = names(&mut queue, now);
    assert_eq!((taken.len(), queue.running(), queue.len(), queue.is_empty()), (3, 3, 3, false));
    assert!(!queue.has_pending(), "running is not waiting");
    let keys: Vec<Key> = queue.states().map(|state| state.resource_id).collect();
    for key in &keys {
        queue.finish(key, SUCCESS, 1.0, now);
    }
    assert!(!queue.has_pending());
    queue.changed_after("a", Duration::from_secs(1), now);
    assert!(queue.has_pending(), "a debounce ends");
    queue.drop_debounced();
    queue.changed("b", now);
    let item = queue.take(now).expect("b");
    queue.finish(&item.key, later(), 1.0, now);
    assert!(queue.has_pending(), "a delay ends");
}

#[test]
fn reconcile_that_follows_at_once_wakes_a_task() {
    let (mut queue, now) = empty_queue();
    for (requeue, wakes) in [
        (Requeue::Now, true),
        (Requeue::After(Duration::from_secs(5)), false),
        (Requeue::NextCycle, false),
        (Requeue::OnChange, false),
    ] {
        queue.changed("a", now);
        let item = queue.take(now).expect("changed");
        assert_eq!(queue.finish(&item.key, ended("step", Outcome::Success, requeue), 1.0, now), wakes, "{requeue}");
        for key in names(&mut queue, now) {
            queue.finish(&key.as_str().into(), SUCCESS, 1.0, now);
        }
    }
}

#[test]
fn resource_reconciled_when_a_listing_began_is_kept() {
    let (mut queue, began) = empty_queue();
    queue.changed("a", began);
    let item = queue.take(began).expect("changed");
    queue.finish(&item.key, SUCCESS, 1.0, began);
    queue.begin_listing();
    queue.end_listing(began);
    assert_eq!(queue.len(), 1, "it may be younger than the listing");
    queue.begin_listing();
    queue.end_listing(began + Duration::from_nanos(1));
    assert!(queue.is_empty());
}

#[test]
fn overdue_means_longer_than_the_patience() {
    let patience = Duration::from_secs(10);
    for (waited, first_four) in
        [(patience, ["a", "b", "c", "d"]), (patience + Duration::from_nanos(1), ["a", "b", "c", "old"])]
    {
        let (mut queue, now) = empty_queue();
        queue.offer("old", 1, now);
        for key in ["a", "b", "c", "d"] {
            queue.changed(key, now + waited);
        }
        assert_eq!(names(&mut queue, now + waited)[..4], first_four);
    }
}

#[test]
fn next_cycle_without_polling_has_a_delay_of_its_own() {
    let cycle = Duration::from_secs(30);
    let (mut queue, now) = (WorkQueue::<u8>::new(QueueConfig::default().with_next_cycle(cycle)), Instant::now());
    queue.changed("a", now);
    let item = queue.take(now).expect("changed");
    queue.finish(&item.key, ended("stopping", Outcome::Requeue, Requeue::NextCycle), 1.0, now);
    assert_eq!(queue.state("a").and_then(|state| state.next_retry_at), Some(now + cycle));
    assert!(queue.offer("a", 1, now + Duration::from_secs(1)), "a listing does not wait for it");
}

#[test]
fn retries_follow_the_configured_backoff() {
    let base = Duration::from_secs(5);
    let config = QueueConfig::default().with_backoff(Backoff { base, ..Backoff::default() });
    let (mut queue, now) = (WorkQueue::<u8>::new(config), Instant::now());
    for delay in [5, 10, 20] {
        queue.changed("a", now);
        let item = queue.take(now).expect("changed");
        queue.finish(&item.key, retry(), 1.0, now);
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(delay)));
    }
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
        Finish(Requeue, Outcome),
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
        let outcome = prop_oneof![Just(Outcome::Success), Just(Outcome::Requeue), Just(Outcome::Retry)];
        let step = prop_oneof![
            (0..4_u8).prop_map(Step::Changed),
            (0..4_u8, 1..3_u64).prop_map(|(key, seconds)| Step::ChangedAfter(key, seconds)),
            (0..4_u8).prop_map(Step::Enqueue),
            (0..4_u8).prop_map(Step::Offer),
            Just(Step::Take),
            Just(Step::Take),
            (requeue, outcome).prop_map(|(requeue, outcome)| Step::Finish(requeue, outcome)),
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
                    Step::Finish(requeue, outcome) if !promises.taken.is_empty() => {
                        let job = promises.taken.remove(0);
                        queue.finish(&job.key, WorkResult { outcome, requeue, ..SUCCESS }, 1.0, now);
                        if promises.relisted.remove(&*job.key) && outcome != Outcome::Retry {
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
                    Step::Listed => promises.owed.extend(list_all(&mut queue, now)),
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

#[test]
fn request_is_told_apart_from_a_delay() {
    let (mut queue, now) = empty_queue();
    let is_requested =
        |queue: &WorkQueue<u8>| queue.state("a").map(|state| (state.waiting.is_some(), state.is_requested));
    queue.enqueue("a", now);
    assert_eq!(is_requested(&queue), Some((true, true)));
    let job = queue.take(now).expect("a");
    assert_eq!(is_requested(&queue), Some((false, false)));
    let soon = WorkResult { requeue: Requeue::After(Duration::from_secs(1)), ..SUCCESS };
    queue.finish(&job.key, soon, 0.0, now);
    assert!(queue.take(now).is_none());
    queue.enqueue("b", now + Duration::from_secs(2));
    assert!(queue.take(now + Duration::from_secs(2)).is_some());
    assert_eq!(is_requested(&queue).map(|(_, is_requested)| is_requested), Some(false));
}
