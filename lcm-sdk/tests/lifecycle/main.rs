//! Tests of the lifecycle through its public API.

mod common;
mod convergence;
mod drain;
// Explores for most of a minute, and is the same with every feature.
#[cfg(not(feature = "runtime"))]
mod graph;
mod grid;
mod launch;
mod orphans;
mod properties;
mod record;
mod running;
mod seeds;
mod simulate;
mod statuses;
mod trust;
