//! A second controller on the same layers: a small scheduler that gives every pending session a worker.
//!
//! Election, watch, debounce, backoff, single flight and metrics come from the runtime; what is written here is only what
//! a scheduler does. It watches `/instances/`, lists pending sessions from the control plane, and places each on the
//! running worker with the fewest sessions.
//!
//! Run it beside a `fake-cloud --ephemeral` with the variables that prints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::controller::election::{ElectionConfig, LeaderElection};
use lcm_sdk::controller::queue::WorkResult;
use lcm_sdk::controller::shutdown::Shutdown;
use lcm_sdk::controller::watch::{WatchConfig, WatchNotice, Watcher, first_segment};
use lcm_sdk::controller::{Controller, ControllerConfig, Fetched, ListScope, Listing, Reconcile};
use lcm_sdk::providers::etcd::{Etcd, EtcdOptions};
use lcm_sdk::providers::http;
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{CallFailure, FailureKind, Session, Worker, eligible_workers};
use serde_json::{Value, json};

struct Scheduler {
    client: reqwest::Client,
    url: String,
    key: String,
}

impl Scheduler {
    async fn ask(&self, path: &str) -> Result<Value, CallFailure> {
        let asked = self.client.get(format!("{}/api/internal/{path}", self.url)).header("X-API-Key", &self.key);
        Self::answer(asked).await
    }

    async fn answer(request: reqwest::RequestBuilder) -> Result<Value, CallFailure> {
        let response = request.send().await.map_err(http::failure)?;
        let (status, body) = (response.status(), response.text().await.map_err(http::failure)?);
        if !status.is_success() {
            return Err(http::response_failure(status, &body));
        }
        serde_json::from_str(&body).map_err(|error| CallFailure::new(FailureKind::Unparsable, error.to_string()))
    }

    async fn sessions(&self, query: &str) -> Result<Vec<Session>, CallFailure> {
        let listing = self.ask(&format!("lablet-sessions?{query}")).await?;
        let records = listing.as_array().cloned().unwrap_or_default();
        Ok(records.into_iter().filter_map(|record| Session::try_from(record).ok()).collect())
    }

    async fn place(&self, session: &Session) -> Result<Option<String>, CallFailure> {
        let records = self.ask("workers?status=running").await?.as_array().cloned().unwrap_or_default();
        let workers: Vec<Worker> = records.into_iter().filter_map(|record| Worker::try_from(record).ok()).collect();
        let mut load: BTreeMap<&str, usize> =
            eligible_workers(&workers).map(|worker| (worker.id.as_str(), 0)).collect();
        let placed = self.sessions("").await?;
        for worker in placed.iter().filter_map(|session| session.worker_id.as_ref()) {
            if let Some(load) = load.get_mut(worker.as_str()) {
                *load += 1;
            }
        }
        let Some((worker, _)) = load.into_iter().min_by_key(|(_, sessions)| *sessions) else { return Ok(None) };
        let url = format!("{}/api/internal/lablet-sessions/{}/schedule", self.url, session.id);
        let body = json!({"worker_id": worker});
        Self::answer(self.client.post(url).header("X-API-Key", &self.key).json(&body)).await?;
        Ok(Some(worker.to_owned()))
    }
}

impl Reconcile for Scheduler {
    type Resource = Session;

    fn key<'a>(&self, session: &'a Session) -> &'a str {
        session.id.as_str()
    }

    async fn list(&self, _: ListScope) -> Result<Listing<Session>, CallFailure> {
        Ok(Listing { resources: self.sessions("status=pending").await?, resting: Vec::new() })
    }

    async fn fetch(&self, key: &str) -> Result<Fetched<Session>, CallFailure> {
        let pending = self.sessions("status=pending").await?;
        let found = pending.into_iter().find(|session| session.id.as_str() == key);
        Ok(found.map_or(Fetched::Gone, Fetched::Resource))
    }

    async fn reconcile(&self, session: Session) -> WorkResult {
        match self.place(&session).await {
            Ok(Some(worker)) => {
                println!("{} goes to {worker}", session.id);
                WorkResult::success()
            }
            Ok(None) => WorkResult::retry("no_worker", "no worker takes new sessions now"),
            Err(failure) => WorkResult::retry("control_plane", failure.to_string()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set; fake-cloud prints it"));
    let (url, key) = (variable("CONTROL_PLANE_API_URL")?, variable("CONTROL_PLANE_API_KEY")?);
    let etcd = Arc::new(Etcd::new(EtcdOptions::new([format!("http://{}", variable("ETCD_ENDPOINTS")?)]))?);
    let (telemetry, shutdown) = (Telemetry::new("scheduler"), Shutdown::new());
    shutdown.on_signals()?;

    let key_of_leader = ElectionConfig { key: "/lcm/resource-scheduler/leader".into(), ..ElectionConfig::default() };
    let (election, leader) = LeaderElection::over(etcd.clone(), key_of_leader, telemetry.clone())?;
    let electing = tokio::spawn(election.run(shutdown.clone()));
    let elected = tokio::select! {
        elected = leader.elected() => elected,
        () = shutdown.requested() => None,
    };
    if let Some(leadership) = elected {
        println!("leading; every pending session gets a worker");
        let scheduler = Scheduler { client: reqwest::Client::new(), url, key };
        let config = ControllerConfig { initial_delay: Duration::ZERO, ..ControllerConfig::default() };
        let controller = Controller::new(scheduler, config, telemetry.clone());
        let (watcher, _, mut notices) =
            Watcher::new(etcd, WatchConfig::new(["/instances/", "/lcm/sessions/"]), telemetry, first_segment);
        let watching = tokio::spawn(watcher.run(shutdown.clone()));
        let heeding = async {
            while let Some(notice) = notices.recv().await {
                match notice {
                    WatchNotice::Changed(sessions) => sessions.iter().for_each(|session| controller.changed(session)),
                    WatchNotice::Resync(_) => drop(controller.cycle().await),
                }
            }
        };
        tokio::select! {
            () = controller.run(&shutdown) => {}
            () = heeding => {}
            () = leadership.lost() => eprintln!("not the leader any more"),
        }
        watching.abort();
    }
    leader.resign().await;
    electing.await?;
    Ok(())
}
