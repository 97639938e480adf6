//! Formats the result of a single sweep as a table.

use std::collections::BTreeMap;

use lcm_sdk::Outcome;
use lcm_sdk::reconciler::{Mode, ReconcileResult};
use lcm_sdk::workers::OneSweep;

/// Returns one line per worker, followed by its effects, and a last line with counts.
pub(crate) fn table(sweep: &OneSweep) -> String {
    let mut results: Vec<&ReconcileResult> = sweep.results.iter().collect();
    results.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    let width = |column: fn(&ReconcileResult) -> String, title: &str| {
        results.iter().map(|result| column(result).chars().count()).max().unwrap_or(0).max(title.len())
    };
    let (worker, status) = (|result: &ReconcileResult| result.worker_id.to_string(), status_change);
    let (worker_width, status_width) = (width(worker, "WORKER"), width(status, "STATUS"));
    let mut text = format!("{:worker_width$}  {:status_width$}  {:8}  WHY\n", "WORKER", "STATUS", "OUTCOME");
    for result in &results {
        let line = (worker(result), status(result), result.outcome, &result.reason);
        text += &format!("{:worker_width$}  {:status_width$}  {:8}  {}\n", line.0, line.1, line.2, line.3);
        for report in &result.effects {
            text += &format!("{:worker_width$}  {report}\n", "");
        }
    }
    for name in &sweep.report.unfinished {
        text += &format!("{name:worker_width$}  not reconciled in time\n");
    }
    text + &counts(sweep)
}

/// Returns whether a worker was not reconciled in time or has to be retried.
pub(crate) fn needs_retry(sweep: &OneSweep) -> bool {
    !sweep.report.is_complete() || sweep.results.iter().any(|result| result.outcome == Outcome::Retry)
}

fn status_change(result: &ReconcileResult) -> String {
    if result.from_status == result.to_status {
        result.from_status.to_string()
    } else {
        format!("{} → {}", result.from_status, result.to_status)
    }
}

fn counts(sweep: &OneSweep) -> String {
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &sweep.results {
        *outcomes.entry(result.outcome.as_str()).or_default() += 1;
    }
    let changed = sweep.results.iter().filter(|result| result.from_status != result.to_status).count();
    let would = if sweep.results.iter().any(|result| result.mode == Mode::DryRun) { "would change" } else { "changed" };
    let outcomes: Vec<_> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let took = sweep.report.took.as_secs_f64();
    let workers = sweep.report.listed;
    format!("{workers} workers in {took:.1} s: {changed} {would} status; {}\n", outcomes.join(", "))
}
