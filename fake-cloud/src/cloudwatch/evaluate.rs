//! Evaluates metric math expressions.
//!
//! An operator on two series yields the timestamps that both have; a division by zero yields no data point. SUM, AVG, MIN
//! and MAX reduce an array of series to one series, where AVG counts missing data points as 0, and one series to a number.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};

use super::expression::{Aggregate, Expression, Filling, Map, Operator};
use super::search::{Insight, Search};
use crate::world::metrics::round_down;

/// Maximum number of data points in a filled series.
const MAX_POINTS: i64 = 100_800;

/// A time series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) label: String,
    /// Seconds between data points.
    pub(super) period: i64,
    pub(super) points: BTreeMap<DateTime<Utc>, f64>,
}

/// Result of a query.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(f64),
    One(Series),
    Many(Vec<Series>),
}

/// Metrics that SEARCH and SELECT select from.
pub(super) trait Metrics: std::fmt::Debug {
    /// Returns the series of all metrics that a search matches.
    fn search(&self, search: &Search) -> Result<Vec<Series>, String>;
    /// Returns the series of the groups of a query; one series if it has no groups.
    fn select(&self, insight: &Insight, period: i64) -> Result<Vec<Series>, String>;
}

/// A query of GetMetricData.
#[derive(Debug, Clone)]
pub(super) enum Query {
    Metric(Series),
    Expression(Expression),
}

/// Evaluates the queries of a request and caches their results.
#[derive(Debug)]
pub(super) struct Evaluator<'a> {
    /// Queries by id, in the order of the request.
    pub(super) queries: &'a [(String, Query)],
    pub(super) from: DateTime<Utc>,
    pub(super) to: DateTime<Utc>,
    /// Metrics that SEARCH and SELECT select from.
    metrics: Option<&'a dyn Metrics>,
    /// Results by id; `None` marks a query that is being evaluated.
    results: HashMap<&'a str, Option<Value>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(queries: &'a [(String, Query)], from: DateTime<Utc>, to: DateTime<Utc>) -> Self {
        Self { queries, from, to, metrics: None, results: HashMap::new() }
    }

    /// Evaluates SEARCH and SELECT on these metrics.
    pub(super) fn with_metrics(self, metrics: &'a dyn Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Returns the result of the query with this id.
    pub(super) fn value(&mut self, id: &str) -> Result<Value, String> {
        let Some((id, query)) = self.queries.iter().find(|(known, _)| known == id) else {
            return Err(format!("there is no query with the id {id:?}"));
        };
        match self.results.get(id.as_str()) {
            Some(Some(known)) => return Ok(known.clone()),
            Some(None) => return Err(format!("{id} depends on itself")),
            None => {}
        }
        let value = match query {
            Query::Metric(series) => Value::One(series.clone()),
            Query::Expression(expression) => {
                self.results.insert(id, None);
                self.evaluate(expression)?
            }
        };
        self.results.insert(id, Some(value.clone()));
        Ok(value)
    }

    fn evaluate(&mut self, expression: &'a Expression) -> Result<Value, String> {
        match expression {
            Expression::Number(number) => Ok(Value::Number(*number)),
            Expression::Id(id) => self.value(id),
            Expression::Binary(operator, left, right) => {
                let (left, right) = (self.evaluate(left)?, self.evaluate(right)?);
                combine(left, right, |one, other| operator.apply(one, other))
            }
            Expression::Negate(inside) => Ok(map_values(self.evaluate(inside)?, |value| -value)),
            Expression::Map(map, inside) => Ok(map_values(self.evaluate(inside)?, |value| match map {
                Map::Absolute => value.abs(),
                Map::Ceiling => value.ceil(),
                Map::Floor => value.floor(),
            })),
            Expression::Metrics(part) => {
                let matching = self.queries.iter().filter_map(|(id, query)| match query {
                    Query::Metric(series) if id.contains(part) || series.label.contains(part) => Some(series.clone()),
                    Query::Metric(_) | Query::Expression(_) => None,
                });
                Ok(Value::Many(matching.collect()))
            }
            Expression::Aggregate(aggregate, inside) => match self.evaluate(inside)? {
                Value::Number(number) => Ok(Value::Number(number)),
                Value::One(series) => {
                    let values: Vec<f64> = series.points.into_values().collect();
                    let count = values.len();
                    aggregate
                        .apply(&values, count)
                        .map(Value::Number)
                        .ok_or_else(|| "a series has no points".to_owned())
                }
                Value::Many(all) => Ok(Value::One(aggregate.merge(&all))),
            },
            Expression::Search(search) => {
                let metrics = self.metrics.ok_or("there are no metrics to search")?;
                metrics.search(search).map(Value::Many)
            }
            Expression::Insight(insight, period) => {
                let metrics = self.metrics.ok_or("there are no metrics to select")?;
                let mut series = metrics.select(insight, *period)?;
                match series.pop() {
                    Some(only) if insight.groups.is_empty() => Ok(Value::One(only)),
                    last => {
                        series.extend(last);
                        Ok(Value::Many(series))
                    }
                }
            }
            Expression::Fill(inside, filling) => {
                let series = self.evaluate(inside)?;
                let with = match filling {
                    Filling::Repeat | Filling::Linear => None,
                    Filling::With(value) => match self.evaluate(value)? {
                        Value::Number(number) => Some(number),
                        Value::One(_) | Value::Many(_) => return Err("FILL fills with a number only".to_owned()),
                    },
                };
                let fill = |series: Series| self.fill(series, filling, with);
                match series {
                    Value::Number(_) => Err("FILL fills a series, not a number".to_owned()),
                    Value::One(series) => Ok(Value::One(fill(series))),
                    Value::Many(all) => Ok(Value::Many(all.into_iter().map(fill).collect())),
                }
            }
        }
    }

    fn fill(&self, mut series: Series, filling: &Filling, with: Option<f64>) -> Series {
        let step = TimeDelta::seconds(series.period.max(1));
        let begin = round_down(self.from, series.period).unwrap_or(self.from);
        let timestamps = (0..MAX_POINTS).map_while(|number| {
            let timestamp = begin.checked_add_signed(step.checked_mul(i32::try_from(number).ok()?)?)?;
            (timestamp < self.to).then_some(timestamp)
        });
        let known = series.points.clone();
        for timestamp in timestamps {
            if known.contains_key(&timestamp) {
                continue;
            }
            let before = || known.range(..timestamp).next_back();
            let after = || known.range(timestamp..).next();
            let value = match filling {
                Filling::With(_) => with,
                Filling::Repeat => before().map(|(_, value)| *value),
                Filling::Linear => before().zip(after()).map(|((from, one), (to, other))| {
                    let share =
                        (timestamp - *from).num_seconds() as f64 / ((*to - *from).num_seconds() as f64).max(1.0);
                    one + (other - one) * share
                }),
            };
            series.points.extend(value.map(|value| (timestamp, value)));
        }
        series
    }
}

