//! Metrics, their reference, and the dashboard and alert rules that use them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use lcm_sdk::telemetry::{Across, ScanFigures, Telemetry};
use lcm_sdk::workers::MetricsLoop;
use lcm_sdk::{DesiredStatus, Ec2State, WorkerStatus};

use super::harness::{Harness, pass_time, worker_id};

fn operations(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/operations").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(operations(file)).unwrap_or_else(|error| panic!("docs/operations/{file}: {error}"))
}

/// With `UPDATE_DOCS=1` the page is written first.
#[test]
fn reference_of_the_metrics_is_current() {
    let current = Telemetry::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(operations("metrics.md"), &current).expect("written");
    }
    assert_eq!(
        read("metrics.md"),
        current,
        "docs/operations/metrics.md is out of date: run this test with UPDATE_DOCS=1 and commit the page"
    );
}

/// The names of a text that look like series of a controller.
fn series(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("lcm_") || word.starts_with("reconciliation_")).collect()
}

#[test]
fn dashboard_and_alerts_use_series_that_exist() {
    let telemetry = Telemetry::default();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for metric in telemetry.table() {
        let suffixes: &[&str] = if metric.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        known.extend(suffixes.iter().map(|suffix| format!("{}{suffix}", metric.name)));
    }
    let mut used = BTreeSet::new();
    let (alerts, dashboard) = (read("alerts.yml"), read("dashboard.json"));
    for (file, text) in [("alerts.yml", &alerts), ("dashboard.json", &dashboard)] {
        let found = series(text);
        assert!(found.len() > 8, "{file}: {found:?}");
        for name in &found {
            assert!(known.contains(*name), "{file} uses {name}, which no controller serves");
        }
        used.extend(found);
    }
    for gauge in ["lcm_region_untrusted", "lcm_cost_per_hour_usd", "lcm_worker_status_age_seconds"] {
        assert!(used.contains(gauge), "{gauge} is on no panel");
    }
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}

