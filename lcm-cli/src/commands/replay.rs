//! `lcm replay`: decides a history again.

use std::fmt::Write as _;
use std::path::Path;

use lcm_sdk::history::{Expected, HistoryError, Replay, ReplayPolicy, Summary, replay_paths};
use serde_json::Value;

use crate::arguments::ReplayArguments;
use crate::exit::{ExitStatus, Failure};
use crate::output::{Output, Paint, Table, printable};

/// Number of differences that the text shows; JSON and YAML have all.
const SHOWN: usize = 50;

pub(crate) fn run(arguments: &ReplayArguments) -> Result<ExitStatus, Failure> {
    let policy = match &arguments.policy {
        Some(file) => ReplayPolicy::Changed(fields(file)?),
        None => ReplayPolicy::AsRecorded,
    };
    let replay = replay_paths(&arguments.history, &policy).map_err(|error| match error {
        HistoryError::Policy(_) => Failure::new(ExitStatus::Usage, &error),
        _ => Failure::new(ExitStatus::Failure, &error),
    })?;
    for warning in &replay.warnings {
        eprintln!("lcm: {}", printable(warning));
    }
    let reasons = arguments.expect_reason.iter().copied().map(Expected::Reason);
    let workers = arguments.expect_worker.iter().map(|worker| Expected::Worker(worker.as_str().into()));
    let expected: Vec<Expected> = reasons.chain(workers).collect();
    let unexpected = if arguments.expect_changes { Vec::new() } else { replay.unexpected(&expected) };
    let names = replay.by_worker().into_keys().map(|worker| worker.to_string()).collect::<Vec<_>>();
    let mut document = serde_json::to_value(&replay).unwrap_or_default();
    document["unexpected"] = serde_json::to_value(&unexpected).unwrap_or_default();
    let has_expectations = !expected.is_empty();
    Output::new(arguments.output)
        .print(&document, names, |paint| text(&replay, &unexpected, has_expectations, paint))?;
    let is_accepted = unexpected.is_empty() && replay.undecided.is_empty();
    Ok(if is_accepted { ExitStatus::Success } else { ExitStatus::Changes })
}

/// The fields of a YAML file.
pub(crate) fn fields(file: &Path) -> Result<Value, Failure> {
    let invalid =
        |error: &dyn std::fmt::Display| Failure::new(ExitStatus::Usage, &format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| invalid(&error))?;
    serde_yaml_ng::from_str(&text).map_err(|error| invalid(&error))
}

fn text(replay: &Replay, unexpected: &[Summary], has_expectations: bool, paint: Paint) -> String {
    let mut table = Table::new(["TIME", "WORKER", "RECORDED", "REPLAYED"]);
    for difference in replay.differences.iter().take(SHOWN) {
        table.row([
            difference.at.to_rfc3339_opts(lcm_sdk::chrono::SecondsFormat::Secs, true).into(),
            difference.worker.as_str().into(),
            difference.recorded.reason.as_str().into(),
            difference.replayed.reason.as_str().into(),
        ]);
        let text = difference.to_string();
        // Without the time, worker and reasons, which the columns have.
        table.detail(text.splitn(3, ": ").last().unwrap_or_default().to_owned());
    }
    let mut text = if replay.differences.is_empty() { String::new() } else { table.render(paint) };
    if replay.changed > SHOWN as u64 {
        let _ = writeln!(text, "… and {} more", replay.changed - SHOWN as u64);
    }
    if replay.changed > 1 {
        text.push('\n');
        text.push_str(&by_worker_and_reason(&replay.summary(), paint));
    }
    let _ = write!(text, "{} decisions: {} differ", replay.decisions, replay.changed);
    if has_expectations && replay.changed > 0 {
        let _ = write!(text, ", {} of them not as expected", unexpected.iter().map(|part| part.decisions).sum::<u64>());
    }
    for (query, decisions) in &replay.undecided {
        let _ = write!(text, ", {decisions} need an observation of {query} that the history lacks");
    }
    text.push('\n');
    text
}

/// The numbers of differences, those of the most first.
fn by_worker_and_reason(summary: &[Summary], paint: Paint) -> String {
    let mut parts: Vec<&Summary> = summary.iter().collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.decisions));
    let mut table = Table::new(["WORKER", "RECORDED", "REPLAYED", "DECISIONS"]);
    for part in parts.iter().take(SHOWN) {
        table.row([
            part.worker.as_str().into(),
            part.recorded.as_str().into(),
            part.replayed.into(),
            part.decisions.to_string().into(),
        ]);
    }
    let more = parts.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("… and {more} more\n") } else { String::new() };
    table.render(paint) + &more
}
