//! The CloudWatch API in its three protocols: decodes requests into a tree, calls the world and encodes responses.

mod evaluate;
mod expression;
mod get_data;
mod get_statistics;
mod input;
mod protocol;
mod put;
mod search;
mod shape;

use std::borrow::Cow;

use hyper::HeaderMap;
use serde_json::Value;

pub(crate) use self::protocol::Protocol;
use self::shape::Shape;
use crate::world::{AwsError, View, World};

/// Operations that are served.
pub(crate) const OPERATIONS: [&str; 4] = ["GetMetricData", "GetMetricStatistics", "ListMetrics", "PutMetricData"];

/// A decoded request.
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

    /// Returns the members of the input for the request log.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        self.input.as_object().into_iter().flatten().map(|(name, value)| {
            let text = value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
            (name.as_str(), text)
        })
    }

    /// Returns the values of all `InstanceId` dimensions, which fault rules match.
    pub(crate) fn named_instances(&self) -> Vec<String> {
        let mut named = Vec::new();
        collect_instances(&self.input, &mut named);
        named
    }

    /// Executes the request and encodes the response.
    pub(crate) fn handle(
        &self,
        world: &World,
        region: &str,
        view: &View,
        request_id: &str,
    ) -> Result<Vec<u8>, AwsError> {
        world.with_ec2(|ec2, now| ec2.region(region, now).map(|_| ()))?;
        let context = Context { world, region, view };
        let output: Shape = match self.operation.as_str() {
            "GetMetricData" => get_data::get_metric_data(&context, &input::parse(&self.input)?)?,
            "GetMetricStatistics" => get_statistics::get_metric_statistics(&context, &input::parse(&self.input)?)?,
            "PutMetricData" => put::put_metric_data(&context, &input::parse(&self.input)?)?,
            "ListMetrics" => get_statistics::list_metrics(&context, &input::parse(&self.input)?)?,
            unknown => return Err(protocol::unknown_operation(unknown)),
        };
        Ok(self.protocol.encode(&self.operation, &output, request_id))
    }
}

/// World, region and result faults of a request.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    world: &'a World,
    region: &'a str,
    view: &'a View,
}

/// Recursion is bounded, because the decoders of all protocols limit the depth.
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
