//! Endpoints of labs as a whole.

use serde_json::{Map, Value, json};

use super::super::error::CmlError;
use super::super::fields::text;
use super::super::labs::{Action, Lab, NewLab, check_lab};
use super::super::release::Release;
use super::super::server::CmlServer;
use super::super::users::{Permission, Role};
use super::{ApiRequest, DELETE, Endpoint, EndpointResult, GET, PATCH, POST, PUT, json, no_content, yaml_text};

const ADMIN: Permission = Permission::Admin;
const EDIT: Permission = Permission::Edit;
const EXEC: Permission = Permission::Exec;
const VIEW: Permission = Permission::View;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("labs", GET, "/labs", |server, request| {
        // The labs of other users are listed to admins on request only.
        let show_all = request.query_flag("show_all") && request.caller.role == Role::Admin;
        json(server.with_labs(|labs, host| {
            let caller = &request.caller;
            let is_shown = |(id, lab): &(&String, &Lab)| {
                let is_shared = || host.users.is_shared_with(caller, id);
                show_all || lab.owner == caller.id || is_shared()
            };
            json!(labs.iter().filter(is_shown).map(|(id, _)| id).collect::<Vec<_>>())
        }))
    }),
    Endpoint::new("create_lab", POST, "/labs", create_lab),
    Endpoint::new("lab_tiles", GET, "/populate_lab_tiles", |server, request| {
        let tiles = server.with_labs(|labs, host| {
            let is_visible =
                |(id, lab): &(&String, &Lab)| host.users.is_permitted(&request.caller, id, &lab.owner, VIEW);
            let tile = |(id, lab): (&String, &Lab)| (id.clone(), lab.to_json(id, host, &request.caller));
            labs.iter().filter(is_visible).map(tile).collect::<Map<_, _>>()
        });
        json(json!({"lab_tiles": tiles}))
    }),
    Endpoint::new("import_lab", POST, "/import", |server, request| {
        let title = request.query("title").map(str::to_owned);
        let (id, warnings) = server.import_lab_of(&request.body, title, &request.caller.id)?;
        json(json!({"id": id, "warnings": warnings}))
    }),
    Endpoint::new("lab", GET, "/labs/{lab}", |server, request| json(show(server, request, request.param(0))?))
        .on_lab(VIEW),
    Endpoint::new("update_lab", PATCH, "/labs/{lab}", |server, request| {
        let fields = request.object()?;
        check_lab(&fields, server.options().release())?;
        owner(server, &fields)?;
        share(server, request.param(0), &fields)?;
        server.with_lab(request.param(0), |lab, host| {
            lab.update(&fields, host.now);
            Ok(())
        })?;
        json(show(server, request, request.param(0))?)
    })
    .on_lab(EDIT),
    Endpoint::new("delete_lab", DELETE, "/labs/{lab}", |server, request| {
        no_content(server.remove_lab(request.param(0)))
    })
    .on_lab(ADMIN),
    Endpoint::new("lab_topology", GET, "/labs/{lab}/topology", |server, request| {
        let configurations = request.configurations();
        json(server.with_lab(request.param(0), |lab, host| Ok(lab.topology(request.param(0), host, configurations)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("download_lab", GET, "/labs/{lab}/download", |server, request| {
        yaml_text(&server.with_lab(request.param(0), |lab, host| Ok(lab.export(host)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("lab_state", GET, "/labs/{lab}/state", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.state_json()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("lab_element_state", GET, "/labs/{lab}/lab_element_state", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| Ok(lab.element_states(host)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("check_if_converged", GET, "/labs/{lab}/check_if_converged", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| Ok(lab.has_converged(host).into()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("simulation_stats", GET, "/labs/{lab}/simulation_stats", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| Ok(lab.simulation_stats(host)))?)
    })
    .on_lab(VIEW),
    // Nodes are not started in resource pools.
    Endpoint::new("lab_resource_pools", GET, "/labs/{lab}/resource_pools", |_, _| json(json!([]))).on_lab(VIEW),
    // Events reach clients over web sockets, which are not served.
    Endpoint::new("lab_events", GET, "/labs/{lab}/events", |_, _| json(json!([]))).on_lab(VIEW),
    Endpoint::new("start_lab", PUT, "/labs/{lab}/start", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Start))
    })
    .on_lab(EXEC),
    Endpoint::new("stop_lab", PUT, "/labs/{lab}/stop", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Stop))
    })
    .on_lab(EXEC),
    Endpoint::new("wipe_lab", PUT, "/labs/{lab}/wipe", |server, request| {
        no_content(server.apply(request.param(0), None, Action::Wipe))
    })
    .on_lab(EXEC),
    Endpoint::new("bootstrap_lab", GET, "/labs/{lab}/bootstrap", |server, request| bootstrap(server, request.param(0)))
        .on_lab(EDIT)
        .since(Release::V2_9),
    Endpoint::new("build_configurations", GET, "/build_configurations", |server, request| {
        let lab = request.query("lab_id").ok_or_else(|| CmlError::bad_request("The parameter lab_id is required."))?;
        server.check_permission(&request.caller, lab, EDIT)?;
        bootstrap(server, lab)
    })
    .before(Release::V2_9),
    Endpoint::new("associations", GET, "/labs/{lab}/associations", |server, request| {
        json(server.with(|state, _| state.users.lab_associations(request.param(0))))
    })
    .on_lab(VIEW)
    .since(Release::V2_9),
    Endpoint::new("update_associations", PATCH, "/labs/{lab}/associations", |server, request| {
        let body = request.json()?;
        json(server.with(|state, _| {
            state.users.set_lab_associations(request.param(0), &body)?;
            Ok::<_, CmlError>(state.users.lab_associations(request.param(0)))
        })?)
    })
    .on_lab(ADMIN)
    .since(Release::V2_9),
    Endpoint::new("lab_groups", GET, "/labs/{lab}/groups", |server, request| {
        json(server.with(|state, _| state.users.groups_of_lab(request.param(0))))
    })
    .on_lab(VIEW)
    .before(Release::V2_10),
    Endpoint::new("set_lab_groups", PUT, "/labs/{lab}/groups", |server, request| {
        let body = request.json()?;
        json(server.with(|state, _| {
            state.users.set_lab_groups(request.param(0), &body)?;
            Ok::<_, CmlError>(state.users.groups_of_lab(request.param(0)))
        })?)
    })
    .on_lab(ADMIN)
    .before(Release::V2_10),
    Endpoint::new("connector_mappings", GET, "/labs/{lab}/connector_mappings", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.connector_mappings()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("update_connector_mappings", PATCH, "/labs/{lab}/connector_mappings", |server, request| {
        let changes = request.json()?;
        json(server.with_lab(request.param(0), |lab, _| {
            lab.update_connector_mappings(&changes)?;
            Ok(lab.connector_mappings())
        })?)
    })
    .on_lab(EDIT),
    Endpoint::new("pyats_testbed", GET, "/labs/{lab}/pyats_testbed", |server, request| {
        let hostname = request.query("hostname").unwrap_or(&server.options().address).to_owned();
        yaml_text(&server.with_lab(request.param(0), |lab, host| Ok(lab.testbed(host, &hostname)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("annotations", GET, "/labs/{lab}/annotations", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.annotations.list()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("create_annotation", POST, "/labs/{lab}/annotations", |server, request| {
        let body = request.object()?;
        let id = server.with(|state, _| state.new_id());
        json(server.with_lab(request.param(0), |lab, _| lab.annotations.add(id, body))?)
    })
    .on_lab(EDIT),
    Endpoint::new("annotation", GET, "/labs/{lab}/annotations/{annotation}", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.annotations.get(request.param(1)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("update_annotation", PATCH, "/labs/{lab}/annotations/{annotation}", |server, request| {
        let body = request.object()?;
        json(server.with_lab(request.param(0), |lab, _| lab.annotations.update(request.param(1), body))?)
    })
    .on_lab(EDIT),
    Endpoint::new("delete_annotation", DELETE, "/labs/{lab}/annotations/{annotation}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.annotations.remove(request.param(1))))
    })
    .on_lab(EDIT),
    Endpoint::new("smart_annotations", GET, "/labs/{lab}/smart_annotations", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.annotations.smart(&lab.tags())))?)
    })
    .on_lab(VIEW),
    Endpoint::new("smart_annotation", GET, "/labs/{lab}/smart_annotations/{annotation}", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.annotations.find_smart(request.param(1), &lab.tags()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("update_smart_annotation", PATCH, "/labs/{lab}/smart_annotations/{annotation}", |server, request| {
        let body = request.object()?;
        json(server.with_lab(request.param(0), |lab, _| {
            let tags = lab.tags();
            lab.annotations.update_smart(request.param(1), body, &tags)
        })?)
    })
    .on_lab(EDIT),
];

fn show(server: &CmlServer, request: &ApiRequest, id: &str) -> Result<Value, CmlError> {
    server.with_lab(id, |lab, host| Ok(lab.to_json(id, host, &request.caller)))
}

fn create_lab(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = if request.body.is_empty() { Map::new() } else { request.object()? };
    check_lab(&fields, server.options().release())?;
    let owner = owner(server, &fields)?.unwrap_or_else(|| request.caller.id.clone());
    let new = NewLab {
        title: text(&fields, "title"),
        description: text(&fields, "description").unwrap_or_default(),
        notes: text(&fields, "notes").unwrap_or_default(),
    };
    let id = server.create_lab_of(new, &owner)?;
    share(server, &id, &fields)?;
    server.with_lab(&id, |lab, host| {
        lab.update(&fields, host.now);
        Ok(())
    })?;
    json(show(server, request, &id)?)
}

/// The owner that a request names, who must exist.
fn owner(server: &CmlServer, fields: &Map<String, Value>) -> Result<Option<String>, CmlError> {
    let Some(owner) = text(fields, "owner") else { return Ok(None) };
    let is_known = server.with(|state, _| state.users.names_of(&owner).is_some());
    if is_known { Ok(Some(owner)) } else { Err(CmlError::not_found("User", &owner)) }
}

/// Gives users and groups the permissions that a request lists.
fn share(server: &CmlServer, lab: &str, fields: &Map<String, Value>) -> Result<(), CmlError> {
    server.with(|state, _| {
        if let Some(groups) = fields.get("groups") {
            state.users.set_lab_groups(lab, groups)?;
        }
        if let Some(associations) = fields.get("associations") {
            state.users.set_lab_associations(lab, associations)?;
        }
        Ok(())
    })
}

/// Writes first configurations of the nodes that have none.
fn bootstrap(server: &CmlServer, lab: &str) -> EndpointResult {
    json(server.with_lab(lab, |lab, host| {
        lab.bootstrap(host);
        Ok(json!("Configurations built."))
    })?)
}
