//! Tests of the lifecycle through its public API.

mod common;
mod convergence;
mod drain;
mod grid;
mod launch;
mod orphans;
mod properties;
mod record;
mod running;
mod seeds;
