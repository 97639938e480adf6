//! Table of all endpoints.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::MethodFilter;
use serde_json::{Map, Value, json};

use super::super::error::CmlError;
use super::super::labs::{Action, Lab, NewLab, NewNode};
use super::super::links::POPULATED_INTERFACES;
use super::super::server::{ADMIN_ID, CmlServer};
use super::{Access, ApiRequest, Endpoint, EndpointResult};

const fn public(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Open, handler }
}

const fn authenticated(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Login, handler }
}

type Handler = fn(&CmlServer, &ApiRequest) -> EndpointResult;

const GET: MethodFilter = MethodFilter::GET;
const PUT: MethodFilter = MethodFilter::PUT;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    public("system_information", GET, "/system_information", |server, _| json(server.information())),
    public("authenticate", POST, "/authenticate", |server, request| json(log_in(server, request)?.1.into())),
    public("auth_extended", POST, "/auth_extended", |server, request| {
        let (username, token) = log_in(server, request)?;
        json(json!({"username": username, "id": ADMIN_ID, "token": token, "admin": true, "error": null}))
    }),
    // Login probe of clients for controllers before 2.10.
    authenticated("authok", GET, "/authok", |_, _| json("OK".into())),
    // Login probe of clients for controllers from 2.10 on.
    authenticated("authentication", GET, "/authentication", |server, _| {
        if !server.options().is_at_least_2_10() {
            return Err(CmlError::not_found("Path", "/api/v0/authentication"));
        }
        json(json!({"id": ADMIN_ID, "username": server.options().username, "admin": true, "error": null}))
    }),
    authenticated("logout", DELETE, "/logout", |server, request| {
        if request.query_flag("clear_all_sessions") {
            server.end_all_logins();
        } else {
            server.log_out(&request.token);
        }
        json(true.into())
    }),
    authenticated("system_stats", GET, "/system_stats", |server, _| json(server.stats())),
    authenticated("system_health", GET, "/system_health", |server, _| json(server.health())),
    authenticated("compute_hosts", GET, "/system/compute_hosts", |server, _| json(json!([server.compute_host()]))),
    authenticated("compute_host", GET, "/system/compute_hosts/{compute}", |server, request| {
        let host = server.compute_host();
        if host["id"] == request.param(0) {
            json(host)
        } else {
            Err(CmlError::not_found("Compute host", request.param(0)))
        }
    }),
    authenticated("maintenance_mode", GET, "/system/maintenance_mode", |_, _| {
        json(json!({"maintenance_mode": false, "notice": null}))
    }),
    authenticated("notices", GET, "/system/notices", |_, _| json(json!([]))),
    authenticated("resource_pools", GET, "/resource_pools", |_, _| json(json!([]))),
    authenticated("users", GET, "/users", |server, _| json(json!([admin(server)]))),
    authenticated("user", GET, "/users/{user}", |server, request| {
        if request.param(0) == ADMIN_ID {
            json(admin(server))
        } else {
            Err(CmlError::not_found("User", request.param(0)))
        }
    }),
    authenticated("telemetry", GET, "/telemetry", |_, _| json(json!({"opt_in": "UNSET"}))),
    authenticated("telemetry_events", GET, "/telemetry/events", |server, _| json(server.telemetry_events())),
    authenticated("labs", GET, "/labs", |server, _| {
        json(server.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())))
    }),
    authenticated("create_lab", POST, "/labs", create_lab),
    authenticated("lab_tiles", GET, "/populate_lab_tiles", |server, _| {
        let username = &server.options().username;
        let tile = |(id, lab): (&String, &Lab)| (id.clone(), lab.to_json(id, username));
        json(json!({"lab_tiles": server.with(|state, _| state.labs.iter().map(tile).collect::<Map<_, _>>())}))
    }),
    authenticated("lab", GET, "/labs/{lab}", |server, request| {
        let username = &server.options().username;
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.to_json(request.param(0), username)))?)
    }),
    authenticated("update_lab", PATCH, "/labs/{lab}", |server, request| {
        let fields = request.object()?;
        let username = &server.options().username;
        json(server.with_lab(request.param(0), |lab, now| {
            lab.update(&fields, now);
            Ok(lab.to_json(request.param(0), username))
        })?)
    }),
    authenticated("delete_lab", DELETE, "/labs/{lab}", |server, request| {
        no_content(server.remove_lab(request.param(0)))
    }),
    authenticated("lab_topology", GET, "/labs/{lab}/topology", |server, request| {
        let boot = server.options().node_boot;
        json(server.with_lab(request.param(0), |lab, now| Ok(lab.topology(request.param(0), boot, now)))?)
    }),
    authenticated("download_lab", GET, "/labs/{lab}/download", |server, request| {
        let boot = server.options().node_boot;
        let topology = server.with_lab(request.param(0), |lab, now| Ok(lab.topology(request.param(0), boot, now)))?;
        let text = serde_yaml_ng::to_string(&topology).map_err(|error| CmlError::new(500, error.to_string()))?;
        Ok(text.into_response())
    }),
    authenticated("lab_state", GET, "/labs/{lab}/state", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.state_json()))?)
    }),
    authenticated("lab_element_state", GET, "/labs/{lab}/lab_element_state", |server, request| {
        let boot = server.options().node_boot;
        json(server.with_lab(request.param(0), |lab, now| Ok(lab.element_states(boot, now)))?)
    }),
    authenticated("check_if_converged", GET, "/labs/{lab}/check_if_converged", |server, request| {
        let boot = server.options().node_boot;
        json(server.with_lab(request.param(0), |lab, now| Ok(lab.has_converged(boot, now).into()))?)
    }),
    authenticated("simulation_stats", GET, "/labs/{lab}/simulation_stats", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.simulation_stats()))?)
    }),
    authenticated("lab_resource_pools", GET, "/labs/{lab}/resource_pools", |server, request| {
        constant(server, request, json!([]))
    }),
    authenticated("import_lab", POST, "/import", |server, request| {
        let id = server.import_lab(&request.body, request.query("title").map(str::to_owned))?;
        json(json!({"id": id, "warnings": []}))
    }),
    authenticated("lab_interfaces", GET, "/labs/{lab}/interfaces", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(json!(lab.cabling.interface_ids())))?)
    }),
    authenticated("create_interface", POST, "/labs/{lab}/interfaces", create_interface),
    authenticated("interface", GET, "/labs/{lab}/interfaces/{interface}", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.interface(request.param(0), request.param(1)))?)
    }),
    authenticated("interface_state", GET, "/labs/{lab}/interfaces/{interface}/state", |server, request| {
        let interface =
            server.with_lab(request.param(0), |lab, _| lab.interface(request.param(0), request.param(1)))?;
        json(json!({"label": interface["label"], "state": interface["state"], "node": interface["node"]}))
    }),
    authenticated("start_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/start", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), true)))
    }),
    authenticated("stop_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/stop", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), false)))
    }),
    authenticated("delete_interface", DELETE, "/labs/{lab}/interfaces/{interface}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.remove_interface(request.param(1))))
    }),
    authenticated("node_interfaces", GET, "/labs/{lab}/nodes/{node}/interfaces", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| {
            lab.node_is_on(request.param(1)).ok_or_else(|| CmlError::not_found("Node", request.param(1)))?;
            let interfaces = lab.cabling.node_interfaces(request.param(1));
            Ok(json!(interfaces.into_iter().map(|(id, _)| id).collect::<Vec<_>>()))
        })?)
    }),
    authenticated("lab_links", GET, "/labs/{lab}/links", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(json!(lab.cabling.link_ids())))?)
    }),
    authenticated("create_link", POST, "/labs/{lab}/links", create_link),
    authenticated("link", GET, "/labs/{lab}/links/{link}", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.link(request.param(0), request.param(1)))?)
    }),
    authenticated("link_state", GET, "/labs/{lab}/links/{link}/state", |server, request| {
        let link = server.with_lab(request.param(0), |lab, _| lab.link(request.param(0), request.param(1)))?;
        json(json!({"label": link["label"], "state": link["state"]}))
    }),
    authenticated("link_converged", GET, "/labs/{lab}/links/{link}/check_if_converged", |server, request| {
        json(
            server.with_lab(request.param(0), |lab, _| {
                lab.link(request.param(0), request.param(1)).map(|_| true.into())
            })?,
        )
    }),
    authenticated("start_link", PUT, "/labs/{lab}/links/{link}/state/start", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), true)))
    }),
    authenticated("stop_link", PUT, "/labs/{lab}/links/{link}/state/stop", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), false)))
    }),
    authenticated("delete_link", DELETE, "/labs/{lab}/links/{link}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.remove_link(request.param(1))))
    }),
    authenticated("lab_events", GET, "/labs/{lab}/events", |server, request| constant(server, request, json!([]))),
    authenticated("layer3_addresses", GET, "/labs/{lab}/layer3_addresses", |server, request| {
        constant(server, request, json!({}))
    }),
    authenticated("start_lab", PUT, "/labs/{lab}/start", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Start))
    }),
    authenticated("stop_lab", PUT, "/labs/{lab}/stop", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Stop))
    }),
    authenticated("wipe_lab", PUT, "/labs/{lab}/wipe", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Wipe))
    }),
    authenticated("lab_nodes", GET, "/labs/{lab}/nodes", |server, request| {
        let boot = server.options().node_boot;
        json(server.with_lab(request.param(0), |lab, now| {
            let with_data = request.query_flag("data");
            Ok(if with_data { json!(lab.nodes(request.param(0), boot, now)) } else { json!(lab.node_ids()) })
        })?)
    }),
    authenticated("create_node", POST, "/labs/{lab}/nodes", create_node),
    authenticated("node", GET, "/labs/{lab}/nodes/{node}", |server, request| {
        let boot = server.options().node_boot;
        json(server.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?)
    }),
    authenticated("delete_node", DELETE, "/labs/{lab}/nodes/{node}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.remove_node(request.param(1))))
    }),
    authenticated("node_state", GET, "/labs/{lab}/nodes/{node}/state", |server, request| {
        let boot = server.options().node_boot;
        let node =
            server.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?;
        json(node["state"].clone())
    }),
    authenticated("node_converged", GET, "/labs/{lab}/nodes/{node}/check_if_converged", |server, request| {
        let boot = server.options().node_boot;
        let node =
            server.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?;
        json((node["state"] != "STARTED").into())
    }),
    authenticated("start_node", PUT, "/labs/{lab}/nodes/{node}/state/start", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Start))
    }),
    authenticated("stop_node", PUT, "/labs/{lab}/nodes/{node}/state/stop", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Stop))
    }),
    authenticated("wipe_node", PUT, "/labs/{lab}/nodes/{node}/wipe_disks", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Wipe))
    }),
    authenticated("nodes", GET, "/nodes", |server, _| {
        let boot = server.options().node_boot;
        let nodes: Vec<_> =
            server.with(|state, now| state.labs.iter().flat_map(|(id, lab)| lab.nodes(id, boot, now)).collect());
        json(nodes.into())
    }),
    authenticated("licensing", GET, "/licensing", |server, _| json(server.licensing_status())),
    authenticated("tech_support", GET, "/licensing/tech_support", |server, _| {
        let status = server.licensing_status();
        let (registration, authorization) = (&status["registration"]["status"], &status["authorization"]["status"]);
        Ok(format!("Registration: {registration}\nAuthorization: {authorization}\n").into_response())
    }),
    authenticated("register", POST, "/licensing/registration", |server, request| {
        no_content(server.register(&request.json()?))
    }),
    authenticated("renew_registration", PUT, "/licensing/registration/renew", |server, _| {
        no_content(server.with(|state, now| state.licensing.renew(now)))
    }),
    authenticated("renew_authorization", PUT, "/licensing/authorization/renew", |server, _| {
        no_content(server.with(|state, now| state.licensing.renew(now)))
    }),
    authenticated("deregister", DELETE, "/licensing/deregistration", |server, _| {
        let status = server.deregister()?;
        Ok(StatusCode::from_u16(status).unwrap_or(StatusCode::NO_CONTENT).into_response())
    }),
    authenticated("set_product_license", PUT, "/licensing/product_license", |server, request| {
        let body = request.json()?;
        no_content(server.with(|state, _| state.licensing.set_product(&body)))
    }),
    authenticated("set_transport", PUT, "/licensing/transport", |server, request| {
        let body = request.json()?;
        no_content(server.with(|state, _| state.licensing.set_transport(&body)))
    }),
    authenticated("update_features", PATCH, "/licensing/features", |_, request| match request.json()? {
        Value::Array(_) | Value::Object(_) => no_content(Ok(())),
        _ => Err(CmlError::bad_request("Expected a list of features or an object.")),
    }),
];

