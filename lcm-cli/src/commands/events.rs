//! `lcm events`: the reconciles of the running controller, and changes of records and of the lead as they happen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lcm_sdk::Timestamp;
use lcm_sdk::controller::{Leader, WatchConfig, leaders};
use lcm_sdk::ports::{Clock as _, Coordination, Scope, SystemClock};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::leader::realm;
use crate::admin::{AdminClient, AdminError};
use crate::arguments::EventsArguments;
use crate::context::{Context, stop_signals};
use crate::exit::{ExitStatus, Failure};
use crate::follow::{RecordChange, Records, Watch};
use crate::output::{Paint, printable};
use crate::summary;

/// Time between two requests for reconciles.
const POLL: Duration = Duration::from_secs(1);

/// One event, with its source.
#[derive(Serialize)]
#[serde(tag = "source", rename_all = "snake_case")]
enum Event {
    /// A reconcile of the controller.
    Reconcile(Value),
    /// A change of a record.
    Record(Box<RecordChange>),
    /// A change of the lead.
    Leader(LeadChange),
}

#[derive(Serialize)]
struct LeadChange {
    at: Timestamp,
    /// Whether it leads from now on, or does not lead any more.
    leads: bool,
    #[serde(flatten)]
    leader: Leader,
}

pub(crate) async fn run(arguments: &EventsArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let admin = context.admin(&arguments.admin)?;
    match arguments.follow {
        true => follow(&context, admin).await,
        false => recent(&context, &admin).await,
    }
}

/// Prints the reconciles that the controller remembers.
async fn recent(context: &Context, admin: &AdminClient) -> Result<ExitStatus, Failure> {
    let (_, events) = read(admin, 0).await.map_err(|problem| Failure::new(ExitStatus::Failure, &problem))?;
    let names: Vec<&str> = events.iter().filter_map(|event| event["worker_id"].as_str()).collect();
    context.output.print(&events, names, |paint| events.iter().map(|event| reconcile_line(event, paint)).collect())?;
    Ok(ExitStatus::Success)
}

async fn follow(context: &Context, admin: AdminClient) -> Result<ExitStatus, Failure> {
    let shutdown = stop_signals()?;
    let (sender, mut events) = unbounded_channel();
    // Ends with this function.
    let mut sources = JoinSet::new();
    let etcd = context.coordination()?;
    let listed = Records::start(&context.settings, context.control_plane()?, etcd.clone(), Scope::everything()).await;
    let records = listed.map_err(|failure| Failure::call("the workers could not be listed", &failure))?;
    sources.spawn(follow_records(records, sender.clone()));
    if let Some(etcd) = etcd {
        sources.spawn(follow_leaders(etcd, context.settings.leader_key(), sender.clone()));
    }
    sources.spawn(follow_reconciles(admin, sender));
    loop {
        let event = tokio::select! {
            biased;
            () = shutdown.requested() => return Ok(ExitStatus::Success),
            event = events.recv() => event,
        };
        let Some(event) = event else { return Ok(ExitStatus::Success) };
        let name = match &event {
            Event::Reconcile(reconcile) => reconcile["worker_id"].as_str().unwrap_or_default().to_owned(),
            Event::Record(change) => change.worker_id.clone(),
            Event::Leader(change) => change.leader.identity.clone(),
        };
        context.output.print_item(&event, &name, |paint| match &event {
            Event::Reconcile(reconcile) => reconcile_line(reconcile, paint),
            Event::Record(change) => change.line(paint),
            Event::Leader(change) => change.line(paint),
        })?;
    }
}

async fn follow_records(mut records: Records, sender: UnboundedSender<Event>) {
    loop {
        for change in records.changes().await {
            drop(sender.send(Event::Record(Box::new(change))));
        }
    }
}

async fn follow_leaders(etcd: Arc<dyn Coordination>, key: String, sender: UnboundedSender<Event>) {
    let prefix = key.strip_suffix("leader").unwrap_or(&key).to_owned();
    // Keys of members and locks change as well.
    let reader = |_: &str, key: &[u8]| key.ends_with(b"leader").then(|| "leader".to_owned());
    let mut watch = Watch::start(Arc::clone(&etcd), WatchConfig::new([prefix]), reader);
    let mut known: BTreeMap<String, Leader> = BTreeMap::new();
    loop {
        let _ = watch.next().await;
        let Ok(found) = leaders(&*etcd, &key).await else { continue };
        let found: BTreeMap<String, Leader> = found.into_iter().map(|leader| (leader.key.clone(), leader)).collect();
        let at = SystemClock.now();
        let is_same = |all: &BTreeMap<String, Leader>, leader: &Leader| all.get(&leader.key) == Some(leader);
        for leader in known.values().filter(|leader| !is_same(&found, leader)) {
            drop(sender.send(Event::Leader(LeadChange { at, leads: false, leader: leader.clone() })));
        }
        for leader in found.values().filter(|leader| !is_same(&known, leader)) {
            drop(sender.send(Event::Leader(LeadChange { at, leads: true, leader: leader.clone() })));
        }
        known = found;
    }
}

/// Requests the reconciles again and again, beginning with those that the controller remembers.
async fn follow_reconciles(admin: AdminClient, sender: UnboundedSender<Event>) {
    let (mut from, mut was_reachable) = (0, true);
    loop {
        match read(&admin, from).await {
            Ok((next, events)) => {
                for event in events {
                    drop(sender.send(Event::Reconcile(event)));
                }
                // Another process counts from 0 again.
                from = if next < from { 0 } else { next };
                was_reachable = true;
            }
            Err(problem) if was_reachable => {
                was_reachable = false;
                eprintln!("lcm: {problem}; reconciles are not shown until it does");
            }
            Err(_) => {}
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Reads the reconciles from a number on, and the number to continue with.
async fn read(admin: &AdminClient, from: u64) -> Result<(u64, Vec<Value>), String> {
    let response = admin.get(&["admin", "events"], &[("from", from.to_string())]).await;
    let mut response = response.map_err(|error| match error {
        AdminError::Unreachable(problem) => problem,
        AdminError::Refused(_, sentence) => format!("the controller at {} refused: {sentence}", admin.url()),
    })?;
    let next = response["next"].as_u64().unwrap_or_default();
    let events = response["events"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok((next, events))
}

fn reconcile_line(event: &Value, paint: Paint) -> String {
    let (at, what) = summary::history_entry(event);
    let worker = event["worker_id"].as_str().unwrap_or("?");
    format!("{}  {}  {what}\n", paint.dim(&at), paint.bold(&printable(worker)))
}

impl LeadChange {
    fn line(&self, paint: Paint) -> String {
        let Self { at, leads, leader } = self;
        let at = paint.dim(&at.format("%H:%M:%S").to_string());
        let identity = paint.bold(&printable(&leader.identity));
        let leads = if *leads { "leads" } else { "no longer leads" };
        format!("{at}  {identity}  {leads} {} (fencing token {})\n", realm(leader), leader.fencing_token)
    }
}
