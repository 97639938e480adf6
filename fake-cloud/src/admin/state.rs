//! State of every service as JSON, for `GET /_fake/state`.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::AdminState;
use crate::clock::Pace;
use crate::world::{Instance, Region, World};

pub(super) async fn show(State(state): State<AdminState>) -> Json<Value> {
    let world = &state.world;
    let (regions, now) = world.with_ec2(|ec2, now| {
        let names: Vec<&'static str> = ec2.regions().map(|region| region.name).collect();
        // `Ec2::region` drops terminated instances that are no longer visible.
        let regions: serde_json::Map<String, Value> = names
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), show_region(ec2.region(name, now).ok()?, now))))
            .collect();
        (regions, now)
    });
    let mut body = json!({
        "seed": world.settings().seed,
        "clock": clock_at(world, now),
        "regions": regions,
        "faults": world.faults().list(),
        "requests": world.request_log().total(),
        "notices": world.request_log().notices(),
    });
    if let (Some(services), Some(fields)) = (&state.services, body.as_object_mut()) {
        fields.extend(services.to_json());
    }
    Json(body)
}

pub(super) fn clock(world: &World) -> Value {
    clock_at(world, world.clock().now())
}

fn clock_at(world: &World, now: DateTime<Utc>) -> Value {
    let pace = match world.clock().pace() {
        Pace::Real => "real".to_owned(),
        Pace::Manual => "manual".to_owned(),
        Pace::Accelerated(factor) => format!("x{factor}"),
    };
    json!({"now": now, "pace": pace})
}

fn show_region(region: &Region, now: DateTime<Utc>) -> Value {
    let catalog = &region.catalog;
    let images = catalog.images.iter().map(
        |image| json!({"id": image.id, "name": image.name, "creation_date": image.creation_date, "owner": image.owner}),
    );
    json!({
        "instances": region.instances().map(|instance| show_instance(instance, now)).collect::<Vec<_>>(),
        "images": images.collect::<Vec<_>>(),
        "subnets": catalog.subnets.iter().map(|subnet| &subnet.id).collect::<Vec<_>>(),
        "security_groups": catalog.groups.iter().map(|group| &group.id).collect::<Vec<_>>(),
    })
}

fn show_instance(instance: &Instance, now: DateTime<Utc>) -> Value {
    json!({
        "id": instance.id,
        "owner": &*instance.owner,
        "state": instance.state(now).name(),
        "image_id": &*instance.image_id,
        "instance_type": &*instance.instance_type,
        "public_ip": instance.public_ip(now),
        "private_ip": instance.private_ip,
        "launched_at": instance.launched_at,
        "client_token": instance.client_token.as_deref(),
        "tags": &*instance.tags,
    })
}
