//! Errors in scenario files.

use std::fmt;
use std::io;

use super::builtin::BUILTIN;
use crate::suggest::with_suggestion;

/// Maximum length of one part of a message, in characters.
const MAX_CHARS: usize = 400;

/// Error in a scenario: the file, the position, the value found and the values accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    source: String,
    place: String,
    why: String,
}

impl ScenarioError {
    pub(crate) fn new(source: &str, place: &str, why: impl fmt::Display) -> Self {
        Self { source: source.to_owned(), place: truncate(place), why: truncate(&why.to_string()) }
    }

    pub(super) fn from_yaml(source: &str, place: &impl fmt::Display, error: &serde_yaml_ng::Error) -> Self {
        let (place, why) = (place.to_string(), error.to_string());
        // The YAML error repeats the position.
        let why = with_suggestion(why.strip_prefix(&format!("{place}: ")).unwrap_or(&why).to_owned());
        Self::new(source, if place == "." { "" } else { &place }, why)
    }

    pub(super) fn unreadable(source: &str, error: &io::Error) -> Self {
        let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        Self::new(source, "", format!("{error}; accepted: a YAML file, or one of {}", names.join(", ")))
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, place, why } = self;
        if place.is_empty() { write!(f, "{source}: {why}") } else { write!(f, "{source}: {place}: {why}") }
    }
}

impl std::error::Error for ScenarioError {}

/// Truncates text, because values from a file have no length limit.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
