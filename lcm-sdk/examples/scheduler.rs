//! A second controller on the generic layer: places every pending session on the running worker with the fewest
//! sessions.
//!
//! Election, watch, debounce, backoff and metrics come from [`Controller`]. The process may lose and regain the lead at
//! any time. Run it beside `fake-cloud --ephemeral`, with the variables that it prints.

use lcm_sdk::controller::{
    Controller, LeaderLease, ListRequest, Resource, ResourceList, Shutdown, WorkReason, WorkResult,
};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::{CallFailure, FailureKind, Session, Worker, eligible_workers};
use serde_json::{Value, json};

struct Scheduler {
    url: String,
    key: String,
}

impl Scheduler {
    async fn call(&self, path: &str, body: Option<Value>) -> Result<Value, CallFailure> {
        let failure = |error: reqwest::Error| CallFailure::new(FailureKind::Unclear, error.to_string());
        let url = format!("{}/api/internal/{path}", self.url);
        let client = reqwest::Client::new();
        let request = body.map_or_else(|| client.get(&url), |body| client.post(&url).json(&body));
        let response = request.header("X-API-Key", &self.key).send().await.map_err(failure)?;
        response.error_for_status().map_err(failure)?.json().await.map_err(failure)
    }

    async fn read<T: TryFrom<Value>>(&self, path: &str) -> Result<Vec<T>, CallFailure> {
        let records = self.call(path, None).await?;
        Ok(records.as_array().into_iter().flatten().filter_map(|record| T::try_from(record.clone()).ok()).collect())
    }

    async fn place(&self, session: &Session) -> Result<(), CallFailure> {
        let workers: Vec<Worker> = self.read("workers?status=running").await?;
        let sessions: Vec<Session> = self.read("lablet-sessions").await?;
        let load = |worker: &&Worker| sessions.iter().filter(|it| it.worker_id.as_ref() == Some(&worker.id)).count();
        let full = || CallFailure::new(FailureKind::NoCapacity, "no worker accepts new sessions");
        let worker = eligible_workers(&workers).min_by_key(load).ok_or_else(full)?;
        println!("{} goes to {}", session.id, worker.id);
        let body = json!({"worker_id": worker.id.as_str()});
        self.call(&format!("lablet-sessions/{}/schedule", session.id), Some(body)).await.map(drop)
    }
}

impl Resource for Scheduler {
    type Object = Session;

    fn key<'a>(&self, session: &'a Session) -> &'a str {
        session.id.as_str()
    }

    async fn list(&self, _: &ListRequest) -> Result<ResourceList<Session>, CallFailure> {
        self.read("lablet-sessions?status=pending").await.map(ResourceList::from)
    }

    async fn reconcile(&self, session: Session, _: LeaderLease) -> WorkResult {
        let retry = |failure: CallFailure| WorkResult::retry(WorkReason::Custom("not_placed"), failure.to_string());
        self.place(&session).await.map_or_else(retry, |()| WorkResult::success())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set; fake-cloud prints it"));
    let etcd = Etcd::new(EtcdOptions::new([format!("http://{}", variable("ETCD_ENDPOINTS")?)]))?;
    let (url, key) = (variable("CONTROL_PLANE_API_URL")?, variable("CONTROL_PLANE_API_KEY")?);
    let controller = Controller::builder(Scheduler { url, key })
        .elect(std::sync::Arc::new(etcd), "/lcm/resource-scheduler/leader")
        .watch(["/instances/", "/lcm/sessions/"])
        .concurrency(5)
        .build()?;
    controller.run(&Shutdown::from_signals()?).await;
    Ok(())
}
