//! Somebody who looks all the time who leads, and remembers it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use lcm_sdk::workers::WorkerController;
use tokio::time::Instant;

/// How often is looked.
const BLINK: Duration = Duration::from_millis(1);

/// A time in which somebody led, as far as is certain: it may have been a blink longer at both ends.
#[derive(Debug, Clone)]
struct Term {
    by: String,
    from: Instant,
    until: Instant,
}

/// Who led when, by fencing token, which is the order in which etcd let them.
#[derive(Debug, Clone, Default)]
pub(super) struct Terms(BTreeMap<i64, Term>);

impl Terms {
    fn note(&mut self, controller: &WorkerController) {
        // Valid at some moment between the two.
        let before = Instant::now();
        let Some(leadership) = controller.lease() else { return };
        let after = Instant::now();
        let token = leadership.fence().0.expect("it was elected");
        let term = || Term { by: controller.identity().to_owned(), from: after, until: before };
        let term = self.0.entry(token).or_insert_with(term);
        assert_eq!(term.by, controller.identity(), "two lead with the token {token}");
        term.until = before;
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// No term began before the one before it had ended.
    pub(super) fn assert_one_at_a_time(&self) {
        let terms: Vec<_> = self.0.values().collect();
        for pair in terms.windows(2) {
            assert!(pair[0].until <= pair[1].from, "two led at a time: {pair:?}");
        }
    }
}

/// Looks until it is told to stop.
pub(super) struct Witness {
    terms: Arc<Mutex<Terms>>,
    is_over: Arc<AtomicBool>,
    looking: JoinHandle<()>,
}

impl Witness {
    pub(super) fn of(controllers: impl Iterator<Item = WorkerController>) -> Self {
        let (terms, is_over) = (Arc::new(Mutex::new(Terms::default())), Arc::new(AtomicBool::new(false)));
        let controllers: Vec<_> = controllers.collect();
        let looking = std::thread::spawn({
            let (terms, is_over) = (Arc::clone(&terms), Arc::clone(&is_over));
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let mut terms = terms.lock().expect("no panic while it was held");
                    controllers.iter().for_each(|controller| terms.note(controller));
                    drop(terms);
                    std::thread::sleep(BLINK);
                }
            }
        });
        Self { terms, is_over, looking }
    }

    fn terms(&self) -> Terms {
        self.terms.lock().expect("the witness saw nothing wrong").clone()
    }

    /// The longest that nobody led between two terms, the time before a moment not counted.
    pub(super) fn longest_take_over_since(&self, moment: Instant) -> Duration {
        let terms = self.terms();
        let terms: Vec<_> = terms.0.values().collect();
        let gaps = terms.windows(2).map(|pair| pair[1].from.saturating_duration_since(pair[0].until.max(moment)));
        gaps.max().unwrap_or_default()
    }

    pub(super) fn end(self) -> Terms {
        self.is_over.store(true, Ordering::Relaxed);
        let terms = self.terms();
        self.looking.join().expect("the witness saw nothing wrong");
        terms
    }
}
