//! Scenarios shipped with the crate.

use super::{Scenario, ScenarioError};

/// Scenario shipped with the crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltinScenario {
    /// Name accepted by [`Scenario::find`] and `--scenario`.
    pub name: &'static str,
    text: &'static str,
}

/// All built-in scenarios.
pub const BUILTIN: [BuiltinScenario; 3] = [
    BuiltinScenario { name: "orphans", text: include_str!("../../scenarios/orphans.yaml") },
    BuiltinScenario { name: "drain", text: include_str!("../../scenarios/drain.yaml") },
    BuiltinScenario { name: "bad-day", text: include_str!("../../scenarios/bad-day.yaml") },
];

impl BuiltinScenario {
    /// Parses the scenario.
    ///
    /// # Errors
    /// The built-in file is invalid; a unit test rules this out.
    pub fn load(&self) -> Result<Scenario, ScenarioError> {
        Scenario::parse(self.name, self.text)
    }
}
