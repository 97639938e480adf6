//! Formats settings and the results of sweeps and reconciles.

use std::collections::BTreeMap;

use anstyle::{AnsiColor, Style};
use lcm_sdk::Outcome;
use lcm_sdk::lifecycle::time;
use lcm_sdk::reconciler::{Mode, ReconcileResult};
use lcm_sdk::settings::Settings;
use lcm_sdk::workers::OneSweep;
use serde_json::Value;

use crate::output::{Cell, Paint, Table, color, printable, status_style};

/// Returns the table of settings, followed by the warnings about them.
pub(crate) fn settings(settings: &Settings) -> String {
    let warnings: Vec<String> = settings.warnings().iter().map(|warning| format!("{warning}\n")).collect();
    let head = if warnings.is_empty() { "" } else { "# Warnings\n" };
    format!("{}\n{head}{}", settings.report(), warnings.concat())
}

/// Returns one line per worker, followed by its effects, and a last line with counts.
pub(crate) fn table(sweep: &OneSweep, paint: Paint) -> String {
    rows(&sorted(&sweep.results), &sweep.report.unfinished, paint) + &counts(sweep)
}

/// Returns the results that something changed in, or would change in a dry run, ordered by worker.
pub(crate) fn changes(results: &[ReconcileResult]) -> Vec<&ReconcileResult> {
    sorted(results).into_iter().filter(|result| !result.is_routine()).collect()
}

/// Returns one line per result, followed by its effects.
pub(crate) fn rows(results: &[&ReconcileResult], unfinished: &[String], paint: Paint) -> String {
    let mut table = Table::new(["WORKER", "STATUS", "OUTCOME", "WHY"]);
    for result in results {
        table.row([
            result.worker_id.as_str().into(),
            Cell::styled(status_change(result), status_style(result.to_status)),
            Cell::styled(result.outcome, outcome_style(result.outcome)),
            result.reason.to_string().into(),
        ]);
        for step in result.steps() {
            table.detail(step);
        }
    }
    for name in unfinished {
        table.row([name.into(), "-".into(), "-".into(), "not reconciled in time".into()]);
    }
    table.render(paint)
}

/// Returns whether a worker was not reconciled in time or has to be retried.
pub(crate) fn needs_retry(sweep: &OneSweep) -> bool {
    !sweep.report.is_complete() || sweep.results.iter().any(|result| result.outcome == Outcome::Retry)
}

/// The status of a worker, with the status before it if it differs.
pub(crate) fn status_change(result: &ReconcileResult) -> String {
    if result.from_status == result.to_status {
        result.from_status.to_string()
    } else {
        format!("{} → {}", result.from_status, result.to_status)
    }
}

/// Returns the last line of a sweep: how many workers changed, and the outcomes.
pub(crate) fn counts(sweep: &OneSweep) -> String {
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &sweep.results {
        *outcomes.entry(result.outcome.as_str()).or_default() += 1;
    }
    let moves = |result: &&ReconcileResult| result.from_status != result.to_status;
    let changed = sweep.results.iter().filter(moves).count();
    let writes_fields = |result: &&ReconcileResult| !moves(result) && !result.changes.is_empty();
    let fields = match sweep.results.iter().filter(writes_fields).count() {
        0 => String::new(),
        count => format!(", {count} other fields only"),
    };
    let would = if sweep.results.iter().any(|result| result.mode == Mode::DryRun) { "would change" } else { "changed" };
    let outcomes: Vec<_> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let took = sweep.report.took.as_secs_f64();
    let workers = sweep.report.listed;
    format!("{workers} workers in {took:.1} s: {changed} {would} status{fields}; {}\n", outcomes.join(", "))
}

/// Returns the time of an entry of a history, and what happened: status, reason, repeats and effects.
pub(crate) fn history_entry(entry: &Value) -> (String, String) {
    let word = |name: &str| entry[name].as_str().unwrap_or("?").to_owned();
    let (from, to) = (word("from_status"), word("to_status"));
    let status = if from == to { from } else { format!("{from} → {to}") };
    let repeats = entry["repeats"].as_u64().filter(|repeats| *repeats > 0);
    let repeats = repeats.map_or(String::new(), |repeats| format!(" (and {repeats} more)"));
    let at = time::parse(&word("at")).map_or_else(|| word("at"), |at| at.format("%H:%M:%S").to_string());
    let texts = |name: &str| entry[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut done: Vec<String> =
        texts("effects").zip(texts("results")).map(|(effect, result)| format!(" [{effect}: {result}]")).collect();
    let fields: Vec<&str> = entry["changes"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    if !fields.is_empty() {
        done.push(format!(" [record {}]", fields.join(", ")));
    }
    let message = entry["reason"]["sentence"].as_str().unwrap_or_default();
    (printable(&at).into_owned(), printable(&format!("{status}: {message}{repeats}{}", done.concat())).into_owned())
}

fn sorted(results: &[ReconcileResult]) -> Vec<&ReconcileResult> {
    let mut results: Vec<&ReconcileResult> = results.iter().collect();
    results.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    results
}

const fn outcome_style(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Success => Style::new(),
        Outcome::Requeue => color(AnsiColor::Cyan),
        Outcome::Retry => color(AnsiColor::Red),
        Outcome::Skip => Style::new().dimmed(),
    }
}
