//! A system over HTTP: decode, ask, encode.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use serde_json::{Map, Value, json};

use super::boot::Stage;
use super::labs::{Action, NewLab, NewNode};
use super::refusal::{Refusal, bad_gateway_page};
use super::system::{ADMIN_ID, System};
use crate::http_server;
use crate::interruption::RequestInfo;

/// The largest body that is read.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// One endpoint: its name for faults, its method, its path under `/api/v0`, whether it needs a login, what it does.
struct Endpoint {
    operation: &'static str,
    verb: MethodFilter,
    path: &'static str,
    access: Access,
    handler: fn(&System, &Call) -> Answer,
}

type Answer = Result<Response, Refusal>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    Login,
}

/// A request, decoded as far as every endpoint needs it.
struct Call {
    params: Vec<String>,
    query: Vec<(String, String)>,
    body: Bytes,
    /// The id of the token it came with.
    token: String,
}

impl Call {
    fn param(&self, index: usize) -> &str {
        self.params.get(index).map(String::as_str).unwrap_or_default()
    }

    fn is_asked_for(&self, name: &str) -> bool {
        self.query.iter().any(|(key, value)| key == name && matches!(value.as_str(), "true" | "True" | "1"))
    }

    fn json(&self) -> Result<Value, Refusal> {
        serde_json::from_slice(&self.body).map_err(|error| Refusal::bad_request(format!("Invalid JSON: {error}")))
    }

    fn object(&self) -> Result<Map<String, Value>, Refusal> {
        match self.json()? {
            Value::Object(fields) => Ok(fields),
            _ => Err(Refusal::bad_request("A JSON object is needed.")),
        }
    }
}

const fn open(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Open, handler }
}

const fn login(operation: &'static str, verb: MethodFilter, path: &'static str, handler: Handler) -> Endpoint {
    Endpoint { operation, verb, path, access: Access::Login, handler }
}

type Handler = fn(&System, &Call) -> Answer;

const GET: MethodFilter = MethodFilter::GET;
const PUT: MethodFilter = MethodFilter::PUT;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;

