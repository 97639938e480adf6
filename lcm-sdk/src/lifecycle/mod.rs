//! The pure core: every decision LCM ever makes, as functions over data.
//!
//! No module here reads a clock, touches a network, logs, spawns or sleeps. The time is an argument, deadlines are
//! returned, and what should happen is data. The map:
//!
//! | question | room |
//! |---|---|
//! | What states are there, and how may they change? | [`status`], [`transition`] |
//! | What does the control plane tell us? | [`worker`], [`worker_json`], [`template`], [`session`], [`license`], [`region`] |
//! | What does EC2 tell us? | [`instance`], [`observation`], [`failure`], [`error_source`] |
//! | What may be tuned? | [`policy`], [`backoff`] |
//! | What must be looked at? | [`query`] |
//! | What is decided? | [`mod@decide`] → one handler for each status → [`decision`], [`effect`], [`reason`], [`outcome`] |
//! | How is a launch made exactly once? | [`launch`] |
//! | What is written afterwards? | [`mod@record`], [`patch`], [`counters`], [`event`] |
//! | What about drains, idle workers, placement? | [`drain`], [`idle`], [`scale_down`], [`fleet`], [`placement`] |
//! | What exists, and what is gone? | [`discovery`], [`orphans`] |

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub mod backoff;
pub mod counters;
pub mod decide;
pub mod decision;
pub mod discovery;
pub mod drain;
pub mod effect;
pub mod error_source;
pub mod event;
pub mod failure;
pub mod fleet;
mod handlers;
pub mod idle;
pub mod ids;
pub mod instance;
pub mod json;
pub mod launch;
pub mod license;
pub mod observation;
pub mod orphans;
pub mod outcome;
pub mod patch;
pub mod placement;
pub mod policy;
pub mod query;
pub mod reason;
pub mod record;
pub mod region;
pub mod scale_down;
pub mod secret;
pub mod session;
pub mod status;
pub mod template;
pub mod time;
pub mod transition;
pub mod wire_enum;
pub mod worker;
pub mod worker_json;
