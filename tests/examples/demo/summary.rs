//! Summary of the demo: agreement of records and EC2, counters, EC2 calls and next steps.

use std::collections::BTreeMap;

use crate::Problem;
use crate::fleet::Fleet;
use crate::screen::Screen;

/// Prints the summary.
///
/// # Errors
/// Records and EC2 differ, or stdout cannot be written.
pub(crate) fn print(fleet: &Fleet, screen: &mut Screen) -> Result<(), Problem> {
    let (recorded, active) = (fleet.recorded_instances(), fleet.active_instances());
    if recorded != active {
        let orphaned: Vec<_> = recorded.difference(&active).collect();
        let unrecorded: Vec<_> = active.difference(&recorded).collect();
        return Err(format!("records and EC2 differ: only in records {orphaned:?}, only in EC2 {unrecorded:?}").into());
    }
    let (records, terminated) = (fleet.harness.cloud.workers().len(), fleet.terminated().len());
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for request in fleet.ec2_requests() {
        *calls.entry(request.operation).or_default() += 1;
    }
    let counters = fleet.counters().into_iter().filter(|(_, count)| *count > 0);
    let counters: Vec<_> =
        counters.map(|(name, count)| (name.trim_end_matches("_count").replace('_', " "), count)).collect();

    screen.head(&format!("Records and EC2 agree, after {:.0} s", screen.elapsed().as_secs_f64()))?;
    screen.print_labeled(
        "records",
        &format!("{records}: {} with an instance, {terminated} terminated", records - terminated),
    )?;
    screen.print_labeled("in EC2", &format!("{} active instances, each referenced by one record", active.len()))?;
    screen.print_labeled("counters", &format_counts(counters.iter().map(|(name, count)| (name.as_str(), *count))))?;
    screen.print_labeled("EC2 calls", &format_counts(calls.iter().map(|(name, count)| (name.as_str(), *count))))?;
    screen.head("Try next")?;
    Ok(screen.print_lines(&NEXT.map(|(command, text)| format!("{command:40}  {text}")))?)
}

const NEXT: [(&str, &str); 5] = [
    ("make fake-cloud", "this cloud for your own clients"),
    ("make controller ARGS=\"--once --dry-run\"", "plan of a controller for that cloud"),
    ("make simulate", "decisions over the life of a worker"),
    ("notebooks/", "the same from Python, with plots"),
    ("README.md", "overview and links"),
];

fn format_counts<'a, N: std::fmt::Display>(pairs: impl Iterator<Item = (&'a str, N)>) -> String {
    pairs.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
