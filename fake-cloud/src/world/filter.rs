//! EC2's filters: names that must be known, values with wildcards, OR within a filter, AND between filters.

use std::str::Chars;

use chrono::{DateTime, Utc};

use super::error::AwsError;

/// How many filter values one call may carry.
const MOST_VALUES: usize = 200;

/// A field one can filter a kind of resource by.
pub trait Field: Sized {
    /// What is filtered.
    type Resource;

    /// The field of this name, if there is one.
    fn parse(name: &str) -> Option<Self>;

    /// Whether any of the values the resource has in this field passes the test.
    fn any(&self, resource: &Self::Resource, now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool;
}

/// One filter.
#[derive(Debug, Clone)]
pub struct Filter<F> {
    field: F,
    patterns: Vec<Pattern>,
}

/// The filters of a call.
#[derive(Debug, Clone)]
pub struct Filters<F>(Vec<Filter<F>>);

impl<F> Default for Filters<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F: Field> Filters<F> {
    /// Reads filters as they were sent: names with their values.
    ///
    /// # Errors
    /// `InvalidParameterValue` for a name nobody knows, `FilterLimitExceeded` for too many values.
    pub fn parse<'a>(sent: impl IntoIterator<Item = (&'a str, Vec<&'a str>)>) -> Result<Self, AwsError> {
        let mut filters = Vec::new();
        let mut values = 0;
        for (name, sent_values) in sent {
            let field = F::parse(name)
                .ok_or_else(|| AwsError::new("InvalidParameterValue", format!("The filter '{name}' is invalid")))?;
            values += sent_values.len();
            if values > MOST_VALUES {
                let message =
                    format!("The maximum number of filter values specified on a single call is {MOST_VALUES}");
                return Err(AwsError::new("FilterLimitExceeded", message));
            }
            filters.push(Filter { field, patterns: sent_values.into_iter().map(Pattern::new).collect() });
        }
        Ok(Self(filters))
    }

    /// Whether a resource passes all of them.
    pub fn pass(&self, resource: &F::Resource, now: DateTime<Utc>) -> bool {
        self.0.iter().all(|filter| {
            filter.field.any(resource, now, &|value| filter.patterns.iter().any(|pattern| pattern.matches(value)))
        })
    }
}

/// A value with `*` and `?`; a backslash takes their meaning away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// No wildcard in it.
    Exactly(String),
    /// What must follow on what.
    Like(Vec<Piece>),
}

/// A part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// This character.
    One(char),
    /// Any one character.
    AnyOne,
    /// Any number of characters.
    AnyMany,
}

impl Pattern {
    /// Reads a pattern.
    pub fn new(text: &str) -> Self {
        if !text.contains(['*', '?', '\\']) {
            return Self::Exactly(text.to_owned());
        }
        let mut pieces = Vec::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            pieces.push(match character {
                '*' => Piece::AnyMany,
                '?' => Piece::AnyOne,
                '\\' => Piece::One(characters.next().unwrap_or('\\')),
                other => Piece::One(other),
            });
        }
        Self::Like(pieces)
    }

    /// Whether a value fits.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exactly(text) => text == value,
            Self::Like(pieces) => like(pieces, value),
        }
    }
}

/// Greedy with one point to come back to, so a hostile pattern costs pieces × characters and not more.
fn like(pieces: &[Piece], value: &str) -> bool {
    let (mut piece, mut rest) = (0, value.chars());
    // The piece after the last star, and what that star has not swallowed yet.
    let mut retry: Option<(usize, Chars<'_>)> = None;
    loop {
        let before = rest.clone();
        match (pieces.get(piece), rest.next()) {
            (Some(Piece::AnyMany), _) => {
                rest = before;
                piece += 1;
                retry = Some((piece, rest.clone()));
            }
            (None, None) => return true,
            (Some(Piece::AnyOne), Some(_)) => piece += 1,
            (Some(Piece::One(wanted)), Some(found)) if *wanted == found => piece += 1,
            (Some(Piece::AnyOne | Piece::One(_)), None) => return false,
            (Some(Piece::One(_)) | None, Some(_)) => {
                let Some((after_star, unswallowed)) = &mut retry else { return false };
                unswallowed.next();
                piece = *after_star;
                rest = unswallowed.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_ec2_documents_them() {
        for (pattern, value, fits) in [
            ("*cml2.9*", "cisco-cml2.9.1-lablet", true),
            ("cml", "cisco-cml2.9.1", false),
            ("i-?2", "i-12", true),
            ("i-?2", "i-112", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            (r"\*", "*", true),
            (r"\*", "x", false),
            ("Case", "case", false),
            ("ä?ü", "äöü", true),
            ("*ö*", "äöü", true),
            ("**", "", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("*a?", "aaa", true),
            ("*ab", "aab", true),
            ("a*a", "a", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(value), fits, "{pattern} {value}");
        }
    }

    /// The matcher against the plainest definition there is, over all short patterns and values.
    #[test]
    fn the_matcher_agrees_with_the_definition() {
        fn defined(pattern: &str, value: &str) -> bool {
            match (pattern.chars().next(), value.chars().next()) {
                (None, None) => true,
                (Some('*'), None) => defined(&pattern[1..], value),
                (Some('*'), Some(_)) => defined(&pattern[1..], value) || defined(pattern, &value[1..]),
                (Some('?'), Some(_)) => defined(&pattern[1..], &value[1..]),
                (Some(wanted), Some(found)) => wanted == found && defined(&pattern[1..], &value[1..]),
                (Some(_), None) | (None, Some(_)) => false,
            }
        }
        fn words(letters: &str, longest: usize) -> Vec<String> {
            let mut words = vec![String::new()];
            let mut from = 0;
            for _ in 0..longest {
                let until = words.len();
                for place in from..until {
                    words.extend(letters.chars().map(|letter| format!("{}{letter}", words[place])).collect::<Vec<_>>());
                }
                from = until;
            }
            words
        }
        for pattern in words("ab*?", 5) {
            for value in words("ab", 5) {
                assert_eq!(Pattern::new(&pattern).matches(&value), defined(&pattern, &value), "{pattern} {value}");
            }
        }
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = Pattern::new(&"*a".repeat(100));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(5000))));
    }
}
