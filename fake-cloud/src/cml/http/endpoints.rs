//! Every endpoint, as a table.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::MethodFilter;
use serde_json::{Map, Value, json};

use super::super::error::CmlError;
use super::super::labs::{Action, Lab, NewLab, NewNode};
use super::super::links::POPULATED;
use super::super::server::{ADMIN_ID, CmlServer};
use super::{Access, ApiRequest, Endpoint, EndpointResult};

const fn open(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Open, handler }
}

const fn login(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Login, handler }
}

type Handler = fn(&CmlServer, &ApiRequest) -> EndpointResult;

const GET: MethodFilter = MethodFilter::GET;
const PUT: MethodFilter = MethodFilter::PUT;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    open("system_information", GET, "/system_information", |system, _| json(system.information())),
    open("authenticate", POST, "/authenticate", |system, request| json(log_in(system, request)?.1.into())),
    open("auth_extended", POST, "/auth_extended", |system, request| {
        let (username, token) = log_in(system, request)?;
        json(json!({"username": username, "id": ADMIN_ID, "token": token, "admin": true, "error": null}))
    }),
    // The probe of clients for controllers before 2.10 …
    login("authok", GET, "/authok", |_, _| json("OK".into())),
    // … and of those from 2.10 on.
    login("authentication", GET, "/authentication", |system, _| {
        if !system.options().is_at_least_2_10() {
            return Err(CmlError::not_found("Path", "/api/v0/authentication"));
        }
        json(json!({"id": ADMIN_ID, "username": system.options().username, "admin": true, "error": null}))
    }),
    login("logout", DELETE, "/logout", |system, request| {
        if request.query_flag("clear_all_sessions") {
            system.end_all_logins();
        } else {
            system.log_out(&request.token);
        }
        json(true.into())
    }),
    login("system_stats", GET, "/system_stats", |system, _| json(system.stats())),
    login("system_health", GET, "/system_health", |system, _| json(system.health())),
    login("compute_hosts", GET, "/system/compute_hosts", |system, _| json(json!([system.compute_host()]))),
    login("compute_host", GET, "/system/compute_hosts/{compute}", |system, request| {
        let host = system.compute_host();
        if host["id"] == request.param(0) {
            json(host)
        } else {
            Err(CmlError::not_found("Compute host", request.param(0)))
        }
    }),
    login("maintenance_mode", GET, "/system/maintenance_mode", |_, _| {
        json(json!({"maintenance_mode": false, "notice": null}))
    }),
    login("notices", GET, "/system/notices", |_, _| json(json!([]))),
    login("resource_pools", GET, "/resource_pools", |_, _| json(json!([]))),
    login("users", GET, "/users", |system, _| json(json!([admin(system)]))),
    login("user", GET, "/users/{user}", |system, request| {
        if request.param(0) == ADMIN_ID {
            json(admin(system))
        } else {
            Err(CmlError::not_found("User", request.param(0)))
        }
    }),
    login("telemetry", GET, "/telemetry", |_, _| json(json!({"opt_in": "UNSET"}))),
    login("telemetry_events", GET, "/telemetry/events", |system, _| json(system.telemetry_events())),
    login("labs", GET, "/labs", |system, _| json(system.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())))),
    login("create_lab", POST, "/labs", create_lab),
    login("lab_tiles", GET, "/populate_lab_tiles", |system, _| {
        let username = &system.options().username;
        let tile = |(id, lab): (&String, &Lab)| (id.clone(), lab.to_json(id, username));
        json(json!({"lab_tiles": system.with(|state, _| state.labs.iter().map(tile).collect::<Map<_, _>>())}))
    }),
    login("lab", GET, "/labs/{lab}", |system, request| {
        let username = &system.options().username;
        json(system.with_lab(request.param(0), |lab, _| Ok(lab.to_json(request.param(0), username)))?)
    }),
    login("update_lab", PATCH, "/labs/{lab}", |system, request| {
        let fields = request.object()?;
        let username = &system.options().username;
        json(system.with_lab(request.param(0), |lab, now| {
            lab.update(&fields, now);
            Ok(lab.to_json(request.param(0), username))
        })?)
    }),
    login("delete_lab", DELETE, "/labs/{lab}", |system, request| nothing(system.remove_lab(request.param(0)))),
    login("lab_topology", GET, "/labs/{lab}/topology", |system, request| {
        let boot = system.options().node_boot;
        json(system.with_lab(request.param(0), |lab, now| Ok(lab.topology(request.param(0), boot, now)))?)
    }),
    login("download_lab", GET, "/labs/{lab}/download", |system, request| {
        let boot = system.options().node_boot;
        let topology = system.with_lab(request.param(0), |lab, now| Ok(lab.topology(request.param(0), boot, now)))?;
        let text = serde_yaml_ng::to_string(&topology).map_err(|error| CmlError::new(500, error.to_string()))?;
        Ok(text.into_response())
    }),
    login("lab_state", GET, "/labs/{lab}/state", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| Ok(lab.state_json()))?)
    }),
    login("lab_element_state", GET, "/labs/{lab}/lab_element_state", |system, request| {
        let boot = system.options().node_boot;
        json(system.with_lab(request.param(0), |lab, now| Ok(lab.element_states(boot, now)))?)
    }),
    login("check_if_converged", GET, "/labs/{lab}/check_if_converged", |system, request| {
        let boot = system.options().node_boot;
        json(system.with_lab(request.param(0), |lab, now| Ok(lab.has_converged(boot, now).into()))?)
    }),
    login("simulation_stats", GET, "/labs/{lab}/simulation_stats", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| Ok(lab.simulation_stats()))?)
    }),
    login("lab_resource_pools", GET, "/labs/{lab}/resource_pools", |system, request| empty(system, request, json!([]))),
    login("import_lab", POST, "/import", |system, request| {
        let id = system.import_lab(&request.body, request.query("title").map(str::to_owned))?;
        json(json!({"id": id, "warnings": []}))
    }),
    login("lab_interfaces", GET, "/labs/{lab}/interfaces", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| Ok(json!(lab.cabling.interface_ids())))?)
    }),
    login("create_interface", POST, "/labs/{lab}/interfaces", create_interface),
    login("interface", GET, "/labs/{lab}/interfaces/{interface}", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| lab.interface(request.param(0), request.param(1)))?)
    }),
    login("interface_state", GET, "/labs/{lab}/interfaces/{interface}/state", |system, request| {
        let shown = system.with_lab(request.param(0), |lab, _| lab.interface(request.param(0), request.param(1)))?;
        json(json!({"label": shown["label"], "state": shown["state"], "node": shown["node"]}))
    }),
    login("start_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/start", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), true)))
    }),
    login("stop_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/stop", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), false)))
    }),
    login("delete_interface", DELETE, "/labs/{lab}/interfaces/{interface}", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.remove_interface(request.param(1))))
    }),
    login("node_interfaces", GET, "/labs/{lab}/nodes/{node}/interfaces", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| {
            lab.node_is_on(request.param(1)).ok_or_else(|| CmlError::not_found("Node", request.param(1)))?;
            let own = lab.cabling.of_node(request.param(1));
            Ok(json!(own.into_iter().map(|(id, _)| id).collect::<Vec<_>>()))
        })?)
    }),
    login("lab_links", GET, "/labs/{lab}/links", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| Ok(json!(lab.cabling.link_ids())))?)
    }),
    login("create_link", POST, "/labs/{lab}/links", create_link),
    login("link", GET, "/labs/{lab}/links/{link}", |system, request| {
        json(system.with_lab(request.param(0), |lab, _| lab.link(request.param(0), request.param(1)))?)
    }),
    login("link_state", GET, "/labs/{lab}/links/{link}/state", |system, request| {
        let shown = system.with_lab(request.param(0), |lab, _| lab.link(request.param(0), request.param(1)))?;
        json(json!({"label": shown["label"], "state": shown["state"]}))
    }),
    login("link_converged", GET, "/labs/{lab}/links/{link}/check_if_converged", |system, request| {
        json(
            system.with_lab(request.param(0), |lab, _| {
                lab.link(request.param(0), request.param(1)).map(|_| true.into())
            })?,
        )
    }),
    login("start_link", PUT, "/labs/{lab}/links/{link}/state/start", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), true)))
    }),
    login("stop_link", PUT, "/labs/{lab}/links/{link}/state/stop", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), false)))
    }),
    login("delete_link", DELETE, "/labs/{lab}/links/{link}", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.cabling.remove_link(request.param(1))))
    }),
    login("lab_events", GET, "/labs/{lab}/events", |system, request| empty(system, request, json!([]))),
    login("layer3_addresses", GET, "/labs/{lab}/layer3_addresses", |system, request| empty(system, request, json!({}))),
    login("start_lab", PUT, "/labs/{lab}/start", |system, request| {
        nothing(system.apply(request.param(0), None, Action::Start))
    }),
    login("stop_lab", PUT, "/labs/{lab}/stop", |system, request| {
        nothing(system.apply(request.param(0), None, Action::Stop))
    }),
    login("wipe_lab", PUT, "/labs/{lab}/wipe", |system, request| {
        nothing(system.apply(request.param(0), None, Action::Wipe))
    }),
    login("lab_nodes", GET, "/labs/{lab}/nodes", |system, request| {
        let boot = system.options().node_boot;
        json(system.with_lab(request.param(0), |lab, now| {
            let with_data = request.query_flag("data");
            Ok(if with_data { json!(lab.nodes(request.param(0), boot, now)) } else { json!(lab.node_ids()) })
        })?)
    }),
    login("create_node", POST, "/labs/{lab}/nodes", create_node),
    login("node", GET, "/labs/{lab}/nodes/{node}", |system, request| {
        let boot = system.options().node_boot;
        json(system.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?)
    }),
    login("delete_node", DELETE, "/labs/{lab}/nodes/{node}", |system, request| {
        nothing(system.with_lab(request.param(0), |lab, _| lab.remove_node(request.param(1))))
    }),
    login("node_state", GET, "/labs/{lab}/nodes/{node}/state", |system, request| {
        let boot = system.options().node_boot;
        let node =
            system.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?;
        json(node["state"].clone())
    }),
    login("node_converged", GET, "/labs/{lab}/nodes/{node}/check_if_converged", |system, request| {
        let boot = system.options().node_boot;
        let node =
            system.with_lab(request.param(0), |lab, now| lab.node(request.param(0), request.param(1), boot, now))?;
        json((node["state"] != "STARTED").into())
    }),
    login("start_node", PUT, "/labs/{lab}/nodes/{node}/state/start", |system, request| {
        nothing(system.apply(request.param(0), Some(request.param(1)), Action::Start))
    }),
    login("stop_node", PUT, "/labs/{lab}/nodes/{node}/state/stop", |system, request| {
        nothing(system.apply(request.param(0), Some(request.param(1)), Action::Stop))
    }),
    login("wipe_node", PUT, "/labs/{lab}/nodes/{node}/wipe_disks", |system, request| {
        nothing(system.apply(request.param(0), Some(request.param(1)), Action::Wipe))
    }),
    login("nodes", GET, "/nodes", |system, _| {
        let boot = system.options().node_boot;
        let nodes: Vec<_> =
            system.with(|state, now| state.labs.iter().flat_map(|(id, lab)| lab.nodes(id, boot, now)).collect());
        json(nodes.into())
    }),
    login("licensing", GET, "/licensing", |system, _| json(system.licensing_status())),
    login("tech_support", GET, "/licensing/tech_support", |system, _| {
        let status = system.licensing_status();
        let words = (&status["registration"]["status"], &status["authorization"]["status"]);
        Ok(format!("Registration: {}\nAuthorization: {}\n", words.0, words.1).into_response())
    }),
    login("register", POST, "/licensing/registration", |system, request| nothing(system.register(&request.json()?))),
    login("renew_registration", PUT, "/licensing/registration/renew", |system, _| {
        nothing(system.with(|state, now| state.licensing.renew(now)))
    }),
    login("renew_authorization", PUT, "/licensing/authorization/renew", |system, _| {
        nothing(system.with(|state, now| state.licensing.renew(now)))
    }),
    login("deregister", DELETE, "/licensing/deregistration", |system, _| {
        let status = system.deregister()?;
        Ok(StatusCode::from_u16(status).unwrap_or(StatusCode::NO_CONTENT).into_response())
    }),
    login("set_product_license", PUT, "/licensing/product_license", |system, request| {
        let body = request.json()?;
        nothing(system.with(|state, _| state.licensing.set_product(&body)))
    }),
    login("set_transport", PUT, "/licensing/transport", |system, request| {
        let body = request.json()?;
        nothing(system.with(|state, _| state.licensing.set_transport(&body)))
    }),
    login("update_features", PATCH, "/licensing/features", |_, request| match request.json()? {
        Value::Array(_) | Value::Object(_) => nothing(Ok(())),
        _ => Err(CmlError::bad_request("A list of features or an object is needed.")),
    }),
];

