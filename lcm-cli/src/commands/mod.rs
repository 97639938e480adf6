//! The commands, one per module.

pub(crate) mod completions;
pub(crate) mod controller;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod leader;
pub(crate) mod orphans;
pub(crate) mod plan;
pub(crate) mod reconcile;
pub(crate) mod replay;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod simulate;
pub(crate) mod workers;
