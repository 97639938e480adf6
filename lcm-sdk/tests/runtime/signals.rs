//! Metrics, their reference, and the dashboard and alert rules that use them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use lcm_sdk::telemetry::Telemetry;
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
