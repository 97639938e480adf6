//! Coordination port written in Python. `lcm.ports` documents each method.

use std::time::Duration;

use async_trait::async_trait;
use lcm_sdk::ports::{Claim, Coordination, Lease, LeaseId, Listing, Renewal, WatchStream, WatchUpdate};
use lcm_sdk::{CallFailure, FailureKind};
use pyo3::prelude::*;
use pyo3::types::{PyDelta, PyMapping, PyTuple};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::bridge::Bridge;
use crate::convert::to_timedelta;
use crate::observation::read_list;
use crate::port_results::{nothing, plain, refused, tuple};
use crate::python::{
    absent_class, changed_class, compacted_class, held_class, is_a, lease_class, listing_class, progress_class,
    won_class,
};

/// Coordination port written in Python.
pub(crate) struct PythonCoordination(pub(crate) Bridge);

/// Updates that may wait for the receiver.
const AHEAD: usize = 16;

#[async_trait]
impl Coordination for PythonCoordination {
    async fn grant(&self, ttl: Duration) -> Result<Lease, CallFailure> {
        self.0.call("grant", move |py| tuple(py, (to_timedelta(py, ttl)?,)), read_lease).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.0.call("renew", move |py| tuple(py, (lease.0,)), read_renewal).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.0.call("revoke", move |py| tuple(py, (lease.0,)), nothing).await
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.0.call("claim", move |py| tuple(py, (key, value, lease.0)), read_claim).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        let prefix = prefix.to_owned();
        self.0.call("list", move |py| tuple(py, (prefix,)), read_listing).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        let (give, given) = oneshot::channel();
        let opening = open(self.0.try_clone()?, prefix.to_owned(), from_revision);
        // In a task of its own: a watch that is opened after its caller was dropped must still be closed.
        tokio::spawn(async move { drop(give.send(opening.await)) });
        match given.await {
            Ok(watch) => Ok(Box::new(watch?)),
            Err(_) => Err(over()),
        }
    }
}

async fn open(bridge: Bridge, prefix: String, from_revision: i64) -> Result<PythonWatch, CallFailure> {
    let port = bridge.try_clone()?;
    let read = move |result: &Bound<'_, PyAny>| port.wrap(result, "Watch");
    let watch = bridge.call("watch", move |py| tuple(py, (prefix, from_revision)), read).await?;
    let (sender, updates) = mpsc::channel(AHEAD);
    let listening = watch.try_clone()?;
    let pump = tokio::spawn(async move {
        loop {
            let update = listening.call("next", |py| Ok(PyTuple::empty(py)), read_update).await;
            let is_over = update.is_err();
            if sender.send(update.unwrap_or_else(WatchUpdate::Ended)).await.is_err() || is_over {
                return;
            }
        }
    });
    Ok(PythonWatch { watch, updates, pump })
}

fn over() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "the watch is over")
}

/// A watch whose updates a task receives. A canceled wait loses no update, and no update is returned twice.
struct PythonWatch {
    watch: Bridge,
    updates: mpsc::Receiver<WatchUpdate>,
    pump: JoinHandle<()>,
}

#[async_trait]
impl WatchStream for PythonWatch {
    async fn next(&mut self) -> WatchUpdate {
        self.updates.recv().await.unwrap_or_else(|| WatchUpdate::Ended(over()))
    }

    async fn probe(&mut self) -> Result<(), CallFailure> {
        self.watch.call("probe", |py| Ok(PyTuple::empty(py)), nothing).await
    }
}

impl Drop for PythonWatch {
    fn drop(&mut self) {
        self.pump.abort();
        // The runtime may end at the same time, and then no close can be awaited.
        if let (Ok(watch), Ok(runtime)) = (self.watch.try_clone(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { watch.call("close", |py| Ok(PyTuple::empty(py)), nothing).await });
        }
    }
}

fn read_lease(result: &Bound<'_, PyAny>) -> PyResult<Lease> {
    if !is_a(result, lease_class(result.py())?) {
        return Err(refused("grant", result, "an lcm.ports.Lease"));
    }
    let id = plain(&result.getattr("id")?, "grant: id", "a whole number")?;
    Ok(Lease { id: LeaseId(id), ttl: read_span(&result.getattr("ttl")?, "grant: ttl", "a timedelta from 0 up")? })
}

fn read_renewal(result: &Bound<'_, PyAny>) -> PyResult<Renewal> {
    if is_a(result, absent_class(result.py())?) {
        return Ok(Renewal::Gone);
    }
    read_span(result, "renew", "a timedelta from 0 up, or lcm.ABSENT").map(Renewal::Renewed)
}

fn read_span(result: &Bound<'_, PyAny>, method: &str, accepted: &str) -> PyResult<Duration> {
    let is_span = result.is_instance_of::<PyDelta>();
    result.extract().ok().filter(|_| is_span).ok_or_else(|| refused(method, result, accepted))
}

fn read_claim(result: &Bound<'_, PyAny>) -> PyResult<Claim> {
    if is_a(result, won_class(result.py())?) {
        return Ok(Claim::Won { revision: revision(result, "claim")? });
    }
    if is_a(result, held_class(result.py())?) {
        let by = plain(&result.getattr("by")?, "claim: by", "text")?;
        return Ok(Claim::Held { by, revision: revision(result, "claim")? });
    }
    Err(refused("claim", result, "an lcm.ports.Won or an lcm.ports.Held"))
}

fn read_listing(result: &Bound<'_, PyAny>) -> PyResult<Listing> {
    if !is_a(result, listing_class(result.py())?) {
        return Err(refused("list", result, "an lcm.ports.Listing"));
    }
    let given = result.getattr("keys")?;
    let given = given.cast::<PyMapping>().map_err(|_| refused("list: keys", &given, "a dict of keys and revisions"))?;
    let one = |pair: Bound<'_, PyAny>| {
        let (key, modified): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        Ok((read_key(&key, "list: keys")?, plain(&modified, "list: a revision", "a whole number")?))
    };
    let mut keys = given.items()?.iter().map(one).collect::<PyResult<Vec<_>>>()?;
    keys.sort();
    Ok(Listing { revision: revision(result, "list")?, keys })
}

fn read_update(result: &Bound<'_, PyAny>) -> PyResult<WatchUpdate> {
    let py = result.py();
    if is_a(result, changed_class(py)?) {
        let keys = read_list(&result.getattr("keys")?, "next: keys", read_key)?;
        return Ok(WatchUpdate::Changed { revision: revision(result, "next")?, keys });
    }
    if is_a(result, progress_class(py)?) {
        return Ok(WatchUpdate::Progress { revision: revision(result, "next")? });
    }
    if is_a(result, compacted_class(py)?) {
        return Ok(WatchUpdate::Compacted { revision: revision(result, "next")? });
    }
    Err(refused("next", result, "an lcm.ports.Changed, Progress or Compacted"))
}

fn revision(result: &Bound<'_, PyAny>, method: &str) -> PyResult<i64> {
    plain(&result.getattr("revision")?, &format!("{method}: revision"), "a whole number")
}

fn read_key(key: &Bound<'_, PyAny>, path: &str) -> PyResult<Vec<u8>> {
    plain::<String>(key, path, "text").map(String::into_bytes)
}
