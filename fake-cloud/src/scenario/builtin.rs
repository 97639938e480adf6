//! The scenarios that come with the crate.

use super::{Scenario, ScenarioError};

/// A scenario that comes with the crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltinScenario {
    /// Its name.
    pub name: &'static str,
    text: &'static str,
}

/// All of them.
pub const BUILTIN: [BuiltinScenario; 3] = [
    BuiltinScenario { name: "orphans", text: include_str!("../../scenarios/orphans.yaml") },
    BuiltinScenario { name: "drain", text: include_str!("../../scenarios/drain.yaml") },
    BuiltinScenario { name: "bad-day", text: include_str!("../../scenarios/bad-day.yaml") },
];

impl BuiltinScenario {
    /// The scenario.
    ///
    /// # Errors
    /// None that a test of this crate would not have found.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::parse(self.name, self.text)
    }
}
