//! Typed access to the fields of a request body. Errors name the field, its value and the accepted values.

use std::fmt;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::error::ApiError;

/// Example in error messages about times.
const TIME_FORMAT: &str = "an ISO 8601 time such as \"2026-02-06T08:00:00Z\", or null";

/// Request body: a JSON object. A missing body is read as an empty object.
#[derive(Clone, Default)]
pub struct Input {
    prefix: String,
    fields: Map<String, Value>,
}

impl Input {
    /// Parses a body.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] unless the body is empty or a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(value) => Self::from_value(value),
            Err(error) => {
                let start = String::from_utf8_lossy(&body[..body.len().min(40)]);
                // A broken body may contain a password, so only its first character is shown.
                let sign: String = start.chars().take(1).collect();
                let accepted = format!("a JSON object in UTF-8 ({error})");
                Err(ApiError::invalid("(body)", &format!("{sign}… ({} bytes)", body.len()).into(), &accepted))
            }
        }
    }

    /// Creates an input from a JSON value.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] unless it is an object.
    pub fn from_value(value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self { prefix: String::new(), fields }),
            other => Err(ApiError::invalid("(body)", &type_name(&other).into(), "a JSON object")),
        }
    }

    /// Creates an input from an item of a list in the body; errors name the item.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] unless it is an object.
    pub fn from_list_item(list: &str, index: usize, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self { prefix: format!("{list}[{index}]."), fields }),
            other => Err(ApiError::invalid(&format!("{list}[{index}]"), &other, "a JSON object")),
        }
    }

    /// Whether the field exists, even as null.
    pub fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// Value of a field, unchecked.
    pub fn raw(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// All fields, unchecked.
    pub fn into_fields(self) -> Map<String, Value> {
        self.fields
    }

    /// String field; `None` if absent or null.
    pub fn text(&self, field: &str) -> Result<Option<&str>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.invalid(field, other, "a string or null")),
        }
    }

    /// Required string field that is not empty.
    pub fn required_text(&self, field: &str, accepted: &str) -> Result<&str, ApiError> {
        match self.text(field)? {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(self.invalid(field, &"".into(), accepted)),
            None => Err(ApiError::missing(&self.name(field), accepted)),
        }
    }

    /// Unsigned integer field; `None` if absent or null.
    pub fn unsigned(&self, field: &str) -> Result<Option<u64>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.invalid(field, value, "an integer from 0 up")),
        }
    }

    /// Boolean field; false if absent or null.
    pub fn boolean(&self, field: &str) -> Result<bool, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(switch)) => Ok(*switch),
            Some(other) => Err(self.invalid(field, other, "true, false or null")),
        }
    }

    /// Time field; `None` if absent or null.
    pub fn time(&self, field: &str) -> Result<Option<DateTime<Utc>>, ApiError> {
        match self.text(field)? {
            None => Ok(None),
            Some(text) => parse_time(text).map(Some).ok_or_else(|| self.invalid(field, &text.into(), TIME_FORMAT)),
        }
    }

    /// Object field; `None` if absent or null.
    pub fn object(&self, field: &str) -> Result<Option<&Map<String, Value>>, ApiError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.invalid(field, other, "a JSON object or null")),
        }
    }

    /// Object field as an input of its own; errors name the parent field.
    pub fn nested(&self, field: &str) -> Result<Option<Self>, ApiError> {
        let prefix = format!("{}.", self.name(field));
        Ok(self.object(field)?.map(|fields| Self { prefix, fields: fields.clone() }))
    }

    /// List field; `None` if absent or null.
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

    /// Error for a field of this body.
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

/// Parses a time: RFC 3339, or without an offset, which means UTC.
pub(super) fn parse_time(text: &str) -> Option<DateTime<Utc>> {
    let text = text.trim();
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.with_timezone(&Utc));
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|format| chrono::NaiveDateTime::parse_from_str(text, format).ok())
        .map(|time| time.and_utc())
}

/// Formats a time with microseconds, the precision of Python's `datetime`.
pub(super) fn format_time(time: DateTime<Utc>) -> Value {
    time.to_rfc3339_opts(chrono::SecondsFormat::Micros, true).into()
}

const fn type_name(value: &Value) -> &'static str {
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
    fn broken_body_is_not_echoed() {
        let error = Input::parse(br#"{"token": "hunter2""#).expect_err("truncated");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(error.to_string().contains("(body)"), "{error}");
        assert!(Input::parse(b"{\"a\": \"\xff\"}").is_err());
        assert!(Input::parse(b"[1]").is_err());
        assert!(!Input::parse(b"").expect("nothing is fine").has("a"));
    }

    #[test]
    fn list_item_error_contains_its_index() {
        let item = Input::from_list_item("discovered_instances", 3, json!({"instance_id": 7})).expect("an object");
        let error = item.required_text("instance_id", "an instance id").expect_err("not text");
        assert!(error.to_string().contains("`discovered_instances[3].instance_id` is 7"), "{error}");
    }

    #[test]
    fn times_parse_with_and_without_an_offset() {
        let expected = parse_time("2026-02-06T08:00:00Z").expect("valid");
        for text in ["2026-02-06T09:00:00+01:00", "2026-02-06T08:00:00", "2026-02-06 08:00:00.000"] {
            assert_eq!(parse_time(text), Some(expected), "{text}");
        }
        assert_eq!(parse_time("noon"), None);
    }
}
