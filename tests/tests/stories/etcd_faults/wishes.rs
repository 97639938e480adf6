//! Operators who change their minds all the time, and notice whether each change of mind is carried out, and once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::leaders::Contest;
use lcm_tests::harness::eventually;

/// How often they look.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the announcement of a wish may take. Polling finds what was never announced.
const ANNOUNCEMENT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Tally {
    wished: AtomicUsize,
    done: AtomicUsize,
    /// Nothing new is wished for.
    is_content: AtomicBool,
    is_over: AtomicBool,
}

/// What is wanted of one worker.
struct Wish {
    worker: String,
    wanted: &'static str,
    /// When the wish was written down; none when it has come true.
    since: Option<String>,
}

pub(super) struct Operators {
    tally: Arc<Tally>,
    wishing: JoinHandle<()>,
}

impl Operators {
    /// Begins with workers that run.
    pub(super) async fn begin(contest: Arc<Contest>, workers: &[String], etcd_endpoints: &str) -> Self {
        let tally = Arc::new(Tally::default());
        let etcd = Client::connect(etcd_endpoints.split(',').collect::<Vec<_>>(), None).await.expect("a client");
        let wish = |worker: &String| Wish { worker: worker.clone(), wanted: "running", since: None };
        let mut wishes: Vec<_> = workers.iter().map(wish).collect();
        let wishing = tokio::spawn({
            let tally = Arc::clone(&tally);
            async move {
                while !tally.is_over.load(Ordering::Relaxed) {
                    wishes.iter_mut().for_each(|wish| wish.look(&contest, &tally, &etcd));
                    sleep(PAUSE).await;
                }
            }
        });
        Self { tally, wishing }
    }

    /// How many wishes have not come true yet.
    pub(super) fn open(&self) -> usize {
        // In this order: one that comes true in between is not counted as minus one.
        let done = self.tally.done.load(Ordering::SeqCst);
        self.tally.wished.load(Ordering::SeqCst) - done
    }

    /// Waits until some more wishes have come true.
    pub(super) async fn see_something_done(&self) {
        let done = || self.tally.done.load(Ordering::SeqCst);
        let before = done();
        eventually("something is done", || async { self.has_not_failed() && done() >= before + 4 }).await;
    }

    /// Waits until everything that was wished for has come true.
    pub(super) async fn let_all_come_true(&self) {
        self.are_content().await;
        self.tally.is_content.store(false, Ordering::SeqCst);
    }

    /// The same, and nothing new is wished for.
    async fn are_content(&self) {
        self.tally.is_content.store(true, Ordering::SeqCst);
        // Whoever was about to wish has done so by then.
        sleep(2 * PAUSE).await;
        eventually("every wish comes true", || async { self.has_not_failed() && self.open() == 0 }).await;
    }

    fn has_not_failed(&self) -> bool {
        assert!(!self.wishing.is_finished(), "the operators saw something wrong");
        true
    }

    /// How many wishes were made, when all have come true.
    pub(super) async fn end(&self) -> usize {
        self.are_content().await;
        self.tally.is_over.store(true, Ordering::SeqCst);
        eventually("the operators go home", || async { self.wishing.is_finished() }).await;
        assert_eq!(self.open(), 0);
        self.tally.wished.load(Ordering::SeqCst)
    }
}

impl Wish {
    fn look(&mut self, contest: &Contest, tally: &Tally, etcd: &Client) {
        let record = contest.harness.cloud.worker(&self.worker).expect("it exists");
        if record.status() != self.wanted {
            return;
        }
        if let Some(since) = self.since.take() {
            let history = record.get("state_history").and_then(Value::as_array).cloned().unwrap_or_default();
            let taken: Vec<_> = history
                .iter()
                .filter(|step| step["at"].as_str() > Some(since.as_str()))
                .filter_map(|step| step["to"].as_str())
                .collect();
            let (way, at_once) = match self.wanted {
                "stopped" => (["stopping", "stopped"], ["stopped"]),
                _ => (["starting", "running"], ["running"]),
            };
            assert!(taken == way || taken == at_once, "{} took another way to {}: {taken:?}", self.worker, self.wanted);
            tally.done.fetch_add(1, Ordering::SeqCst);
        }
        if !tally.is_content.load(Ordering::SeqCst) {
            self.change_mind(contest, tally, etcd);
        }
    }

    fn change_mind(&mut self, contest: &Contest, tally: &Tally, etcd: &Client) {
        self.wanted = if self.wanted == "running" { "stopped" } else { "running" };
        tally.wished.fetch_add(1, Ordering::SeqCst);
        let written = contest.harness.cloud.update_worker(&self.worker, json!({"desired_status": self.wanted}));
        self.since = written.expect("a good wish").text("updated_at").map(str::to_owned);
        // As the control plane does it, beside what it keeps itself: it may fail, and nobody waits for it.
        let (mut etcd, key, wanted) =
            (etcd.clone(), format!("/lcm/workers/{}/desired_state", self.worker), self.wanted);
        tokio::spawn(async move { timeout(ANNOUNCEMENT, etcd.put(key, wanted, None)).await });
    }
}
