//! The worker templates every control plane has out of the box.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::input::written;

struct Size {
    name: &'static str,
    instance_type: &'static str,
    cpu_cores: u32,
    memory_gb: u32,
    storage_gb: u32,
    max_nodes: u32,
    cost_per_hour_usd: f64,
}

const SIZES: [Size; 5] = [
    size("micro", "t3.micro", [2, 1, 20, 2], 0.0104),
    size("small", "t3.small", [2, 2, 50, 5], 0.0208),
    size("medium", "t3.medium", [2, 4, 100, 15], 0.0416),
    size("large", "t3.large", [2, 8, 200, 30], 0.0832),
    size("metal", "m5zn.metal", [48, 192, 1000, 200], 3.9641),
];

const fn size(
    name: &'static str,
    instance_type: &'static str,
    [cpu_cores, memory_gb, storage_gb, max_nodes]: [u32; 4],
    cost_per_hour_usd: f64,
) -> Size {
    Size { name, instance_type, cpu_cores, memory_gb, storage_gb, max_nodes, cost_per_hour_usd }
}

/// The templates, by name.
pub(super) fn templates(now: DateTime<Utc>) -> impl Iterator<Item = (String, Map<String, Value>)> {
    SIZES.into_iter().filter_map(move |size| {
        let template = json!({
            "id": format!("template-{}", size.name),
            "name": size.name,
            "description": format!("{} vCPU, {} GB, up to {} nodes", size.cpu_cores, size.memory_gb, size.max_nodes),
            "instance_type": size.instance_type,
            "ami_name_pattern": "cisco-cml2.9*",
            "capacity": {
                "cpu_cores": size.cpu_cores, "memory_gb": size.memory_gb, "storage_gb": size.storage_gb,
                "max_nodes": size.max_nodes,
            },
            "cost_per_hour_usd": size.cost_per_hour_usd,
            "license_type": "enterprise",
            "startup_time_minutes": 20,
            "port_range": {"start": 2000, "end": 9999},
            "drain_timeout_hours": 4,
            "enabled": true,
            "deleted": false,
            "created_at": written(now),
            "updated_at": written(now),
        });
        match template {
            Value::Object(fields) => Some((size.name.to_owned(), fields)),
            _ => None,
        }
    })
}
