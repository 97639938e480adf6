//! Endpoints of node definitions, image definitions and uploaded images.

use serde_json::{Value, json};

use super::super::definitions::Kind;
use super::super::error::CmlError;
use super::super::server::CmlServer;
use super::{ApiRequest, DELETE, Endpoint, EndpointResult, GET, POST, PUT, json, no_content, yaml_text};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("node_definitions", GET, "/node_definitions", |server, _| {
        json(server.with(|state, _| state.definitions.list(Kind::Node)).into())
    }),
    Endpoint::new("simplified_node_definitions", GET, "/simplified_node_definitions", |server, _| {
        json(server.with(|state, _| state.definitions.simplified()).into())
    }),
    Endpoint::new("create_node_definition", POST, "/node_definitions", |server, request| {
        add(server, request, Kind::Node)
    })
    .admin(),
    Endpoint::new("update_node_definition", PUT, "/node_definitions", |server, request| {
        replace(server, request, Kind::Node)
    })
    .admin(),
    Endpoint::new("node_definition", GET, "/node_definitions/{definition}", |server, request| {
        get(server, request, Kind::Node)
    }),
    Endpoint::new("delete_node_definition", DELETE, "/node_definitions/{definition}", |server, request| {
        remove(server, request, Kind::Node)
    })
    .admin(),
    Endpoint::new("protect_node_definition", PUT, "/node_definitions/{definition}/read_only", |server, request| {
        protect(server, request, Kind::Node)
    })
    .admin(),
    Endpoint::new(
        "node_image_definitions",
        GET,
        "/node_definitions/{definition}/image_definitions",
        |server, request| {
            json(server.with(|state, _| {
                state.definitions.check_node(request.param(0))?;
                Ok::<_, CmlError>(state.definitions.images_of(request.param(0)).cloned().collect::<Value>())
            })?)
        },
    ),
    Endpoint::new("image_definitions", GET, "/image_definitions", |server, _| {
        json(server.with(|state, _| state.definitions.list(Kind::Image)).into())
    }),
    Endpoint::new("create_image_definition", POST, "/image_definitions", |server, request| {
        add(server, request, Kind::Image)
    })
    .admin(),
    Endpoint::new("update_image_definition", PUT, "/image_definitions", |server, request| {
        replace(server, request, Kind::Image)
    })
    .admin(),
    Endpoint::new("image_definition", GET, "/image_definitions/{definition}", |server, request| {
        get(server, request, Kind::Image)
    }),
    Endpoint::new("delete_image_definition", DELETE, "/image_definitions/{definition}", |server, request| {
        remove(server, request, Kind::Image)
    })
    .admin(),
    Endpoint::new("protect_image_definition", PUT, "/image_definitions/{definition}/read_only", |server, request| {
        protect(server, request, Kind::Image)
    })
    .admin(),
    Endpoint::new("dropped_images", GET, "/list_image_definition_drop_folder", |server, _| dropped(server)).admin(),
    // The name and the size of an image are kept, its content is not.
    Endpoint::new("upload_image", POST, "/images/upload", |server, request| {
        let name = request.headers.get("x-original-file-name").and_then(|name| name.to_str().ok());
        let is_name = |name: &&str| !name.is_empty() && !name.contains('/') && name.len() <= 255;
        let name = name.filter(is_name).ok_or_else(|| {
            CmlError::bad_request("The header X-Original-File-Name is required and must be a file name.")
        })?;
        server.with(|state, _| state.definitions.drop_folder.insert(name.to_owned(), request.body.len()));
        json("Success".into())
    })
    .admin(),
    Endpoint::new("delete_dropped_image", DELETE, "/images/manage/{file}", |server, request| {
        let found = server.with(|state, _| state.definitions.drop_folder.remove(request.param(0)));
        found.ok_or_else(|| CmlError::not_found("Image", request.param(0)))?;
        json(format!("Removed {}", request.param(0)).into())
    })
    .admin(),
];

fn dropped(server: &CmlServer) -> EndpointResult {
    json(server.with(|state, _| json!(state.definitions.drop_folder.keys().collect::<Vec<_>>())))
}

/// YAML, or JSON with `json=true`.
fn get(server: &CmlServer, request: &ApiRequest, kind: Kind) -> EndpointResult {
    let found = server.with(|state, _| state.definitions.get(kind, request.param(0)))?;
    if request.query_flag("json") { json(found) } else { yaml_text(&found) }
}

fn add(server: &CmlServer, request: &ApiRequest, kind: Kind) -> EndpointResult {
    let body = request.document()?;
    server.with(|state, _| state.definitions.add(kind, body))?;
    json("Success".into())
}

fn replace(server: &CmlServer, request: &ApiRequest, kind: Kind) -> EndpointResult {
    let body = request.document()?;
    server.with(|state, _| state.definitions.replace(kind, body))?;
    json("Success".into())
}

fn remove(server: &CmlServer, request: &ApiRequest, kind: Kind) -> EndpointResult {
    no_content(server.with(|state, _| state.definitions.remove(kind, request.param(0))))
}

fn protect(server: &CmlServer, request: &ApiRequest, kind: Kind) -> EndpointResult {
    let read_only = request.json()?;
    json(server.with(|state, _| state.definitions.set_read_only(kind, request.param(0), &read_only))?)
}
