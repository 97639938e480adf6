//! Endpoints of users and groups.

use serde_json::json;

use super::super::error::CmlError;
use super::super::release::Release;
use super::super::users::Role;
use super::{DELETE, Endpoint, GET, PATCH, POST, json, no_content};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("users", GET, "/users", |server, _| {
        let release = server.options().release();
        json(server.with(|state, _| state.all_users_json(release)).into())
    }),
    Endpoint::new("create_user", POST, "/users", |server, request| {
        let body = request.object()?;
        let release = server.options().release();
        json(server.with(|state, now| {
            let id = state.new_id();
            state.users.create_user(id.clone(), &body, release, now)?;
            state.user_json(&id, release)
        })?)
    })
    .admin(),
    Endpoint::new("user", GET, "/users/{user}", |server, request| {
        let release = server.options().release();
        json(server.with(|state, _| state.user_json(request.param(0), release))?)
    }),
    Endpoint::new("update_user", PATCH, "/users/{user}", |server, request| {
        let body = request.object()?;
        let release = server.options().release();
        json(server.with(|state, now| {
            state.users.update_user(request.param(0), &body, &request.caller, release, now)?;
            state.user_json(request.param(0), release)
        })?)
    }),
    Endpoint::new("delete_user", DELETE, "/users/{user}", |server, request| {
        no_content(server.with(|state, _| {
            let labs = state.labs_of(request.param(0)).len();
            state.users.delete_user(request.param(0), labs, &request.caller)
        }))
    })
    .admin(),
    Endpoint::new("user_id", GET, "/users/{username}/id", |server, request| {
        json(server.with(|state, _| state.users.user_id(request.param(0)).cloned())?.into())
    }),
    Endpoint::new("user_groups", GET, "/users/{user}/groups", |server, request| {
        let release = server.options().release();
        json(server.with(|state, _| state.user_json(request.param(0), release))?["groups"].clone())
    })
    .before(Release::V2_9),
    Endpoint::new("groups", GET, "/groups", |server, request| {
        let release = server.options().release();
        // Users without admin rights see their own groups.
        json(
            server
                .with(|state, _| {
                    let own = state.users.groups_of(&request.caller.id);
                    let is_visible = |id: &&String| request.caller.role == Role::Admin || own.contains(id);
                    let visible = state.users.group_ids().filter(is_visible);
                    visible.map(|id| state.users.group_json(id, release)).collect::<Result<Vec<_>, CmlError>>()
                })?
                .into(),
        )
    }),
    Endpoint::new("create_group", POST, "/groups", |server, request| {
        let body = request.object()?;
        let release = server.options().release();
        json(server.with(|state, now| {
            let id = state.new_id();
            state.users.create_group(id.clone(), &body, release, now)?;
            state.users.group_json(&id, release)
        })?)
    })
    .admin(),
    Endpoint::new("group", GET, "/groups/{group}", |server, request| {
        let release = server.options().release();
        json(server.with(|state, _| state.users.group_json(request.param(0), release))?)
    }),
    Endpoint::new("update_group", PATCH, "/groups/{group}", |server, request| {
        let body = request.object()?;
        let release = server.options().release();
        json(server.with(|state, now| {
            state.users.update_group(request.param(0), &body, release, now)?;
            state.users.group_json(request.param(0), release)
        })?)
    })
    .admin(),
    Endpoint::new("delete_group", DELETE, "/groups/{group}", |server, request| {
        no_content(server.with(|state, _| state.users.delete_group(request.param(0))))
    })
    .admin(),
    Endpoint::new("group_id", GET, "/groups/{name}/id", |server, request| {
        json(server.with(|state, _| state.users.group_id(request.param(0)).cloned())?.into())
    }),
    Endpoint::new("group_members", GET, "/groups/{group}/members", |server, request| {
        json(server.with(|state, _| state.users.members(request.param(0)).map(|members| json!(members)))?)
    })
    .before(Release::V2_9),
    Endpoint::new("group_labs", GET, "/groups/{group}/labs", |server, request| {
        json(server.with(|state, _| {
            state.users.members(request.param(0))?;
            Ok::<_, CmlError>(state.users.labs_of_group(request.param(0)))
        })?)
    })
    .before(Release::V2_9),
];
