//! Clouds that the admin API starts from this one. They run in this program, until they are stopped or it ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::services::Services;
use super::{AdminError, AdminResult, AdminState, services};
use crate::clock::{Clock, Pace};
use crate::cloud::{FakeCloud, Ports};
use crate::snapshot::{Secrets, Snapshot};
use crate::world::World;

/// Largest number of branches of a cloud that run at the same time.
const MAX_BRANCHES: usize = 8;

/// Running branches. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Branches {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    started: u64,
    running: BTreeMap<u64, FakeCloud>,
}

impl Services {
    /// Starts a cloud on free ports that goes on from the state of this one.
    ///
    /// # Errors
    /// The state cannot be captured, or a socket cannot be opened.
    pub(crate) async fn branch(&self, world: &World) -> io::Result<FakeCloud> {
        let snapshot: Snapshot = self.snapshot(world, Secrets::Included).map_err(io::Error::other)?;
        let origin = self.origin.as_deref().cloned().unwrap_or_default();
        // A clock of its own: it is set to the time and the pace of the snapshot.
        origin.clock(Clock::new(Pace::Real)).ports(Ports::default()).scenario(None).restore(snapshot).start().await
    }
}

fn show(number: u64, cloud: &FakeCloud) -> Value {
    let endpoints = cloud.endpoints();
    json!({"number": number, "page": format!("{}ui/", endpoints.admin_url), "endpoints": endpoints})
}

pub(super) async fn list(State(state): State<AdminState>) -> AdminResult {
    let inner = services(&state)?.branches.inner.lock();
    Ok(Json(inner.running.iter().map(|(number, cloud)| show(*number, cloud)).collect()))
}

pub(super) async fn start(State(state): State<AdminState>) -> AdminResult {
    let services = services(&state)?;
    if services.branches.inner.lock().running.len() >= MAX_BRANCHES {
        let message = format!("{MAX_BRANCHES} branches run already; DELETE /_fake/branches/{{number}} stops one");
        return Err(AdminError(StatusCode::CONFLICT, message));
    }
    let cloud = services.branch(&state.world).await;
    let cloud = cloud.map_err(|error| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let mut inner = services.branches.inner.lock();
    inner.started += 1;
    let number = inner.started;
    let shown = show(number, &cloud);
    inner.running.insert(number, cloud);
    Ok(Json(shown))
}

pub(super) async fn stop(State(state): State<AdminState>, number: Result<Path<u64>, PathRejection>) -> AdminResult {
    let Path(number) = number?;
    let removed = services(&state)?.branches.inner.lock().running.remove(&number);
    let Some(cloud) = removed else {
        return Err(AdminError(
            StatusCode::NOT_FOUND,
            format!("no such branch: {number}; GET /_fake/branches lists all"),
        ));
    };
    cloud.stop().await;
    Ok(Json(json!({"stopped": number})))
}
