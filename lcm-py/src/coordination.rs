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
        self.0.ask("grant", move |py| tuple(py, (to_timedelta(py, ttl)?,)), read_lease).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<Renewal, CallFailure> {
        self.0.ask("renew", move |py| tuple(py, (lease.0,)), read_renewal).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), CallFailure> {
        self.0.ask("revoke", move |py| tuple(py, (lease.0,)), nothing).await
    }

    async fn claim(&self, key: &str, value: &str, lease: LeaseId) -> Result<Claim, CallFailure> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.0.ask("claim", move |py| tuple(py, (key, value, lease.0)), read_claim).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, CallFailure> {
        let prefix = prefix.to_owned();
        self.0.ask("list", move |py| tuple(py, (prefix,)), read_listing).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<Box<dyn WatchStream>, CallFailure> {
        let (give, given) = oneshot::channel();
        let opening = open(self.0.again()?, prefix.to_owned(), from_revision);
        // In a task of its own: a watch that is opened after its caller was dropped must still be closed.
        tokio::spawn(async move { drop(give.send(opening.await)) });
        match given.await {
            Ok(watch) => Ok(Box::new(watch?)),
            Err(_) => Err(over()),
        }
    }
}

async fn open(bridge: Bridge, prefix: String, from_revision: i64) -> Result<PythonWatch, CallFailure> {
    let beside = bridge.again()?;
    let read = move |told: &Bound<'_, PyAny>| beside.beside(told, "Watch");
    let watch = bridge.ask("watch", move |py| tuple(py, (prefix, from_revision)), read).await?;
    let (tell, told) = mpsc::channel(AHEAD);
    let listening = watch.again()?;
    let pump = tokio::spawn(async move {
        loop {
            let update = listening.ask("next", |py| Ok(PyTuple::empty(py)), read_update).await;
            let is_over = update.is_err();
            if tell.send(update.unwrap_or_else(WatchUpdate::Ended)).await.is_err() || is_over {
                return;
            }
        }
    });
    Ok(PythonWatch { watch, told, pump })
}

fn over() -> CallFailure {
    CallFailure::new(FailureKind::Unclear, "the watch is over")
}

/// A watch whose updates a task receives. A canceled wait loses no update, and no update is returned twice.
struct PythonWatch {
    watch: Bridge,
    told: mpsc::Receiver<WatchUpdate>,
    pump: JoinHandle<()>,
}

#[async_trait]
impl WatchStream for PythonWatch {
    async fn next(&mut self) -> WatchUpdate {
        self.told.recv().await.unwrap_or_else(|| WatchUpdate::Ended(over()))
    }

    async fn probe(&mut self) -> Result<(), CallFailure> {
        self.watch.ask("probe", |py| Ok(PyTuple::empty(py)), nothing).await
    }
}

impl Drop for PythonWatch {
    fn drop(&mut self) {
        self.pump.abort();
        // The runtime may end at the same time, and then no close can be awaited.
        if let (Ok(watch), Ok(runtime)) = (self.watch.again(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { watch.ask("close", |py| Ok(PyTuple::empty(py)), nothing).await });
        }
    }
}

fn read_lease(told: &Bound<'_, PyAny>) -> PyResult<Lease> {
    if !is_a(told, lease_class(told.py())?) {
        return Err(refused("grant", told, "an lcm.ports.Lease"));
    }
    let id = plain(&told.getattr("id")?, "grant: id", "a whole number")?;
    Ok(Lease { id: LeaseId(id), ttl: read_span(&told.getattr("ttl")?, "grant: ttl", "a timedelta from 0 up")? })
}

fn read_renewal(told: &Bound<'_, PyAny>) -> PyResult<Renewal> {
    if is_a(told, absent_class(told.py())?) {
        return Ok(Renewal::Gone);
    }
    read_span(told, "renew", "a timedelta from 0 up, or lcm.ABSENT").map(Renewal::Renewed)
}

fn read_span(told: &Bound<'_, PyAny>, method: &str, accepted: &str) -> PyResult<Duration> {
    let is_span = told.is_instance_of::<PyDelta>();
    told.extract().ok().filter(|_| is_span).ok_or_else(|| refused(method, told, accepted))
}

fn read_claim(told: &Bound<'_, PyAny>) -> PyResult<Claim> {
    if is_a(told, won_class(told.py())?) {
        return Ok(Claim::Won { revision: revision(told, "claim")? });
    }
    if is_a(told, held_class(told.py())?) {
        let by = plain(&told.getattr("by")?, "claim: by", "text")?;
        return Ok(Claim::Held { by, revision: revision(told, "claim")? });
    }
    Err(refused("claim", told, "an lcm.ports.Won or an lcm.ports.Held"))
}

fn read_listing(told: &Bound<'_, PyAny>) -> PyResult<Listing> {
    if !is_a(told, listing_class(told.py())?) {
        return Err(refused("list", told, "an lcm.ports.Listing"));
    }
    let given = told.getattr("keys")?;
    let given = given.cast::<PyMapping>().map_err(|_| refused("list: keys", &given, "a dict of keys and revisions"))?;
    let one = |pair: Bound<'_, PyAny>| {
        let (key, modified): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        Ok((read_key(&key, "list: keys")?, plain(&modified, "list: a revision", "a whole number")?))
    };
    let mut keys = given.items()?.iter().map(one).collect::<PyResult<Vec<_>>>()?;
    keys.sort();
    Ok(Listing { revision: revision(told, "list")?, keys })
}

fn read_update(told: &Bound<'_, PyAny>) -> PyResult<WatchUpdate> {
    let py = told.py();
    if is_a(told, changed_class(py)?) {
        let keys = read_list(&told.getattr("keys")?, "next: keys", read_key)?;
        return Ok(WatchUpdate::Changed { revision: revision(told, "next")?, keys });
    }
    if is_a(told, progress_class(py)?) {
        return Ok(WatchUpdate::Progress { revision: revision(told, "next")? });
    }
    if is_a(told, compacted_class(py)?) {
        return Ok(WatchUpdate::Compacted { revision: revision(told, "next")? });
    }
    Err(refused("next", told, "an lcm.ports.Changed, Progress or Compacted"))
}

fn revision(told: &Bound<'_, PyAny>, method: &str) -> PyResult<i64> {
    plain(&told.getattr("revision")?, &format!("{method}: revision"), "a whole number")
}

fn read_key(key: &Bound<'_, PyAny>, path: &str) -> PyResult<Vec<u8>> {
    plain::<String>(key, path, "text").map(String::into_bytes)
}
