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
use crate::names::Place;
use crate::world::metrics::{Datum, MetricKey, Summary};
use crate::world::{
    ACCOUNT, IMAGE_OWNER, Image, InstanceAction, OptInStatus, Presence, SecurityGroup, Sharing, Subnet, Tags, World,
};

pub(super) type JsonBody<T> = Result<Json<T>, JsonRejection>;

pub(super) fn router() -> Router<AdminState> {
    let order = |order: InstanceAction| {
        post(
            move |State(state): State<AdminState>, body: JsonBody<Target>| async move { apply_order(&state, order, body) },
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
        .route("/_fake/console/key-pair", post(key_pair))
        .route("/_fake/console/instance-profile", post(instance_profile))
        .route("/_fake/console/region", post(opt_in))
        .merge(super::disruption::router())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// All regions are searched without it.
    region: Option<String>,
    /// Id or name of the instance, or of its worker.
    instance: String,
}

fn apply_order(state: &AdminState, order: InstanceAction, body: JsonBody<Target>) -> AdminResult {
    let Json(target) = body?;
    let Place { region, id } = state.find(target.region.as_deref(), &target.instance)?;
    let change = state.world.console_action(&region, &id, order)?;
    Ok(Json(json!({
        "instance": change.instance_id,
        "previous": change.previous.name(),
        "current": change.current.name(),
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTag {
    region: Option<String>,
    instance: String,
    key: String,
    value: String,
}

async fn tag(State(state): State<AdminState>, body: JsonBody<NewTag>) -> AdminResult {
    let Json(new) = body?;
    let Place { region, id } = state.find(new.region.as_deref(), &new.instance)?;
    state.world.console_tag(&region, &id, &new.key, &new.value)?;
    Ok(Json(json!({"instance": id})))
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
    sharing: Sharing,
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
        sharing: new.sharing,
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
    owner: Option<String>,
    #[serde(default)]
    tags: Tags,
}

async fn subnet(State(world): State<Arc<World>>, body: JsonBody<NewSubnet>) -> AdminResult {
    let Json(new) = body?;
    let owner = new.owner.unwrap_or_else(|| ACCOUNT.to_owned());
    let vpc_id = new.vpc_id.map_or_else(|| default_vpc(&world, &new.region, &owner), Ok)?;
    let subnet = Subnet {
        id: new.id.clone(),
        vpc_id,
        availability_zone: new.availability_zone.unwrap_or_else(|| format!("{}a", new.region)),
        network: new.network.unwrap_or(Ipv4Addr::new(10, 200, 0, 0)),
        prefix_length: 16,
        is_default: true,
        owner,
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
    owner: Option<String>,
}

async fn security_group(State(world): State<Arc<World>>, body: JsonBody<NewGroup>) -> AdminResult {
    let Json(new) = body?;
    let owner = new.owner.unwrap_or_else(|| ACCOUNT.to_owned());
    let vpc_id = new.vpc_id.map_or_else(|| default_vpc(&world, &new.region, &owner), Ok)?;
    let group = SecurityGroup::new(&new.id, &new.name, &new.name, &vpc_id, &owner);
    world.console_put_security_group(&new.region, group)?;
    Ok(Json(json!({"security_group": new.id})))
}

fn default_vpc(world: &World, region: &str, account: &str) -> Result<String, crate::world::AwsError> {
    world.with_ec2(|ec2, now| {
        let mut subnets = ec2.region(region, now)?.catalog.subnets_of(account);
        Ok(subnets.next().map(|subnet| subnet.vpc_id.clone()).unwrap_or_default())
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKeyPair {
    region: String,
    name: String,
    owner: Option<String>,
}

async fn key_pair(State(world): State<Arc<World>>, body: JsonBody<NewKeyPair>) -> AdminResult {
    let Json(new) = body?;
    world.console_add_key_pair(&new.region, &new.name, new.owner.as_deref().unwrap_or(ACCOUNT))?;
    Ok(Json(json!({"key_pair": new.name})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileState {
    name: String,
    exists: bool,
}

async fn instance_profile(State(world): State<Arc<World>>, body: JsonBody<ProfileState>) -> AdminResult {
    let Json(new) = body?;
    world.console_set_profile(&new.name, if new.exists { Presence::Exists } else { Presence::Missing });
    Ok(Json(json!({"instance_profile": new.name, "exists": new.exists})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionState {
    region: String,
    opt_in_status: OptInStatus,
}

async fn opt_in(State(world): State<Arc<World>>, body: JsonBody<RegionState>) -> AdminResult {
    let Json(new) = body?;
    world.console_opt_in(&new.region, new.opt_in_status)?;
    Ok(Json(json!({"region": new.region})))
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
