//! Response values, independent of the protocol.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value as Json;

use crate::ec2::Xml;

type Cbor = ciborium::Value;

/// A response value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// A structure with named members.
    Structure(Vec<(&'static str, Shape)>),
    /// A map whose keys are data.
    Map(Vec<(String, Shape)>),
    /// A list of values.
    List(Vec<Shape>),
    /// A UTF-8 string.
    Text(Cow<'static, str>),
    /// A floating-point number.
    Double(f64),
    /// A timestamp, encoded as seconds or as ISO 8601.
    Timestamp(DateTime<Utc>),
}

impl Shape {
    pub(super) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Text(text.into())
    }

    /// Encodes the value as CBOR. Numbers are always floats, because clients reject integers.
    pub(super) fn to_cbor(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = ciborium::into_writer(&self.cbor(), &mut bytes);
        bytes
    }

    fn cbor(&self) -> Cbor {
        match self {
            Self::Structure(members) => Cbor::Map(
                members.iter().map(|(name, member)| (Cbor::Text((*name).to_owned()), member.cbor())).collect(),
            ),
            Self::Map(rows) => {
                Cbor::Map(rows.iter().map(|(name, value)| (Cbor::Text(name.clone()), value.cbor())).collect())
            }
            Self::List(items) => Cbor::Array(items.iter().map(Self::cbor).collect()),
            Self::Text(text) => Cbor::Text(text.to_string()),
            Self::Double(number) => Cbor::Float(*number),
            Self::Timestamp(timestamp) => Cbor::Tag(1, Box::new(Cbor::Float(seconds(*timestamp)))),
        }
    }

    /// Encodes the value as JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
        self.json().to_string().into_bytes()
    }

    fn json(&self) -> Json {
        match self {
            Self::Structure(members) => {
                Json::Object(members.iter().map(|(name, member)| ((*name).to_owned(), member.json())).collect())
            }
            Self::Map(rows) => Json::Object(rows.iter().map(|(name, value)| (name.clone(), value.json())).collect()),
            Self::List(items) => Json::Array(items.iter().map(Self::json).collect()),
            Self::Text(text) => Json::from(text.as_ref()),
            Self::Double(number) => Json::from(*number),
            Self::Timestamp(timestamp) => Json::from(seconds(*timestamp)),
        }
    }

    /// Writes the value as an XML element with this name.
    pub(super) fn write_xml(&self, xml: &mut Xml, name: &str) {
        xml.element(name, |xml| match self {
            Self::Structure(members) => members.iter().for_each(|(name, member)| member.write_xml(xml, name)),
            Self::Map(rows) => {
                for (key, value) in rows {
                    xml.element("entry", |xml| {
                        xml.text("key", key);
                        value.write_xml(xml, "value");
                    });
                }
            }
            Self::List(items) => items.iter().for_each(|item| item.write_xml(xml, "member")),
            Self::Text(text) => xml.escaped(text),
            Self::Double(number) => xml.raw(&number.to_string()),
            Self::Timestamp(timestamp) => xml.raw(&timestamp.to_rfc3339_opts(SecondsFormat::Millis, true)),
        });
    }
}

fn seconds(timestamp: DateTime<Utc>) -> f64 {
    timestamp.timestamp_millis() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Shape {
        Shape::Structure(vec![
            ("Timestamp", Shape::Timestamp(DateTime::from_timestamp(1_767_225_600, 0).expect("a timestamp"))),
            ("Average", Shape::Double(2.0)),
            ("Unit", Shape::text("<Percent>")),
        ])
    }

    #[test]
    fn cbor_numbers_are_floats_and_timestamps_are_tagged() {
        let value: Cbor = ciborium::from_reader(&point().to_cbor()[..]).expect("valid CBOR");
        let Cbor::Map(members) = value else { panic!("not a map") };
        assert_eq!(members[0].1, Cbor::Tag(1, Box::new(Cbor::Float(1_767_225_600.0))));
        assert_eq!(members[1].1, Cbor::Float(2.0));
    }

    #[test]
    fn json_timestamps_are_seconds() {
        let text = String::from_utf8(point().to_json()).expect("text");
        assert_eq!(text, r#"{"Average":2.0,"Timestamp":1767225600.0,"Unit":"<Percent>"}"#);
    }

    #[test]
    fn xml_lists_have_member_elements() {
        let mut xml = Xml::document(0);
        Shape::Structure(vec![("Datapoints", Shape::List(vec![point()]))]).write_xml(&mut xml, "R");
        let text = String::from_utf8(xml.finish()).expect("UTF-8");
        assert!(
            text.ends_with(
                "<R><Datapoints><member><Timestamp>2026-01-01T00:00:00.000Z</Timestamp><Average>2</Average>\
                 <Unit>&lt;Percent&gt;</Unit></member></Datapoints></R>"
            ),
            "{text}"
        );
    }
}
