//! The core, tested as its users see it.

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
