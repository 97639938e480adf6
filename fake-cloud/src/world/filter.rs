//! EC2 filters. Values may contain wildcards; values of one filter are combined with OR, filters with AND.

use std::str::Chars;

use chrono::{DateTime, Utc};

use super::error::AwsError;

/// Maximum number of filter values in one call.
const MAX_VALUES: usize = 200;

/// A filterable field of a resource type.
pub trait Field: Sized {
    /// The resource type.
    type Resource;

    /// Returns the field with this filter name, or `None` if the name is unknown.
    fn parse(name: &str) -> Option<Self>;

    /// Returns whether any value of this field passes the test.
    fn any(&self, resource: &Self::Resource, now: DateTime<Utc>, test: &dyn Fn(&str) -> bool) -> bool;
}

/// Refuses more filter values than EC2 accepts in one call.
pub(crate) fn check_filter_values(values: usize) -> Result<(), AwsError> {
    if values > MAX_VALUES {
        let message = format!("The maximum number of filter values specified on a single call is {MAX_VALUES}");
        return Err(AwsError::new("FilterLimitExceeded", message));
    }
    Ok(())
}

/// A field and the patterns of its values.
#[derive(Debug, Clone)]
pub struct Filter<F> {
    field: F,
    patterns: Vec<Pattern>,
}

/// All filters of a request.
#[derive(Debug, Clone)]
pub struct Filters<F>(Vec<Filter<F>>);

impl<F> Default for Filters<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F: Field> Filters<F> {
    /// Parses filter names with their values.
    ///
    /// # Errors
    /// `InvalidParameterValue` for an unknown name, `FilterLimitExceeded` for too many values.
    pub fn parse<'a>(sent: impl IntoIterator<Item = (&'a str, Vec<&'a str>)>) -> Result<Self, AwsError> {
        let mut filters = Vec::new();
        let mut values = 0;
        for (name, sent_values) in sent {
            let field = F::parse(name)
                .ok_or_else(|| AwsError::new("InvalidParameterValue", format!("The filter '{name}' is invalid")))?;
            values += sent_values.len();
            check_filter_values(values)?;
            filters.push(Filter { field, patterns: sent_values.into_iter().map(Pattern::new).collect() });
        }
        Ok(Self(filters))
    }

    /// Returns whether a resource passes all filters.
    pub fn match_all(&self, resource: &F::Resource, now: DateTime<Utc>) -> bool {
        self.0.iter().all(|filter| {
            filter.field.any(resource, now, &|value| filter.patterns.iter().any(|pattern| pattern.matches(value)))
        })
    }
}

/// A filter value with the wildcards `*` and `?`, which a backslash escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// A value without wildcards.
    Exact(String),
    /// A value with wildcards.
    Wildcard(Vec<PatternToken>),
}

/// A token of a wildcard pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternToken {
    /// A literal character.
    Char(char),
    /// `?`: any single character.
    AnyChar,
    /// `*`: any number of characters.
    AnySequence,
}

impl Pattern {
    /// Parses a pattern.
    pub fn new(text: &str) -> Self {
        if !text.contains(['*', '?', '\\']) {
            return Self::Exact(text.to_owned());
        }
        let mut tokens = Vec::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            tokens.push(match character {
                '*' => PatternToken::AnySequence,
                '?' => PatternToken::AnyChar,
                '\\' => PatternToken::Char(characters.next().unwrap_or('\\')),
                other => PatternToken::Char(other),
            });
        }
        Self::Wildcard(tokens)
    }

    /// Returns whether the whole value matches.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => text == value,
            Self::Wildcard(tokens) => matches_wildcard(tokens, value),
        }
    }
}

/// Greedy match with a single backtracking point, so the cost is at most tokens × characters.
fn matches_wildcard(tokens: &[PatternToken], value: &str) -> bool {
    let (mut token, mut rest) = (0, value.chars());
    // The token after the last `*`, and the characters that `*` has not consumed.
    let mut retry: Option<(usize, Chars<'_>)> = None;
    loop {
        let before = rest.clone();
        match (tokens.get(token), rest.next()) {
            (Some(PatternToken::AnySequence), _) => {
                rest = before;
                token += 1;
                retry = Some((token, rest.clone()));
            }
            (None, None) => return true,
            (Some(PatternToken::AnyChar), Some(_)) => token += 1,
            (Some(PatternToken::Char(wanted)), Some(found)) if *wanted == found => token += 1,
            (Some(PatternToken::AnyChar | PatternToken::Char(_)), None) => return false,
            (Some(PatternToken::Char(_)) | None, Some(_)) => {
                let Some((after_star, unconsumed)) = &mut retry else { return false };
                unconsumed.next();
                token = *after_star;
                rest = unconsumed.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_documented_by_ec2() {
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

    /// Compares the matcher with a recursive definition, over all short patterns and values.
    #[test]
    fn matcher_agrees_with_recursive_definition() {
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
    fn pathological_pattern_terminates() {
        let pattern = Pattern::new(&"*a".repeat(100));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(5000))));
    }
}
