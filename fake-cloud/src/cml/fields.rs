//! Checks of request bodies: each field is known to the release and has a value of its type.

use serde_json::{Map, Value};

use super::error::CmlError;
use super::release::Release;

/// Field of a request body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    name: &'static str,
    kind: Kind,
    nullable: Nullable,
    since: Release,
    before: Option<Release>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nullable {
    Yes,
    No,
}

/// Values of a field.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Up to this number of characters.
    Text(usize),
    Word(&'static [&'static str]),
    Integer(i64, i64),
    Number(f64, f64),
    Flag,
    Texts,
    Object,
    Objects,
    /// Checked by the rules of the resource.
    Any,
}

impl Field {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, nullable: Nullable::No, since: Release::FIRST, before: None }
    }

    /// Text of up to `limit` characters.
    pub(super) const fn text(name: &'static str, limit: usize) -> Self {
        Self::new(name, Kind::Text(limit))
    }

    /// One of a few words.
    pub(super) const fn word(name: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, Kind::Word(words))
    }

    /// Integer within limits.
    pub(super) const fn integer(name: &'static str, min: i64, max: i64) -> Self {
        Self::new(name, Kind::Integer(min, max))
    }

    /// Number within limits.
    pub(super) const fn number(name: &'static str, min: f64, max: f64) -> Self {
        Self::new(name, Kind::Number(min, max))
    }

    /// True or false.
    pub(super) const fn flag(name: &'static str) -> Self {
        Self::new(name, Kind::Flag)
    }

    /// List of texts.
    pub(super) const fn texts(name: &'static str) -> Self {
        Self::new(name, Kind::Texts)
    }

    /// JSON object.
    pub(super) const fn object(name: &'static str) -> Self {
        Self::new(name, Kind::Object)
    }

    /// List of JSON objects.
    pub(super) const fn objects(name: &'static str) -> Self {
        Self::new(name, Kind::Objects)
    }

    /// Value that the rules of the resource check.
    pub(super) const fn any(name: &'static str) -> Self {
        Self::new(name, Kind::Any)
    }

    /// Accepts null, too.
    pub(super) const fn or_null(self) -> Self {
        Self { nullable: Nullable::Yes, ..self }
    }

    /// Known from this release on.
    pub(super) const fn since(self, since: Release) -> Self {
        Self { since, ..self }
    }

    /// Unknown from this release on.
    pub(super) const fn before(self, before: Release) -> Self {
        Self { before: Some(before), ..self }
    }

    fn is_in(&self, release: Release) -> bool {
        release >= self.since && self.before.is_none_or(|before| release < before)
    }

    fn accepts(&self, value: &Value) -> bool {
        match (self.kind, value) {
            (_, Value::Null) => self.nullable == Nullable::Yes,
            (Kind::Text(limit), Value::String(text)) => text.chars().count() <= limit,
            (Kind::Word(words), Value::String(text)) => words.contains(&text.as_str()),
            (Kind::Integer(min, max), Value::Number(number)) => {
                number.as_i64().is_some_and(|number| (min..=max).contains(&number))
            }
            (Kind::Number(min, max), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (min..=max).contains(&number))
            }
            (Kind::Flag, Value::Bool(_)) | (Kind::Object, Value::Object(_)) | (Kind::Any, _) => true,
            (Kind::Texts, Value::Array(items)) => items.iter().all(Value::is_string),
            (Kind::Objects, Value::Array(items)) => items.iter().all(Value::is_object),
            _ => false,
        }
    }

    fn expected(&self) -> String {
        let kind = match self.kind {
            Kind::Text(limit) => format!("text of at most {limit} characters"),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Integer(min, max) => format!("an integer from {min} to {max}"),
            Kind::Number(min, max) => format!("a number from {min} to {max}"),
            Kind::Flag => "true or false".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::Object => "an object".to_owned(),
            Kind::Objects => "a list of objects".to_owned(),
            Kind::Any => "a value".to_owned(),
        };
        if self.nullable == Nullable::Yes { format!("{kind}, or null") } else { kind }
    }
}

/// Checks a request body against the fields that its resource has in a release.
///
/// # Errors
/// 400 for an unknown field or a value that its field does not accept.
pub(super) fn check(body: &Map<String, Value>, fields: &[Field], release: Release) -> Result<(), CmlError> {
    for (name, value) in body {
        let Some(field) = fields.iter().find(|field| field.name == name && field.is_in(release)) else {
            let known: Vec<_> = fields.iter().filter(|field| field.is_in(release)).map(|field| field.name).collect();
            return Err(CmlError::bad_request(format!("Unknown field {name}: expected {}.", known.join(", "))));
        };
        if !field.accepts(value) {
            return Err(CmlError::bad_request(format!("Invalid value of {name}: expected {}.", field.expected())));
        }
    }
    Ok(())
}

/// Text of a required field.
///
/// # Errors
/// 400 if it is absent, empty or no text.
pub(super) fn required<'a>(body: &'a Map<String, Value>, name: &str) -> Result<&'a str, CmlError> {
    match body.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(CmlError::bad_request(format!("Field {name} is required and must be a string."))),
    }
}

/// Text of an optional field.
pub(super) fn text(body: &Map<String, Value>, name: &str) -> Option<String> {
    body.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// Texts of a list; other items are left out.
pub(super) fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIELDS: &[Field] = &[
        Field::text("label", 4),
        Field::integer("ram", 1, 8).or_null(),
        Field::flag("new").since(Release::V2_10),
        Field::texts("old").before(Release::V2_10),
    ];

    #[test]
    fn values_outside_of_their_type_are_refused() {
        let check = |body: Value| check(body.as_object().expect("an object"), FIELDS, Release::V2_9);
        for good in [json!({}), json!({"label": "r1", "ram": 8}), json!({"ram": null}), json!({"old": ["a"]})] {
            check(good).expect("accepted");
        }
        for (bad, message) in [
            (json!({"label": "too long"}), "Invalid value of label: expected text of at most 4 characters."),
            (json!({"label": null}), "Invalid value of label: expected text of at most 4 characters."),
            (json!({"ram": 9}), "Invalid value of ram: expected an integer from 1 to 8, or null."),
            (json!({"new": true}), "Unknown field new: expected label, ram, old."),
            (json!({"old": [1]}), "Invalid value of old: expected a list of texts."),
        ] {
            assert_eq!(check(bad).expect_err(message).description(), message);
        }
    }
}
