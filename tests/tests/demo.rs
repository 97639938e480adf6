//! The demo as a newcomer meets it, in a pipe: its acts, its summary, its exit code.

#![expect(
    dead_code,
    reason = "the parts of the demo are here for their own tests, which cargo does not run in an example"
)]

#[path = "../examples/demo/screen.rs"]
mod screen;
#[path = "../examples/demo/table.rs"]
mod table;
#[path = "../examples/demo/view.rs"]
mod view;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The demo, which `cargo test` builds together with the tests. Cargo does not tell where examples are; they are beside
/// the folder that this test is in.
fn demo() -> Command {
    let this = std::env::current_exe().expect("a path");
    let demo: Option<PathBuf> = this.ancestors().nth(2).map(|profile| profile.join("examples/demo"));
    let demo = demo.filter(|demo| demo.exists()).expect("built: cargo build --workspace --examples");
    let mut command = Command::new(demo);
    command.stdin(Stdio::null());
    command
}

#[test]
fn it_plays_five_acts_in_plain_lines_and_ends_well_within_a_minute() {
    let began = Instant::now();
    let ended = demo().output().expect("it runs");
    let told = String::from_utf8(ended.stdout).expect("UTF-8");
    let complaints = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{told}\n{complaints}");
    assert_eq!(complaints, "");
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());

    let parts = [
        "Act 1 of 5",
        "13 records say that they have an instance. Somebody cleaned up in the console: only 3 exist.",
        "nobody is touched",
        "the region is frozen",
        "w-04: running → terminated",
        "9 records are marked terminated",
        "w-13: provisioning → terminated",
        "10 of 13 records are terminated now, 3 stay as they are",
        "Act 2 of 5",
        "ada: pending → provisioning",
        "ada: provisioning → running",
        "Act 3 of 5",
        "w-01: running → draining",
        "w-01: stopping → stopped",
        "Act 4 of 5",
        "w-02: running → terminated",
        "ada: starting → running",
        "Act 5 of 5",
        "the other one leads",
        "grace runs, on one instance, not two",
        "Everything came true",
        "15: 4 with an instance, 11 terminated",
        "4 live instances, each on one of those records: consistent",
        "orphans terminated 1",
        "DescribeInstances",
        "Try next",
    ];
    let mut rest = told.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not in its place:\n{told}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!told.contains('\u{1b}') && !told.contains('\r'), "no escape codes in a pipe: {told:?}");
}

#[test]
fn whoever_reads_only_the_first_lines_hears_no_complaint() {
    let mut child = demo().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut first = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("stdout"));
    lines.read_line(&mut first).expect("a line");
    assert!(first.starts_with("LCM demo"), "{first}");
    drop(lines);
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn told_to_stop_it_says_so_and_leaves_nothing_running() {
    let mut child = demo().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let act = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("Act 1"));
    assert!(act.is_some(), "it begins");
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(told.success());
    assert!(lines.map_while(Result::ok).all(|line| !line.starts_with("Act 5")), "it stops at once");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("Stopped in the middle"), "{ended:?}");
}
