//! What a single sweep did, as a table for people.

use std::collections::BTreeMap;

use lcm_sdk::reconciler::{EffectReport, Mode, ReconcileResult};
use lcm_sdk::workers::controller::OneSweep;
use lcm_sdk::{EffectResult, Outcome};

/// One line for each worker, what was done about it below, and a last line with the counts.
pub(crate) fn table(sweep: &OneSweep) -> String {
    let mut passes: Vec<&ReconcileResult> = sweep.passes.iter().collect();
    passes.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    let width = |column: fn(&ReconcileResult) -> String, title: &str| {
        passes.iter().map(|pass| column(pass).chars().count()).max().unwrap_or(0).max(title.len())
    };
    let (worker, status) = (|pass: &ReconcileResult| pass.worker_id.to_string(), change);
    let (wide, wider) = (width(worker, "WORKER"), width(status, "STATUS"));
    let mut text = format!("{:wide$}  {:wider$}  {:8}  WHY\n", "WORKER", "STATUS", "OUTCOME");
    for pass in &passes {
        let line = (worker(pass), status(pass), pass.outcome, &pass.reason);
        text += &format!("{:wide$}  {:wider$}  {:8}  {}\n", line.0, line.1, line.2, line.3);
        for report in &pass.effects {
            text += &format!("{:wide$}  {}\n", "", done(report));
        }
    }
    for name in &sweep.report.unfinished {
        text += &format!("{name:wide$}  not looked at in time\n");
    }
    text + &counts(sweep)
}

/// Whether a worker was left that needs another look soon.
pub(crate) fn needs_another_look(sweep: &OneSweep) -> bool {
    !sweep.report.is_complete() || sweep.passes.iter().any(|pass| pass.outcome == Outcome::Retry)
}

fn change(pass: &ReconcileResult) -> String {
    if pass.from_status == pass.to_status {
        pass.from_status.to_string()
    } else {
        format!("{} → {}", pass.from_status, pass.to_status)
    }
}

fn done(report: &EffectReport) -> String {
    let effect = report.effect.to_string().replacen(report.effect.name(), &report.effect.name().replace('_', " "), 1);
    match &report.result {
        EffectResult::Planned => format!("would {effect}"),
        EffectResult::Done | EffectResult::IdleChecked(_) => format!("✓ {effect}"),
        EffectResult::Launched(instance) => format!("✓ {effect}: {instance}"),
        EffectResult::Failed(failure) => format!("✗ {effect}: {failure}"),
        EffectResult::NotTried => format!("– {effect}: not tried"),
    }
}

fn counts(sweep: &OneSweep) -> String {
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for pass in &sweep.passes {
        *outcomes.entry(pass.outcome.as_str()).or_default() += 1;
    }
    let changed = sweep.passes.iter().filter(|pass| pass.from_status != pass.to_status).count();
    let would = if sweep.passes.iter().any(|pass| pass.mode == Mode::DryRun) { "would change" } else { "changed" };
    let outcomes: Vec<_> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    let took = sweep.report.took.as_secs_f64();
    let workers = sweep.report.listed;
    format!("{workers} workers in {took:.1} s: {changed} {would} status; {}\n", outcomes.join(", "))
}
