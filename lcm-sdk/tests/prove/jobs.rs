//! Runs many histories on all cores. Each has its own runtime and clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::summary::Summary;

/// Number of concurrent histories.
fn threads() -> usize {
    number("LCM_JOBS").unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A number from the environment. An unreadable one is an error, not a default.
pub(crate) fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let number = value.parse().ok();
    assert!(number.is_some(), "{name} is {value:?}; accepted: a whole number");
    number
}

/// Runs every job once.
pub(crate) fn all<J: Sync>(jobs: &[J], work: impl Fn(&J, &mut Summary) + Sync) -> Summary {
    run(|number, summary| jobs.get(number).map(|job| work(job, summary)))
}

/// Runs jobs until the time is over, and reports progress.
pub(crate) fn until_over(budget: Duration, work: impl Fn(u64, &mut Summary) + Sync) -> Summary {
    let began = Instant::now();
    let told = AtomicUsize::new(0);
    run(|number, summary| {
        let over = began.elapsed();
        let steps = usize::try_from(over.as_millis() * 20 / budget.as_millis().max(1)).unwrap_or(usize::MAX);
        if told.fetch_max(steps, Ordering::Relaxed) < steps && steps <= 20 {
            println!("  {:>3} %  {:>6.0} s  {number} histories", steps * 5, over.as_secs_f64());
        }
        (over < budget).then(|| work(number as u64, summary))
    })
}

/// Runs jobs by their numbers, until one returns that there are no more.
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
