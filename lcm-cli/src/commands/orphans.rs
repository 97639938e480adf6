//! `lcm orphans`: one run of discovery and garbage collection.

use anstyle::{AnsiColor, Style};
use lcm_sdk::from_settings;
use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::reconciler::Mode;
use lcm_sdk::workers::{Discovery, DiscoveryReport, RegionReport};

use crate::arguments::{LEAD_PATIENCE, OrphansArguments};
use crate::context::{Context, flush};
use crate::exit::{ExitStatus, Failure};
use crate::output::{Cell, Paint, Table, color, printable};
use crate::progress::Progress;

pub(crate) async fn run(arguments: &OrphansArguments) -> Result<ExitStatus, Failure> {
    let context = Context::new(&arguments.call)?;
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Real };
    if mode == Mode::Real
        && let Some(leader) = context.leaders().await?.first()
    {
        let message = format!(
            "{} leads, and collects orphans by itself; --dry-run shows what it would do",
            printable(&leader.identity)
        );
        return Err(Failure::new(ExitStatus::NotLeading, &message));
    }
    let controller = context.controller().await?;
    let elected = controller.elect_once(mode, LEAD_PATIENCE).await?;
    let reconciler = controller.reconciler().with_lease(elected.lease().clone());
    let discovery = Discovery::new(reconciler.clone(), from_settings::discovery_config(&context.settings), |_| {});
    let report = {
        let _progress = Progress::wait("scanning");
        match mode {
            Mode::Real => discovery.run_once().await,
            Mode::DryRun => discovery.dry_run().await,
        }
    };
    elected.resign().await;
    flush(&reconciler).await;
    if let (true, Some(failure)) = (report.regions.is_empty(), &report.error) {
        return Err(Failure::call("no region was scanned", failure));
    }
    let orphans = report.regions.iter().flat_map(|region| &region.verdicts);
    let orphans = orphans.filter(|verdict| verdict.conclusion == Conclusion::Orphan);
    let names = orphans.map(|verdict| verdict.worker_id.as_str());
    context.output.print(&report, names, |paint| text(&report, mode, paint))?;
    let is_complete = report.error.is_none() && report.regions.iter().all(|region| region.error.is_none());
    Ok(if is_complete { ExitStatus::Success } else { ExitStatus::Retry })
}

fn text(report: &DiscoveryReport, mode: Mode, paint: Paint) -> String {
    let mut table = Table::new(["WORKER", "INSTANCE", "REGION", "VERDICT", "WHY"]);
    let mut is_empty = true;
    for region in &report.regions {
        for verdict in &region.verdicts {
            is_empty = false;
            table.row([
                verdict.worker_id.as_str().into(),
                verdict.ec2_instance_id.as_str().into(),
                region.region.as_str().into(),
                Cell::styled(verdict.conclusion.as_str(), style(verdict.conclusion)),
                verdict.conclusion.sentence().into(),
            ]);
        }
    }
    let mut text = if is_empty { "No record lacks its instance.\n".to_owned() } else { table.render(paint) };
    for region in &report.regions {
        text += &region_line(region, mode);
    }
    if let Some(failure) = &report.error {
        text += &format!("{}\n", printable(&failure.to_string()));
    }
    text
}

/// The counts of a run in a region.
fn region_line(region: &RegionReport, mode: Mode) -> String {
    let mut parts = vec![format!("{} instances seen", region.seen)];
    let would = if mode == Mode::DryRun { "would be " } else { "" };
    let counts = [
        (region.imported, format!("{would}imported")),
        (region.terminated.len(), "marked terminated".to_owned()),
        (region.resurrected.len(), "terminated on record but alive".to_owned()),
        (region.foreign.len(), "of another control plane".to_owned()),
    ];
    parts.extend(counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    match &region.error {
        Some(failure) => parts.push(format!("incomplete: {}", printable(&failure.to_string()))),
        None if !region.is_complete => parts.push("incomplete".to_owned()),
        None => {}
    }
    format!("{}: {}\n", printable(&region.region), parts.join(", "))
}

const fn style(conclusion: Conclusion) -> Style {
    match conclusion {
        Conclusion::Orphan => color(AnsiColor::Red),
        Conclusion::Alive => color(AnsiColor::Green),
        Conclusion::Unknown | Conclusion::Frozen | Conclusion::Deferred => color(AnsiColor::Yellow),
        Conclusion::Young | Conclusion::Protected => Style::new(),
    }
}
