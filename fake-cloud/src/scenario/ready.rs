//! The scenarios that come with the crate.

use super::{Scenario, ScenarioError};

/// A scenario that comes with the crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Its name.
    pub name: &'static str,
    text: &'static str,
}

/// All of them.
pub const READY: [Ready; 3] = [
    Ready { name: "orphans", text: include_str!("../../scenarios/orphans.yaml") },
    Ready { name: "drain", text: include_str!("../../scenarios/drain.yaml") },
    Ready { name: "bad-day", text: include_str!("../../scenarios/bad-day.yaml") },
];

impl Ready {
    /// The scenario.
    ///
    /// # Errors
    /// None that a test of this crate would not have found.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::parse(self.name, self.text)
    }
}
