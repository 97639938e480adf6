//! Diagnostics of a server, by category.

use serde_json::{Map, Value, json};

use super::definitions::Kind;
use super::error::CmlError;
use super::labs::{Configurations, Details, Host, Lab, Operational};
use super::options::BootStage;
use super::server::State;
use super::system_stats;

/// Categories, in the order in which a release without categories returns them.
pub(super) const CATEGORIES: [&str; 10] = [
    "computes",
    "dispatcher",
    "labs",
    "lab_events",
    "node_launch_queue",
    "services",
    "startup_scheduler",
    "user_list",
    "licensing",
    "node_definitions",
];

/// Diagnostics of one category.
///
/// # Errors
/// 404 for an unknown category.
pub(super) fn diagnostics(category: &str, state: &State, host: &Host<'_>, stage: BootStage) -> Result<Value, CmlError> {
    let is_ready = stage == BootStage::Ready;
    Ok(match category {
        "computes" => computes(state, host, is_ready),
        "dispatcher" | "node_launch_queue" => json!([]),
        "labs" => {
            state.labs.iter().map(|(id, lab)| (id.clone(), lab_diagnostics(lab, host))).collect::<Map<_, _>>().into()
        }
        "lab_events" => state.labs.keys().map(|id| (id.clone(), json!([]))).collect::<Map<_, _>>().into(),
        "services" => json!({"dispatcher": is_ready, "termws": is_ready}),
        "startup_scheduler" => json!({
            "licensing_loaded": true, "core_driver_connected": is_ready, "node_definitions_loaded": is_ready,
            "lld_connected": is_ready, "lld_synced": is_ready, "system_ready": is_ready,
        }),
        "user_list" => state.all_users_json(host.release()).into(),
        "licensing" => {
            let started = state.counts().running;
            json!({"quota": null, "started": started, "user_quota": null, "user_started": started})
        }
        "node_definitions" => {
            let shown = |it: Value| json!({"id": it["id"], "images": it["image_definitions"]});
            host.definitions.list(Kind::Node).into_iter().map(shown).collect()
        }
        other => {
            let message = format!("Unknown category {other}: expected {}.", CATEGORIES.join(", "));
            return Err(CmlError::new(404, message));
        }
    })
}

fn lab_diagnostics(lab: &Lab, host: &Host<'_>) -> Value {
    let stats = lab.simulation_stats(host);
    let details = Details { operational: Operational::Hidden, configurations: Configurations::Excluded };
    let nodes: Map<_, _> = lab
        .nodes("", host, details)
        .into_iter()
        .filter_map(|node| {
            let id = node["id"].as_str()?.to_owned();
            let time = |state: &str| stats["nodes"][&id]["times"][state].as_i64().unwrap_or(0);
            let times = json!({"QUEUED": time("QUEUED"), "STARTED": time("STARTED"), "BOOTED": time("BOOTED")});
            Some((id, json!({"label": node["label"], "state": node["state"], "state_times": times})))
        })
        .collect();
    let links: Map<_, _> = lab
        .all_links_json("", host)
        .into_iter()
        .filter_map(|link| {
            let (a, b) = (&link["interface_a"], &link["interface_b"]);
            let shown = json!({"state": link["state"], "interface_a": a, "interface_b": b});
            Some((link["id"].as_str()?.to_owned(), shown))
        })
        .collect();
    let interfaces: Map<_, _> = lab
        .interfaces_json("", Operational::Hidden)
        .into_iter()
        .filter_map(|it| {
            let shown = json!({"label": it["label"], "slot": it["slot"], "state": it["state"], "node": it["node"]});
            Some((it["id"].as_str()?.to_owned(), shown))
        })
        .collect();
    let created = lab.created.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    json!({"created": created, "allocated": true, "nodes": nodes, "links": links, "interfaces": interfaces})
}

fn computes(state: &State, host: &Host<'_>, is_ready: bool) -> Value {
    let details = Details { operational: Operational::Shown, configurations: Configurations::Files };
    let by_id = |values: Vec<Value>| -> Map<String, Value> {
        values.into_iter().filter_map(|value| Some((value["id"].as_str()?.to_owned(), value))).collect()
    };
    let labs = || state.labs.iter();
    let mut nodes: Vec<Value> = labs().flat_map(|(id, lab)| lab.nodes(id, host, details)).collect();
    nodes.retain(|node| node["operational"]["compute_id"].is_string());
    let mut interfaces: Vec<Value> = labs().flat_map(|(id, lab)| lab.interfaces_json(id, Operational::Shown)).collect();
    interfaces.retain(|interface| interface["operational"].is_object());
    let links: Vec<Value> = labs().flat_map(|(id, lab)| lab.all_links_json(id, host)).collect();
    let stats = system_stats::stats(host.options, state, state.counts());
    let compute = json!({
        "identifier": host.options.hostname, "host_address": host.options.address,
        "hostname": host.options.hostname, "link_driver": "fabric", "kvm_vmx_enabled": true, "is_controller": true,
        "is_connector": true, "is_simulator": true,
        "readiness": {
            "libvirt": is_ready, "fabric": is_ready, "device_mux": is_ready, "refplat_images_available": true,
            "docker_shim": is_ready,
        },
        "low_level": {"fabric": null},
        "lld_consistency": {"missing_nodes": [], "orphaned_nodes": []},
        "nodes": by_id(nodes), "interfaces": by_id(interfaces), "links": by_id(links), "fabric": [],
        "statistics": stats["computes"][host.compute_id]["stats"], "admission_state": state.administration.host_state,
    });
    Value::from(Map::from_iter([(host.compute_id.to_owned(), compute)]))
}
