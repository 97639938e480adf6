//! GetMetricData.

use chrono::{DateTime, TimeDelta, Utc};

use super::Asked;
use super::evaluate::{self, Query, Sheet, Value};
use super::expression::Expression;
use super::input::{GetMetricData, MetricDataQuery, MetricStat, invalid, need};
use super::shape::Shape;
use crate::world::metrics::{Statistic, per_period, round_down};
use crate::world::{AwsError, PageCut};

const MOST_QUERIES: usize = 500;
const MOST_POINTS: i64 = 100_800;
const TOKEN_MARK: &str = "fcd1-";

/// One metric's part of the answer.
struct Series {
    id: String,
    label: String,
    points: Vec<(DateTime<Utc>, f64)>,
}

pub(super) fn get_metric_data(asked: &Asked<'_>, input: &GetMetricData) -> Result<Shape, AwsError> {
    let (from, to) = (need(input.start_time, "StartTime")?.0, need(input.end_time, "EndTime")?.0);
    if from >= to {
        return Err(AwsError::new(
            "InvalidParameterValue",
            "The parameter StartTime must be less than the parameter EndTime.",
        ));
    }
    if input.metric_data_queries.is_empty() {
        return Err(AwsError::new("MissingParameter", "The parameter MetricDataQueries is required."));
    }
    if input.metric_data_queries.len() > MOST_QUERIES {
        return Err(invalid("MetricDataQueries", "there can be at most 500"));
    }
    check_ids(&input.metric_data_queries)?;
    let limit = match input.max_datapoints {
        Some(limit) if (1..=MOST_POINTS).contains(&limit.0) => limit.0 as usize,
        Some(_) => return Err(invalid("MaxDatapoints", "it must be between 1 and 100800")),
        None => MOST_POINTS as usize,
    };
    let is_newest_first = match input.scan_by.as_deref() {
        None | Some("TimestampDescending") => true,
        Some("TimestampAscending") => false,
        Some(_) => return Err(invalid("ScanBy", "it must be TimestampDescending or TimestampAscending")),
    };
    let mut series = read_all(asked, &input.metric_data_queries, from, to)?;
    if is_newest_first {
        series.iter_mut().for_each(|one| one.points.reverse());
    }
    let skip = input.next_token.as_deref().map(parse_token).transpose()?.unwrap_or(0);
    Ok(page(series, skip, limit))
}

fn check_ids(queries: &[MetricDataQuery]) -> Result<(), AwsError> {
    let mut seen = std::collections::HashSet::new();
    for query in queries {
        let id = need(query.id.as_deref(), "MetricDataQueries.member.N.Id")?;
        let is_good = id.starts_with(|first: char| first.is_ascii_lowercase())
            && id.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
        if !is_good {
            return Err(invalid("Id", "it must begin with a lowercase letter and hold only letters, digits and _"));
        }
        if !seen.insert(id) {
            return Err(invalid("Id", "each may occur only once"));
        }
    }
    Ok(())
}

