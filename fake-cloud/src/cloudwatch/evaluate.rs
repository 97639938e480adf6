//! What an expression comes to.
//!
//! Two series meet where both have a point; a division by zero leaves no point. Of an array of series, SUM, AVG, MIN and
//! MAX make one series, with AVG taking what is missing for 0; of one series they make a number.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};

use super::expression::{Aggregate, Expression, Filling, Map, Operator};
use crate::world::metrics::round_down;

/// A series may come to this many points and no more.
const MOST_POINTS: i64 = 100_800;

/// A time series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) label: String,
    /// Every how many seconds there is a point.
    pub(super) period: i64,
    pub(super) points: BTreeMap<DateTime<Utc>, f64>,
}

/// What a query comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(f64),
    One(Series),
    Many(Vec<Series>),
}

/// A query of the request.
#[derive(Debug, Clone)]
pub(super) enum Query {
    Metric(Series),
    Expression(Expression),
}

/// The queries of a request, and what they have come to so far.
#[derive(Debug)]
pub(super) struct Sheet<'a> {
    /// In the order of the request.
    pub(super) queries: &'a [(String, Query)],
    pub(super) from: DateTime<Utc>,
    pub(super) to: DateTime<Utc>,
    results: HashMap<&'a str, Option<Value>>,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(queries: &'a [(String, Query)], from: DateTime<Utc>, to: DateTime<Utc>) -> Self {
        Self { queries, from, to, results: HashMap::new() }
    }

    /// What the query with this id comes to.
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
            Expression::Pair(operator, left, right) => {
                let (left, right) = (self.evaluate(left)?, self.evaluate(right)?);
                pair(left, right, |one, other| operator.of(one, other))
            }
            Expression::Minus(inside) => Ok(each(self.evaluate(inside)?, |value| -value)),
            Expression::Map(map, inside) => Ok(each(self.evaluate(inside)?, |value| match map {
                Map::Absolute => value.abs(),
                Map::Ceiling => value.ceil(),
                Map::Floor => value.floor(),
            })),
            Expression::Metrics(part) => {
                let wanted = self.queries.iter().filter_map(|(id, query)| match query {
                    Query::Metric(series) if id.contains(part) || series.label.contains(part) => Some(series.clone()),
                    Query::Metric(_) | Query::Expression(_) => None,
                });
                Ok(Value::Many(wanted.collect()))
            }
            Expression::Aggregate(aggregate, inside) => match self.evaluate(inside)? {
                Value::Number(number) => Ok(Value::Number(number)),
                Value::One(series) => {
                    let values: Vec<f64> = series.points.into_values().collect();
                    let of = values.len();
                    aggregate.of(&values, of).map(Value::Number).ok_or_else(|| "a series has no points".to_owned())
                }
                Value::Many(all) => Ok(Value::One(aggregate.across(&all))),
            },
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
        let moments = (0..MOST_POINTS).map_while(|number| {
            let moment = begin.checked_add_signed(step.checked_mul(i32::try_from(number).ok()?)?)?;
            (moment < self.to).then_some(moment)
        });
        let known = series.points.clone();
        for moment in moments {
            if known.contains_key(&moment) {
                continue;
            }
            let before = || known.range(..moment).next_back();
            let after = || known.range(moment..).next();
            let value = match filling {
                Filling::With(_) => with,
                Filling::Repeat => before().map(|(_, value)| *value),
                Filling::Linear => before().zip(after()).map(|((from, one), (to, other))| {
                    let share = (moment - *from).num_seconds() as f64 / ((*to - *from).num_seconds() as f64).max(1.0);
                    one + (other - one) * share
                }),
            };
            series.points.extend(value.map(|value| (moment, value)));
        }
        series
    }
}

