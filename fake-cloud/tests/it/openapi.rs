//! The OpenAPI document matches the router.

use std::collections::BTreeSet;

use fake_cloud::control_plane::Generation;
use fake_cloud::control_plane::http::{Access, Endpoint, Verb};
use serde_yaml_ng::Value;

/// Document of each generation.
const DOCUMENTS: [(Generation, &str); 2] = [
    (Generation::Extended, include_str!("../../openapi/control-plane-extended.yaml")),
    (Generation::Original, include_str!("../../openapi/control-plane-original.yaml")),
];

fn documents() -> [(Generation, Value); 2] {
    DOCUMENTS.map(|(generation, text)| (generation, serde_yaml_ng::from_str(text).expect("valid YAML")))
}

fn operations(document: &Value) -> BTreeSet<(String, String, String, bool)> {
    let mut operations = BTreeSet::new();
    for (path, item) in document["paths"].as_mapping().expect("paths") {
        for (method, operation) in item.as_mapping().expect("a path item") {
            let method = method.as_str().expect("text");
            if method == "parameters" {
                continue;
            }
            let open = operation.get("security").and_then(Value::as_sequence).is_some_and(Vec::is_empty);
            let id = operation["operationId"].as_str().expect("every operation has an id");
            operations.insert((method.to_owned(), path.as_str().expect("text").to_owned(), id.to_owned(), open));
        }
    }
    operations
}

#[test]
fn document_and_router_have_the_same_routes() {
    let route = |endpoint: &Endpoint| {
        let method = match endpoint.verb {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Delete => "delete",
        };
        let open = endpoint.access == Access::Open;
        (method.to_owned(), endpoint.path.to_owned(), endpoint.operation.to_owned(), open)
    };
    for (generation, document) in documents() {
        let endpoints = || generation.endpoints().iter();
        let served: BTreeSet<_> = endpoints().map(route).collect();
        assert_eq!(served, operations(&document), "{generation:?}");
        assert_eq!(served.len(), endpoints().count(), "two endpoints of {generation:?} share a name or a route");
    }
}

#[test]
fn each_document_names_its_generation() {
    for (generation, document) in documents() {
        let name = serde_yaml_ng::to_string(&generation).expect("YAML");
        assert_eq!(document["info"]["x-generation"].as_str(), Some(name.trim()));
        assert_eq!(
            document["info"]["title"].as_str(),
            Some(format!("Control plane, generation {}", name.trim()).as_str())
        );
    }
}

#[test]
fn references_resolve() {
    fn walk(root: &Value, node: &Value) {
        match node {
            Value::Mapping(mapping) => {
                for (key, value) in mapping {
                    if key.as_str() == Some("$ref") {
                        let target = value.as_str().expect("text").strip_prefix("#/").expect("inside the document");
                        let found = target.split('/').try_fold(root, |node, part| node.get(part));
                        assert!(found.is_some(), "{target}");
                    }
                    walk(root, value);
                }
            }
            Value::Sequence(items) => items.iter().for_each(|item| walk(root, item)),
            _ => {}
        }
    }
    for (_, document) in documents() {
        walk(&document, &document);
    }
}

#[test]
fn enums_match_the_document() {
    let words = |document: &Value, schema: &str| -> Vec<String> {
        let list = document["components"]["schemas"][schema]["enum"].as_sequence().expect("a list");
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let [(_, extended), (_, original)] = documents();
    for document in [&extended, &original] {
        assert_eq!(words(document, "Status"), fake_cloud::control_plane::STATUSES);
        assert_eq!(words(document, "Desired"), fake_cloud::control_plane::DESIRED_STATUSES);
    }
    let states = fake_cloud::control_plane::SESSION_STATES;
    assert_eq!(words(&extended, "SessionState"), states);
    let known = states.into_iter().filter(|state| *state != "failed");
    assert!(words(&original, "SessionState").into_iter().eq(known), "the original server has no failed sessions");
}