fn log_in(server: &CmlServer, request: &ApiRequest) -> Result<(String, String), CmlError> {
    let fields = request.object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let (Some(username), Some(password)) = (text("username"), text("password")) else {
        return Err(CmlError::bad_request("username and password are required and must be strings."));
    };
    Ok((username.to_owned(), server.log_in(username, password)?))
}

fn create_lab(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = if request.body.is_empty() { Map::new() } else { request.object()? };
    let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
    let id = server.create_lab(NewLab {
        title: text("title"),
        description: text("description").unwrap_or_default(),
        notes: text("notes").unwrap_or_default(),
    })?;
    let username = &server.options().username;
    json(server.with_lab(&id, |lab, _| Ok(lab.to_json(&id, username)))?)
}

fn create_node(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let mut rest = request.object()?;
    let mut take = |field: &str| match rest.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(CmlError::bad_request(format!("Field {field} is required and must be a string."))),
    };
    let node = NewNode { label: take("label")?, node_definition: take("node_definition")?, rest };
    let id = server.add_node(request.param(0), node)?;
    if request.query_flag("populate_interfaces") {
        server.add_interfaces(request.param(0), &id, Some(POPULATED_INTERFACES - 1))?;
    }
    json(json!({"id": id}))
}

fn create_interface(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let node = fields.get("node").and_then(Value::as_str);
    let node = node.ok_or_else(|| CmlError::bad_request("Field node is required and must be a string."))?;
    let slot = match fields.get("slot") {
        None | Some(Value::Null) => None,
        Some(slot) => {
            let slot = slot.as_u64().and_then(|slot| u32::try_from(slot).ok());
            Some(slot.ok_or_else(|| CmlError::bad_request("Field slot must be an integer from 0 up."))?)
        }
    };
    let added = server.add_interfaces(request.param(0), node, slot)?;
    let mut interfaces = server.with_lab(request.param(0), |lab, _| {
        added.iter().map(|id| lab.interface(request.param(0), id)).collect::<Result<Vec<_>, _>>()
    })?;
    // One interface is returned as an object, several as a list.
    json(if interfaces.len() == 1 { interfaces.remove(0) } else { interfaces.into() })
}

fn create_link(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let end = |field: &str| match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(CmlError::bad_request(format!("Field {field} is required and must be a string."))),
    };
    let id = server.add_link(request.param(0), [end("src_int")?, end("dst_int")?])?;
    json(server.with_lab(request.param(0), |lab, _| lab.link(request.param(0), &id))?)
}

fn admin(server: &CmlServer) -> Value {
    json!({
        "id": ADMIN_ID, "username": server.options().username, "fullname": "", "description": "", "email": "",
        "admin": true, "groups": [], "labs": server.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())),
        "opt_in": null, "resource_pool": null, "pubkey": "",
    })
}

/// Responds with `value` if the lab exists, else 404.
fn constant(server: &CmlServer, request: &ApiRequest, value: Value) -> EndpointResult {
    json(server.with_lab(request.param(0), |_, _| Ok(value))?)
}

fn json(value: Value) -> EndpointResult {
    Ok(axum::Json(value).into_response())
}

fn no_content(result: Result<(), CmlError>) -> EndpointResult {
    result.map(|()| StatusCode::NO_CONTENT.into_response())
}