impl Operator {
    /// Applies the operator; `None` if the result is not finite.
    fn apply(self, one: f64, other: f64) -> Option<f64> {
        let result = match self {
            Self::Add => one + other,
            Self::Subtract => one - other,
            Self::Multiply => one * other,
            Self::Divide => one / other,
            Self::Power => one.powf(other),
        };
        result.is_finite().then_some(result)
    }
}

impl Aggregate {
    /// Reduces values to a number. AVG divides by `count`.
    fn apply(self, values: &[f64], count: usize) -> Option<f64> {
        let sum = || values.iter().sum::<f64>();
        match self {
            Self::Sum => (!values.is_empty()).then(sum),
            Self::Average => (!values.is_empty()).then(|| sum() / count.max(1) as f64),
            Self::Minimum => values.iter().copied().reduce(f64::min),
            Self::Maximum => values.iter().copied().reduce(f64::max),
        }
    }

    /// Merges series timestamp by timestamp.
    fn merge(self, all: &[Series]) -> Series {
        let mut by_time: BTreeMap<DateTime<Utc>, Vec<f64>> = BTreeMap::new();
        for (timestamp, value) in all.iter().flat_map(|series| &series.points) {
            by_time.entry(*timestamp).or_default().push(*value);
        }
        let points =
            by_time.into_iter().filter_map(|(timestamp, values)| Some((timestamp, self.apply(&values, all.len())?)));
        Series {
            label: String::new(),
            period: all.iter().map(|series| series.period).max().unwrap_or(60),
            points: points.collect(),
        }
    }
}

fn map_values(value: Value, change: impl Fn(f64) -> f64) -> Value {
    let all = |mut series: Series| {
        series.points.values_mut().for_each(|value| *value = change(*value));
        series
    };
    match value {
        Value::Number(number) => Value::Number(change(number)),
        Value::One(series) => Value::One(all(series)),
        Value::Many(many) => Value::Many(many.into_iter().map(all).collect()),
    }
}

