//! An answer before it takes the form of a protocol.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value as Json;

use crate::ec2::Xml;

type Cbor = ciborium::Value;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// Named members.
    Structure(Vec<(&'static str, Shape)>),
    /// Named values of one kind; the names are data.
    Table(Vec<(String, Shape)>),
    /// One after another.
    List(Vec<Shape>),
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Double(f64),
    /// A moment.
    Moment(DateTime<Utc>),
}

impl Shape {
    pub(super) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Text(text.into())
    }

    /// As CBOR. Numbers are floats even when they are whole: clients refuse integers in their place.
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
            Self::Table(rows) => {
                Cbor::Map(rows.iter().map(|(name, value)| (Cbor::Text(name.clone()), value.cbor())).collect())
            }
            Self::List(items) => Cbor::Array(items.iter().map(Self::cbor).collect()),
            Self::Text(text) => Cbor::Text(text.to_string()),
            Self::Double(number) => Cbor::Float(*number),
            Self::Moment(moment) => Cbor::Tag(1, Box::new(Cbor::Float(seconds(*moment)))),
        }
    }

    /// As JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
        self.json().to_string().into_bytes()
    }

    fn json(&self) -> Json {
        match self {
            Self::Structure(members) => {
                Json::Object(members.iter().map(|(name, member)| ((*name).to_owned(), member.json())).collect())
            }
            Self::Table(rows) => Json::Object(rows.iter().map(|(name, value)| (name.clone(), value.json())).collect()),
            Self::List(items) => Json::Array(items.iter().map(Self::json).collect()),
            Self::Text(text) => Json::from(text.as_ref()),
            Self::Double(number) => Json::from(*number),
            Self::Moment(moment) => Json::from(seconds(*moment)),
        }
    }

    /// As the older XML, under the name it goes by.
    pub(super) fn write_xml(&self, xml: &mut Xml, name: &str) {
        xml.element(name, |xml| match self {
            Self::Structure(members) => members.iter().for_each(|(name, member)| member.write_xml(xml, name)),
            Self::Table(rows) => {
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
            Self::Moment(moment) => xml.raw(&moment.to_rfc3339_opts(SecondsFormat::Millis, true)),
        });
    }
}

fn seconds(moment: DateTime<Utc>) -> f64 {
    moment.timestamp_millis() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Shape {
        Shape::Structure(vec![
            ("Timestamp", Shape::Moment(DateTime::from_timestamp(1_767_225_600, 0).expect("a moment"))),
            ("Average", Shape::Double(2.0)),
            ("Unit", Shape::text("<Percent>")),
        ])
    }

    #[test]
    fn in_cbor_a_whole_number_is_still_a_float_and_a_moment_is_tagged() {
        let value: Cbor = ciborium::from_reader(&point().to_cbor()[..]).expect("our own cbor");
        let Cbor::Map(members) = value else { panic!("not a map") };
        assert_eq!(members[0].1, Cbor::Tag(1, Box::new(Cbor::Float(1_767_225_600.0))));
        assert_eq!(members[1].1, Cbor::Float(2.0));
    }

    #[test]
    fn in_json_a_moment_is_a_number_of_seconds() {
        let text = String::from_utf8(point().to_json()).expect("text");
        assert_eq!(text, r#"{"Average":2.0,"Timestamp":1767225600.0,"Unit":"<Percent>"}"#);
    }

    #[test]
    fn in_xml_lists_have_members() {
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
