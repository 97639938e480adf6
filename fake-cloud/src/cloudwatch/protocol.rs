//! The three protocols CloudWatch speaks today. All of them are read into one tree, and written from one.

use hyper::HeaderMap;
use serde_json::{Map, Value};

use super::query;
use super::shape::Shape;
use crate::ec2::{Form, Xml};
use crate::world::AwsError;

const RPC_PATH: &str = "/service/GraniteServiceVersion20100801/operation/";
const TARGET: &str = "GraniteServiceVersion20100801.";
const NAMESPACE: &str = "http://monitoring.amazonaws.com/doc/2010-08-01/";

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Smithy RPC v2 with CBOR: the Rust SDK.
    Cbor,
    /// AWS JSON 1.0: boto3 and the command line.
    Json,
    /// Forms and XML: older SDKs.
    Query,
}

impl Protocol {
    /// The protocol a request gives itself away as; none when it looks like a form.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Option<Self> {
        if path.starts_with("/service/") {
            Some(Self::Cbor)
        } else if headers.contains_key("x-amz-target") {
            Some(Self::Json)
        } else {
            None
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Cbor => "application/cbor",
            Self::Json => "application/x-amz-json-1.0",
            Self::Query => "text/xml",
        }
    }

    /// Reads operation and input.
    pub(super) fn decode(self, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<(String, Value), AwsError> {
        match self {
            Self::Cbor => {
                let operation = path.strip_prefix(RPC_PATH).ok_or_else(|| unknown_operation(path))?;
                Ok((operation.to_owned(), read_cbor(body)?))
            }
            Self::Json => {
                let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
                let operation = target.strip_prefix(TARGET).ok_or_else(|| unknown_operation(target))?;
                Ok((operation.to_owned(), read_json(body)?))
            }
            Self::Query => {
                let form = Form::decode(body)?;
                let operation = form.get("Action").ok_or_else(|| AwsError::missing("Action"))?.to_owned();
                Ok((operation, query::read(&form)?))
            }
        }
    }

    /// Writes an answer.
    pub(super) fn encode(self, operation: &str, answer: &Shape, request_id: &str) -> Vec<u8> {
        match self {
            Self::Cbor => answer.to_cbor(),
            Self::Json => answer.to_json(),
            Self::Query => {
                let mut xml = Xml::document(1024);
                xml.raw(&format!("<{operation}Response xmlns=\"{NAMESPACE}\">"));
                answer.write_xml(&mut xml, &format!("{operation}Result"));
                xml.element("ResponseMetadata", |xml| xml.text("RequestId", request_id));
                xml.close(&format!("{operation}Response"));
                xml.finish()
            }
        }
    }

    /// Writes a refusal.
    pub(crate) fn encode_error(self, error: &AwsError, request_id: &str) -> Vec<u8> {
        let typed = || {
            Shape::Structure(vec![
                ("__type", Shape::text(format!("com.amazonaws.cloudwatch#{}", shape_of(&error.code)))),
                ("message", Shape::text(error.message.clone())),
            ])
        };
        match self {
            Self::Cbor => typed().to_cbor(),
            Self::Json => typed().to_json(),
            Self::Query => {
                let mut xml = Xml::document(512);
                xml.raw(&format!("<ErrorResponse xmlns=\"{NAMESPACE}\">"));
                xml.element("Error", |xml| {
                    xml.text("Type", if error.status >= 500 { "Receiver" } else { "Sender" });
                    xml.text("Code", &error.code);
                    xml.text("Message", &error.message);
                });
                xml.text("RequestId", request_id);
                xml.close("ErrorResponse");
                xml.finish()
            }
        }
    }
}

/// The name of an error's type; what clients know as its code travels in a header.
fn shape_of(code: &str) -> &str {
    match code {
        "InvalidParameterValue" => "InvalidParameterValueException",
        "MissingParameter" => "MissingRequiredParameterException",
        "InvalidParameterCombination" => "InvalidParameterCombinationException",
        "InternalServiceError" => "InternalServiceFault",
        "LimitExceeded" => "LimitExceededFault",
        other => other,
    }
}

pub(super) fn unknown_operation(name: &str) -> AwsError {
    AwsError::new("UnknownOperationException", format!("The operation {name} is not known.")).with_status(404)
}

pub(super) fn unreadable(hint: impl std::fmt::Display) -> AwsError {
    AwsError::new("SerializationException", format!("The request cannot be read: {hint}"))
}

fn read_json(body: &[u8]) -> Result<Value, AwsError> {
    let value: Value = serde_json::from_slice(body).map_err(unreadable)?;
    if value.is_object() { Ok(value) } else { Err(unreadable("it must be a JSON object")) }
}

fn read_cbor(body: &[u8]) -> Result<Value, AwsError> {
    if body.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let value: ciborium::Value = ciborium::from_reader(body).map_err(|_| unreadable("it is not valid CBOR"))?;
    let value = from_cbor(value)?;
    if value.is_object() { Ok(value) } else { Err(unreadable("it must be a CBOR map")) }
}

/// Depth needs no bound of its own here: the reader has refused what is too deep.
fn from_cbor(value: ciborium::Value) -> Result<Value, AwsError> {
    use ciborium::Value as Cbor;
    Ok(match value {
        Cbor::Null => Value::Null,
        Cbor::Bool(flag) => flag.into(),
        Cbor::Text(text) => text.into(),
        Cbor::Float(number) => number.into(),
        Cbor::Integer(number) => match i64::try_from(number) {
            Ok(number) => number.into(),
            Err(_) => return Err(unreadable("an integer is too large")),
        },
        // The only tag in use says that a number is a moment; the member it is in says so too.
        Cbor::Tag(_, inner) => from_cbor(*inner)?,
        Cbor::Array(items) => Value::Array(items.into_iter().map(from_cbor).collect::<Result<_, _>>()?),
        Cbor::Map(members) => {
            let mut object = Map::with_capacity(members.len());
            for (name, member) in members {
                let Cbor::Text(name) = name else { return Err(unreadable("a name is not a text")) };
                object.insert(name, from_cbor(member)?);
            }
            Value::Object(object)
        }
        _ => return Err(unreadable("it holds a value of an unexpected kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_indefinite_length_are_read() {
        // {_ "StartTime": 1(0.5), "N": [1]} as the Rust SDK writes it.
        let body = b"\xbf\x69StartTime\xc1\xfb\x3f\xe0\0\0\0\0\0\0\x61N\x81\x01\xff";
        assert_eq!(read_cbor(body).expect("good cbor"), serde_json::json!({"StartTime": 0.5, "N": [1]}));
    }

    #[test]
    fn bad_cbor_is_refused_without_harm() {
        let deep = [0x81; 100_000];
        for body in [&b"\xbf"[..], b"\xff", b"\x01", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xa1\x01\x02", &deep] {
            assert_eq!(read_cbor(body).expect_err("refused").code, "SerializationException");
        }
    }

    #[test]
    fn bad_json_is_refused_without_harm() {
        let deep = [b'['; 100_000];
        for body in [&b""[..], b"[]", b"{", b"{\"a\": \"\xff\"}", &deep] {
            assert_eq!(read_json(body).expect_err("refused").code, "SerializationException");
        }
    }
}
