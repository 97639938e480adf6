//! GetMetricData: reads metrics and evaluates expressions.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::Context;
use super::evaluate::{self, Evaluator, Query, Value};
use super::expression::{DEFAULT_PERIOD, Expression};
use super::input::{GetMetricData, MetricDataQuery, MetricStat, check_account, invalid, require};
use super::search::{Insight, Search};
use super::shape::Shape;
use crate::world::metrics::{Datum, MetricFilter, MetricKey, Statistic, per_period, round_down};
use crate::world::{ACCOUNT, AwsError, PageLimit};

const MAX_QUERIES: usize = 500;
const MAX_POINTS: i64 = 100_800;
const TOKEN_PREFIX: &str = "fcd1-";

/// A time series of the response.
struct Series {
    id: String,
    label: String,
    points: Vec<(DateTime<Utc>, f64)>,
}

pub(super) fn get_metric_data(context: &Context<'_>, input: &GetMetricData) -> Result<Shape, AwsError> {
    let (from, to) = (require(input.start_time, "StartTime")?.0, require(input.end_time, "EndTime")?.0);
    if from >= to {
        return Err(AwsError::new(
            "ValidationError",
            "The parameter StartTime must be less than the parameter EndTime.",
        ));
    }
    if input.metric_data_queries.is_empty() {
        return Err(AwsError::new("MissingParameter", "The parameter MetricDataQueries is required."));
    }
    if input.metric_data_queries.len() > MAX_QUERIES {
        return Err(invalid("MetricDataQueries", "there can be at most 500"));
    }
    check_ids(&input.metric_data_queries)?;
    let timezone = input.label_options.as_ref().and_then(|options| options.timezone.as_deref());
    if timezone.is_some_and(|zone| !is_offset(zone)) {
        return Err(invalid("LabelOptions.Timezone", "it must be an offset such as +0130"));
    }
    for query in &input.metric_data_queries {
        check_scope(context, query)?;
    }
    let limit = match input.max_datapoints {
        Some(limit) if (1..=MAX_POINTS).contains(&limit.0) => limit.0 as usize,
        Some(_) => return Err(invalid("MaxDatapoints", "it must be between 1 and 100800")),
        None => MAX_POINTS as usize,
    };
    let is_newest_first = match input.scan_by.as_deref() {
        None | Some("TimestampDescending") => true,
        Some("TimestampAscending") => false,
        Some(_) => return Err(invalid("ScanBy", "it must be TimestampDescending or TimestampAscending")),
    };
    let mut series = read_all(context, &input.metric_data_queries, from, to)?;
    if is_newest_first {
        series.iter_mut().for_each(|one| one.points.reverse());
    }
    let skip = input.next_token.as_deref().map(parse_token).transpose()?.unwrap_or(0);
    Ok(page(series, skip, limit))
}

