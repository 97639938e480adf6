//! Control plane, etcd and CML.

use futures_util::future::join_all;
use lcm_sdk::controller::leaders;
use lcm_sdk::ports::{CmlTarget, Support};
use lcm_sdk::{CallFailure, FailureKind, Secret, Worker, WorkerStatus};

use super::{Check, Subject};
use crate::context::Context;

/// Largest number of CML servers that are called.
const MAX_CML: usize = 20;

pub(super) async fn control_plane(subject: &Subject<'_>) -> Vec<Check> {
    let port = &subject.ports.control_plane;
    let url = port.url().unwrap_or_default();
    let url = url.trim_end_matches('/');
    let listing = match &subject.listing {
        Err(failure) => {
            return vec![Check::fail("control plane", format!("{url}: {failure}"), mend_control_plane(failure))];
        }
        Ok(listing) => listing,
    };
    let found = format!("{url}: {} workers", listing.workers.len());
    let records = match listing.unreadable.len() {
        0 => Check::ok("control plane", found),
        count => Check::warn(
            "control plane",
            format!("{found}, and {count} records that cannot be read and are left alone"),
            "`lcm workers` names their problems; correct the records",
        ),
    };
    let has = port.capabilities();
    let features = [
        ("versions", has.versions),
        ("notes", has.notes),
        ("desired status", has.desired_status),
        ("cancel drain", has.cancel_drain),
        ("session moves", has.session_moves),
        ("pause suppression", has.pause_suppression),
        ("audits", has.audits),
    ];
    let with = |support: Support| {
        let names: Vec<&str> = features.iter().filter(|(_, has)| *has == support).map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let parts = [("yes", Support::Yes), ("no", Support::No), ("not known yet", Support::Unknown)];
    let parts = parts.into_iter().filter_map(|(word, support)| Some(format!("{word}: {}", with(support)?)));
    let notes = port.notes_status();
    let place = format!("{}, because {}", notes.place, notes.reason);
    let notes = match notes.place {
        "memory" => {
            Check::warn("notes", place, "set ETCD_ENDPOINTS or NOTES_STORE: notes in memory are lost at a restart")
        }
        _ => Check::ok("notes", place),
    };
    vec![records, Check::ok("capabilities", parts.collect::<Vec<_>>().join("; ")), notes]
}

fn mend_control_plane(failure: &CallFailure) -> &'static str {
    match (failure.code.as_deref(), failure.kind) {
        (Some("401" | "403"), _) => "set CONTROL_PLANE_API_KEY to the key of the control plane",
        (_, FailureKind::Unreachable) => "start the control plane, or correct CONTROL_PLANE_API_URL",
        _ => "check CONTROL_PLANE_API_URL and CONTROL_PLANE_CA_FILE, and the logs of the control plane",
    }
}

pub(super) async fn etcd(context: &Context) -> Vec<Check> {
    let etcd = match context.coordination() {
        Ok(Some(etcd)) => etcd,
        Ok(None) => {
            let found =
                "ETCD_ENDPOINTS is empty: this controller leads without an election, and notices changes by polling";
            return vec![Check::warn("etcd", found, "set ETCD_ENDPOINTS before a second controller is started")];
        }
        Err(failure) => {
            let found = failure.message.unwrap_or_default();
            return vec![Check::fail("etcd", found, "correct ETCD_ENDPOINTS and the ETCD_…_FILE settings")];
        }
    };
    let url = etcd.url().unwrap_or_default();
    match leaders(&*etcd, &context.settings.leader_key()).await {
        Ok(found) if found.is_empty() => vec![Check::ok("etcd", format!("{url}: no controller leads"))],
        Ok(found) => {
            let names: Vec<&str> = found.iter().map(|leader| leader.identity.as_str()).collect();
            vec![Check::ok("etcd", format!("{url}: led by {}", names.join(", ")))]
        }
        Err(failure) => {
            let mend = match failure.kind {
                FailureKind::Refused => "correct ETCD_USERNAME and ETCD_PASSWORD, and the permissions of that user",
                _ => "start etcd, or correct ETCD_ENDPOINTS and ETCD_CA_FILE",
            };
            vec![Check::fail("etcd", format!("{url}: {failure}"), mend)]
        }
    }
}

/// Calls CML on running workers, at the address that EC2 shows: passwords go nowhere else.
pub(super) async fn cml(subject: &Subject<'_>) -> Vec<Check> {
    let Ok(listing) = &subject.listing else { return Vec::new() };
    let running: Vec<&Worker> =
        listing.workers.iter().filter(|worker| worker.status == WorkerStatus::Running).take(MAX_CML).collect();
    let calls = join_all(running.iter().map(|worker| call(subject, worker))).await;
    let failures: Vec<String> = calls.iter().filter_map(|call| call.as_ref().err().cloned()).collect();
    let (count, failed) = (calls.len(), failures.len());
    let mend = "open CML_PORT from this host to the workers, and check CML_DEFAULT_USERNAME, CML_DEFAULT_PASSWORD, \
                CML_CA_FILE and CML_VERIFY_TLS";
    let check = match failures.first() {
        None if count == 0 => Check::ok("CML", "no worker is running"),
        None => Check::ok("CML", format!("{count} of {count} running workers respond")),
        Some(first) if failed == count => {
            Check::fail("CML", format!("none of {count} running workers responds; {first}"), mend)
        }
        Some(first) => {
            let found = format!("{} of {count} running workers respond; {first}", count - failed);
            Check::warn("CML", found, mend)
        }
    };
    vec![check]
}

async fn call(subject: &Subject<'_>, worker: &Worker) -> Result<(), String> {
    let policy = subject.settings.policy();
    let problem = |problem: &str| format!("{}: {problem}", worker.id);
    let region = policy.regions.region_of(worker).ok_or_else(|| problem("its region is not known"))?;
    let id = worker.ec2_instance_id.as_ref().ok_or_else(|| problem("it has no instance"))?;
    let lookup = subject.ports.compute.instance(region, id).await;
    let address = match (lookup.found(), lookup.failure()) {
        (Some(instance), _) => instance.address().map(str::to_owned),
        (None, Some(failure)) => return Err(problem(&failure.to_string())),
        (None, None) => return Err(problem("EC2 does not show its instance")),
    };
    let address = address.ok_or_else(|| problem("its instance has no address"))?;
    let cml = &subject.settings.cml;
    let target = CmlTarget {
        address,
        username: worker.cml_username.clone().unwrap_or_else(|| cml.cml_default_username.clone()),
        password: worker
            .cml_password
            .clone()
            .or_else(|| cml.cml_default_password.clone())
            .unwrap_or_else(|| Secret::from("")),
    };
    let response = subject.ports.cml.system(&target).await;
    response.map(drop).map_err(|failure| problem(&failure.to_string()))
}
