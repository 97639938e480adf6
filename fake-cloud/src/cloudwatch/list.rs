//! ListMetrics.

use super::Asked;
use super::input::{ListMetrics, need};
use super::shape::Shape;
use crate::world::AwsError;
use crate::world::metrics::{MetricFilter, MetricKey};

const PER_PAGE: usize = 500;
const TOKEN_MARK: &str = "fcl1-";

pub(super) fn list_metrics(asked: &Asked<'_>, input: &ListMetrics) -> Result<Shape, AwsError> {
    let mut filter = MetricFilter {
        namespace: input.namespace.clone(),
        name: input.metric_name.clone(),
        dimensions: Vec::with_capacity(input.dimensions.len()),
    };
    for dimension in &input.dimensions {
        filter.dimensions.push((need(dimension.name.clone(), "Dimensions.member.N.Name")?, dimension.value.clone()));
    }
    let skip = input.next_token.as_deref().map(parse_token).transpose()?.unwrap_or(0);
    let keys = asked.world.list_metrics(asked.region, &filter);
    let shown = keys.iter().skip(skip).take(PER_PAGE).map(encode).collect();
    let mut answer = vec![("Metrics", Shape::List(shown)), ("OwningAccounts", Shape::List(Vec::new()))];
    if keys.len() > skip.saturating_add(PER_PAGE) {
        answer.push(("NextToken", Shape::text(format!("{TOKEN_MARK}{}", skip + PER_PAGE))));
    }
    Ok(Shape::Structure(answer))
}

fn encode(key: &MetricKey) -> Shape {
    let dimension = |(name, value): &(String, String)| {
        Shape::Structure(vec![("Name", Shape::text(name.clone())), ("Value", Shape::text(value.clone()))])
    };
    Shape::Structure(vec![
        ("Namespace", Shape::text(key.namespace.clone())),
        ("MetricName", Shape::text(key.name.clone())),
        ("Dimensions", Shape::List(key.dimensions.iter().map(dimension).collect())),
    ])
}

fn parse_token(token: &str) -> Result<usize, AwsError> {
    token
        .strip_prefix(TOKEN_MARK)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| AwsError::new("InvalidParameterValue", "Invalid nextToken"))
}
