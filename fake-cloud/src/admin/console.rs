//! Changes made in the AWS console: instances, tags, images, networks and metrics, without a recorded API request.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::post;
use axum::{Json, Router};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;
use serde_json::json;

use super::{AdminResult, AdminState};
use crate::world::metrics::{Datum, MetricKey, Summary};
use crate::world::{IMAGE_OWNER, Image, InstanceAction, SecurityGroup, Subnet, Tags, World};

type JsonBody<T> = Result<Json<T>, JsonRejection>;

pub(super) fn router() -> Router<AdminState> {
    let order = |order: InstanceAction| {
        post(
            move |State(world): State<Arc<World>>, body: JsonBody<Target>| async move { apply_order(&world, order, body) },
        )
    };
    Router::new()
        .route("/_fake/console/start", order(InstanceAction::Start))
        .route("/_fake/console/stop", order(InstanceAction::Stop))
        .route("/_fake/console/reboot", order(InstanceAction::Reboot))
        .route("/_fake/console/terminate", order(InstanceAction::Terminate))
        .route("/_fake/console/tag", post(tag))
        .route("/_fake/console/image", post(image))
        .route("/_fake/console/subnet", post(subnet))
        .route("/_fake/console/security-group", post(security_group))
        .route("/_fake/console/metric", post(metric))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    region: String,
    instance: String,
}

fn apply_order(world: &World, order: InstanceAction, body: JsonBody<Target>) -> AdminResult {
    let Json(target) = body?;
    let change = world.console_action(&target.region, &target.instance, order)?;
    Ok(Json(json!({
        "instance": change.instance_id,
        "previous": change.previous.name(),
        "current": change.current.name(),
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTag {
    region: String,
    instance: String,
    key: String,
    value: String,
}

async fn tag(State(world): State<Arc<World>>, body: JsonBody<NewTag>) -> AdminResult {
    let Json(new) = body?;
    world.console_tag(&new.region, &new.instance, &new.key, &new.value)?;
    Ok(Json(json!({"instance": new.instance})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewImage {
    region: String,
    id: String,
    name: String,
    creation_date: Option<DateTime<Utc>>,
    owner: Option<String>,
    #[serde(default)]
    tags: Tags,
}

async fn image(State(world): State<Arc<World>>, body: JsonBody<NewImage>) -> AdminResult {
    let Json(new) = body?;
    let created = new.creation_date.unwrap_or_else(|| world.clock().now());
    let image = Image {
        id: new.id.clone(),
        description: new.name.clone(),
        name: new.name,
        creation_date: created.to_rfc3339_opts(SecondsFormat::Millis, true),
        owner: new.owner.unwrap_or_else(|| IMAGE_OWNER.to_owned()),
        tags: new.tags,
    };
    world.console_put_image(&new.region, image)?;
    Ok(Json(json!({"image": new.id})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSubnet {
    region: String,
    id: String,
    vpc_id: Option<String>,
    availability_zone: Option<String>,
    network: Option<Ipv4Addr>,
    #[serde(default)]
    tags: Tags,
}

async fn subnet(State(world): State<Arc<World>>, body: JsonBody<NewSubnet>) -> AdminResult {
    let Json(new) = body?;
    let vpc_id = new.vpc_id.map_or_else(|| default_vpc(&world, &new.region), Ok)?;
    let subnet = Subnet {
        id: new.id.clone(),
        vpc_id,
        availability_zone: new.availability_zone.unwrap_or_else(|| format!("{}a", new.region)),
        network: new.network.unwrap_or(Ipv4Addr::new(10, 200, 0, 0)),
        tags: new.tags,
    };
    world.console_put_subnet(&new.region, subnet)?;
    Ok(Json(json!({"subnet": new.id})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewGroup {
    region: String,
    id: String,
    name: String,
    vpc_id: Option<String>,
}

async fn security_group(State(world): State<Arc<World>>, body: JsonBody<NewGroup>) -> AdminResult {
    let Json(new) = body?;
    let vpc_id = new.vpc_id.map_or_else(|| default_vpc(&world, &new.region), Ok)?;
    world.console_put_security_group(&new.region, SecurityGroup { id: new.id.clone(), name: new.name, vpc_id })?;
    Ok(Json(json!({"security_group": new.id})))
}

fn default_vpc(world: &World, region: &str) -> Result<String, crate::world::AwsError> {
    world.with_ec2(|ec2, now| {
        let subnets = &ec2.region(region, now)?.catalog.subnets;
        Ok(subnets.first().map(|subnet| subnet.vpc_id.clone()).unwrap_or_default())
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDatum {
    region: String,
    namespace: String,
    name: String,
    #[serde(default)]
    dimensions: BTreeMap<String, String>,
    value: f64,
    unit: Option<String>,
    at: Option<DateTime<Utc>>,
}

async fn metric(State(world): State<Arc<World>>, body: JsonBody<NewDatum>) -> AdminResult {
    let Json(new) = body?;
    let dimensions = new.dimensions.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let key = MetricKey::new(&new.namespace, &new.name, dimensions);
    let datum = Datum {
        at: new.at.unwrap_or_else(|| world.clock().now()),
        summary: Summary::from_value(new.value),
        unit: new.unit.unwrap_or_else(|| "Percent".to_owned()),
    };
    world.console_set_metric(&new.region, key, datum)?;
    Ok(Json(json!({"metric": new.name})))
}
