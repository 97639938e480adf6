//! Descriptors of etcd's messages, from the list of their fields in `schema.txt`.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, OneofDescriptorProto,
};

const SCHEMA: &str = include_str!("schema.txt");
const PACKAGE: &str = "etcd";

/// Built by the first request, so that a server without HTTP clients does not pay for it.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let file = FileDescriptorSet { file: vec![parse(SCHEMA)] };
    DescriptorPool::from_file_descriptor_set(file).unwrap_or_default()
});

/// The message with this name.
pub(super) fn message(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(&format!("{PACKAGE}.{name}"))
}

fn parse(schema: &str) -> FileDescriptorProto {
    let definitions: Vec<(&str, &str)> = schema
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, content)| (name.trim(), content.trim()))
        .collect();
    let enums: Vec<&str> = definitions.iter().filter_map(|(name, _)| name.strip_prefix("enum ")).collect();
    let mut file = FileDescriptorProto {
        name: Some("etcd.proto".to_owned()),
        package: Some(PACKAGE.to_owned()),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    for (name, content) in definitions {
        match name.strip_prefix("enum ") {
            // Values of all enums of a package share one scope, and some names occur twice: each enum is nested.
            Some(name) => file.message_type.push(DescriptorProto {
                name: Some(scope(name)),
                enum_type: vec![enumeration(name, content)],
                ..DescriptorProto::default()
            }),
            None => file.message_type.push(descriptor(name, content, &enums)),
        }
    }
    file
}

fn scope(enumeration: &str) -> String {
    format!("{enumeration}Scope")
}

fn enumeration(name: &str, values: &str) -> EnumDescriptorProto {
    let value = |(number, name): (i32, &str)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: (0..).zip(values.split_whitespace()).map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

fn descriptor(name: &str, fields: &str, enums: &[&str]) -> DescriptorProto {
    let fields: Vec<_> = fields.split(',').filter_map(|text| field(text, enums)).collect();
    let has_oneof = fields.iter().any(|field| field.oneof_index.is_some());
    let union = OneofDescriptorProto { name: Some("union".to_owned()), ..OneofDescriptorProto::default() };
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        oneof_decl: if has_oneof { vec![union] } else { Vec::new() },
        ..DescriptorProto::default()
    }
}

fn field(text: &str, enums: &[&str]) -> Option<FieldDescriptorProto> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [qualifier @ .., kind, name, number] = words.as_slice() else { return None };
    let scalar = match *kind {
        "bool" => Some(Type::Bool),
        "bytes" => Some(Type::Bytes),
        "int64" => Some(Type::Int64),
        "string" => Some(Type::String),
        "uint32" => Some(Type::Uint32),
        "uint64" => Some(Type::Uint64),
        _ => None,
    };
    let (kind, type_name) = match scalar {
        Some(scalar) => (scalar, None),
        None if enums.contains(kind) => (Type::Enum, Some(format!(".{PACKAGE}.{}.{kind}", scope(kind)))),
        None => (Type::Message, Some(format!(".{PACKAGE}.{kind}"))),
    };
    let label = if qualifier == ["repeated"] { Label::Repeated } else { Label::Optional };
    Some(FieldDescriptorProto {
        name: Some((*name).to_owned()),
        number: number.parse().ok(),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name,
        oneof_index: (qualifier == ["oneof"]).then_some(0),
        ..FieldDescriptorProto::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::ROUTES;
    use super::*;

    #[test]
    fn every_route_has_its_messages() {
        for route in ROUTES {
            assert!(message(route.request).is_some(), "{}", route.request);
            assert!(message(route.response).is_some(), "{}", route.response);
        }
    }
}