const ENDPOINTS: &[Endpoint] = &[
    open("system_information", GET, "/system_information", |system, _| json(system.information())),
    open("authenticate", POST, "/authenticate", |system, call| json(log_in(system, call)?.1.into())),
    open("auth_extended", POST, "/auth_extended", |system, call| {
        let (username, token) = log_in(system, call)?;
        json(json!({"username": username, "id": ADMIN_ID, "token": token, "admin": true, "error": null}))
    }),
    // The probe of clients for controllers before 2.10 …
    login("authok", GET, "/authok", |_, _| json("OK".into())),
    // … and of those from 2.10 on.
    login("authentication", GET, "/authentication", |system, _| {
        if !system.options().is_at_least_2_10() {
            return Err(Refusal::not_found("Path", "/api/v0/authentication"));
        }
        json(json!({"id": ADMIN_ID, "username": system.options().username, "admin": true, "error": null}))
    }),
    login("logout", DELETE, "/logout", |system, call| {
        if call.is_asked_for("clear_all_sessions") {
            system.end_all_logins();
        } else {
            system.log_out(&call.token);
        }
        json(true.into())
    }),
    login("system_stats", GET, "/system_stats", |system, _| json(system.stats())),
    login("system_health", GET, "/system_health", |system, _| json(system.health())),
    login("compute_hosts", GET, "/system/compute_hosts", |system, _| json(json!([system.compute_host()]))),
    login("compute_host", GET, "/system/compute_hosts/{compute}", |system, call| {
        let host = system.compute_host();
        if host["id"] == call.param(0) { json(host) } else { Err(Refusal::not_found("Compute host", call.param(0))) }
    }),
    login("maintenance_mode", GET, "/system/maintenance_mode", |_, _| {
        json(json!({"maintenance_mode": false, "notice": null}))
    }),
    login("notices", GET, "/system/notices", |_, _| json(json!([]))),
    login("resource_pools", GET, "/resource_pools", |_, _| json(json!([]))),
    login("users", GET, "/users", |system, _| json(json!([admin(system)]))),
    login("user", GET, "/users/{user}", |system, call| {
        if call.param(0) == ADMIN_ID { json(admin(system)) } else { Err(Refusal::not_found("User", call.param(0))) }
    }),
    login("telemetry", GET, "/telemetry", |_, _| json(json!({"opt_in": "UNSET"}))),
    login("telemetry_events", GET, "/telemetry/events", |system, _| json(system.telemetry_events())),
    login("labs", GET, "/labs", |system, _| json(system.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())))),
    login("create_lab", POST, "/labs", create_lab),
    login("lab_tiles", GET, "/populate_lab_tiles", |system, _| {
        let username = &system.options().username;
        let tile = |(id, lab): (&String, &super::labs::Lab)| (id.clone(), lab.to_json(id, username));
        json(json!({"lab_tiles": system.with(|state, _| state.labs.iter().map(tile).collect::<Map<_, _>>())}))
    }),
    login("lab", GET, "/labs/{lab}", |system, call| {
        let username = &system.options().username;
        json(system.look_at(call.param(0), |lab, _| Ok(lab.to_json(call.param(0), username)))?)
    }),
    login("update_lab", PATCH, "/labs/{lab}", |system, call| {
        let fields = call.object()?;
        let username = &system.options().username;
        json(system.look_at(call.param(0), |lab, now| {
            lab.update(&fields, now);
            Ok(lab.to_json(call.param(0), username))
        })?)
    }),
    login("delete_lab", DELETE, "/labs/{lab}", |system, call| nothing(system.remove_lab(call.param(0)))),
    login("lab_topology", GET, "/labs/{lab}/topology", |system, call| {
        let boot = system.options().node_boot;
        json(system.look_at(call.param(0), |lab, now| Ok(lab.topology(call.param(0), boot, now)))?)
    }),
    login("lab_state", GET, "/labs/{lab}/state", |system, call| {
        json(system.look_at(call.param(0), |lab, _| Ok(lab.state_json()))?)
    }),
    login("lab_element_state", GET, "/labs/{lab}/lab_element_state", |system, call| {
        let boot = system.options().node_boot;
        json(system.look_at(call.param(0), |lab, now| Ok(lab.element_states(boot, now)))?)
    }),
    login("check_if_converged", GET, "/labs/{lab}/check_if_converged", |system, call| {
        let boot = system.options().node_boot;
        json(system.look_at(call.param(0), |lab, now| Ok(lab.has_converged(boot, now).into()))?)
    }),
    login("simulation_stats", GET, "/labs/{lab}/simulation_stats", |system, call| {
        json(system.look_at(call.param(0), |lab, _| Ok(lab.simulation_stats()))?)
    }),
    login("lab_resource_pools", GET, "/labs/{lab}/resource_pools", |system, call| empty(system, call, json!([]))),
    // Nodes have no interfaces here, so there is nothing to link, to address or to hear from.
    login("lab_interfaces", GET, "/labs/{lab}/interfaces", |system, call| empty(system, call, json!([]))),
    login("lab_links", GET, "/labs/{lab}/links", |system, call| empty(system, call, json!([]))),
    login("lab_events", GET, "/labs/{lab}/events", |system, call| empty(system, call, json!([]))),
    login("layer3_addresses", GET, "/labs/{lab}/layer3_addresses", |system, call| empty(system, call, json!({}))),
    login("start_lab", PUT, "/labs/{lab}/start", |system, call| {
        nothing(system.apply(call.param(0), None, Action::Start))
    }),
    login("stop_lab", PUT, "/labs/{lab}/stop", |system, call| nothing(system.apply(call.param(0), None, Action::Stop))),
    login("wipe_lab", PUT, "/labs/{lab}/wipe", |system, call| nothing(system.apply(call.param(0), None, Action::Wipe))),
    login("lab_nodes", GET, "/labs/{lab}/nodes", |system, call| {
        let boot = system.options().node_boot;
        json(system.look_at(call.param(0), |lab, now| {
            let with_data = call.is_asked_for("data");
            Ok(if with_data { json!(lab.nodes(call.param(0), boot, now)) } else { json!(lab.node_ids()) })
        })?)
    }),
    login("create_node", POST, "/labs/{lab}/nodes", create_node),
    login("node", GET, "/labs/{lab}/nodes/{node}", |system, call| {
        let boot = system.options().node_boot;
        json(system.look_at(call.param(0), |lab, now| lab.node(call.param(0), call.param(1), boot, now))?)
    }),
    login("delete_node", DELETE, "/labs/{lab}/nodes/{node}", |system, call| {
        nothing(system.look_at(call.param(0), |lab, _| lab.remove_node(call.param(1))))
    }),
    login("node_state", GET, "/labs/{lab}/nodes/{node}/state", |system, call| {
        let boot = system.options().node_boot;
        let node = system.look_at(call.param(0), |lab, now| lab.node(call.param(0), call.param(1), boot, now))?;
        json(node["state"].clone())
    }),
    login("node_converged", GET, "/labs/{lab}/nodes/{node}/check_if_converged", |system, call| {
        let boot = system.options().node_boot;
        let node = system.look_at(call.param(0), |lab, now| lab.node(call.param(0), call.param(1), boot, now))?;
        json((node["state"] != "STARTED").into())
    }),
    login("start_node", PUT, "/labs/{lab}/nodes/{node}/state/start", |system, call| {
        nothing(system.apply(call.param(0), Some(call.param(1)), Action::Start))
    }),
    login("stop_node", PUT, "/labs/{lab}/nodes/{node}/state/stop", |system, call| {
        nothing(system.apply(call.param(0), Some(call.param(1)), Action::Stop))
    }),
    login("wipe_node", PUT, "/labs/{lab}/nodes/{node}/wipe_disks", |system, call| {
        nothing(system.apply(call.param(0), Some(call.param(1)), Action::Wipe))
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
    login("register", POST, "/licensing/registration", |system, call| nothing(system.register(&call.json()?))),
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
    login("set_product_license", PUT, "/licensing/product_license", |system, call| {
        let body = call.json()?;
        nothing(system.with(|state, _| state.licensing.set_product(&body)))
    }),
    login("set_transport", PUT, "/licensing/transport", |system, call| {
        let body = call.json()?;
        nothing(system.with(|state, _| state.licensing.set_transport(&body)))
    }),
    login("update_features", PATCH, "/licensing/features", |_, call| match call.json()? {
        Value::Array(_) | Value::Object(_) => nothing(Ok(())),
        _ => Err(Refusal::bad_request("A list of features or an object is needed.")),
    }),
];

/// The service without a socket.
pub fn router(system: System) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let system = system.clone();
        let handler = move |request: Request| async move { answer(&system, Some(endpoint), request).await };
        router = router.route(&format!("/api/v0{}", endpoint.path), on(endpoint.verb, handler));
    }
    let (elsewhere, otherwise) = (system.clone(), system);
    router
        .method_not_allowed_fallback(move |request: Request| async move { answer(&otherwise, None, request).await })
        .fallback(move |request: Request| async move { answer(&elsewhere, None, request).await })
}