fn log_in(system: &CmlServer, request: &ApiRequest) -> Result<(String, String), CmlError> {
    let fields = request.object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let (Some(username), Some(password)) = (text("username"), text("password")) else {
        return Err(CmlError::bad_request("Both username and password are needed, as text."));
    };
    Ok((username.to_owned(), system.log_in(username, password)?))
}

fn create_lab(system: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = if request.body.is_empty() { Map::new() } else { request.object()? };
    let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
    let id = system.create_lab(NewLab {
        title: text("title"),
        description: text("description").unwrap_or_default(),
        notes: text("notes").unwrap_or_default(),
    })?;
    let username = &system.options().username;
    json(system.with_lab(&id, |lab, _| Ok(lab.to_json(&id, username)))?)
}

fn create_node(system: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let mut rest = request.object()?;
    let mut take = |field: &str| match rest.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(CmlError::bad_request(format!("Field {field} is needed, as text."))),
    };
    let node = NewNode { label: take("label")?, node_definition: take("node_definition")?, rest };
    let id = system.add_node(request.param(0), node)?;
    if request.query_flag("populate_interfaces") {
        system.add_interfaces(request.param(0), &id, Some(POPULATED - 1))?;
    }
    json(json!({"id": id}))
}

fn create_interface(system: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let node = fields.get("node").and_then(Value::as_str);
    let node = node.ok_or_else(|| CmlError::bad_request("Field node is needed, as text."))?;
    let slot = match fields.get("slot") {
        None | Some(Value::Null) => None,
        Some(slot) => {
            let slot = slot.as_u64().and_then(|slot| u32::try_from(slot).ok());
            Some(slot.ok_or_else(|| CmlError::bad_request("Field slot must be a whole number from 0 up."))?)
        }
    };
    let added = system.add_interfaces(request.param(0), node, slot)?;
    let mut shown = system.with_lab(request.param(0), |lab, _| {
        added.iter().map(|id| lab.interface(request.param(0), id)).collect::<Result<Vec<_>, _>>()
    })?;
    // One comes alone, several as a list.
    json(if shown.len() == 1 { shown.remove(0) } else { shown.into() })
}

fn create_link(system: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let end = |field: &str| match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(CmlError::bad_request(format!("Field {field} is needed, as text."))),
    };
    let id = system.add_link(request.param(0), [end("src_int")?, end("dst_int")?])?;
    json(system.with_lab(request.param(0), |lab, _| lab.link(request.param(0), &id))?)
}

fn admin(system: &CmlServer) -> Value {
    json!({
        "id": ADMIN_ID, "username": system.options().username, "fullname": "", "description": "", "email": "",
        "admin": true, "groups": [], "labs": system.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())),
        "opt_in": null, "resource_pool": null, "pubkey": "",
    })
}

/// A list of a lab that exists, which has nothing on it.
fn empty(system: &CmlServer, request: &ApiRequest, nothing: Value) -> EndpointResult {
    json(system.with_lab(request.param(0), |_, _| Ok(nothing))?)
}

fn json(value: Value) -> EndpointResult {
    Ok(axum::Json(value).into_response())
}

fn nothing(done: Result<(), CmlError>) -> EndpointResult {
    done.map(|()| StatusCode::NO_CONTENT.into_response())
}
