//! Responses about the system: information, statistics, health, compute hosts.

use serde_json::{Value, json};

use super::options::{BootStage, Options};
use super::release::Release;
use super::server::State;

/// Reported capacity of the host.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Hardware {
    /// Number of processor cores.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: f64,
    /// Disk size in bytes.
    pub disk_bytes: f64,
}

impl Default for Hardware {
    fn default() -> Self {
        const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
        Self { cpus: 48, memory_bytes: 192.0 * GIB, disk_bytes: 1000.0 * GIB }
    }
}

/// Utilization in percent, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// Processor utilization in percent.
    pub cpu: f64,
    /// Memory utilization in percent.
    pub memory: f64,
    /// Disk utilization in percent.
    pub disk: f64,
}

pub(super) fn information(options: &Options, stage: BootStage) -> Value {
    let mut information = json!({
        "version": options.version(), "ready": stage == BootStage::Ready, "allow_ssh_pubkey_auth": false,
        "oui": "52:54:00:00:00:00",
    });
    if options.release() >= Release::V2_10 {
        information["timeout"] = 3600.into();
        information["features"] = json!({});
    }
    information
}

/// Numbers are floats, as in real responses, although the schema declares integers.
pub(super) fn stats(options: &Options, state: &State, nodes: NodeCounts) -> Value {
    let load = state.load.unwrap_or_else(|| estimated_load(options, nodes));
    let hardware = &options.hardware;
    let part = |total: f64, percent: f64| {
        let used = (total * percent / 100.0).round();
        json!({"used": used, "free": total - used, "total": total})
    };
    let memory = part(hardware.memory_bytes, load.memory);
    let disk = part(hardware.disk_bytes, load.disk);
    let cores = f64::from(hardware.cpus);
    let queue = (load.cpu / 100.0 * cores * 100.0).round() / 100.0;
    json!({
        "computes": {
            &state.compute_id: {
                "hostname": options.hostname,
                "is_controller": true,
                "stats": {
                    "cpu": {
                        "count": hardware.cpus, "percent": load.cpu, "model": "Fake CPU @ 4.50GHz",
                        "hyperthreading": false, "predicted": nodes.cpus, "load": [queue, queue, queue],
                    },
                    "memory": memory,
                    "disk": disk,
                    "dominfo": {
                        "total_nodes": nodes.total, "total_orphans": 0, "running_nodes": nodes.running,
                        "running_orphans": 0, "allocated_cpus": nodes.cpus, "allocated_memory": nodes.memory_mib,
                    },
                },
            },
        },
        "all": {"cpu": {"count": hardware.cpus, "percent": load.cpu}, "memory": memory, "disk": disk},
        "controller": {"disk": disk},
    })
}

pub(super) fn health(options: &Options, state: &State, stage: BootStage, licensed: bool) -> Value {
    let ready = stage == BootStage::Ready;
    json!({
        "valid": ready && licensed,
        "computes": {
            &state.compute_id: {
                "kvm_vmx_enabled": true, "enough_cpus": true, "lld_connected": ready, "lld_synced": ready,
                "libvirt": ready, "fabric": ready, "device_mux": ready, "refplat_images_available": true,
                "docker_shim": ready, "valid": ready, "admission_state": state.administration.host_state, "is_controller": true,
                "hostname": options.hostname,
            },
        },
        "is_licensed": licensed,
        "is_enterprise": true,
        "controller": {"core_connected": ready, "nodes_loaded": ready, "images_loaded": ready, "valid": ready},
    })
}

/// Exactly these keys: clients pass them on as keyword arguments, and an additional one is an error.
pub(super) fn compute_host(options: &Options, state: &State, stage: BootStage, nodes: NodeCounts) -> Value {
    json!({
        "id": state.compute_id,
        "hostname": options.hostname,
        "server_address": options.address,
        "is_connector": true,
        "is_simulator": true,
        "is_connected": stage == BootStage::Ready,
        "is_synced": stage == BootStage::Ready,
        "admission_state": state.administration.host_state,
        "node_counts": {
            "total_nodes": nodes.total, "total_orphans": 0, "running_nodes": nodes.running, "running_orphans": 0,
        },
    })
}

/// Totals over the nodes of all labs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeCounts {
    pub(super) total: u32,
    pub(super) running: u32,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
}

/// Estimated utilization: a base load plus a share for each node.
fn estimated_load(options: &Options, nodes: NodeCounts) -> Load {
    let cores = f64::from(options.hardware.cpus.max(1));
    let memory = f64::from(nodes.memory_mib) * 1024.0 * 1024.0 / options.hardware.memory_bytes.max(1.0) * 100.0;
    Load {
        cpu: (2.0 + f64::from(nodes.cpus) * 30.0 / cores).min(100.0),
        memory: (4.0 + memory).min(100.0),
        disk: (12.0 + f64::from(nodes.total) * 0.2).min(100.0),
    }
}