fn combine(left: Value, right: Value, apply: impl Fn(f64, f64) -> Option<f64>) -> Result<Value, String> {
    let filter_map = |mut series: Series, change: &dyn Fn(f64) -> Option<f64>| {
        series.points = series.points.into_iter().filter_map(|(at, value)| Some((at, change(value)?))).collect();
        series
    };
    let join = |mut one: Series, other: &Series| {
        let points = one.points.into_iter();
        one.points = points.filter_map(|(at, value)| Some((at, apply(value, *other.points.get(&at)?)?))).collect();
        one.period = one.period.max(other.period);
        one
    };
    Ok(match (left, right) {
        (Value::Number(one), Value::Number(other)) => {
            Value::Number(apply(one, other).ok_or_else(|| "it divides by zero".to_owned())?)
        }
        (Value::One(series), Value::Number(number)) => Value::One(filter_map(series, &|value| apply(value, number))),
        (Value::Number(number), Value::One(series)) => Value::One(filter_map(series, &|value| apply(number, value))),
        (Value::One(one), Value::One(other)) => Value::One(join(one, &other)),
        (Value::Many(all), Value::Number(number)) => {
            Value::Many(all.into_iter().map(|series| filter_map(series, &|value| apply(value, number))).collect())
        }
        (Value::Number(number), Value::Many(all)) => {
            Value::Many(all.into_iter().map(|series| filter_map(series, &|value| apply(number, value))).collect())
        }
        (Value::Many(all), Value::One(other)) => {
            Value::Many(all.into_iter().map(|series| join(series, &other)).collect())
        }
        (Value::One(one), Value::Many(all)) => {
            let join = |series: Series| Series { label: series.label.clone(), ..join(one.clone(), &series) };
            Value::Many(all.into_iter().map(join).collect())
        }
        (Value::Many(_), Value::Many(_)) => return Err("it combines two arrays of series".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(minute * 60, 0).expect("a timestamp")
    }

    fn metric(id: &str, points: &[(i64, f64)]) -> (String, Query) {
        let points = points.iter().map(|(at, value)| (minute(*at), *value)).collect();
        (id.to_owned(), Query::Metric(Series { label: format!("label of {id}"), period: 60, points }))
    }

    fn evaluate(text: &str) -> Result<Value, String> {
        let queries = [
            metric("m1", &[(0, 1.0), (1, 2.0), (3, 4.0)]),
            metric("m2", &[(0, 4.0), (1, 0.0), (2, 8.0)]),
            ("again".to_owned(), Query::Expression(Expression::parse("again + 1").expect("good"))),
            ("half".to_owned(), Query::Expression(Expression::parse("m1 / 2").expect("good"))),
            ("e".to_owned(), Query::Expression(Expression::parse(text)?)),
        ];
        Evaluator::new(&queries, minute(0), minute(5)).value("e")
    }

    fn points(text: &str) -> Vec<(i64, f64)> {
        match evaluate(text).expect(text) {
            Value::One(series) => series.points.iter().map(|(at, value)| (at.timestamp() / 60, *value)).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn operators_join_series_by_timestamp() {
        assert_eq!(points("m1 / m2 * 100"), [(0, 25.0)]);
        assert_eq!(points("m2 - m1"), [(0, 3.0), (1, -2.0)]);
        assert_eq!(points("10 - half"), [(0, 9.5), (1, 9.0), (3, 8.0)]);
        assert_eq!(points("-m1 ^ 2 + 0"), [(0, -1.0), (1, -4.0), (3, -16.0)]);
        assert_eq!(points("FLOOR(half)"), [(0, 0.0), (1, 1.0), (3, 2.0)]);
    }

    #[test]
    fn aggregates_reduce_arrays_and_series() {
        assert_eq!(points("SUM(METRICS())"), [(0, 5.0), (1, 2.0), (2, 8.0), (3, 4.0)]);
        assert_eq!(points("AVG(METRICS())"), [(0, 2.5), (1, 1.0), (2, 4.0), (3, 2.0)]);
        assert_eq!(points("MAX(METRICS(\"m1\"))"), [(0, 1.0), (1, 2.0), (3, 4.0)]);
        assert_eq!(points("m1 - MIN(m1)"), [(0, 0.0), (1, 1.0), (3, 3.0)]);
        assert_eq!(evaluate("SUM(m1)"), Ok(Value::Number(7.0)));
        let Ok(Value::Many(all)) = evaluate("METRICS() * 2") else { panic!("an array") };
        assert_eq!((all.len(), all[1].label.as_str()), (2, "label of m2"));
    }

    #[test]
    fn fill_closes_gaps() {
        assert_eq!(points("FILL(m1, 0)"), [(0, 1.0), (1, 2.0), (2, 0.0), (3, 4.0), (4, 0.0)]);
        assert_eq!(points("FILL(m1, REPEAT)"), [(0, 1.0), (1, 2.0), (2, 2.0), (3, 4.0), (4, 4.0)]);
        assert_eq!(points("FILL(m1, LINEAR)"), [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]);
    }

    #[test]
    fn evaluation_errors_name_the_cause() {
        for (text, hint) in [
            ("m3 + 1", "no query with the id \"m3\""),
            ("again", "again depends on itself"),
            ("e", "e depends on itself"),
            ("METRICS() + METRICS()", "two arrays"),
            ("FILL(1, 0)", "not a number"),
            ("1 / 0", "divides by zero"),
        ] {
            let error = evaluate(text).expect_err(text);
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