/// The expressions of the alert rules and of the panels.
fn expressions() -> Vec<String> {
    let alerts = read("alerts.yml");
    let mut found: Vec<String> = Vec::new();
    let mut lines = alerts.lines().peekable();
    while let Some(line) = lines.next() {
        match line.trim().strip_prefix("expr: ") {
            Some(">-") => {
                let indent = |line: &str| line.len() - line.trim_start().len();
                let depth = indent(line);
                let mut folded = Vec::new();
                while let Some(line) = lines.next_if(|line| indent(line) > depth) {
                    folded.push(line.trim());
                }
                found.push(folded.join(" "));
            }
            Some(expression) => found.push(expression.to_owned()),
            None => {}
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    found.extend(targets.map(|target| target["expr"].as_str().expect("an expression").to_owned()));
    found
}

/// The labels in parentheses or braces at the start of a text.
fn labels(text: &str, open: char, close: char) -> Vec<&str> {
    let inner = text.trim_start().strip_prefix(open).and_then(|rest| rest.split_once(close));
    let names = inner.map(|(inner, _)| inner.split(',')).into_iter().flatten();
    names.map(|name| name.split(['=', '!']).next().unwrap_or_default().trim()).collect()
}

/// The innermost aggregation around a position of an expression, and the labels that it keeps.
fn aggregation(expression: &str, position: usize) -> Option<(&str, Vec<&str>)> {
    let mut depth = 0;
    for (at, letter) in expression[..position].char_indices().rev() {
        match letter {
            ')' => depth += 1,
            '(' if depth > 0 => depth -= 1,
            '(' => {
                let before = expression[..at].trim_end();
                let (before, kept) = match before.rsplit_once(" by ") {
                    Some((before, kept)) if kept.starts_with('(') && kept.ends_with(')') => {
                        (before, labels(kept, '(', ')'))
                    }
                    _ => (before, Vec::new()),
                };
                let word = before.rsplit(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next();
                if let Some(word @ ("sum" | "max" | "min" | "avg" | "count")) = word {
                    return Some((word, kept));
                }
            }
            _ => {}
        }
    }
    None
}

/// The problems of an expression: a label that a series lacks, or values of several controllers combined wrongly.
fn problems(expression: &str) -> Vec<String> {
    // A filter, which selects controllers and adds no label.
    let expression = &expression.replace(" and on (job, instance) lcm_leader == 1", "");
    let telemetry = Telemetry::default();
    let mut found = Vec::new();
    for name in series(expression) {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(*suffix));
        let metric = telemetry.table().iter().find(|row| row.name == name || histogram == Some(row.name.as_str()));
        let metric = metric.unwrap_or_else(|| panic!("{name} is in no table"));
        let is_known = |label: &str| {
            Some(label) == metric.label
                || matches!(label, "job" | "instance")
                || (label == "le" && name.ends_with("_bucket"))
        };
        for (position, _) in expression.match_indices(name) {
            let end = position + name.len();
            let is_whole =
                |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_');
            if !is_whole(expression[..position].chars().next_back()) || !is_whole(expression[end..].chars().next()) {
                continue;
            }
            let (function, kept) = aggregation(expression, position).unwrap_or(("none", Vec::new()));
            let named = labels(&expression[end..], '{', '}').into_iter().chain(kept);
            found.extend(named.filter(|label| !is_known(label)).map(|label| format!("{name} has no label {label}")));
            let is_right = match metric.across {
                Across::Sum => function == "sum",
                Across::Max => matches!(function, "max" | "none"),
                Across::Each => function == "none",
            };
            if !is_right {
                found.push(format!("{name} is combined with {function}, and its table says {}", metric.across));
            }
        }
    }
    found
}

#[test]
fn expressions_combine_the_controllers_as_the_table_says() {
    let expressions = expressions();
    assert!(expressions.len() > 30, "{expressions:?}");
    for expression in &expressions {
        assert_eq!(problems(expression), [""; 0], "{expression}");
    }
}

#[test]
fn wrong_expressions_are_noticed() {
    for (expression, problem) in [
        ("max by (status) (lcm_workers)", "lcm_workers is combined with max, and its table says sum"),
        ("lcm_workers{status=\"failed\"} > 0", "lcm_workers is combined with none, and its table says sum"),
        ("sum(lcm_region_untrusted)", "lcm_region_untrusted is combined with sum, and its table says max"),
        ("sum by (region) (lcm_workers)", "lcm_workers has no label region"),
        ("sum(rate(lcm_lifecycle_total{status=\"failed\"}[5m]))", "lcm_lifecycle_total has no label status"),
    ] {
        assert_eq!(problems(expression), [problem], "{expression}");
    }
}

#[test]
fn gauges_of_the_fleet_end_with_the_term() {
    let telemetry = Telemetry::default();
    telemetry.set_fleet([WorkerStatus::Failed], 1);
    telemetry.set_status_ages([(WorkerStatus::Stopping, "w-1", Duration::from_secs(9000))]);
    telemetry.set_costs([(WorkerStatus::Running, Some(3.5)), (WorkerStatus::Running, None)]);
    telemetry.set_records(1, 2);
    telemetry.set_queue_depth(1, [("changed", 1), ("due", 0), ("resync", 0)]);
    telemetry.set_region_untrusted("us-east-1");
    let figures = ScanFigures { found: 3, frozen: 1, is_frozen: true, orphans: 2, ..ScanFigures::default() };
    telemetry.scanned("us-east-1", &figures);
    telemetry.set_ready();
    telemetry.end_term();
    let text = telemetry.to_prometheus_text();
    let table = telemetry.table();
    let gauges: Vec<&str> = table.iter().filter(|row| row.kind == "gauge").map(|row| row.name.as_str()).collect();
    let left = text.lines().filter(|line| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        gauges.contains(&name) && !line.ends_with(" 0") && !line.ends_with(" 0.0")
    });
    assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
    assert!(text.contains("lcm_discovery_orphans_total{region=\"us-east-1\"} 2"), "counters go on: {text}");
    assert!(telemetry.longest_in_status().is_empty());
}

#[test]
fn every_alert_has_a_section_of_the_runbook() {
    let (alerts, runbook) = (read("alerts.yml"), read("runbook.md"));
    let named: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: Vec<(&str, &str)> =
        runbook.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
    assert_eq!(named, sections.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, text) in sections {
        assert!(text.trim().len() > 80, "the section {name} says too little");
        let url = format!("/docs/operations/runbook.md#{}\n", name.to_lowercase());
        assert!(alerts.contains(&url), "the rule {name} does not lead to its section");
    }
}

#[test]
fn table_names_every_metric_as_it_is_scraped() {
    let telemetry = Telemetry::default();
    telemetry.set_lease_age(Some(Duration::from_secs(1)));
    telemetry.observe_time_to_running(Duration::from_secs(40));
    let text = telemetry.to_prometheus_text();
    let scraped: BTreeSet<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(!scraped.is_empty());
    let table: BTreeSet<(&str, &str)> = telemetry.table().iter().map(|row| (row.name.as_str(), row.kind)).collect();
    for metric in scraped {
        assert!(table.contains(&metric), "{metric:?} is not in the table");
    }
}

#[tokio::test(start_paused = true)]
async fn costs_follow_the_templates() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.worker(2, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.worker(3, WorkerStatus::Running, Ec2State::Running);
    let mut template = lcm_sdk::Template::new("metal", "m5zn.metal");
    template.extra.insert("cost_per_hour_usd".to_owned(), 3.5.into());
    harness.control_plane.put_template(template);
    harness.control_plane.edit(&worker_id(3), |worker| worker.template_name = Some("unpriced".to_owned()));
    let reconciler = harness.reconciler();
    let _ = MetricsLoop::new(reconciler.clone(), Duration::from_secs(60)).run_once().await.expect("listed");
    let text = reconciler.telemetry().to_prometheus();
    for line in [
        "lcm_cost_per_hour_usd{status=\"running\"} 3.5",
        "lcm_cost_per_hour_usd{status=\"stopped\"} 3.5",
        "lcm_cost_per_hour_usd{status=\"failed\"} 0.0",
        "lcm_workers_without_cost 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_to_running_counts_from_the_start() {
    let harness = Harness::new();
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    let reconciler = harness.reconciler();
    let _ = harness.reconcile(&reconciler, 1).await;
    harness.clock.advance(Duration::from_secs(45));
    pass_time(1).await;
    harness.compute.settle();
    let result = harness.reconcile(&reconciler, 1).await;
    assert_eq!(result.to_status, WorkerStatus::Running, "{result}");
    let text = reconciler.telemetry().to_prometheus();
    for line in ["lcm_time_to_running_seconds_count 1", "lcm_time_to_running_seconds_bucket{le=\"60.0\"} 1"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(text.contains("lcm_time_to_running_seconds_bucket{le=\"30.0\"} 0"), "{text}");
}
