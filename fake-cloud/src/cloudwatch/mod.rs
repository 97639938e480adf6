//! CloudWatch's protocols, all three that are on the wire today: a tree in, an answer out.

mod evaluate;
mod expression;
mod get_data;
mod get_statistics;
mod input;
mod list;
mod protocol;
mod put;
mod query;
mod shape;

use std::borrow::Cow;

use hyper::HeaderMap;
use serde_json::Value;

pub(crate) use self::protocol::Protocol;
use self::shape::Shape;
use crate::world::{AwsError, View, World};

/// A call that could be read.
#[derive(Debug)]
pub(crate) struct Call {
    protocol: Protocol,
    operation: String,
    input: Value,
}

impl Call {
    pub(crate) fn decode(protocol: Protocol, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<Self, AwsError> {
        let (operation, input) = protocol.decode(path, headers, body)?;
        Ok(Self { protocol, operation, input })
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(crate) fn operation(&self) -> &str {
        &self.operation
    }

    /// The input, member by member, for the record.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        self.input.as_object().into_iter().flatten().map(|(name, value)| {
            let printed = value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
            (name.as_str(), printed)
        })
    }

    /// The instances the call is about: the values of its `InstanceId` dimensions.
    pub(crate) fn named_instances(&self) -> Vec<String> {
        let mut named = Vec::new();
        collect_instances(&self.input, &mut named);
        named
    }

    /// Carries the call out and encodes the answer.
    pub(crate) fn handle(
        &self,
        world: &World,
        region: &str,
        view: &View,
        request_id: &str,
    ) -> Result<Vec<u8>, AwsError> {
        world.with_ec2(|ec2, now| ec2.region(region, now).map(|_| ()))?;
        let asked = Asked { world, region, view };
        let answer: Shape = match self.operation.as_str() {
            "GetMetricData" => get_data::get_metric_data(&asked, &input::read(&self.input)?)?,
            "GetMetricStatistics" => get_statistics::get_metric_statistics(&asked, &input::read(&self.input)?)?,
            "PutMetricData" => put::put_metric_data(&asked, &input::read(&self.input)?)?,
            "ListMetrics" => list::list_metrics(&asked, &input::read(&self.input)?)?,
            unknown => return Err(protocol::unknown_operation(unknown)),
        };
        Ok(self.protocol.encode(&self.operation, &answer, request_id))
    }
}

/// Where a call takes place.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    world: &'a World,
    region: &'a str,
    view: &'a View,
}

/// The readers of all protocols have bounded the depth.
fn collect_instances(value: &Value, named: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_instances(item, named)),
        Value::Object(members) => match (members.get("Name"), members.get("Value")) {
            (Some(Value::String(name)), Some(Value::String(id))) if name == "InstanceId" => named.push(id.clone()),
            _ => members.values().for_each(|member| collect_instances(member, named)),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
