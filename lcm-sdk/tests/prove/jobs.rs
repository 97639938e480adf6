//! Runs many histories on all cores. Each has its own runtime and clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::summary::Summary;

/// Number of concurrent histories.
fn threads() -> usize {
    number_from_env("LCM_JOBS").unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Reads a number from an environment variable. Panics if the value is not a number.
pub(crate) fn number_from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let number = value.parse().ok();
    assert!(number.is_some(), "invalid {name} {value:?}: expected a whole number");
    number
}

/// Runs every job once.
pub(crate) fn run_all<J: Sync>(jobs: &[J], work: impl Fn(&J, &mut Summary) + Sync) -> Summary {
    run(|number, summary| jobs.get(number).map(|job| work(job, summary)))
}

/// Runs jobs until the time is over.
pub(crate) fn run_until(budget: Duration, work: impl Fn(&mut Summary) + Sync) -> Summary {
    let began = Instant::now();
    run(|_, summary| (began.elapsed() < budget).then(|| work(summary)))
}

/// Runs jobs by number until one returns `None`.
fn run(job: impl Fn(usize, &mut Summary) -> Option<()> + Sync) -> Summary {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || {
            let mut summary = Summary::default();
            while job(next.fetch_add(1, Ordering::Relaxed), &mut summary).is_some() {}
            summary
        };
        let workers: Vec<_> = (0..threads()).map(|_| scope.spawn(work)).collect();
        let mut all = Summary::default();
        for worker in workers {
            all.merge(worker.join().expect("a history panicked"));
        }
        all
    })
}
