//! Borrowed JSON: names and texts point into the response where possible.
//!
//! A listing of a fleet holds millions of names and texts. Most names are only compared, and many texts only parsed as
//! a time or a word; those are never copied.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Number of fields that most objects have at most.
const USUAL: usize = 16;
/// Number of fields from which on names are indexed instead of compared one by one.
const MOST: usize = 256;

/// A JSON value.
pub(crate) enum Raw<'a> {
    /// A text value.
    Text(Cow<'a, str>),
    /// An object value.
    Object(Entries<'a>),
    /// Any other value.
    Plain(Value),
}

/// The fields of an object, with unique names.
pub(crate) type Entries<'a> = Vec<(Cow<'a, str>, Raw<'a>)>;

impl Raw<'_> {
    /// A field of an object, null included; `None` for other values.
    #[cfg(feature = "control-plane")]
    pub(crate) fn get(&self, field: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entry(entries, field),
            Self::Text(_) | Self::Plain(_) => None,
        }
    }

    /// Converts into an owned value.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Text(text) => Value::String(text.into_owned()),
            Self::Object(entries) => {
                entries.into_iter().map(|(name, value)| (name.into_owned(), value.into_value())).collect()
            }
            Self::Plain(value) => value,
        }
    }
}

/// The field with a name.
pub(super) fn entry<'e, 'a>(entries: &'e Entries<'a>, field: &str) -> Option<&'e Raw<'a>> {
    entries.iter().find(|(name, _)| name == field).map(|(_, value)| value)
}

impl From<Value> for Raw<'_> {
    fn from(value: Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.into()),
            Value::Object(map) => {
                Self::Object(map.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Self::Plain(value),
        }
    }
}

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Raw<'de>, E> {
        Ok(Raw::Plain(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Raw<'de>, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw<'de>, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Raw<'de>, E> {
        Ok(Raw::Plain(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Raw<'de>, E> {
        Ok(Raw::Plain(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Raw<'de>, E> {
        Ok(Raw::Plain(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Raw<'de>, E> {
        Ok(Raw::Plain(value.into()))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Raw<'de>, E> {
        Ok(Raw::Text(text.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Raw<'de>, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Raw<'de>, E> {
        Ok(Raw::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Raw<'de>, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(items)).map(Raw::Plain)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
        let Some(first) = map.next_entry::<Name<'de>, _>()? else { return Ok(Raw::Object(Vec::new())) };
        let mut entries = Vec::with_capacity(map.size_hint().map_or(USUAL, |left| left + 1));
        let mut seen = mark(&first.0.0);
        entries.push((first.0.0, first.1));
        while let Some((Name(name), value)) = map.next_entry::<Name<'de>, _>()? {
            if entries.len() == MOST {
                return large(entries, (name, value), map);
            }
            let mark = mark(&name);
            if seen & mark != 0 {
                // If a name occurs twice, the last one counts.
                entries.retain(|(earlier, _)| *earlier != name);
            }
            seen |= mark;
            entries.push((name, value));
        }
        Ok(Raw::Object(entries))
    }
}

/// Reads the rest of an object that is too large for comparing its names one by one.
fn large<'de, A: MapAccess<'de>>(
    entries: Entries<'de>,
    next: (Cow<'de, str>, Raw<'de>),
    mut map: A,
) -> Result<Raw<'de>, A::Error> {
    let owned = |(name, value): (Cow<'de, str>, Raw<'de>)| (name.into_owned(), value.into_value());
    let mut all: Map<String, Value> = entries.into_iter().chain([next]).map(owned).collect();
    while let Some((name, value)) = map.next_entry::<String, Value>()? {
        all.insert(name, value);
    }
    Ok(Value::Object(all).into())
}

/// One bit of a name's hash. A set bit means that the name may have occurred before.
fn mark(name: &str) -> u64 {
    let letter = |place: usize| usize::from(name.as_bytes().get(place).copied().unwrap_or_default());
    let length = name.len();
    1 << ((7 * length + letter(0) + 3 * letter(length / 2) + 5 * letter(length.wrapping_sub(1))) % 64)
}

/// The name of a field. A plain `Cow` would always be copied.
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(text.into()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(text.to_owned().into()))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_json_parses_as_serde_json_does() {
        let value = json!({
            "null": null, "yes": true, "below": -1, "above": u64::MAX, "half": 0.5, "text": "é\n\"", "list": [1, {"a": []}],
            "object": {"empty": {}, "": "no name"},
        });
        let text = value.to_string();
        let read: Raw<'_> = serde_json::from_str(&text).expect("valid");
        assert_eq!(read.into_value(), value);
        assert_eq!(Raw::from(value.clone()).into_value(), value);
    }

    #[test]
    fn last_duplicate_name_counts() {
        let read: Raw<'_> = serde_json::from_str(r#"{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}"#).expect("valid");
        assert_eq!(read.into_value(), json!({"a": 3, "b": {"c": 2}}));
    }

    #[test]
    fn large_objects_parse_in_linear_time() {
        // All of them have the same hash bit.
        let fields: Vec<String> = (0..200_000).map(|number| format!("\"a{number:06}aa{number:06}a\": 1")).collect();
        let text = format!("{{{}, \"a\": 1, \"a\": 2}}", fields.join(", "));
        let read: Raw<'_> = serde_json::from_str(&text).expect("valid");
        assert_eq!(read.into_value(), serde_json::from_str::<Value>(&text).expect("valid"));
    }

    #[test]
    fn unescaped_texts_are_borrowed() {
        let read: Raw<'_> = serde_json::from_str(r#"{"plain": "text", "escap\u0065d": "t\u0065xt"}"#).expect("valid");
        let Raw::Object(entries) = read else { panic!("an object") };
        let borrowed = |text: &Cow<'_, str>| matches!(text, Cow::Borrowed(_));
        let of = |(name, value): &(Cow<'_, str>, Raw<'_>)| match value {
            Raw::Text(text) => (borrowed(name), borrowed(text)),
            Raw::Object(_) | Raw::Plain(_) => panic!("a text"),
        };
        assert_eq!(entries.iter().map(of).collect::<Vec<_>>(), [(true, true), (false, false)]);
    }
}
