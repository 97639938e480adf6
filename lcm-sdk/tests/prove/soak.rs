//! Runs histories with other seeds for a given time. The sums are kept in a file, so that runs can be resumed and added.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::jobs::{self, number_from_env};
use super::rng::Rng;
use super::summary::{Summary, with_separators};
use super::{points, schedule};

/// Seeds below belong to the quick set.
const FIRST_SEED: u64 = 1_000_000;

/// How often the sums are written.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

const SECONDS_PER_YEAR: f64 = 365.25 * 86_400.0;

/// Kinds of histories, each with sums of its own: their speeds differ by orders of magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Script,
    DenseDay,
    CalmDay,
    QuietWeeks,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Script, Self::DenseDay, Self::CalmDay, Self::QuietWeeks];

    /// The kind of a seed: at random, so that it does not depend on the setup of the world.
    fn of(seed: u64) -> Self {
        Rng::new(seed).pick(&Self::ALL)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Script => "scripts with events at two points",
            Self::DenseDay => "dense days",
            Self::CalmDay => "calm days",
            Self::QuietWeeks => "quiet weeks",
        }
    }

    fn run(self, seed: u64, summary: &mut Summary) {
        match self {
            Self::Script => points::run_two_points(seed, summary),
            Self::DenseDay => schedule::run(seed, summary),
            Self::CalmDay => schedule::run_calm(seed, summary),
            Self::QuietWeeks => schedule::run_weeks(seed, summary),
        }
    }
}

/// The sums of some histories.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Sum {
    histories: u64,
    calls: u64,
    checks: u64,
    /// Injected faults and external changes.
    faults: u64,
    violations: u64,
    simulated_seconds: f64,
    /// How long a thread took for them.
    seconds: f64,
}

