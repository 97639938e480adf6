//! Validation of bodies and queries, with the errors of the original server. Unknown fields are ignored.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::rejection::Rejection;
use crate::control_plane::http::ApiRequest;
use crate::control_plane::input::parse_time;

/// A body under validation. Reading a field records its problem; [`Body::finish`] reports all of them.
pub(super) struct Body {
    fields: Map<String, Value>,
    problems: Vec<Value>,
}

impl Body {
    /// Parses a required body.
    ///
    /// # Errors
    /// The body is empty, not JSON or not an object.
    pub(super) fn required(request: &ApiRequest) -> Result<Self, Rejection> {
        if request.body().is_empty() {
            let problem = json!({"type": "missing", "loc": ["body"], "msg": "Field required", "input": null});
            return Err(Rejection::Invalid(vec![problem]));
        }
        Self::parse(request.body())
    }

    /// Parses a body that may be empty.
    ///
    /// # Errors
    /// The body is neither empty nor a JSON object.
    pub(super) fn optional(request: &ApiRequest) -> Result<Self, Rejection> {
        let body = request.body();
        if body.is_empty() { Ok(Self { fields: Map::new(), problems: Vec::new() }) } else { Self::parse(body) }
    }

    fn parse(body: &[u8]) -> Result<Self, Rejection> {
        let problem = match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => return Ok(Self { fields, problems: Vec::new() }),
            Ok(other) => json!({
                "type": "model_attributes_type", "loc": ["body"], "input": other,
                "msg": "Input should be a valid dictionary or object to extract fields from",
            }),
            Err(error) => json!({
                "type": "json_invalid", "loc": ["body", error.column()], "msg": "JSON decode error", "input": {},
                "ctx": {"error": "Expecting value"},
            }),
        };
        Err(Rejection::Invalid(vec![problem]))
    }

    /// Reports the problems of all fields that were read.
    pub(super) fn finish(self) -> Result<(), Rejection> {
        if self.problems.is_empty() { Ok(()) } else { Err(Rejection::Invalid(self.problems)) }
    }

    fn reject(&mut self, kind: &str, field: &str, expected: &str, input: Value) {
        let msg = format!("Input should be a valid {expected}");
        self.problems.push(json!({"type": kind, "loc": ["body", field], "msg": msg, "input": input}));
    }

    fn missing(&mut self, field: &str) {
        let input = Value::from(self.fields.clone());
        let problem = json!({"type": "missing", "loc": ["body", field], "msg": "Field required", "input": input});
        self.problems.push(problem);
    }

    /// Required string, which must not be null.
    pub(super) fn required_text(&mut self, field: &str) -> String {
        match self.fields.get(field).cloned() {
            Some(Value::String(text)) => return text,
            Some(other) => self.reject("string_type", field, "string", other),
            None => self.missing(field),
        }
        String::new()
    }

    /// Optional string; null counts as absent.
    pub(super) fn text(&mut self, field: &str) -> Option<String> {
        match self.fields.get(field).cloned() {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => {
                self.reject("string_type", field, "string", other);
                None
            }
        }
    }

    /// Boolean with a default, which must not be null.
    pub(super) fn boolean(&mut self, field: &str, default: Flag) -> Flag {
        match self.fields.get(field).cloned() {
            None => default,
            Some(Value::Bool(true)) => Flag::True,
            Some(Value::Bool(false)) => Flag::False,
            Some(other) => {
                self.reject("bool_type", field, "boolean", other);
                default
            }
        }
    }

    /// Integer with a default, which must not be null.
    pub(super) fn integer(&mut self, field: &str, default: i64) -> i64 {
        match self.fields.get(field).cloned() {
            None => default,
            Some(value) => value.as_i64().unwrap_or_else(|| {
                self.reject("int_type", field, "integer", value);
                default
            }),
        }
    }

    /// Optional object; null counts as absent.
    pub(super) fn object(&mut self, field: &str) -> Option<Map<String, Value>> {
        match self.fields.get(field).cloned() {
            None | Some(Value::Null) => None,
            Some(Value::Object(object)) => Some(object),
            Some(other) => {
                self.reject("dict_type", field, "dictionary", other);
                None
            }
        }
    }

    /// Optional list; null counts as absent.
    pub(super) fn list(&mut self, field: &str) -> Option<Vec<Value>> {
        match self.fields.get(field).cloned() {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) => Some(list),
            Some(other) => {
                self.reject("list_type", field, "list", other);
                None
            }
        }
    }

    /// Required list.
    pub(super) fn required_list(&mut self, field: &str) -> Vec<Value> {
        if !self.fields.contains_key(field) {
            self.missing(field);
        }
        self.list(field).unwrap_or_default()
    }

    /// Optional time; null counts as absent.
    pub(super) fn time(&mut self, field: &str) -> Option<DateTime<Utc>> {
        let text = self.text(field)?;
        let time = parse_time(&text);
        if time.is_none() {
            self.reject("datetime_from_date_parsing", field, "datetime or date", text.into());
        }
        time
    }

    /// Any value, unchecked; null counts as absent.
    pub(super) fn any(&self, field: &str) -> Option<Value> {
        self.fields.get(field).filter(|value| !value.is_null()).cloned()
    }
}

/// A validated boolean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    True,
    False,
}

impl From<Flag> for Value {
    fn from(flag: Flag) -> Self {
        Self::Bool(flag == Flag::True)
    }
}

/// Integer query parameter within a range.
pub(super) fn query_integer(
    request: &ApiRequest,
    name: &str,
    default: i64,
    range: std::ops::RangeInclusive<i64>,
) -> Result<usize, Rejection> {
    let Some(text) = request.query(name) else { return Ok(usize::try_from(default).unwrap_or_default()) };
    let problem = |kind: &str, msg: String, context: Option<Value>| {
        let mut problem = json!({"type": kind, "loc": ["query", name], "msg": msg, "input": text});
        if let Some(context) = context {
            problem["ctx"] = context;
        }
        Rejection::Invalid(vec![problem])
    };
    let (least, most) = (range.start(), range.end());
    match text.parse::<i64>() {
        Err(_) => {
            let msg = "Input should be a valid integer, unable to parse string as an integer";
            Err(problem("int_parsing", msg.to_owned(), None))
        }
        Ok(number) if number < *least => {
            let msg = format!("Input should be greater than or equal to {least}");
            Err(problem("greater_than_equal", msg, Some(json!({"ge": least}))))
        }
        Ok(number) if number > *most => {
            let msg = format!("Input should be less than or equal to {most}");
            Err(problem("less_than_equal", msg, Some(json!({"le": most}))))
        }
        Ok(number) => Ok(usize::try_from(number).unwrap_or_default()),
    }
}

/// Boolean query parameter; false if absent.
pub(super) fn query_flag(request: &ApiRequest, name: &str) -> Result<Flag, Rejection> {
    let Some(text) = request.query(name) else { return Ok(Flag::False) };
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "t" | "y" => Ok(Flag::True),
        "false" | "0" | "no" | "off" | "f" | "n" => Ok(Flag::False),
        _ => Err(Rejection::Invalid(vec![json!({
            "type": "bool_parsing", "loc": ["query", name], "input": text,
            "msg": "Input should be a valid boolean, unable to interpret input",
        })])),
    }
}