/// Reads the metrics, evaluates the expressions over them, and keeps what the caller wants back.
fn read_all(
    asked: &Asked<'_>,
    sent: &[MetricDataQuery],
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<Vec<Series>, AwsError> {
    let mut queries = Vec::with_capacity(sent.len());
    for query in sent {
        let id = query.id.clone().unwrap_or_default();
        queries.push(match (&query.metric_stat, &query.expression) {
            (Some(stat), None) => (id, Query::Metric(read_metric(asked, query, stat, from, to)?)),
            (None, Some(text)) => {
                let expression = Expression::parse(text).map_err(|why| wrong_expression(&id, &why))?;
                (id, Query::Expression(expression))
            }
            (Some(_), Some(_)) | (None, None) => {
                let message = "Exactly one of MetricStat and Expression must be given.";
                return Err(AwsError::new("InvalidParameterCombination", message));
            }
        });
    }
    let mut sheet = Sheet::new(&queries, from, to);
    let mut wanted = Vec::new();
    for query in sent.iter().filter(|query| query.return_data.is_none_or(|flag| flag.0)) {
        let id = query.id.as_deref().unwrap_or_default();
        let value = sheet.value(id).map_err(|why| wrong_expression(id, &why))?;
        // An expression is called what the caller calls it, or else by its id; an array's parts by their own names too.
        let own = query.label.clone().unwrap_or_else(|| id.to_owned());
        let is_metric = query.metric_stat.is_some();
        let all = match value {
            Value::Number(_) => return Err(wrong_expression(id, "it comes to a number, not to a time series")),
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
        wanted.extend(all.into_iter().map(series));
    }
    Ok(wanted)
}

fn wrong_expression(id: &str, why: &str) -> AwsError {
    AwsError::new("ValidationError", format!("Error in expression '{id}': {why}."))
}

fn read_metric(
    asked: &Asked<'_>,
    query: &MetricDataQuery,
    stat: &MetricStat,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<evaluate::Series, AwsError> {
    let metric = need(stat.metric.as_ref(), "MetricStat.Metric")?;
    let key = metric.key()?;
    let period = read_period(stat)?;
    if (to - from).num_seconds() / period > MOST_POINTS {
        return Err(invalid("Period", "it would come to more than 100800 points"));
    }
    let name = need(stat.stat.as_deref(), "MetricStat.Stat")?;
    let statistic = Statistic::parse(name).ok_or_else(|| invalid("Stat", "there is no such statistic"))?;
    let begin = round_down(from, 60.min(period)).unwrap_or(from);
    let points = match asked.view.page {
        PageCut::Empty => Vec::new(),
        PageCut::AsRequested | PageCut::AtMost(_) => asked.world.metric_points(asked.region, &key, begin, to),
    };
    let most = match asked.view.page {
        PageCut::AtMost(most) => most,
        PageCut::AsRequested | PageCut::Empty => usize::MAX,
    };
    let values = per_period(&points, period, stat.unit.as_deref())
        .into_iter()
        .filter_map(|(at, (summary, _))| Some((at, summary.get(statistic)?)));
    let label = query.label.clone().unwrap_or(key.name);
    Ok(evaluate::Series { label, period, points: values.take(most).collect() })
}

fn read_period(stat: &MetricStat) -> Result<i64, AwsError> {
    let period = need(stat.period, "MetricStat.Period")?.0;
    if matches!(period, 1 | 5 | 10 | 30)
        || (period > 0 && period % 60 == 0 && period <= TimeDelta::days(1).num_seconds())
    {
        Ok(period)
    } else {
        Err(invalid("Period", "it must be 1, 5, 10, 30 or a multiple of 60"))
    }
}

/// Cuts `limit` points after the first `skip` out of all series, and says where the rest begins.
fn page(series: Vec<Series>, skip: usize, limit: usize) -> Shape {
    let total: usize = series.iter().map(|one| one.points.len()).sum();
    let end = (skip.saturating_add(limit)).min(total);
    let mut results = Vec::new();
    let mut passed = 0;
    for one in series {
        let (first, last) = (passed, passed + one.points.len());
        passed = last;
        let shown = first.max(skip)..last.min(end);
        // A metric without data has a result too, once.
        if shown.is_empty() && !(first == last && skip == 0) {
            continue;
        }
        let points = one.points.get(shown.start.saturating_sub(first)..shown.end.saturating_sub(first));
        let points = points.unwrap_or_default();
        results.push(Shape::Structure(vec![
            ("Id", Shape::text(one.id)),
            ("Label", Shape::text(one.label)),
            ("Timestamps", Shape::List(points.iter().map(|point| Shape::Moment(point.0)).collect())),
            ("Values", Shape::List(points.iter().map(|point| Shape::Double(point.1)).collect())),
            ("StatusCode", Shape::text(if last > end { "PartialData" } else { "Complete" })),
        ]));
    }
    let mut answer = vec![("MetricDataResults", Shape::List(results)), ("Messages", Shape::List(Vec::new()))];
    if end < total {
        answer.push(("NextToken", Shape::text(format!("{TOKEN_MARK}{end}"))));
    }
    Shape::Structure(answer)
}

fn parse_token(token: &str) -> Result<usize, AwsError> {
    token
        .strip_prefix(TOKEN_MARK)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| AwsError::new("InvalidNextToken", "The next token specified is invalid."))
}
