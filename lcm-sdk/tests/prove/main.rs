//! The prover: the real controllers over a world that is against them.

mod broken;
mod call;
mod clock;
mod cluster;
mod days;
mod dice;
mod etcd;
mod faults;
mod hands;
mod invariants;
mod ledger;
mod pairs;
mod ports;
mod process;
mod summary;
mod world;

fn main() {
    let mut summary = summary::Summary::default();
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let (first, days) = (number("LCM_FIRST_DAY").unwrap_or(0), number("LCM_DAYS").unwrap_or(8));
    for seed in first..first + days {
        let began = std::time::Instant::now();
        let verdict = days::a_day(days::setup_of(seed));
        println!(
            "day {seed}: {} steps {:x} {:?} {:?}",
            verdict.steps,
            verdict.digest,
            began.elapsed(),
            verdict.violations
        );
        summary.add("a day", verdict);
    }
    for violation in summary.violations.iter().take(1) {
        println!("{violation}");
    }
    println!("{summary}");
}
