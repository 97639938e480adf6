//! What it came to: whether records and reality agree, what was counted, what it cost, and where to go from here.

use std::collections::BTreeMap;

use crate::Problem;
use crate::screen::Screen;
use crate::stage::Stage;

/// Says it all, or why it is not so.
pub(crate) fn tell(stage: &Stage, screen: &mut Screen) -> Result<(), Problem> {
    let (recorded, living) = (stage.recorded_instances(), stage.living_instances());
    if recorded != living {
        let (ghosts, strangers) = (recorded.difference(&living), living.difference(&recorded));
        let ghosts: Vec<_> = ghosts.cloned().collect();
        let strangers: Vec<_> = strangers.cloned().collect();
        return Err(format!("records and EC2 differ: only on record {ghosts:?}, only in EC2 {strangers:?}").into());
    }
    let (records, over) = (stage.cloud.workers().len(), stage.terminated().len());
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for request in stage.ec2_requests() {
        *calls.entry(request.operation).or_default() += 1;
    }
    let counters = stage.counters().into_iter().filter(|(_, count)| *count > 0);
    let counters: Vec<_> =
        counters.map(|(name, count)| (name.trim_end_matches("_count").replace('_', " "), count)).collect();

    screen.head(&format!("Everything came true, in {:.0} s", screen.elapsed().as_secs_f64()))?;
    screen.note("records", &format!("{records}: {} with an instance, {over} terminated", records - over))?;
    screen.note("in EC2", &format!("{} live instances, each on one of those records: consistent", living.len()))?;
    screen.note("counted", &listed(counters.iter().map(|(name, count)| (name.as_str(), *count))))?;
    screen.note("EC2 calls", &listed(calls.iter().map(|(name, count)| (name.as_str(), *count))))?;
    screen.head("Try next")?;
    Ok(screen.say(&NEXT.map(|(command, what)| format!("{command:40}  {what}")))?)
}

const NEXT: [(&str, &str); 5] = [
    ("make fake-cloud", "this cloud, for your own clients"),
    ("make controller ARGS=\"--once --dry-run\"", "what a controller would do there"),
    ("make simulate", "a worker's life, as decisions"),
    ("notebooks/", "the same from Python, with plots"),
    ("README.md", "everything else, in five minutes"),
];

fn listed<'a, N: std::fmt::Display>(pairs: impl Iterator<Item = (&'a str, N)>) -> String {
    pairs.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
