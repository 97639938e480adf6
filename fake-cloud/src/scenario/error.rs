//! What is wrong with a scenario.

use std::fmt;
use std::io;

use super::builtin::BUILTIN;

/// Longest part of an error, in signs.
const LONGEST: usize = 400;

/// What is wrong with a scenario: in which file, at which place, what it says and what it may say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    source: String,
    place: String,
    why: String,
}

impl ScenarioError {
    pub(super) fn new(source: &str, place: &str, why: impl fmt::Display) -> Self {
        Self { source: source.to_owned(), place: cut(place), why: cut(&why.to_string()) }
    }

    pub(super) fn at(source: &str, place: &impl fmt::Display, error: &serde_yaml_ng::Error) -> Self {
        let (place, why) = (place.to_string(), error.to_string());
        // YAML's own words begin with the place as well.
        let why = why.strip_prefix(&format!("{place}: ")).unwrap_or(&why).to_owned();
        Self::new(source, if place == "." { "" } else { &place }, why)
    }

    pub(super) fn unreadable(source: &str, error: &io::Error) -> Self {
        let names: Vec<&str> = BUILTIN.iter().map(|ready| ready.name).collect();
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

/// What a file says may be as long as the file; nobody reads more of it in an error than this.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
