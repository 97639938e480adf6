//! The OpenAPI document matches the router.

use std::collections::BTreeSet;

use fake_cloud::control_plane::http::{Access, ENDPOINTS, Verb};
use serde_yaml_ng::Value;

const DOCUMENT: &str = include_str!("../../openapi/control-plane.yaml");

fn document() -> Value {
    serde_yaml_ng::from_str(DOCUMENT).expect("valid YAML")
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
    let served: BTreeSet<_> = ENDPOINTS
        .iter()
        .map(|endpoint| {
            let method = match endpoint.verb {
                Verb::Get => "get",
                Verb::Post => "post",
                Verb::Put => "put",
                Verb::Delete => "delete",
            };
            let open = endpoint.access == Access::Open;
            (method.to_owned(), endpoint.path.to_owned(), endpoint.operation.to_owned(), open)
        })
        .collect();
    let documented = operations(&document());
    assert_eq!(served, documented);
    assert_eq!(served.len(), ENDPOINTS.len(), "two endpoints share a name or a route");
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
    let document = document();
    walk(&document, &document);
}

#[test]
fn enums_match_the_document() {
    let document = document();
    let words = |schema: &str| -> Vec<String> {
        let list = document["components"]["schemas"][schema]["enum"].as_sequence().expect("a list");
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    assert_eq!(words("Status"), fake_cloud::control_plane::STATUSES);
    assert_eq!(words("Desired"), fake_cloud::control_plane::DESIRED_STATUSES);
    assert_eq!(words("SessionState"), fake_cloud::control_plane::SESSION_STATES);
}
