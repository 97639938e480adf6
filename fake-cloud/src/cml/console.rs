//! What is done to a system from outside, behind the back of whoever uses its API.

use serde_json::Value;

use super::boot::BootStage;
use super::licensing::{Deregistration, Registration};
use super::server::CmlServer;
use super::system_stats::Load;

impl CmlServer {
    /// Holds it at a stage, whatever the clock says; `None` lets it go on.
    pub fn hold_at(&self, stage: Option<BootStage>) {
        self.with(|state, _| state.held_at = stage);
    }

    /// Ends every login, as a restart of the controller does: the next request gets 401.
    pub fn end_all_logins(&self) {
        self.with(|state, _| state.tokens.revoke_all());
    }

    /// Takes everything away that people made, as if from the console.
    pub fn wipe(&self) {
        self.with(|state, _| {
            state.labs.clear();
            state.telemetry.clear();
        });
    }

    /// How busy it says it is; `None` is what its nodes make plausible.
    pub fn set_load(&self, load: Option<Load>) {
        self.with(|state, _| state.load = load);
    }

    /// How the next registrations end.
    pub fn set_registration(&self, outcome: Registration) {
        self.with(|state, _| state.licensing.next_registration = outcome);
    }

    /// How the next deregistrations are answered.
    pub fn set_deregistration(&self, answer: Deregistration) {
        self.with(|state, _| state.licensing.next_deregistration = answer);
    }

    /// Notes that somebody did something, as if from a browser.
    pub fn record_activity(&self, category: &str, data: Value) {
        self.with(|state, now| state.telemetry.note(category, data, now));
    }
}
