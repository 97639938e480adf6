//! GetMetricStatistics.

use super::Asked;
use super::input::{GetMetricStatistics, invalid, need};
use super::shape::Shape;
use crate::world::metrics::{Statistic, Summary, per_period, round_down};
use crate::world::{AwsError, PageCut, SeededRng, hash_text};

const MOST_POINTS: i64 = 1440;

pub(super) fn get_metric_statistics(asked: &Asked<'_>, input: &GetMetricStatistics) -> Result<Shape, AwsError> {
    let key = input.metric.key()?;
    let (from, to) = (need(input.start_time, "StartTime")?.0, need(input.end_time, "EndTime")?.0);
    if from >= to {
        let message = "The parameter StartTime must be less than the parameter EndTime.";
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    let period = need(input.period, "Period")?.0;
    if !(matches!(period, 1 | 5 | 10 | 30) || (period > 0 && period % 60 == 0)) {
        return Err(invalid("Period", "it must be 1, 5, 10, 30 or a multiple of 60"));
    }
    let asked_points = (to - from).num_seconds() / period;
    if asked_points > MOST_POINTS {
        let message = format!(
            "You have requested up to {asked_points} datapoints, which exceeds the limit of {MOST_POINTS}. You may reduce \
             the datapoints requested by increasing Period, or decreasing the time range."
        );
        return Err(AwsError::new("InvalidParameterCombination", message));
    }
    let plain = read_statistics(&input.statistics, "Statistics")?;
    let extended = read_statistics(&input.extended_statistics, "ExtendedStatistics")?;
    if plain.is_empty() && extended.is_empty() {
        let message = "At least one of the parameters Statistics and ExtendedStatistics must be specified.";
        return Err(AwsError::new("MissingParameter", message));
    }
    let begin = round_down(from, 60.min(period)).unwrap_or(from);
    let points = asked.world.metric_points(asked.region, &key, begin, to);
    let mut datapoints: Vec<Shape> =
        per_period(&points, period, input.unit.as_deref())
            .into_iter()
            .map(|(at, (summary, unit))| {
                let mut members = vec![("Timestamp", Shape::Moment(at))];
                members.extend(plain.iter().filter_map(|(name, statistic)| {
                    Some((member_name(name), Shape::Double(summary.get(*statistic)?)))
                }));
                members.push(("Unit", Shape::text(unit)));
                if !extended.is_empty() {
                    members.push(("ExtendedStatistics", Shape::Table(percentiles(&summary, &extended))));
                }
                Shape::Structure(members)
            })
            .collect();
    // CloudWatch promises no order, and callers that count on one must find out here.
    SeededRng::new(asked.world.settings().seed ^ hash_text(&key.name) ^ points.len() as u64, "order")
        .shuffle(&mut datapoints);
    match asked.view.page {
        PageCut::AsRequested => {}
        PageCut::Empty => datapoints.clear(),
        PageCut::AtMost(most) => datapoints.truncate(most),
    }
    Ok(Shape::Structure(vec![("Label", Shape::text(key.name)), ("Datapoints", Shape::List(datapoints))]))
}

fn read_statistics<'a>(names: &'a [String], parameter: &str) -> Result<Vec<(&'a str, Statistic)>, AwsError> {
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

fn percentiles(summary: &Summary, asked: &[(&str, Statistic)]) -> Vec<(String, Shape)> {
    asked
        .iter()
        .filter_map(|(name, statistic)| Some(((*name).to_owned(), Shape::Double(summary.get(*statistic)?))))
        .collect()
}
