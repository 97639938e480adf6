//! GetMetricStatistics and ListMetrics.

use chrono::TimeDelta;

use super::Context;
use super::input::{Flag, GetMetricStatistics, ListMetrics, check_account, invalid, metric_key, require};
use super::shape::Shape;
use crate::world::metrics::{MetricFilter, MetricKey, Statistic, Summary, per_period, round_down};
use crate::world::{ACCOUNT, AwsError, PageLimit, SeededRng, hash_text};

const MAX_POINTS: i64 = 1440;
const METRICS_PER_PAGE: usize = 500;
/// Age of data points of a metric that counts as recently active.
const RECENTLY: TimeDelta = TimeDelta::hours(3);
const TOKEN_PREFIX: &str = "fcl1-";

pub(super) fn get_metric_statistics(context: &Context<'_>, input: &GetMetricStatistics) -> Result<Shape, AwsError> {
    let namespace = require(input.namespace.as_deref(), "Namespace")?;
    let key = metric_key(namespace, require(input.metric_name.as_deref(), "MetricName")?, &input.dimensions)?;
    let (from, to) = (require(input.start_time, "StartTime")?.0, require(input.end_time, "EndTime")?.0);
    if from >= to {
        let message = "The parameter StartTime must be less than the parameter EndTime.";
        return Err(AwsError::new("InvalidParameterValue", message));
    }
    let period = require(input.period, "Period")?.0;
    if !(matches!(period, 1 | 5 | 10 | 30) || (period > 0 && period % 60 == 0)) {
        return Err(invalid("Period", "it must be 1, 5, 10, 30 or a multiple of 60"));
    }
    let requested_points = (to - from).num_seconds() / period;
    if requested_points > MAX_POINTS {
        let message = format!(
            "You have requested up to {requested_points} datapoints, which exceeds the limit of {MAX_POINTS}. You may reduce \
             the datapoints requested by increasing Period, or decreasing the time range."
        );
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    let plain = parse_statistics(&input.statistics, "Statistics")?;
    let extended = parse_statistics(&input.extended_statistics, "ExtendedStatistics")?;
    if plain.is_empty() && extended.is_empty() {
        let message = "At least one of the parameters Statistics and ExtendedStatistics must be specified.";
        return Err(AwsError::new("MissingParameter", message));
    }
    let begin = round_down(from, 60.min(period)).unwrap_or(from);
    let points = context.world.metric_points(context.region, &key, begin, to);
    let mut datapoints: Vec<Shape> =
        per_period(&points, period, input.unit.as_deref())
            .into_iter()
            .map(|(at, (summary, unit))| {
                let mut members = vec![("Timestamp", Shape::Timestamp(at))];
                members.extend(plain.iter().filter_map(|(name, statistic)| {
                    Some((member_name(name), Shape::Double(summary.get(*statistic)?)))
                }));
                members.push(("Unit", Shape::text(unit)));
                if !extended.is_empty() {
                    members.push(("ExtendedStatistics", Shape::Map(percentiles(&summary, &extended))));
                }
                Shape::Structure(members)
            })
            .collect();
    // CloudWatch guarantees no order; shuffling exposes clients that rely on one.
    SeededRng::new(context.world.settings().seed ^ hash_text(&key.name) ^ points.len() as u64, "order")
        .shuffle(&mut datapoints);
    match context.view.page {
        PageLimit::AsRequested => {}
        PageLimit::Empty => datapoints.clear(),
        PageLimit::AtMost(max) => datapoints.truncate(max),
    }
    Ok(Shape::Structure(vec![("Label", Shape::text(key.name)), ("Datapoints", Shape::List(datapoints))]))
}

fn parse_statistics<'a>(names: &'a [String], parameter: &str) -> Result<Vec<(&'a str, Statistic)>, AwsError> {
    if names.len() > 10 {
        return Err(invalid(parameter, "there are too many"));
    }
    let read = |name: &'a String| {
        let is_plain = parameter == "Statistics";
        match Statistic::parse(name) {
            Some(Statistic::Percentile(_)) if is_plain => None,
            Some(statistic @ Statistic::Percentile(_)) => Some((name.as_str(), statistic)),
            Some(statistic) if is_plain => Some((name.as_str(), statistic)),
            Some(_) | None => None,
        }
        .ok_or_else(|| invalid(parameter, "there is no such statistic"))
    };
    names.iter().map(read).collect()
}

fn member_name(statistic: &str) -> &'static str {
    match statistic {
        "SampleCount" => "SampleCount",
        "Average" => "Average",
        "Sum" => "Sum",
        "Minimum" => "Minimum",
        _ => "Maximum",
    }
}

fn percentiles(summary: &Summary, statistics: &[(&str, Statistic)]) -> Vec<(String, Shape)> {
    statistics
        .iter()
        .filter_map(|(name, statistic)| Some(((*name).to_owned(), Shape::Double(summary.get(*statistic)?))))
        .collect()
}

pub(super) fn list_metrics(context: &Context<'_>, input: &ListMetrics) -> Result<Shape, AwsError> {
    let mut filter = MetricFilter {
        namespace: input.namespace.clone(),
        name: input.metric_name.clone(),
        dimensions: Vec::with_capacity(input.dimensions.len()),
    };
    for dimension in &input.dimensions {
        filter.dimensions.push((require(dimension.name.clone(), "Dimensions.member.N.Name")?, dimension.value.clone()));
    }
    let skip = input.next_token.as_deref().map(parse_token).transpose()?.unwrap_or(0);
    if input.recently_active.as_deref().is_some_and(|time| time != "PT3H") {
        return Err(invalid("RecentlyActive", "it must be PT3H"));
    }
    let own = context.view.account.as_deref().unwrap_or(ACCOUNT);
    let is_own =
        input.owning_account.as_deref().map_or(Ok(true), |owner| check_account(owner).map(|()| owner == own))?;
    let mut keys = context.world.list_metrics(context.region, &filter);
    // No account is linked to another, so that the metrics of others are none.
    keys.retain(|_| is_own);
    if input.recently_active.is_some() {
        let now = context.world.clock().now();
        let points = |key: &MetricKey| context.world.metric_points(context.region, key, now - RECENTLY, now);
        keys.retain(|key| !points(key).is_empty());
    }
    let shown: Vec<Shape> = keys.iter().skip(skip).take(METRICS_PER_PAGE).map(metric_shape).collect();
    let owners = match input.include_linked_accounts {
        Some(Flag(true)) => vec![Shape::text(own.to_owned()); shown.len()],
        Some(Flag(false)) | None => Vec::new(),
    };
    let mut output = vec![("Metrics", Shape::List(shown)), ("OwningAccounts", Shape::List(owners))];
    if keys.len() > skip.saturating_add(METRICS_PER_PAGE) {
        output.push(("NextToken", Shape::text(format!("{TOKEN_PREFIX}{}", skip + METRICS_PER_PAGE))));
    }
    Ok(Shape::Structure(output))
}

fn metric_shape(key: &MetricKey) -> Shape {
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
        .strip_prefix(TOKEN_PREFIX)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| AwsError::new("InvalidParameterValue", "Invalid nextToken"))
}
