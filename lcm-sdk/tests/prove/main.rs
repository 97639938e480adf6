//! The prover: runs real controllers in a faulty world and checks every rule at every step.
//!
//! It is a test that prints a table, and adds its rows to the table of `make prove`: a file in the directory that
//! `LCM_PROVE_ROWS` names. With `LCM_SOAK_SECONDS` it runs for that long. A history that violates a rule is printed
//! with the variables that repeat it:
//!
//! | variable | meaning |
//! |---|---|
//! | `LCM_FIRST_DAY`, `LCM_DAYS` | the random days to run |
//! | `LCM_SCRIPT`, `LCM_CALL`, `LCM_ROUND` | the script, the call at which an event is injected, and the seed |
//! | `LCM_STORY` | print every event as it occurs |
//! | `LCM_JOBS` | concurrent histories |

mod accounts;
mod broken;
mod call;
mod check;
mod clock;
mod cluster;
mod defects;
mod documents;
mod etcd;
mod faults;
mod hostile;
mod invariants;
mod jobs;
mod model;
mod operators;
mod oracle;
mod pairs;
mod points;
mod ports;
mod process;
mod recordings;
mod records;
mod rng;
mod rules;
mod scenarios;
mod schedule;
mod soak;
mod summary;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::broken::Broken;
use self::jobs::number_from_env;
use self::summary::Summary;

/// Name of a claim and its test.
type Claim = (&'static str, fn() -> Summary);

const CLAIMS: [Claim; 6] = [
    ("equal_seeds_give_equal_days", equal_seeds),
    ("workers_converge_after_random_days", random_days),
    ("scripts_survive_faults_at_every_point", script_points),
    ("broken_controllers_are_caught", broken_controllers),
    ("recordings_tell_the_decisions_of_broken_controllers", recordings::recordings),
    ("all_histories_of_the_model_keep_the_rules", check::check),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        CLAIMS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    // Options belong to the test harness; other arguments select claims.
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let mut summary = Summary::default();
    let began = Instant::now();
    if let Some(seconds) = number_from_env("LCM_SOAK_SECONDS") {
        summary = soak::soak(Duration::from_secs(seconds));
        summary.notes.iter().for_each(|note| println!("{note}"));
    } else {
        for (name, run) in CLAIMS.iter().filter(|(name, _)| is_selected(name)) {
            let since = Instant::now();
            let result = run();
            let status = if result.holds() { "ok" } else { "FAILED" };
            println!("{name} ... {status} ({:.1} s)", since.elapsed().as_secs_f64());
            result.notes.iter().for_each(|note| println!("  {note}"));
            summary.merge(result);
        }
        if filters.is_empty() && summary.missed.is_empty() {
            documents::check(&mut summary);
        }
    }
    summary.violations.sort();
    for violation in summary.violations.iter().take(3) {
        println!("\n{violation}");
    }
    for violation in summary.violations.iter().skip(3).take(100) {
        let (first, last) =
            (violation.lines().next().unwrap_or_default(), violation.lines().next_back().unwrap_or_default());
        println!("also: {}\n    {}", first.split(", Setup").next().unwrap_or_default(), last.trim());
    }
    if summary.has_results() {
        println!("\n| measure | value |\n|---|---|\n{summary}\n{:.0} s", began.elapsed().as_secs_f64());
        add_rows(&summary);
    }
    if summary.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Adds the rows to the common table, if one is requested.
fn add_rows(summary: &Summary) {
    if let Some(directory) = std::env::var_os("LCM_PROVE_ROWS") {
        let file = std::path::Path::new(&directory).join("10-simulator.md");
        std::fs::write(&file, summary.to_string())
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
}

/// Runs days twice and compares the histories: a reported history must be repeatable.
fn equal_seeds() -> Summary {
    let seeds: Vec<u64> = (0..4).collect();
    jobs::run_all(&seeds, |seed, summary| {
        let [first, second] = [(); 2].map(|()| schedule::run_day(schedule::setup_for_day(*seed)).digest);
        if first != second {
            summary.violations.push(format!("day {seed} has two histories, with digests {first:x} and {second:x}"));
        }
    })
}

fn random_days() -> Summary {
    let (first, days) = (number_from_env("LCM_FIRST_DAY").unwrap_or(0), number_from_env("LCM_DAYS"));
    let seeds: Vec<u64> = (first..first + days.unwrap_or(schedule::QUICK)).collect();
    let mut summary = jobs::run_all(&seeds, |seed, summary| schedule::run(*seed, summary));
    if days.is_none() {
        summary.require_variety();
    }
    summary
}

fn script_points() -> Summary {
    let script = std::env::var("LCM_SCRIPT").ok();
    let (call, round) = (number_from_env::<u64>("LCM_CALL"), number_from_env("LCM_ROUND").unwrap_or(0));
    let scripts: Vec<_> = scenarios::all()
        .filter(|scenario| script.as_ref().is_none_or(|script| scenario.name.contains(script.as_str())))
        .collect();
    let mut summary = Summary::default();
    let points: Vec<_> = scripts.into_iter().flat_map(|script| points::list(script, round, &mut summary)).collect();
    let points: Vec<_> = points.into_iter().filter(|point| call.is_none_or(|call| call == point.call)).collect();
    summary.merge(jobs::run_all(&points, |point, summary| point.run_into(summary)));
    summary
}

fn broken_controllers() -> Summary {
    jobs::run_all(Broken::ALL, |broken, summary| summary.merge(broken.search()))
}
