//! Endpoints of the system: login, status, licensing, administration and diagnostics.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

use super::super::diagnostics::CATEGORIES;
use super::super::error::CmlError;
use super::super::release::Release;
use super::super::server::CmlServer;
use super::super::users::{Caller, OptIn, Role};
use super::{ApiRequest, DELETE, Endpoint, GET, PATCH, POST, PUT, json, no_content};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("system_information", GET, "/system_information", |server, _| json(server.information())).open(),
    Endpoint::new("authenticate", POST, "/authenticate", |server, request| json(log_in(server, request)?.2.into()))
        .open(),
    Endpoint::new("auth_extended", POST, "/auth_extended", |server, request| {
        let (username, caller, token) = log_in(server, request)?;
        let is_admin = caller.role == Role::Admin;
        json(json!({"username": username, "id": caller.id, "token": token, "admin": is_admin, "error": null}))
    })
    .open(),
    // Login probe of clients for controllers before 2.10.
    Endpoint::new("authok", GET, "/authok", |_, _| json("OK".into())),
    // Login probe of clients for controllers from 2.10 on.
    Endpoint::new("authentication", GET, "/authentication", |server, request| {
        let Caller { id, role } = &request.caller;
        let username = server.with(|state, _| state.users.names_of(id).map(|(username, _)| username.to_owned()));
        json(json!({"id": id, "username": username, "admin": *role == Role::Admin, "error": null}))
    })
    .since(Release::V2_10),
    Endpoint::new("logout", DELETE, "/logout", |server, request| {
        if request.query_flag("clear_all_sessions") {
            server.end_all_logins();
        } else {
            server.log_out(&request.token);
        }
        json(true.into())
    }),
    Endpoint::new("system_stats", GET, "/system_stats", |server, _| json(server.stats())),
    Endpoint::new("system_health", GET, "/system_health", |server, _| json(server.health())),
    Endpoint::new("compute_hosts", GET, "/system/compute_hosts", |server, _| json(json!([server.compute_host()]))),
    Endpoint::new("new_compute_host", GET, "/system/compute_hosts/configuration", |server, _| {
        json(server.with(|state, _| state.administration.new_host_json()))
    }),
    Endpoint::new("set_new_compute_host", PATCH, "/system/compute_hosts/configuration", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.administration.set_new_host(&body))?)
    })
    .admin(),
    Endpoint::new("compute_host", GET, "/system/compute_hosts/{compute}", |server, request| {
        json(compute_host(server, request.param(0))?)
    }),
    Endpoint::new("update_compute_host", PATCH, "/system/compute_hosts/{compute}", |server, request| {
        compute_host(server, request.param(0))?;
        let body = request.object()?;
        server.with(|state, _| state.administration.set_host(&body))?;
        json(server.compute_host())
    })
    .admin(),
    Endpoint::new("delete_compute_host", DELETE, "/system/compute_hosts/{compute}", |server, request| {
        compute_host(server, request.param(0))?;
        Err(CmlError::bad_request("The controller cannot be removed."))
    })
    .admin(),
    Endpoint::new("maintenance_mode", GET, "/system/maintenance_mode", |server, _| {
        json(server.with(|state, _| state.administration.maintenance_json()))
    }),
    Endpoint::new("set_maintenance_mode", PATCH, "/system/maintenance_mode", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.administration.set_maintenance(&body))?)
    })
    .admin(),
    Endpoint::new("notices", GET, "/system/notices", |server, _| {
        json(server.with(|state, _| state.administration.notices()))
    }),
    Endpoint::new("create_notice", POST, "/system/notices", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| {
            let id = state.new_id();
            state.administration.add_notice(id, body)
        })?)
    })
    .admin(),
    Endpoint::new("notice", GET, "/system/notices/{notice}", |server, request| {
        json(server.with(|state, _| state.administration.notice_json(request.param(0)))?)
    }),
    Endpoint::new("update_notice", PATCH, "/system/notices/{notice}", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.administration.update_notice(request.param(0), body))?)
    })
    .admin(),
    Endpoint::new("delete_notice", DELETE, "/system/notices/{notice}", |server, request| {
        no_content(server.with(|state, _| state.administration.remove_notice(request.param(0))))
    })
    .admin(),
    Endpoint::new("external_connectors", GET, "/system/external_connectors", |server, _| {
        json(server.with(|state, _| state.administration.connectors()))
    }),
    // The devices of the host never change, so that a synchronization finds what is known.
    Endpoint::new("sync_external_connectors", PUT, "/system/external_connectors", |server, _| {
        json(server.with(|state, _| state.administration.connectors()))
    })
    .admin(),
    Endpoint::new("external_connector", GET, "/system/external_connectors/{connector}", |server, request| {
        json(server.with(|state, _| state.administration.connector(request.param(0)))?)
    }),
    Endpoint::new("update_external_connector", PATCH, "/system/external_connectors/{connector}", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.administration.update_connector(request.param(0), &body))?)
    })
    .admin(),
    Endpoint::new("delete_external_connector", DELETE, "/system/external_connectors/{connector}", |server, request| {
        no_content(server.with(|state, _| state.administration.remove_connector(request.param(0))))
    })
    .admin(),
    Endpoint::new("web_session_timeout", GET, "/web_session_timeout", |server, _| {
        json(server.with(|state, _| state.administration.session_timeout()).into())
    }),
    Endpoint::new("set_web_session_timeout", PATCH, "/web_session_timeout/{seconds}", |server, request| {
        server.with(|state, _| state.administration.set_session_timeout(request.param(0)))?;
        json("OK".into())
    })
    .admin(),
    Endpoint::new("auth_config", GET, "/system/auth/config", |_, _| json(json!({"method": "local"}))).admin(),
    Endpoint::new("resource_pools", GET, "/resource_pools", |server, request| {
        let with_data = request.query_flag("data");
        json(server.with(
            |state, _| {
                if with_data { state.administration.pools() } else { state.administration.pool_ids() }
            },
        ))
    }),
    Endpoint::new("create_resource_pool", POST, "/resource_pools", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.add_pools(body))?)
    })
    .admin(),
    Endpoint::new("resource_pool", GET, "/resource_pools/{pool}", |server, request| {
        json(server.with(|state, _| state.administration.pool_json(request.param(0)))?)
    }),
    Endpoint::new("update_resource_pool", PATCH, "/resource_pools/{pool}", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| state.administration.update_pool(request.param(0), body))?)
    })
    .admin(),
    Endpoint::new("delete_resource_pool", DELETE, "/resource_pools/{pool}", |server, request| {
        no_content(server.with(|state, _| state.administration.remove_pool(request.param(0))))
    })
    .admin(),
    Endpoint::new("resource_pool_usage", GET, "/resource_pool_usage/{pool}", |server, request| {
        json(server.with(|state, _| state.administration.pool_usage(request.param(0)))?)
    }),
    Endpoint::new("lab_repos", GET, "/lab_repos", |server, _| {
        json(server.with(|state, _| state.administration.repositories()))
    })
    .since(Release::V2_10),
    Endpoint::new("create_lab_repo", POST, "/lab_repos", |server, request| {
        let body = request.object()?;
        json(server.with(|state, _| {
            let id = state.new_id();
            state.administration.add_repository(id, body)
        })?)
    })
    .since(Release::V2_10)
    .admin(),
    Endpoint::new("delete_lab_repo", DELETE, "/lab_repos/{repository}", |server, request| {
        no_content(server.with(|state, _| state.administration.remove_repository(request.param(0))))
    })
    .since(Release::V2_10)
    .admin(),
    Endpoint::new("diagnostics", GET, "/diagnostics", |server, _| {
        let of = |category: &str| Ok((category.to_owned(), server.diagnostics(category)?));
        let all: Map<String, Value> = CATEGORIES.into_iter().map(of).collect::<Result<_, CmlError>>()?;
        json(all.into())
    })
    .before(Release::V2_9)
    .admin(),
    Endpoint::new("diagnostics_category", GET, "/diagnostics/{category}", |server, request| {
        json(server.diagnostics(request.param(0))?)
    })
    .since(Release::V2_9)
    .admin(),
    Endpoint::new("telemetry", GET, "/telemetry", |server, request| {
        let release = server.options().release();
        let opt_in = server.with(|state, _| state.users.opt_in(&request.caller.id));
        json(json!({"opt_in": opt_in.to_json(release), "show_modal": opt_in == OptIn::Unset}))
    }),
    Endpoint::new("set_telemetry", PUT, "/telemetry", |server, request| {
        let body = request.object()?;
        let opt_in = OptIn::parse(body.get("opt_in").unwrap_or(&false.into()))?;
        no_content(server.with(|state, _| {
            state.users.set_opt_in(&request.caller.id, opt_in);
            Ok(())
        }))
    }),
    Endpoint::new("telemetry_events", GET, "/telemetry/events", |server, _| json(server.telemetry_events())),
    Endpoint::new("licensing", GET, "/licensing", |server, _| json(server.licensing_status())),
    Endpoint::new("tech_support", GET, "/licensing/tech_support", |server, _| {
        let status = server.licensing_status();
        let (registration, authorization) = (&status["registration"]["status"], &status["authorization"]["status"]);
        Ok(format!("Registration: {registration}\nAuthorization: {authorization}\n").into_response())
    }),
    Endpoint::new("register", POST, "/licensing/registration", |server, request| {
        no_content(server.register(&request.json()?))
    })
    .admin(),
    Endpoint::new("renew_registration", PUT, "/licensing/registration/renew", |server, _| {
        no_content(server.with(|state, now| state.licensing.renew(now)))
    })
    .admin(),
    Endpoint::new("renew_authorization", PUT, "/licensing/authorization/renew", |server, _| {
        no_content(server.with(|state, now| state.licensing.renew(now)))
    })
    .admin(),
    Endpoint::new("deregister", DELETE, "/licensing/deregistration", |server, _| {
        let status = server.deregister()?;
        Ok(StatusCode::from_u16(status).unwrap_or(StatusCode::NO_CONTENT).into_response())
    })
    .admin(),
    Endpoint::new("set_product_license", PUT, "/licensing/product_license", |server, request| {
        let body = request.json()?;
        no_content(server.with(|state, _| state.licensing.set_product(&body)))
    })
    .admin(),
    Endpoint::new("set_transport", PUT, "/licensing/transport", |server, request| {
        let body = request.json()?;
        no_content(server.with(|state, _| state.licensing.set_transport(&body)))
    })
    .admin(),
    Endpoint::new("update_features", PATCH, "/licensing/features", |server, request| {
        let body = request.json()?;
        no_content(server.with(|state, _| state.licensing.set_features(&body)))
    })
    .admin(),
];

fn log_in(server: &CmlServer, request: &ApiRequest) -> Result<(String, Caller, String), CmlError> {
    let fields = request.object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let (Some(username), Some(password)) = (text("username"), text("password")) else {
        return Err(CmlError::bad_request("username and password are required and must be strings."));
    };
    let (caller, token) = server.log_in_as(username, password)?;
    Ok((username.to_owned(), caller, token))
}

fn compute_host(server: &CmlServer, id: &str) -> Result<Value, CmlError> {
    let host = server.compute_host();
    if host["id"] == id { Ok(host) } else { Err(CmlError::not_found("Compute host", id)) }
}
