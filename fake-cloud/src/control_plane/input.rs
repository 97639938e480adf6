//! Reading the body of a request field by field, with errors that say which field, what it was, and what it may be.

use std::fmt;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::error::ApiError;

/// The example in every error about a time.
const TIME: &str = "an ISO 8601 time such as \"2026-02-06T08:00:00Z\", or null";

/// The body of a request: a JSON object. A body that is not there reads as an empty one.
#[derive(Clone, Default)]
pub struct Input {
    prefix: String,
    fields: Map<String, Value>,
}

impl Input {
    /// Reads a body.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for anything but a JSON object or nothing at all.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(value) => Self::from_value(value),
            Err(error) => {
                let start = String::from_utf8_lossy(&body[..body.len().min(40)]);
                // The start of a broken body may hold anything, a password included, so only its first sign is shown.
                let sign: String = start.chars().take(1).collect();
                let accepted = format!("a JSON object in UTF-8 ({error})");
                Err(ApiError::invalid("(body)", &format!("{sign}… ({} bytes)", body.len()).into(), &accepted))
            }
        }
    }

    /// Takes a JSON value as the body.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for anything but an object.
    pub fn from_value(value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self { prefix: String::new(), fields }),
            other => Err(ApiError::invalid("(body)", &kind_of(&other).into(), "a JSON object")),
        }
    }

    /// Takes a JSON value as an item of a list in the body; errors name the item.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for anything but an object.
    pub fn from_list_item(list: &str, index: usize, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self { prefix: format!("{list}[{index}]."), fields }),
            other => Err(ApiError::invalid(&format!("{list}[{index}]"), &other, "a JSON object")),
        }
    }

    /// Whether the field is there, if only as null.
    pub fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// The field as it came.
    pub fn raw(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// All fields as they came.
    pub fn into_fields(self) -> Map<String, Value> {
        self.fields
    }

    /// Text; absent and null are nothing.
    pub fn text(&self, field: &str) -> Result<Option<&str>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.invalid(field, other, "text or null")),
        }
    }

    /// Text that must be there and not be empty.
    pub fn required_text(&self, field: &str, accepted: &str) -> Result<&str, ApiError> {
        match self.text(field)? {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(self.invalid(field, &"".into(), accepted)),
            None => Err(ApiError::missing(&self.name(field), accepted)),
        }
    }

    /// A whole number from zero up.
    pub fn whole(&self, field: &str) -> Result<Option<u64>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| self.invalid(field, value, "a whole number from 0 up"))
            }
        }
    }

    /// Yes or no; absent and null are no.
    pub fn switch(&self, field: &str) -> Result<bool, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(switch)) => Ok(*switch),
            Some(other) => Err(self.invalid(field, other, "true, false or null")),
        }
    }

    /// A moment.
    pub fn moment(&self, field: &str) -> Result<Option<DateTime<Utc>>, ApiError> {
        match self.text(field)? {
            None => Ok(None),
            Some(text) => parse_moment(text).map(Some).ok_or_else(|| self.invalid(field, &text.into(), TIME)),
        }
    }

    /// A nested object; absent and null are nothing.
    pub fn object(&self, field: &str) -> Result<Option<&Map<String, Value>>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.invalid(field, other, "a JSON object or null")),
        }
    }

    /// A nested object as a body of its own; errors name it.
    pub fn nested(&self, field: &str) -> Result<Option<Self>, ApiError> {
        let prefix = format!("{}.", self.name(field));
        Ok(self.object(field)?.map(|fields| Self { prefix, fields: fields.clone() }))
    }

    /// A list; absent and null are nothing.
    pub fn list(&self, field: &str) -> Result<Option<&Vec<Value>>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.invalid(field, other, "a JSON list or null")),
        }
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// An error about a field of this body.
    pub fn invalid(&self, field: &str, value: &Value, accepted: &str) -> ApiError {
        ApiError::invalid(&self.name(field), value, accepted)
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: values may be passwords and tokens.
        f.debug_list().entries(self.fields.keys()).finish()
    }
}

/// Reads a time as clients write it: RFC 3339, or without an offset, which means UTC.
pub(super) fn parse_moment(text: &str) -> Option<DateTime<Utc>> {
    let text = text.trim();
    if let Ok(moment) = DateTime::parse_from_rfc3339(text) {
        return Some(moment.with_timezone(&Utc));
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|format| chrono::NaiveDateTime::parse_from_str(text, format).ok())
        .map(|moment| moment.and_utc())
}

/// Writes a time as the control plane does: to the microsecond, which is all that Python can hold.
pub(super) fn written(moment: DateTime<Utc>) -> Value {
    moment.to_rfc3339_opts(chrono::SecondsFormat::Micros, true).into()
}

const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_broken_body_is_named_without_being_repeated() {
        let problem = Input::parse(br#"{"token": "hunter2""#).expect_err("truncated");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
        assert!(problem.to_string().contains("(body)"), "{problem}");
        assert!(Input::parse(b"{\"a\": \"\xff\"}").is_err());
        assert!(Input::parse(b"[1]").is_err());
        assert!(!Input::parse(b"").expect("nothing is fine").has("a"));
    }

    #[test]
    fn an_item_of_a_list_is_named_with_its_place() {
        let item = Input::from_list_item("discovered_instances", 3, json!({"instance_id": 7})).expect("an object");
        let problem = item.required_text("instance_id", "an instance id").expect_err("not text");
        assert!(problem.to_string().contains("`discovered_instances[3].instance_id` is 7"), "{problem}");
    }

    #[test]
    fn times_are_read_with_and_without_an_offset() {
        let expected = parse_moment("2026-02-06T08:00:00Z").expect("valid");
        for text in ["2026-02-06T09:00:00+01:00", "2026-02-06T08:00:00", "2026-02-06 08:00:00.000"] {
            assert_eq!(parse_moment(text), Some(expected), "{text}");
        }
        assert_eq!(parse_moment("noon"), None);
    }
}
