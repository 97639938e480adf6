//! The generic controller, on paused time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::queue::ResourceStatus;
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::{Controller, ControllerConfig, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::telemetry::{Anomaly, Telemetry};
use lcm_sdk::{CallFailure, FailureKind, Requeue};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep};

/// What a resource does when it is reconciled.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Habit {
    Takes(u64),
    /// Wants to be looked at again after so many seconds.
    Returns(u64),
    Fails,
    Panics,
    Hangs,
}

#[derive(Default)]
struct Stage {
    habits: Mutex<BTreeMap<String, Habit>>,
    passes: Mutex<HashMap<String, usize>>,
    running: Mutex<HashMap<String, usize>>,
    most_at_once: Mutex<usize>,
    listing_fails: Mutex<bool>,
    prepared: Mutex<Vec<usize>>,
}

#[derive(Clone, Default)]
struct Play(Arc<Stage>);

impl Play {
    fn with(habits: &[(&str, Habit)]) -> Self {
        let play = Self::default();
        *play.0.habits.lock() = habits.iter().map(|(name, habit)| ((*name).to_owned(), *habit)).collect();
        play
    }

    fn passes(&self, name: &str) -> usize {
        self.0.passes.lock().get(name).copied().unwrap_or_default()
    }
}

impl Reconcile for Play {
    type Resource = String;

    fn key<'a>(&self, name: &'a String) -> &'a str {
        name
    }

    async fn list(&self, _: ListScope) -> Result<Listing<String>, CallFailure> {
        if *self.0.listing_fails.lock() {
            return Err(CallFailure::new(FailureKind::Unreachable, "nobody home"));
        }
        Ok(Listing { resources: self.0.habits.lock().keys().cloned().collect(), resting: Vec::new() })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<String>, CallFailure> {
        let exists = self.0.habits.lock().contains_key(key);
        Ok(if exists { Fetched::Resource(key.to_owned()) } else { Fetched::Gone })
    }

    async fn prepare(&self, resources: &[String]) {
        self.0.prepared.lock().push(resources.len());
    }

    async fn reconcile(&self, name: String) -> WorkResult {
        *self.0.passes.lock().entry(name.clone()).or_default() += 1;
        let now_running = {
            let mut running = self.0.running.lock();
            *running.entry(name.clone()).or_default() += 1;
            assert_eq!(running[&name], 1, "{name} is reconciled twice at once");
            running.values().sum::<usize>()
        };
        let most = (*self.0.most_at_once.lock()).max(now_running);
        *self.0.most_at_once.lock() = most;
        let _leaves = Leaving(self, &name);
        let habit = self.0.habits.lock().get(&name).copied();
        match habit {
            None => WorkResult::success(),
            Some(Habit::Takes(seconds)) => {
                sleep(Duration::from_secs(seconds)).await;
                WorkResult::success()
            }
            Some(Habit::Returns(seconds)) => {
                WorkResult { requeue: Requeue::After(Duration::from_secs(seconds)), ..WorkResult::success() }
            }
            Some(Habit::Fails) => WorkResult::retry("failing", "as ever"),
            Some(Habit::Panics) => panic!("out of cheese"),
            Some(Habit::Hangs) => std::future::pending().await,
        }
    }
}

struct Leaving<'a>(&'a Play, &'a str);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.0.0.running.lock().get_mut(self.1) {
            *running -= 1;
        }
    }
}

fn start(play: &Play, config: ControllerConfig) -> (Controller<Play>, Telemetry, Shutdown, JoinHandle<()>) {
    let telemetry = Telemetry::default();
    let controller = Controller::new(play.clone(), config, telemetry.clone());
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let (controller, shutdown) = (controller.clone(), shutdown.clone());
        async move { controller.run(&shutdown).await }
    });
    (controller, telemetry, shutdown, running)
}

fn config() -> ControllerConfig {
    ControllerConfig { timeout: Duration::from_secs(60), jitter: Arc::new(|| 1.0), ..ControllerConfig::default() }
}

