//! Reads the control plane's JSON field by field. Errors name the field, its value and the accepted values.
//!
//! A field that was read is removed from the object; the remaining fields are unknown to this version and are kept.
//! [`Fields::optional`] reads a field that a record can do without: an unreadable value counts as absent, is reported
//! with [`Fields::warnings`] and kept like an unknown field.

#![expect(clippy::wildcard_enum_match_arm, reason = "whatever kind of JSON value is not expected is an error")]

mod raw;

use std::borrow::Cow;

use serde_json::{Map, Value};
use thiserror::Error;

#[cfg(feature = "control-plane")]
pub(crate) use self::raw::Name;
pub(crate) use self::raw::Raw;

use self::raw::{Entries, entry};
use super::secret::Secret;
use super::time::{self, Timestamp};
use super::wire_enum::Vocabulary;

/// A field of a record that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{record}: field `{field}` {problem}; accepted: {accepted}")]
#[non_exhaustive]
pub struct FieldError {
    /// The record, as far as it is known: `worker "w-1"`.
    pub record: String,
    /// The field, with a dot where it is nested: `license.status`.
    pub field: String,
    /// The problem, with the value unless that is a secret.
    pub problem: String,
    /// The accepted values.
    pub accepted: String,
}

impl FieldError {
    /// The error of a record that is no JSON object, or cannot be expressed as one.
    pub fn of_record(record: &str, problem: &str) -> Self {
        Self {
            record: record.to_owned(),
            field: "(whole record)".to_owned(),
            problem: format!("cannot be read: {}", cut(problem.to_owned())),
            accepted: "a JSON object".to_owned(),
        }
    }
}

/// A field of a readable record that has no effect as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FieldWarning {
    /// Its value cannot be read and counts as absent.
    #[error("{0}; the value counts as absent")]
    Unreadable(FieldError),
    /// Its name is unknown and resembles a known field that the record lacks.
    #[error("{record}: field `{field}` is unknown and has no effect; probably meant: `{meant}`")]
    Misspelled {
        /// The record: `worker "w-1"`.
        record: String,
        /// The name on the record.
        field: String,
        /// The known field that it resembles.
        meant: &'static str,
    },
}

/// Maximum number of warnings about one record; the rest is not reported.
const MAX_WARNINGS: usize = 16;

/// Maximum length of a bad value in an error; the rest is cut.
const SHOWN: usize = 80;

/// Shown in place of a secret that is not text.
const NOT_SHOWN: &str = "is of the wrong type (value not shown)";

/// The fields of one JSON object, removed one by one.
pub(crate) struct Fields<'a> {
    kind: &'static str,
    /// The record's id or name, for errors.
    called: Option<Cow<'a, str>>,
    prefix: &'static str,
    entries: Entries<'a>,
    /// Values that could not be read, without secrets.
    rejected: Entries<'a>,
    warnings: Vec<FieldWarning>,
}

type Read<T> = Result<T, FieldError>;

impl<'a> Fields<'a> {
    /// Opens a value as an object. `kind` names it in errors, with its id where it has one.
    pub(crate) fn open(kind: &'static str, value: impl Into<Raw<'a>>) -> Read<Self> {
        match value.into() {
            Raw::Object(entries) => {
                let mut fields =
                    Self { kind, called: None, prefix: "", entries, rejected: Vec::new(), warnings: Vec::new() };
                fields.called = match fields.get("id").or_else(|| fields.get("name")) {
                    Some(Raw::Text(id)) if !id.is_empty() => Some(id.clone()),
                    Some(Raw::Text(_) | Raw::Object(_) | Raw::Plain(_)) | None => None,
                };
                Ok(fields)
            }
            other @ (Raw::Text(_) | Raw::Plain(_)) => Err(FieldError {
                record: kind.to_owned(),
                field: "(whole record)".to_owned(),
                problem: format!("is {}", shown(&other)),
                accepted: "a JSON object".to_owned(),
            }),
        }
    }

    /// Reads a field that the record can do without. An unreadable value counts as absent; it is reported, and kept with
    /// the unread fields unless it may hold a secret.
    pub(crate) fn optional<T: Default>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> T {
        read(self).unwrap_or_else(|error| {
            self.warn(error);
            T::default()
        })
    }

