//! The same events under several policies.

use serde::Serialize;

use super::events::{Events, Fleet};
use super::history::{Figures, digest};
use super::run::{SimulationError, run};
use crate::lifecycle::policy::Policy;

/// The figures of each policy, in the given order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// Version of LCM that decided.
    pub version: &'static str,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Duration in hours.
    pub hours: f64,
    /// Digest of the fleet, the events, the policies, the duration and the seed.
    pub digest: String,
    /// Name and figures of each policy.
    pub rows: Vec<(String, Figures)>,
}

/// Simulates the same fleet and events under each policy.
///
/// # Errors
/// Those of [`run`].
///
/// ```
/// use lcm_sdk::Policy;
/// use lcm_sdk::lifecycle::ScaleDownPolicy;
/// use lcm_sdk::simulate::{Events, Fleet, compare};
///
/// let mut events = Events::default();
/// events.sessions_per_hour = 2.0;
/// let thrifty = Policy { scale_down: ScaleDownPolicy::new(0), ..Policy::default() };
/// let policies = [("today", &Policy::default()), ("thrifty", &thrifty)];
/// let comparison = compare(policies, &Fleet::new(5), &events, 48.0, 7)?;
/// let hours: Vec<f64> = comparison.rows.iter().map(|(_, figures)| figures.instance_hours).collect();
/// assert!(hours[1] < hours[0]);
/// # Ok::<(), lcm_sdk::simulate::SimulationError>(())
/// ```
pub fn compare<'a>(
    policies: impl IntoIterator<Item = (&'a str, &'a Policy)>,
    fleet: &Fleet,
    events: &Events,
    hours: f64,
    seed: u64,
) -> Result<Comparison, SimulationError> {
    let mut inputs = Vec::new();
    let mut rows = Vec::new();
    for (name, policy) in policies {
        let history = run(fleet, events, policy, hours, seed)?;
        inputs.push((name, history.inputs));
        rows.push((name.to_owned(), history.figures));
    }
    Ok(Comparison { version: env!("CARGO_PKG_VERSION"), seed, hours, digest: digest(&inputs), rows })
}