async fn answer(system: &System, endpoint: Option<&'static Endpoint>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let info = RequestInfo {
        service: "cml",
        operation: endpoint.map_or("unknown", |endpoint| endpoint.operation),
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        subject: system.options().instance_id.clone(),
    };
    let work = carry_out(system, endpoint, parts, body);
    system.options().hook.pass(system.clock(), info, work).await
}

async fn carry_out(system: &System, endpoint: Option<&'static Endpoint>, mut parts: Parts, body: Body) -> Response {
    let nowhere = |parts: &Parts| Refusal::not_found("Path", parts.uri.path()).into_response();
    match system.stage() {
        // It was switched off while the connection stood.
        Stage::Refused => return http_server::cut_connection(),
        Stage::BadGateway => return bad_gateway_page(),
        Stage::NotReady | Stage::Ready => {}
    }
    let Some(endpoint) = endpoint else { return nowhere(&parts) };
    let Ok(params) = RawPathParams::from_request_parts(&mut parts, &()).await else {
        return nowhere(&parts);
    };
    let params = params.iter().map(|(_, value)| value.to_owned()).collect();
    let token = match (endpoint.access, bearer(&parts.headers)) {
        (Access::Open, _) => String::new(),
        (Access::Login, token) => match system.check_token(token) {
            Ok(id) => id,
            Err(refusal) => return refusal.into_response(),
        },
    };
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return Refusal::new(413, format!("The body is larger than {MAX_BODY} bytes.")).into_response();
    };
    let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map(|query| query.0).unwrap_or_default();
    (endpoint.handler)(system, &Call { params, query, body, token }).unwrap_or_else(Refusal::into_response)
}

fn bearer(headers: &HeaderMap) -> &str {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.strip_prefix("Bearer ").unwrap_or_default()
}

fn log_in(system: &System, call: &Call) -> Result<(String, String), Refusal> {
    let fields = call.object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let (Some(username), Some(password)) = (text("username"), text("password")) else {
        return Err(Refusal::bad_request("Both username and password are needed, as text."));
    };
    Ok((username.to_owned(), system.log_in(username, password)?))
}

fn create_lab(system: &System, call: &Call) -> Answer {
    let fields = if call.body.is_empty() { Map::new() } else { call.object()? };
    let text = |field: &str| fields.get(field).and_then(Value::as_str).map(str::to_owned);
    let id = system.create_lab(NewLab {
        title: text("title"),
        description: text("description").unwrap_or_default(),
        notes: text("notes").unwrap_or_default(),
    });
    let username = &system.options().username;
    json(system.look_at(&id, |lab, _| Ok(lab.to_json(&id, username)))?)
}

fn create_node(system: &System, call: &Call) -> Answer {
    let mut rest = call.object()?;
    let mut take = |field: &str| match rest.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(Refusal::bad_request(format!("Field {field} is needed, as text."))),
    };
    let node = NewNode { label: take("label")?, node_definition: take("node_definition")?, rest };
    json(json!({"id": system.add_node(call.param(0), node)?}))
}

fn admin(system: &System) -> Value {
    json!({
        "id": ADMIN_ID, "username": system.options().username, "fullname": "", "description": "", "email": "",
        "admin": true, "groups": [], "labs": system.with(|state, _| json!(state.labs.keys().collect::<Vec<_>>())),
        "opt_in": null, "resource_pool": null, "pubkey": "",
    })
}

/// A list of a lab that exists, which has nothing on it.
fn empty(system: &System, call: &Call, nothing: Value) -> Answer {
    json(system.look_at(call.param(0), |_, _| Ok(nothing))?)
}

fn json(value: Value) -> Answer {
    Ok(axum::Json(value).into_response())
}

fn nothing(done: Result<(), Refusal>) -> Answer {
    done.map(|()| StatusCode::NO_CONTENT.into_response())
}
