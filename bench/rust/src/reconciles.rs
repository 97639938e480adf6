//! Cost of a no-op reconcile: LCM's controller next to kube-runtime's applier.
//!
//! Both know the same number of workers, and every round reconciles each of them once. LCM does so because a listing
//! returned them, and once more because each is reported as changed, which makes it fetch them one by one;
//! kube-runtime because its watch names them. The rounds of all variants alternate.
//!
//! LCM runs ten reconciles concurrently, its default. kube-runtime is measured with the same limit and without one,
//! its own default; the faster of the two counts.

use serde::Serialize;

use crate::controllers::Again;
use crate::controllers::kube::KubeApplier;
use crate::controllers::lcm::LcmController;
use crate::measure::processor_time;
use crate::{Error, report};

const CONCURRENCY: u16 = 10;
/// kube-runtime's value for "no limit".
const NO_LIMIT: u16 = 0;

/// Cost of a no-op reconcile in one variant.
#[derive(Debug, Serialize)]
struct Measured {
    who: &'static str,
    size: usize,
    /// Processor time per reconcile in nanoseconds, one value per round.
    processor_ns: Vec<f64>,
}

impl Measured {
    const fn new(who: &'static str, size: usize) -> Self {
        Self { who, size, processor_ns: Vec::new() }
    }

    async fn round<T>(&mut self, round: impl Future<Output = T>) -> T {
        let began = processor_time();
        let output = round.await;
        let spent = processor_time().saturating_sub(began);
        self.processor_ns.push(spent.as_secs_f64() * 1e9 / self.size as f64);
        output
    }
}

/// Measures at each size, in the given number of rounds.
///
/// # Errors
/// If a listing fails or the runtime cannot be built.
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
    // Fills caches and tables.
    lcm.reconcile_listed().await?;
    limited.reconcile_all().await;
    unlimited.reconcile_all().await;
    let [mut listed, mut changed, mut kube_limited, mut kube_unlimited] =
        ["listed", "changed", "kube, limited", "kube, unlimited"].map(|who| Measured::new(who, size));
    for _ in 0..rounds {
        listed.round(lcm.reconcile_listed()).await?;
        kube_limited.round(limited.reconcile_all()).await;
        changed.round(lcm.reconcile_changed()).await;
        kube_unlimited.round(unlimited.reconcile_all()).await;
    }
    for measured in [listed, changed, kube_limited, kube_unlimited] {
        report(&measured)?;
    }
    Ok(())
}