impl Operator {
    /// What two come to, if it is a number at all.
    fn of(self, one: f64, other: f64) -> Option<f64> {
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
    /// What values come to, of so many that there could be.
    fn of(self, values: &[f64], of: usize) -> Option<f64> {
        let sum = || values.iter().sum::<f64>();
        match self {
            Self::Sum => (!values.is_empty()).then(sum),
            Self::Average => (!values.is_empty()).then(|| sum() / of.max(1) as f64),
            Self::Minimum => values.iter().copied().reduce(f64::min),
            Self::Maximum => values.iter().copied().reduce(f64::max),
        }
    }

    fn across(self, all: &[Series]) -> Series {
        let mut moments: BTreeMap<DateTime<Utc>, Vec<f64>> = BTreeMap::new();
        for (moment, value) in all.iter().flat_map(|series| &series.points) {
            moments.entry(*moment).or_default().push(*value);
        }
        let points = moments.into_iter().filter_map(|(moment, values)| Some((moment, self.of(&values, all.len())?)));
        Series {
            label: String::new(),
            period: all.iter().map(|series| series.period).max().unwrap_or(60),
            points: points.collect(),
        }
    }
}

fn each(value: Value, change: impl Fn(f64) -> f64) -> Value {
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

fn pair(left: Value, right: Value, of: impl Fn(f64, f64) -> Option<f64>) -> Result<Value, String> {
    let keep = |mut series: Series, change: &dyn Fn(f64) -> Option<f64>| {
        series.points = series.points.into_iter().filter_map(|(at, value)| Some((at, change(value)?))).collect();
        series
    };
    let meet = |mut one: Series, other: &Series| {
        let points = one.points.into_iter();
        one.points = points.filter_map(|(at, value)| Some((at, of(value, *other.points.get(&at)?)?))).collect();
        one.period = one.period.max(other.period);
        one
    };
    Ok(match (left, right) {
        (Value::Number(one), Value::Number(other)) => {
            Value::Number(of(one, other).ok_or_else(|| "it divides by zero".to_owned())?)
        }
        (Value::One(series), Value::Number(number)) => Value::One(keep(series, &|value| of(value, number))),
        (Value::Number(number), Value::One(series)) => Value::One(keep(series, &|value| of(number, value))),
        (Value::One(one), Value::One(other)) => Value::One(meet(one, &other)),
        (Value::Many(all), Value::Number(number)) => {
            Value::Many(all.into_iter().map(|series| keep(series, &|value| of(value, number))).collect())
        }
        (Value::Number(number), Value::Many(all)) => {
            Value::Many(all.into_iter().map(|series| keep(series, &|value| of(number, value))).collect())
        }
        (Value::Many(all), Value::One(other)) => {
            Value::Many(all.into_iter().map(|series| meet(series, &other)).collect())
        }
        (Value::One(one), Value::Many(all)) => {
            let meet = |series: Series| Series { label: series.label.clone(), ..meet(one.clone(), &series) };
            Value::Many(all.into_iter().map(meet).collect())
        }
        (Value::Many(_), Value::Many(_)) => return Err("it combines two arrays of series".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(minute * 60, 0).expect("a moment")
    }

    fn metric(id: &str, points: &[(i64, f64)]) -> (String, Query) {
        let points = points.iter().map(|(minute, value)| (moment(*minute), *value)).collect();
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
        Sheet::new(&queries, moment(0), moment(5)).value("e")
    }

    fn points(text: &str) -> Vec<(i64, f64)> {
        match evaluate(text).expect(text) {
            Value::One(series) => series.points.iter().map(|(at, value)| (at.timestamp() / 60, *value)).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn series_meet_where_both_have_a_point_and_nothing_is_divided_by_zero() {
        assert_eq!(points("m1 / m2 * 100"), [(0, 25.0)]);
        assert_eq!(points("m2 - m1"), [(0, 3.0), (1, -2.0)]);
        assert_eq!(points("10 - half"), [(0, 9.5), (1, 9.0), (3, 8.0)]);
        assert_eq!(points("-m1 ^ 2 + 0"), [(0, -1.0), (1, -4.0), (3, -16.0)]);
        assert_eq!(points("FLOOR(half)"), [(0, 0.0), (1, 1.0), (3, 2.0)]);
    }

    #[test]
    fn an_array_comes_to_a_series_and_a_series_to_a_number() {
        assert_eq!(points("SUM(METRICS())"), [(0, 5.0), (1, 2.0), (2, 8.0), (3, 4.0)]);
        assert_eq!(points("AVG(METRICS())"), [(0, 2.5), (1, 1.0), (2, 4.0), (3, 2.0)]);
        assert_eq!(points("MAX(METRICS(\"m1\"))"), [(0, 1.0), (1, 2.0), (3, 4.0)]);
        assert_eq!(points("m1 - MIN(m1)"), [(0, 0.0), (1, 1.0), (3, 3.0)]);
        assert_eq!(evaluate("SUM(m1)"), Ok(Value::Number(7.0)));
        let Ok(Value::Many(all)) = evaluate("METRICS() * 2") else { panic!("an array") };
        assert_eq!((all.len(), all[1].label.as_str()), (2, "label of m2"));
    }

    #[test]
    fn gaps_are_filled_as_asked() {
        assert_eq!(points("FILL(m1, 0)"), [(0, 1.0), (1, 2.0), (2, 0.0), (3, 4.0), (4, 0.0)]);
        assert_eq!(points("FILL(m1, REPEAT)"), [(0, 1.0), (1, 2.0), (2, 2.0), (3, 4.0), (4, 4.0)]);
        assert_eq!(points("FILL(m1, LINEAR)"), [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]);
    }

    #[test]
    fn what_cannot_be_evaluated_is_named() {
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