    fn warn(&mut self, error: FieldError) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(FieldWarning::Unreadable(error));
        }
    }

    /// Closes a nested object: its warnings become those of this one. Returns its unread fields.
    pub(crate) fn close(&mut self, mut nested: Self) -> Map<String, Value> {
        self.warnings.append(&mut nested.warnings);
        self.warnings.truncate(MAX_WARNINGS);
        nested.rest()
    }

    /// Takes the warnings so far.
    pub(crate) fn warnings(&mut self) -> Vec<FieldWarning> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns a text without removing it.
    pub(crate) fn peek(&self, field: &str) -> Option<&Cow<'a, str>> {
        match self.get(field)? {
            Raw::Text(text) => Some(text),
            Raw::Object(_) | Raw::Plain(_) => None,
        }
    }

    fn get(&self, field: &str) -> Option<&Raw<'a>> {
        entry(&self.entries, field)
    }

    /// Removes a field. Null counts as absent.
    fn take(&mut self, field: &str) -> Option<Raw<'a>> {
        let place = self.entries.iter().position(|(name, _)| name == field)?;
        let (_, value) = self.entries.swap_remove(place);
        Some(value).filter(|value| !matches!(value, Raw::Plain(Value::Null)))
    }

    /// Opens a nested object, if there is one. Errors name its fields as `{prefix}{field}`.
    pub(crate) fn nested(&mut self, field: &str, prefix: &'static str) -> Read<Option<Self>> {
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Object(entries)) => Ok(Some(Self { entries, ..self.empty(prefix) })),
            Some(other @ (Raw::Text(_) | Raw::Plain(_))) => Err(self.wrong(field, other, "an object")),
        }
    }

    /// [`Fields::nested`] for an object that holds secrets: a value of the wrong type is not shown.
    pub(crate) fn nested_secret(&mut self, field: &str, prefix: &'static str) -> Read<Option<Self>> {
        match self.get(field) {
            None | Some(Raw::Object(_) | Raw::Plain(Value::Null)) => self.nested(field, prefix),
            Some(_) => {
                self.take(field);
                Err(self.problem(field, NOT_SHOWN, "an object"))
            }
        }
    }

    /// An empty object.
    pub(crate) fn empty(&self, prefix: &'static str) -> Self {
        let called = self.called.clone();
        Self { kind: self.kind, called, prefix, entries: Vec::new(), rejected: Vec::new(), warnings: Vec::new() }
    }

    /// A nested object unchanged, or an empty one.
    pub(crate) fn object(&mut self, field: &str) -> Read<Map<String, Value>> {
        Ok(self.nested(field, "")?.map(Self::rest).unwrap_or_default())
    }

    /// Whether the object has the field at all, even as null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.entries.iter().any(|(name, _)| name == field)
    }

    /// Text; null, absent and empty are all `None`.
    pub(crate) fn text(&mut self, field: &str) -> Read<Option<String>> {
        Ok(self.borrowed(field, || "text or null".to_owned())?.map(Cow::into_owned))
    }

    /// Text that must be set.
    pub(crate) fn required_text(&mut self, field: &str) -> Read<String> {
        const ACCEPTED: &str = "non-empty text";
        let text = self.borrowed(field, || ACCEPTED.to_owned())?;
        text.map(Cow::into_owned).ok_or_else(|| self.missing(field, ACCEPTED))
    }

    /// Text borrowed from the response.
    fn borrowed(&mut self, field: &str, accepted: impl FnOnce() -> String) -> Read<Option<Cow<'a, str>>> {
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Text(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(other @ (Raw::Object(_) | Raw::Plain(_))) => Err(self.wrong(field, other, &accepted())),
        }
    }

    /// A password or token. A value of the wrong type is not shown.
    pub(crate) fn secret(&mut self, field: &str) -> Read<Option<Secret>> {
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Text(text)) => {
                Ok(Some(text).filter(|text| !text.is_empty()).map(|text| Secret::from(text.into_owned())))
            }
            Some(Raw::Object(_) | Raw::Plain(_)) => Err(self.problem(field, NOT_SHOWN, "text or null")),
        }
    }

    /// A word of an enum, if the field is set.
    pub(crate) fn word<T: Vocabulary>(&mut self, field: &str) -> Read<Option<T>> {
        let Some(text) = self.borrowed(field, || T::WORDS.join(", "))? else { return Ok(None) };
        match text.parse() {
            Ok(word) => Ok(Some(word)),
            Err(unknown) => Err(self.wrong(field, Raw::Text(text), &unknown.accepted)),
        }
    }

    /// A required word of an enum.
    pub(crate) fn required_word<T: Vocabulary>(&mut self, field: &str) -> Read<T> {
        self.word(field)?.ok_or_else(|| self.missing(field, &T::WORDS.join(", ")))
    }

    /// A timestamp, if the field is set.
    pub(crate) fn timestamp(&mut self, field: &str) -> Read<Option<Timestamp>> {
        let Some(text) = self.borrowed(field, || "text or null".to_owned())? else { return Ok(None) };
        match time::parse(&text) {
            Some(timestamp) => Ok(Some(timestamp)),
            None => Err(self.wrong(field, Raw::Text(text), "an ISO 8601 time such as \"2026-02-06T08:00:00Z\"")),
        }
    }

    /// A boolean, if the field is set.
    pub(crate) fn switch(&mut self, field: &str) -> Read<Option<bool>> {
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Plain(Value::Bool(on))) => Ok(Some(on)),
            Some(other) => Err(self.wrong(field, other, "true, false or null")),
        }
    }

    /// A non-negative integer; `3.0` is accepted for `3`.
    pub(crate) fn integer(&mut self, field: &str) -> Read<Option<u64>> {
        const ACCEPTED: &str = "a whole number from 0 up";
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Plain(Value::Number(number))) => {
                let float = || number.as_f64().filter(|float| (0.0..9e15).contains(float) && float.fract() == 0.0);
                match number.as_u64().or_else(|| float().map(|float| float as u64)) {
                    Some(number) => Ok(Some(number)),
                    None => Err(self.wrong(field, Raw::Plain(Value::Number(number)), ACCEPTED)),
                }
            }
            Some(other) => Err(self.wrong(field, other, ACCEPTED)),
        }
    }

    /// A number, if the field is set.
    pub(crate) fn number(&mut self, field: &str) -> Read<Option<f64>> {
        match self.take(field) {
            None => Ok(None),
            Some(Raw::Plain(Value::Number(number))) => Ok(number.as_f64()),
            Some(other) => Err(self.wrong(field, other, "a number or null")),
        }
    }

    /// A list of texts, or an empty one.
    pub(crate) fn texts(&mut self, field: &str) -> Read<Vec<String>> {
        const ACCEPTED: &str = "a list of texts";
        let items = match self.take(field) {
            None => return Ok(Vec::new()),
            Some(Raw::Plain(Value::Array(items))) => items,
            Some(other) => return Err(self.wrong(field, other, ACCEPTED)),
        };
        items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(self.error(field, &other, ACCEPTED)),
            })
            .collect()
    }

    /// A map from text to text, such as tags; numbers and booleans are converted to text.
    pub(crate) fn text_map<T: FromIterator<(String, String)>>(&mut self, field: &str) -> Read<T> {
        self.object(field)?
            .into_iter()
            .map(|(key, value)| {
                to_text(value).map_err(|other| self.entry_error(field, &key, &other)).map(|text| (key, text))
            })
            .collect()
    }

    /// [`Fields::text_map`] without its unreadable entries, each of which is reported. The map is kept with them.
    pub(crate) fn readable_text_map<T: FromIterator<(String, String)>>(&mut self, field: &str) -> T {
        let map = self.optional(|fields| fields.object(field));
        if map.values().any(|value| matches!(value, Value::Null | Value::Array(_) | Value::Object(_))) {
            self.rejected.push((Cow::Owned(field.to_owned()), Value::Object(map.clone()).into()));
        }
        map.into_iter()
            .filter_map(|(key, value)| match to_text(value) {
                Ok(text) => Some((key, text)),
                Err(other) => {
                    self.warn(self.entry_error(field, &key, &other));
                    None
                }
            })
            .collect()
    }

    fn entry_error(&self, field: &str, key: &str, value: &Value) -> FieldError {
        self.error(&format!("{field}.{}", cut(key.to_owned())), value, "text")
    }

    /// The fields that were not read, and those that could not be read.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.entries
            .into_iter()
            .chain(self.rejected)
            .map(|(name, value)| (name.into_owned(), value.into_value()))
            .collect()
    }

    /// Rejects a value, which is kept with the unread fields.
    pub(crate) fn wrong(&mut self, field: &str, value: impl Into<Raw<'a>>, accepted: &str) -> FieldError {
        let value = value.into();
        let error = self.problem(field, &format!("is {}", shown(&value)), accepted);
        self.rejected.push((Cow::Owned(field.to_owned()), value));
        error
    }

    /// An error about a value that was parsed but is not valid.
    pub(crate) fn error(&self, field: &str, value: &Value, accepted: &str) -> FieldError {
        self.problem(field, &format!("is {}", shown_value(value)), accepted)
    }

    fn missing(&self, field: &str, accepted: &str) -> FieldError {
        self.problem(field, "is missing or empty", accepted)
    }

    fn problem(&self, field: &str, problem: &str, accepted: &str) -> FieldError {
        let record = match &self.called {
            Some(id) => format!("{} {}", self.kind, shown_value(&Value::from(id.as_ref()))),
            None => self.kind.to_owned(),
        };
        FieldError {
            record,
            field: format!("{}{field}", self.prefix),
            problem: problem.to_owned(),
            accepted: accepted.to_owned(),
        }
    }
}

/// The rendering of a value in an error. Of lists and objects only the kind is shown: they may hold secrets.
fn shown(value: &Raw<'_>) -> String {
    match value {
        Raw::Text(text) => shown_value(&Value::from(text.as_ref())),
        Raw::Object(_) => "an object".to_owned(),
        Raw::Plain(plain) => shown_value(plain),
    }
}

fn shown_value(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        plain => cut(plain.to_string()),
    }
}

/// The text form of a plain value; the value itself if it has none.
fn to_text(value: Value) -> Result<String, Value> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(on) => Ok(on.to_string()),
        other @ (Value::Null | Value::Array(_) | Value::Object(_)) => Err(other),
    }
}

/// The part of an external text that is shown.
fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
