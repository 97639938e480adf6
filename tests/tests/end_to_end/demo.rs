//! The demo in a pipe: its acts, its summary and its exit code.

#![expect(dead_code, reason = "included for their unit tests, which cargo does not run in an example")]

#[path = "../../examples/demo/screen.rs"]
mod screen;
#[path = "../../examples/demo/table.rs"]
mod table;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;

/// Command of the demo, which `cargo test` builds with the tests, in the directory `examples` next to the test binary's.
fn demo() -> Command {
    let this = std::env::current_exe().expect("a path");
    let demo: Option<PathBuf> = this.ancestors().nth(2).map(|profile| profile.join("examples/demo"));
    let demo = demo.filter(|demo| demo.exists()).expect("built: cargo build --workspace --examples");
    let mut command = Command::new(demo);
    command.stdin(Stdio::null());
    command
}

#[rstest]
fn demo_prints_five_acts_within_a_minute(#[values("original", "extended")] generation: &str) {
    let started = Instant::now();
    let output = demo().args(["--control-plane", generation]).output().expect("ran");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert_eq!(stderr, "");
    assert!(started.elapsed() < Duration::from_secs(60), "it took {:?}", started.elapsed());

    let parts = [
        "Act 1 of 5",
        "13 records reference an instance, but only 3 instances exist",
        "no record changes",
        "w-04: running → terminated",
        "9 records are marked terminated",
        "10 of 13 records are terminated now, 3 are unchanged",
        "Act 2 of 5",
        "ada: pending → provisioning",
        "ada: provisioning → running",
        "Act 3 of 5",
        "w-01: running → draining",
        "w-01: stopping → stopped",
        "Act 4 of 5",
        "A terminated instance cannot be restored: the record is terminated",
        "ada: starting → running",
        "Act 5 of 5",
        "the standby leads",
        "grace is running on one instance, not two",
        "Records and EC2 agree, after",
        "15: 4 with an instance, 11 terminated",
        "4 active instances, each referenced by one record",
        "orphans terminated 1",
        "DescribeInstances",
        "Try next",
    ];
    let mut rest = stdout.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not in its place:\n{stdout}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!stdout.contains('\u{1b}') && !stdout.contains('\r'), "no escape codes in a pipe: {stdout:?}");
}

#[test]
fn closed_pipe_is_not_an_error() {
    let mut child = demo().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut first = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("stdout"));
    lines.read_line(&mut first).expect("a line");
    assert!(first.starts_with("LCM demo"), "{first}");
    drop(lines);
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn interrupt_exits_with_130() {
    let mut child = demo().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let act = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("Act 1"));
    assert!(act.is_some(), "act 1 is missing");
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
    assert!(lines.map_while(Result::ok).all(|line| !line.starts_with("Act 5")), "the demo continued after SIGINT");
    let output = child.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Interrupted"), "{output:?}");
}
