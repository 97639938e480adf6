//! The prover: the real controllers over a world that is against them.

mod broken;
mod call;
mod check;
mod clock;
mod cluster;
mod days;
mod dice;
mod etcd;
mod faults;
mod hands;
mod invariants;
mod ledger;
mod model;
mod pairs;
mod points;
mod ports;
mod process;
mod scenarios;
mod summary;
mod world;

fn main() {
    let mut summary = summary::Summary::default();
    if std::env::var("LCM_MODEL").is_ok() {
        let began = std::time::Instant::now();
        let found = check::check();
        for violation in &found.violations {
            println!("{violation}");
        }
        println!("{found} {:?} {:?}", found.missed, began.elapsed());
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    if let Ok(which) = std::env::var("LCM_BROKEN") {
        for broken in broken::Broken::ALL.into_iter().filter(|broken| broken.name().contains(&which)) {
            let began = std::time::Instant::now();
            let found = broken.hunt();
            println!("{:?} {:?}", found.notes, began.elapsed());
        }
        return;
    }
    if let Ok(which) = std::env::var("LCM_SCENARIO") {
        for scenario in scenarios::ALL.iter().filter(|scenario| scenario.name.contains(&which)) {
            let began = std::time::Instant::now();
            let before = summary.violations.len();
            let br =
                broken::Broken::ALL.into_iter().find(|b| std::env::var("LCM_BR").is_ok_and(|n| b.name().contains(&n)));
            let points = points::of(scenario, br, &mut summary);
            println!(
                "{}: {} points, {:?}, violations {}",
                scenario.name,
                points.len(),
                began.elapsed(),
                summary.violations.len() - before
            );
            if number("LCM_POINTS").unwrap_or(0) == 1 {
                let before = summary.violations.len();
                let wanted = number("LCM_AT");
                for point in points.into_iter().filter(|point| wanted.is_none_or(|wanted| wanted == point.at)) {
                    point.try_out(None, &mut summary);
                }
                println!("   {:?} violations {}", began.elapsed(), summary.violations.len() - before);
            }
        }
        for violation in &summary.violations {
            println!("{}", violation.lines().next().unwrap());
            println!("{}", violation.lines().last().unwrap());
        }
        if let Some(violation) = summary.violations.first() {
            println!("{violation}");
        }
        println!("{summary}");
        return;
    }
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
