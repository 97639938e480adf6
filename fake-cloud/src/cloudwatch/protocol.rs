//! The three protocols of CloudWatch. Each is decoded into a JSON tree and encoded from a [`Shape`].

use std::collections::BTreeMap;

use hyper::HeaderMap;
use serde_json::{Map, Value};

use super::shape::Shape;
use crate::ec2::{Form, Xml, is_common_parameter};
use crate::world::AwsError;

const RPC_PATH: &str = "/service/GraniteServiceVersion20100801/operation/";
const TARGET: &str = "GraniteServiceVersion20100801.";
/// Maximum depth of a query parameter.
const MAX_DEPTH: usize = 20;
const NAMESPACE: &str = "http://monitoring.amazonaws.com/doc/2010-08-01/";

/// A protocol of CloudWatch.
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
    /// Detects the protocol of a request. `None` means a form: EC2, or CloudWatch with [`Protocol::Query`].
    pub(crate) fn detect(path: &str, headers: &HeaderMap) -> Option<Self> {
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

    /// Decodes the operation and the input of a request.
    pub(super) fn decode(self, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<(String, Value), AwsError> {
        match self {
            Self::Cbor => {
                let operation = path.strip_prefix(RPC_PATH).ok_or_else(|| unknown_operation(path))?;
                Ok((operation.to_owned(), decode_cbor(body)?))
            }
            Self::Json => {
                let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
                let operation = target.strip_prefix(TARGET).ok_or_else(|| unknown_operation(target))?;
                Ok((operation.to_owned(), decode_json(body)?))
            }
            Self::Query => {
                let form = Form::decode(body)?;
                let operation = form.get("Action").ok_or_else(|| AwsError::missing("Action"))?.to_owned();
                Ok((operation, query_tree(&form)?))
            }
        }
    }

    /// Encodes a response.
    pub(super) fn encode(self, operation: &str, output: &Shape, request_id: &str) -> Vec<u8> {
        match self {
            Self::Cbor => output.to_cbor(),
            Self::Json => output.to_json(),
            Self::Query => {
                let mut xml = Xml::document(1024);
                xml.raw(&format!("<{operation}Response xmlns=\"{NAMESPACE}\">"));
                output.write_xml(&mut xml, &format!("{operation}Result"));
                xml.element("ResponseMetadata", |xml| xml.text("RequestId", request_id));
                xml.close(&format!("{operation}Response"));
                xml.finish()
            }
        }
    }

    /// Encodes an error.
    pub(crate) fn encode_error(self, error: &AwsError, request_id: &str) -> Vec<u8> {
        let typed = || {
            Shape::Structure(vec![
                ("__type", Shape::text(format!("com.amazonaws.cloudwatch#{}", error_type(&error.code)))),
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

/// Returns the type name of an error code. The code itself is sent in a header.
fn error_type(code: &str) -> &str {
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

fn decode_json(body: &[u8]) -> Result<Value, AwsError> {
    let value: Value = serde_json::from_slice(body).map_err(unreadable)?;
    if value.is_object() { Ok(value) } else { Err(unreadable("it must be a JSON object")) }
}

fn decode_cbor(body: &[u8]) -> Result<Value, AwsError> {
    if body.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let value: ciborium::Value = ciborium::from_reader(body).map_err(|_| unreadable("it is not valid CBOR"))?;
    let value = from_cbor(value)?;
    if value.is_object() { Ok(value) } else { Err(unreadable("it must be a CBOR map")) }
}

/// Recursion is bounded, because the CBOR reader limits the depth.
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
        // The only tag in use marks a timestamp, which the type of the member implies.
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

/// A node of a query parameter tree.
#[derive(Debug)]
enum Node {
    Leaf(String),
    Branch(BTreeMap<String, Node>),
}

/// Converts a form such as `MetricData.member.1.Dimensions.member.2.Name=…` to a tree. All leaves are strings.
fn query_tree(form: &Form<'_>) -> Result<Value, AwsError> {
    let mut root = BTreeMap::new();
    for (name, value) in form.iter().filter(|(name, _)| !is_common_parameter(name)) {
        let path: Vec<&str> = name.split('.').collect();
        if path.len() > MAX_DEPTH {
            return Err(unreadable("a parameter is nested too deep"));
        }
        insert(&mut root, &path, value)?;
    }
    Ok(Value::Object(root.into_iter().map(|(name, node)| (name, node.into_value())).collect()))
}

fn insert(branch: &mut BTreeMap<String, Node>, path: &[&str], value: &str) -> Result<(), AwsError> {
    match path {
        [] => Ok(()),
        [name] => {
            branch.insert((*name).to_owned(), Node::Leaf(value.to_owned()));
            Ok(())
        }
        [name, rest @ ..] => match branch.entry((*name).to_owned()).or_insert_with(|| Node::Branch(BTreeMap::new())) {
            Node::Branch(inner) => insert(inner, rest, value),
            Node::Leaf(_) => Err(unreadable(format_args!("{name} is both a value and a structure"))),
        },
    }
}

impl Node {
    fn into_value(self) -> Value {
        match self {
            Self::Leaf(text) => text.into(),
            Self::Branch(mut branch) => match branch.remove("member") {
                Some(Self::Branch(members)) if branch.is_empty() => {
                    let mut numbered: Vec<(u32, Self)> = members
                        .into_iter()
                        .filter_map(|(number, member)| Some((number.parse().ok()?, member)))
                        .collect();
                    numbered.sort_by_key(|(number, _)| *number);
                    Value::Array(numbered.into_iter().map(|(_, member)| member.into_value()).collect())
                }
                Some(member) => {
                    branch.insert("member".to_owned(), member);
                    Self::object(branch)
                }
                None => Self::object(branch),
            },
        }
    }

    fn object(branch: BTreeMap<String, Self>) -> Value {
        Value::Object(branch.into_iter().map(|(name, node)| (name, node.into_value())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cbor_maps_of_indefinite_length_are_decoded() {
        // {_ "StartTime": 1(0.5), "N": [1]} as encoded by the Rust SDK.
        let body = b"\xbf\x69StartTime\xc1\xfb\x3f\xe0\0\0\0\0\0\0\x61N\x81\x01\xff";
        assert_eq!(decode_cbor(body).expect("good cbor"), serde_json::json!({"StartTime": 0.5, "N": [1]}));
    }

    #[test]
    fn invalid_cbor_is_rejected() {
        let deep = [0x81; 100_000];
        for body in [&b"\xbf"[..], b"\xff", b"\x01", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xa1\x01\x02", &deep] {
            assert_eq!(decode_cbor(body).expect_err("rejected").code, "SerializationException");
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        let deep = [b'['; 100_000];
        for body in [&b""[..], b"[]", b"{", b"{\"a\": \"\xff\"}", &deep] {
            assert_eq!(decode_json(body).expect_err("rejected").code, "SerializationException");
        }
    }

    #[test]
    fn query_members_are_ordered_by_number() {
        let body = "Action=X&Statistics.member.10=Sum&Statistics.member.2=Average&D.member.1.Name=a&D.member.1.Value=b";
        let form = Form::decode(body.as_bytes()).expect("a good form");
        assert_eq!(
            query_tree(&form).expect("a tree"),
            serde_json::json!({"Statistics": ["Average", "Sum"], "D": [{"Name": "a", "Value": "b"}]})
        );
    }

    #[test]
    fn inconsistent_and_deep_queries_are_rejected() {
        for body in ["A=1&A.b=2".to_owned(), format!("{}x=1", "a.".repeat(50))] {
            let form = Form::decode(body.as_bytes()).expect("a good form");
            assert_eq!(query_tree(&form).expect_err("rejected").code, "SerializationException");
        }
    }
}