impl Sum {
    fn read(from: &Value) -> Self {
        let number = |field: &str| from[field].as_u64().unwrap_or_else(|| panic!("{field} is not a number: {from}"));
        let seconds = |field: &str| from[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number: {from}"));
        Self {
            histories: number("histories"),
            calls: number("calls"),
            checks: number("checks"),
            faults: number("faults"),
            violations: number("violations"),
            simulated_seconds: seconds("simulated_seconds"),
            seconds: seconds("seconds"),
        }
    }

    fn to_json(self) -> Value {
        json!({
            "histories": self.histories,
            "calls": self.calls,
            "checks": self.checks,
            "faults": self.faults,
            "violations": self.violations,
            "simulated_seconds": self.simulated_seconds,
            "seconds": self.seconds,
        })
    }

    fn of(summary: &Summary, took: Duration) -> Self {
        Self {
            histories: summary.histories,
            calls: summary.steps,
            checks: summary.checks,
            faults: summary.faults.values().chain(summary.points.values()).sum(),
            violations: summary.violations.len() as u64,
            simulated_seconds: summary.simulated.as_secs_f64(),
            seconds: took.as_secs_f64(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            histories: self.histories + other.histories,
            calls: self.calls + other.calls,
            checks: self.checks + other.checks,
            faults: self.faults + other.faults,
            violations: self.violations + other.violations,
            simulated_seconds: self.simulated_seconds + other.simulated_seconds,
            seconds: self.seconds + other.seconds,
        }
    }

    /// The cells of a row.
    fn cells(&self) -> String {
        format!(
            "{:.3} | {} | {} | {} | {} | {} | {:.0} s | {:.0} ×",
            self.simulated_seconds / SECONDS_PER_YEAR,
            with_separators(self.histories),
            with_separators(self.faults),
            with_separators(self.calls),
            with_separators(self.checks),
            self.violations,
            self.seconds,
            self.simulated_seconds / self.seconds.max(0.001),
        )
    }
}

/// The sums of all runs.
#[derive(Debug, Default, Clone, PartialEq)]
struct Total {
    /// Number of seeds that were run.
    seeds: u64,
    runs: u64,
    kinds: BTreeMap<Kind, Sum>,
}

impl Total {
    fn read(from: &Value) -> Self {
        let number = |field: &str| from[field].as_u64().unwrap_or_else(|| panic!("{field} is not a number: {from}"));
        let kinds = Kind::ALL.into_iter().filter(|kind| !from["kinds"][kind.name()].is_null());
        Self {
            seeds: number("seeds"),
            runs: number("runs"),
            kinds: kinds.map(|kind| (kind, Sum::read(&from["kinds"][kind.name()]))).collect(),
        }
    }

    fn to_json(&self) -> Value {
        let kinds: serde_json::Map<_, _> =
            self.kinds.iter().map(|(kind, sum)| (kind.name().to_owned(), sum.to_json())).collect();
        json!({ "seeds": self.seeds, "runs": self.runs, "kinds": kinds })
    }

    fn add(&mut self, kind: Kind, sum: Sum) {
        self.seeds += 1;
        let total = self.kinds.entry(kind).or_default();
        *total = total.plus(sum);
    }

    fn all(&self) -> Sum {
        self.kinds.values().fold(Sum::default(), |all, sum| all.plus(*sum))
    }

    fn describe(&self) -> String {
        let all = self.all();
        format!(
            "{:.4} simulated years, {} violations, {:.0} times as fast as real time: {} seeds in {} runs",
            all.simulated_seconds / SECONDS_PER_YEAR,
            all.violations,
            all.simulated_seconds / all.seconds.max(0.001),
            self.seeds,
            self.runs,
        )
    }

    /// A table in Markdown.
    fn table(&self) -> String {
        let mut table =
            "| histories | simulated years | number | faults and changes | calls | rules checked | violations | \
                         time of one thread | real time |\n|---|---|---|---|---|---|---|---|---|\n"
                .to_owned();
        for (kind, sum) in &self.kinds {
            table += &format!("| {} | {} |\n", kind.name(), sum.cells());
        }
        table + &format!("| all | {} |", self.all().cells())
    }
}

/// Runs random days and scripts with injected events, each with another seed, until the time is over.
///
/// `LCM_SOAK_STATE` names the file of the sums. A run continues after its last seed, or at `LCM_FIRST_DAY`.
pub(crate) fn soak(budget: Duration) -> Summary {
    let file = std::env::var_os("LCM_SOAK_STATE").map(PathBuf::from);
    let stored = file.as_ref().filter(|file| file.exists()).map(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Total::read(&serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    });
    let total = Mutex::new(stored.unwrap_or_default());
    let this_run = Mutex::new(Total { runs: 1, ..Total::default() });
    total.lock().runs += 1;
    let first = number_from_env("LCM_FIRST_DAY").unwrap_or(FIRST_SEED + total.lock().seeds);
    println!("soaking for {budget:?} from seed {first}; so far {}", total.lock().describe());
    let (began, next) = (Instant::now(), AtomicU64::new(first));
    let mut all = Summary::default();
    while began.elapsed() < budget {
        let until = budget.saturating_sub(began.elapsed()).min(SAVE_INTERVAL);
        let summary = jobs::run_until(until, |summary| {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let (since, kind, mut history) = (Instant::now(), Kind::of(seed), Summary::default());
            kind.run(seed, &mut history);
            let sum = Sum::of(&history, since.elapsed());
            [&total, &this_run].iter().for_each(|total| total.lock().add(kind, sum));
            summary.merge(history);
        });
        println!("{}", total.lock().describe());
        if let Some(file) = &file {
            write(file, &total.lock());
        }
        for violation in &summary.violations {
            println!("\n{violation}");
        }
        all.merge(summary);
    }
    let (this_run, total) = (this_run.into_inner(), total.into_inner());
    all.notes.push(format!("this run:\n{}\n", this_run.table()));
    all.notes.push(format!("all runs: {}\n{}", total.describe(), total.table()));
    all
}

/// Replaces the file at once, so that an interrupted run leaves the sums of the one before.
fn write(file: &PathBuf, total: &Total) {
    let part = file.with_extension("part");
    let written = std::fs::write(&part, format!("{:#}\n", total.to_json())).and_then(|()| std::fs::rename(&part, file));
    written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
}