/// Lets time pass in steps small enough for every task to take its turn.
async fn pass_time(seconds: u64) {
    for _ in 0..seconds * 4 {
        advance(Duration::from_millis(250)).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn polling_looks_at_everything_in_every_cycle_after_the_initial_delay() {
    let play = Play::with(&[("a", Habit::Takes(0)), ("b", Habit::Takes(0))]);
    let (_controller, ..) = start(&play, config());
    pass_time(4).await;
    assert_eq!(play.passes("a"), 0);
    pass_time(3).await;
    assert_eq!((play.passes("a"), play.passes("b")), (1, 1));
    pass_time(30).await;
    assert_eq!((play.passes("a"), play.passes("b")), (2, 2));
    assert_eq!(*play.0.prepared.lock(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_trigger_during_a_pass_makes_it_run_once_more_and_never_at_the_same_time() {
    let play = Play::with(&[("a", Habit::Takes(10))]);
    let (controller, ..) = start(&play, ControllerConfig { initial_delay: Duration::from_secs(9999), ..config() });
    controller.changed("a");
    pass_time(1).await;
    for _ in 0..5 {
        controller.changed("a");
        controller.demand("a");
    }
    assert_eq!(controller.resource("a").expect("known").status, ResourceStatus::InProgress);
    pass_time(25).await;
    assert_eq!(play.passes("a"), 2);
    assert_eq!(controller.resource("a").expect("known").status, ResourceStatus::Success);
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_a_hang_are_counted_and_retried_and_the_others_never_notice() {
    let play = Play::with(&[("bad", Habit::Panics), ("good", Habit::Takes(0)), ("stuck", Habit::Hangs)]);
    let (controller, telemetry, ..) = start(&play, ControllerConfig { max_concurrent: 2, ..config() });
    pass_time(300).await;
    assert!(telemetry.anomalies(Anomaly::Panic) >= 5, "{}", telemetry.anomalies(Anomaly::Panic));
    assert!(telemetry.anomalies(Anomaly::TimedOut) >= 2);
    assert!(play.passes("good") >= 9, "{}", play.passes("good"));
    let bad = controller.resource("bad").expect("known");
    assert_eq!(bad.last.expect("ran").error.as_deref(), Some("out of cheese"));
}

#[tokio::test(start_paused = true)]
async fn retries_keep_their_distance() {
    let play = Play::with(&[("a", Habit::Fails)]);
    let (controller, ..) = start(&play, ControllerConfig { initial_delay: Duration::from_secs(9999), ..config() });
    controller.changed("a");
    pass_time(1).await;
    // 1 + 2 + 4 + 8 + 16 + 32 seconds of waiting make seven passes.
    pass_time(64).await;
    assert_eq!(play.passes("a"), 7);
    let state = controller.resource("a").expect("known");
    assert_eq!((state.status, state.retry_count), (ResourceStatus::Failed, 7));
    play.0.habits.lock().insert("a".into(), Habit::Takes(0));
    controller.changed("a");
    pass_time(1).await;
    assert_eq!(controller.resource("a").expect("known").retry_count, 0);
}

#[tokio::test(start_paused = true)]
async fn no_more_passes_than_allowed_run_at_once() {
    let names: Vec<String> = (0..50).map(|number| format!("r-{number:02}")).collect();
    let habits: Vec<_> = names.iter().map(|name| (name.as_str(), Habit::Takes(1))).collect();
    let play = Play::with(&habits);
    let (_controller, ..) = start(&play, ControllerConfig { max_concurrent: 5, ..config() });
    pass_time(20).await;
    assert_eq!(*play.0.most_at_once.lock(), 5);
    assert!(names.iter().all(|name| play.passes(name) == 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_takes_nothing_new_and_lets_what_runs_finish() {
    let play = Play::with(&[("slow", Habit::Takes(20))]);
    let (controller, _, shutdown, running) = start(&play, config());
    controller.changed("slow");
    pass_time(1).await;
    shutdown.request();
    controller.changed("late");
    pass_time(10).await;
    assert!(!running.is_finished(), "a pass is under way");
    pass_time(15).await;
    running.await.expect("ends");
    assert_eq!((play.passes("slow"), play.passes("late")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever() {
    let play = Play::with(&[("stuck", Habit::Hangs)]);
    let (controller, _, shutdown, running) =
        start(&play, ControllerConfig { grace: Duration::from_secs(5), ..config() });
    controller.changed("stuck");
    pass_time(1).await;
    shutdown.request();
    pass_time(6).await;
    assert!(running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_waits_for_all_and_names_the_one_that_hangs() {
    let play = Play::with(&[("a", Habit::Takes(1)), ("b", Habit::Fails), ("stuck", Habit::Hangs)]);
    let (controller, ..) = start(&play, ControllerConfig { initial_delay: Duration::from_secs(9999), ..config() });
    let sweep = controller.sweep(Duration::from_secs(10)).await.expect("listed");
    assert_eq!(sweep.listed, 3);
    assert_eq!(sweep.outcomes, BTreeMap::from([("retry", 1), ("success", 1)]));
    assert_eq!(sweep.unfinished, ["stuck"]);
    assert!(!sweep.is_complete());
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_is_tried_again_sooner_than_the_next_cycle() {
    let play = Play::with(&[("a", Habit::Takes(0))]);
    *play.0.listing_fails.lock() = true;
    let (_controller, ..) = start(&play, config());
    pass_time(7).await;
    assert_eq!(play.passes("a"), 0);
    *play.0.listing_fails.lock() = false;
    pass_time(5).await;
    assert_eq!(play.passes("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_any_more_is_forgotten() {
    let play = Play::with(&[("a", Habit::Takes(0))]);
    let (controller, ..) = start(&play, config());
    controller.changed("ghost");
    pass_time(7).await;
    let known: Vec<_> = controller.resources().into_iter().map(|state| state.resource_id.to_string()).collect();
    assert_eq!(known, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_due_is_not_late_because_the_one_who_knew_is_busy() {
    let play = Play::with(&[("soon", Habit::Returns(2)), ("stuck", Habit::Hangs), ("stuck too", Habit::Hangs)]);
    let quiet = ControllerConfig { initial_delay: Duration::from_secs(9999), max_concurrent: 3, ..config() };
    let (controller, ..) = start(&play, quiet);
    pass_time(1).await;
    controller.changed("soon");
    pass_time(1).await;
    controller.changed("stuck");
    controller.changed("stuck too");
    pass_time(20).await;
    assert!(play.passes("soon") >= 9, "{} passes in twenty seconds", play.passes("soon"));
}
