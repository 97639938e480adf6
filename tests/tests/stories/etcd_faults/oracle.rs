//! Samples the leases of all controllers and records the terms of their leaders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use lcm_sdk::workers::WorkerController;
use tokio::time::Instant;

const SAMPLING_INTERVAL: Duration = Duration::from_millis(1);

/// Period in which a controller certainly led. The true term may exceed it by one sampling interval at either end.
#[derive(Debug, Clone)]
struct Term {
    leader: String,
    start: Instant,
    end: Instant,
}

/// Terms by fencing token, which is the order in which etcd granted them.
#[derive(Debug, Clone, Default)]
pub(super) struct Terms(BTreeMap<i64, Term>);

impl Terms {
    fn sample(&mut self, controller: &WorkerController) {
        // The lease was valid at some moment between the two.
        let before = Instant::now();
        let Some(lease) = controller.lease() else { return };
        let after = Instant::now();
        let token = lease.fence().0.expect("the leader was elected");
        let term = || Term { leader: controller.identity().to_owned(), start: after, end: before };
        let term = self.0.entry(token).or_insert_with(term);
        assert_eq!(term.leader, controller.identity(), "two controllers lead with the token {token}");
        term.end = before;
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Asserts that each term began after the previous one had ended.
    pub(super) fn assert_no_overlap(&self) {
        let terms: Vec<_> = self.0.values().collect();
        for pair in terms.windows(2) {
            assert!(pair[0].end <= pair[1].start, "two terms overlap: {pair:?}");
        }
    }
}

/// Samples in a thread of its own until it is stopped.
pub(super) struct LeaderOracle {
    terms: Arc<Mutex<Terms>>,
    is_stopped: Arc<AtomicBool>,
    sampler: JoinHandle<()>,
}

impl LeaderOracle {
    pub(super) fn start(controllers: impl Iterator<Item = WorkerController>) -> Self {
        let (terms, is_stopped) = (Arc::new(Mutex::new(Terms::default())), Arc::new(AtomicBool::new(false)));
        let controllers: Vec<_> = controllers.collect();
        let sampler = std::thread::spawn({
            let (terms, is_stopped) = (Arc::clone(&terms), Arc::clone(&is_stopped));
            move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    let mut terms = terms.lock().expect("lock is not poisoned");
                    controllers.iter().for_each(|controller| terms.sample(controller));
                    drop(terms);
                    std::thread::sleep(SAMPLING_INTERVAL);
                }
            }
        });
        Self { terms, is_stopped, sampler }
    }

    fn terms(&self) -> Terms {
        self.terms.lock().expect("the oracle found no violation").clone()
    }

    /// Longest gap between two terms. Time before `start` is not counted.
    pub(super) fn longest_gap_since(&self, start: Instant) -> Duration {
        let terms = self.terms();
        let terms: Vec<_> = terms.0.values().collect();
        let gaps = terms.windows(2).map(|pair| pair[1].start.saturating_duration_since(pair[0].end.max(start)));
        gaps.max().unwrap_or_default()
    }

    pub(super) fn stop(self) -> Terms {
        self.is_stopped.store(true, Ordering::Relaxed);
        let terms = self.terms();
        self.sampler.join().expect("the oracle found no violation");
        terms
    }
}