/// Whether a text is an offset from UTC. Labels show no times, so that it changes nothing else.
fn is_offset(text: &str) -> bool {
    let Some(digits) = text.strip_prefix(['+', '-']) else { return false };
    digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Refuses a query of another account, because none is linked, and a dynamic label.
fn check_scope(context: &Context<'_>, query: &MetricDataQuery) -> Result<(), AwsError> {
    if let Some(account) = &query.account_id {
        check_account(account)?;
        if account != context.view.account.as_deref().unwrap_or(ACCOUNT) {
            return Err(invalid("AccountId", &format!("the account {account} is not linked to this one")));
        }
    }
    match &query.label {
        Some(label) if label.contains("${") => {
            Err(invalid("Label", "dynamic labels are not supported by this cloud: expected a text without ${"))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_ids(queries: &[MetricDataQuery]) -> Result<(), AwsError> {
    let mut known = std::collections::HashSet::new();
    for query in queries {
        let id = require(query.id.as_deref(), "MetricDataQueries.member.N.Id")?;
        let is_valid = id.starts_with(|first: char| first.is_ascii_lowercase())
            && id.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
        if !is_valid {
            return Err(invalid("Id", "it must begin with a lowercase letter and hold only letters, digits and _"));
        }
        if !known.insert(id) {
            return Err(invalid("Id", "each may occur only once"));
        }
    }
    Ok(())
}

/// Reads the metrics, evaluates the expressions and returns the queries with `ReturnData`.
fn read_all(
    context: &Context<'_>,
    requested: &[MetricDataQuery],
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<Vec<Series>, AwsError> {
    let mut queries = Vec::with_capacity(requested.len());
    for query in requested {
        let id = query.id.clone().unwrap_or_default();
        queries.push(match (&query.metric_stat, &query.expression) {
            (Some(stat), None) => (id, Query::Metric(read_metric(context, query, stat, from, to)?)),
            (None, Some(text)) => {
                let period = query.period.map_or(Ok(DEFAULT_PERIOD), |period| check_period(period.0))?;
                let expression =
                    Expression::parse_with_period(text, period).map_err(|reason| invalid_expression(&id, &reason))?;
                (id, Query::Expression(expression))
            }
            (Some(_), Some(_)) | (None, None) => {
                let message = "Exactly one of MetricStat and Expression must be given.";
                return Err(AwsError::new("InvalidParameterCombination", message));
            }
        });
    }
    let metrics = Window { context, from, to };
    let mut evaluator = Evaluator::new(&queries, from, to).with_metrics(&metrics);
    let mut returned = Vec::new();
    for query in requested.iter().filter(|query| query.return_data.is_none_or(|flag| flag.0)) {
        let id = query.id.as_deref().unwrap_or_default();
        let value = evaluator.value(id).map_err(|reason| invalid_expression(id, &reason))?;
        // The label of an expression is its own label or its id; series of an array append their labels.
        let own = query.label.clone().unwrap_or_else(|| id.to_owned());
        let is_metric = query.metric_stat.is_some();
        let all = match value {
            Value::Number(_) => return Err(invalid_expression(id, "it comes to a number, not to a time series")),
            Value::One(one) if is_metric => vec![one],
            Value::One(one) => vec![evaluate::Series { label: own, ..one }],
            Value::Many(many) => {
                many.into_iter().map(|one| evaluate::Series { label: format!("{own} {}", one.label), ..one }).collect()
            }
        };
        let series = |one: evaluate::Series| Series {
            id: id.to_owned(),
            label: one.label,
            points: one.points.into_iter().collect(),
        };
        returned.extend(all.into_iter().map(series));
    }
    Ok(returned)
}

/// The metrics of a region between two times.
#[derive(Debug)]
struct Window<'a> {
    context: &'a Context<'a>,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
}

/// Maximum number of series of a SEARCH or SELECT.
const MAX_SERIES: usize = 500;

impl Window<'_> {
    fn keys(&self, is_selected: impl Fn(&MetricKey) -> bool) -> Vec<MetricKey> {
        let mut keys = self.context.world.list_metrics(self.context.region, &MetricFilter::default());
        keys.retain(is_selected);
        keys
    }

    fn points(&self, key: &MetricKey, period: i64) -> Vec<Datum> {
        let begin = round_down(self.from, 60.min(period)).unwrap_or(self.from);
        self.context.world.metric_points(self.context.region, key, begin, self.to)
    }

    fn series(label: String, points: &[Datum], period: i64, statistic: Statistic) -> evaluate::Series {
        let values = per_period(points, period, None);
        let points = values.into_iter().filter_map(|(at, (summary, _))| Some((at, summary.get(statistic)?)));
        evaluate::Series { label, period, points: points.collect() }
    }
}

impl evaluate::Metrics for Window<'_> {
    fn search(&self, search: &Search) -> Result<Vec<evaluate::Series>, String> {
        let name = &search.statistic;
        let statistic = Statistic::parse(name).ok_or_else(|| format!("{name:?} is no statistic"))?;
        let period = check_period(search.period).map_err(|error| error.message)?;
        let keys = self.keys(|key| search.matches(key));
        let label = |key: &MetricKey| {
            let values = key.dimensions.iter().map(|(_, value)| value.as_str());
            values.chain([key.name.as_str()]).collect::<Vec<_>>().join(" ")
        };
        let keys = keys.iter().take(MAX_SERIES);
        Ok(keys.map(|key| Self::series(label(key), &self.points(key, period), period, statistic)).collect())
    }

    fn select(&self, insight: &Insight, period: i64) -> Result<Vec<evaluate::Series>, String> {
        let parse = |name: &str| Statistic::parse(name).ok_or_else(|| format!("{name:?} is no statistic"));
        let statistic = parse(insight.statistic)?;
        let mut groups: BTreeMap<String, Vec<Datum>> = BTreeMap::new();
        for key in self.keys(|key| insight.matches(key)) {
            groups.entry(insight.group(&key)).or_default().extend(self.points(&key, period));
        }
        let mut groups: Vec<(String, Vec<Datum>)> = groups.into_iter().collect();
        if let Some((order, is_descending)) = insight.order {
            let order = parse(order)?;
            let rank = |points: &[Datum]| {
                let all = points.iter().map(|point| point.summary.clone()).reduce(|mut sum, next| {
                    sum.add(&next);
                    sum
                });
                all.and_then(|all| all.get(order)).unwrap_or(f64::MIN)
            };
            groups.sort_by(|one, other| rank(&one.1).total_cmp(&rank(&other.1)));
            if is_descending {
                groups.reverse();
            }
        }
        groups.truncate(insight.limit.unwrap_or(MAX_SERIES).min(MAX_SERIES));
        Ok(groups.into_iter().map(|(label, points)| Self::series(label, &points, period, statistic)).collect())
    }
}

fn invalid_expression(id: &str, reason: &str) -> AwsError {
    AwsError::new("ValidationError", format!("Error in expression '{id}': {reason}."))
}

fn read_metric(
    context: &Context<'_>,
    query: &MetricDataQuery,
    stat: &MetricStat,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<evaluate::Series, AwsError> {
    let metric = require(stat.metric.as_ref(), "MetricStat.Metric")?;
    let key = metric.key()?;
    let period = parse_period(stat)?;
    if (to - from).num_seconds() / period > MAX_POINTS {
        return Err(invalid("Period", "it would come to more than 100800 points"));
    }
    let name = require(stat.stat.as_deref(), "MetricStat.Stat")?;
    let statistic = Statistic::parse(name).ok_or_else(|| invalid("Stat", "there is no such statistic"))?;
    let begin = round_down(from, 60.min(period)).unwrap_or(from);
    let points = match context.view.page {
        PageLimit::Empty => Vec::new(),
        PageLimit::AsRequested | PageLimit::AtMost(_) => context.world.metric_points(context.region, &key, begin, to),
    };
    let max = match context.view.page {
        PageLimit::AtMost(max) => max,
        PageLimit::AsRequested | PageLimit::Empty => usize::MAX,
    };
    let values = per_period(&points, period, stat.unit.as_deref())
        .into_iter()
        .filter_map(|(at, (summary, _))| Some((at, summary.get(statistic)?)));
    let label = query.label.clone().unwrap_or(key.name);
    Ok(evaluate::Series { label, period, points: values.take(max).collect() })
}

fn parse_period(stat: &MetricStat) -> Result<i64, AwsError> {
    check_period(require(stat.period, "MetricStat.Period")?.0)
}

fn check_period(period: i64) -> Result<i64, AwsError> {
    if matches!(period, 1 | 5 | 10 | 30)
        || (period > 0 && period % 60 == 0 && period <= TimeDelta::days(1).num_seconds())
    {
        Ok(period)
    } else {
        Err(invalid("Period", "it must be 1, 5, 10, 30 or a multiple of 60"))
    }
}

/// Returns up to `limit` data points of all series after the first `skip`, and the token of the next page.
fn page(series: Vec<Series>, skip: usize, limit: usize) -> Shape {
    let total: usize = series.iter().map(|one| one.points.len()).sum();
    let end = (skip.saturating_add(limit)).min(total);
    let mut results = Vec::new();
    let mut position = 0;
    for one in series {
        let (first, last) = (position, position + one.points.len());
        position = last;
        let shown = first.max(skip)..last.min(end);
        // A metric without data has one empty result, on the first page.
        if shown.is_empty() && !(first == last && skip == 0) {
            continue;
        }
        let points = one.points.get(shown.start.saturating_sub(first)..shown.end.saturating_sub(first));
        let points = points.unwrap_or_default();
        results.push(Shape::Structure(vec![
            ("Id", Shape::text(one.id)),
            ("Label", Shape::text(one.label)),
            ("Timestamps", Shape::List(points.iter().map(|point| Shape::Timestamp(point.0)).collect())),
            ("Values", Shape::List(points.iter().map(|point| Shape::Double(point.1)).collect())),
            ("StatusCode", Shape::text(if last > end { "PartialData" } else { "Complete" })),
        ]));
    }
    let mut output = vec![("MetricDataResults", Shape::List(results)), ("Messages", Shape::List(Vec::new()))];
    if end < total {
        output.push(("NextToken", Shape::text(format!("{TOKEN_PREFIX}{end}"))));
    }
    Shape::Structure(output)
}

fn parse_token(token: &str) -> Result<usize, AwsError> {
    token
        .strip_prefix(TOKEN_PREFIX)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| AwsError::new("InvalidNextToken", "The next token specified is invalid."))
}
