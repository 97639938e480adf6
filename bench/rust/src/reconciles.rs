//! What a pass that does nothing costs: LCM's controller next to kube-runtime's applier.
//!
//! Each knows so many workers, and every round looks at all of them once: LCM because a listing named them, and once
//! more because each is said to have changed, which makes it read every single one; kube-runtime because its watch names
//! them. The rounds of all take turns, and the best of each counts: a neighbour on the machine can make a round slower,
//! never faster.
//!
//! LCM runs ten passes at once, which is its default. kube-runtime does so too, and with no limit, which is its own
//! default; it is compared at whichever it does better.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::controllers::Again;
use crate::controllers::kube::KubeApplier;
use crate::controllers::lcm::LcmController;
use crate::measure::processor_time;
use crate::{Error, tell};

const CONCURRENCY: u16 = 10;
/// kube-runtime's word for no limit.
const NO_LIMIT: u16 = 0;

/// What one of them needs for a pass.
#[derive(Debug, Serialize)]
struct Measured {
    who: &'static str,
    size: usize,
    /// Processor time of a pass, in nanoseconds.
    processor_ns: f64,
    /// How many passes were over in a second.
    rate: f64,
}

struct Best {
    processor: Duration,
    wall: Duration,
}

impl Best {
    fn new() -> Self {
        Self { processor: Duration::MAX, wall: Duration::MAX }
    }

    async fn take<T>(&mut self, round: impl Future<Output = T>) -> T {
        let (spent, began) = (processor_time(), Instant::now());
        let output = round.await;
        self.processor = self.processor.min(processor_time().saturating_sub(spent));
        self.wall = self.wall.min(began.elapsed());
        output
    }

    fn of(&self, who: &'static str, size: usize) -> Measured {
        let count = size as f64;
        Measured {
            who,
            size,
            processor_ns: self.processor.as_secs_f64() * 1e9 / count,
            rate: count / self.wall.as_secs_f64(),
        }
    }
}

/// Measures at each size, in so many rounds.
///
/// # Errors
/// If something cannot be run.
pub fn run(sizes: &[usize], rounds: usize) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for size in sizes {
        eprintln!("      {size} resources");
        runtime.block_on(compare(*size, rounds))?;
    }
    Ok(())
}

async fn compare(size: usize, rounds: usize) -> Result<(), Error> {
    let lcm = LcmController::new(size, usize::from(CONCURRENCY), Again::OnChange);
    let mut limited = KubeApplier::new(size, CONCURRENCY, Again::OnChange);
    let mut unlimited = KubeApplier::new(size, NO_LIMIT, Again::OnChange);
    let (mut listed, mut told) = (Best::new(), Best::new());
    let (mut kube_limited, mut kube_unlimited) = (Best::new(), Best::new());
    // One more round than asked for: the first fills caches and tables, and is beaten by any other.
    for _ in 0..=rounds {
        listed.take(lcm.look_at_all()).await?;
        kube_limited.take(limited.look_at_all()).await;
        told.take(lcm.tell_of_all()).await;
        kube_unlimited.take(unlimited.look_at_all()).await;
    }
    for (who, best) in
        [("listed", listed), ("told", told), ("kube, limited", kube_limited), ("kube, unlimited", kube_unlimited)]
    {
        tell(&best.of(who, size))?;
    }
    Ok(())
}
