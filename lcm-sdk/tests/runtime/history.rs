//! The history file of a reconciler: complete, bounded, readable, and decided again without a difference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lcm_sdk::history::{
    HistoryError, HistoryLimits, HistoryReader, HistoryWriter, RecordedReconcile, ReplayPolicy, replay_path,
};
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::{DesiredStatus, Ec2State, Observation, Policy, Worker, WorkerStatus, decide};
use serde_json::json;

use super::harness::{Harness, worker_id};

/// A directory that is deleted at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lcm-history-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            std::fs::read_dir(&self.0).expect("a directory").map(|file| file.expect("an entry").path()).collect();
        files.sort();
        files
    }

    fn size(&self) -> u64 {
        self.files().iter().map(|file| file.metadata().expect("a file").len()).sum()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn read(path: &Path) -> Vec<RecordedReconcile> {
    HistoryReader::open(path).expect("a history").collect::<Result<_, _>>().expect("readable")
}

fn recorder(harness: &Harness, directory: &Directory) -> Reconciler {
    let writer = HistoryWriter::new(&directory.0, HistoryLimits::default()).expect("a directory");
    Reconciler::builder(harness.ports(), harness.policy.clone()).history(writer).build().expect("a supported policy")
}

/// A worker that should run is started, comes up, is stopped from outside, comes up again and is terminated.
async fn bad_day(harness: &Harness, reconciler: &Reconciler) {
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    let desire = |desired| harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(desired));
    let minutes = async |count: u32| {
        for _ in 0..count {
            let _ = harness.reconcile(reconciler, 1).await;
            harness.clock.advance(Duration::from_secs(60));
            harness.compute.settle();
        }
    };
    desire(DesiredStatus::Running);
    minutes(5).await;
    harness.compute.set_state(super::harness::REGION, &"i-1".into(), Ec2State::Stopped);
    minutes(5).await;
    desire(DesiredStatus::Terminated);
    minutes(5).await;
    assert_eq!(harness.record(1).status, WorkerStatus::Terminated);
}

#[tokio::test(start_paused = true)]
async fn history_of_a_day_is_replayed_without_a_difference() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let statuses: Vec<_> = read(&directory.0).iter().filter_map(|recorded| recorded.decision.to).collect();
    use WorkerStatus as Status;
    assert_eq!(
        statuses,
        [
            Status::Starting,
            Status::Running,
            Status::Stopped,
            Status::Starting,
            Status::Running,
            Status::Terminating,
            Status::Terminated
        ]
    );
    let replayed = replay_path(&directory.0, &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same(), "{:?}", replayed.differences);
}

#[tokio::test(start_paused = true)]
async fn changed_policy_shows_in_the_replay() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let respect = ReplayPolicy::Changed(json!({"external_stop_policy": "respect"}));
    let replayed = replay_path(&directory.0, &respect).expect("readable");
    assert_eq!((replayed.changed, replayed.by_reason()[&("drift", "external_stop")]), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn invalid_policy_is_refused() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let error = replay_path(&directory.0, &ReplayPolicy::Changed(json!({"drain_settle": -1}))).expect_err("invalid");
    assert_eq!(error.to_string(), "policy.drain_settle is -1 s; accepted: a time from 0 up");
}

#[tokio::test(start_paused = true)]
async fn reconciles_that_change_nothing_are_sampled() {
    let (harness, directory) = (Harness::new(), Directory::new());
    let reconciler = recorder(&harness, &directory);
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    for _ in 0..250 {
        let _ = harness.reconcile(&reconciler, 1).await;
    }
    drop(reconciler);
    assert_eq!(read(&directory.0).len(), 3);
}

fn at_rest(number: u64) -> RecordedReconcile {
    let (worker, seen) = (Worker::new(format!("w-{number}"), WorkerStatus::Stopped), Observation::default());
    let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse().expect("valid"));
    let decision = decide(&worker, &seen, &policy, now);
    RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[])
}

#[test]
fn dropped_writer_leaves_nothing_behind() {
    let directory = Directory::new();
    let writer = HistoryWriter::new(&directory.0, HistoryLimits::default()).expect("a directory");
    (0..1_000).for_each(|number| writer.write(at_rest(number)));
    let lost = writer.lost();
    drop(writer);
    assert_eq!((read(&directory.0).len(), lost), (1_000, 0));
}

#[tokio::test]
async fn flushed_history_is_in_the_file() {
    let directory = Directory::new();
    let writer = HistoryWriter::new(&directory.0, HistoryLimits::default()).expect("a directory");
    (0..100).for_each(|number| writer.write(at_rest(number)));
    assert!(writer.flush(Duration::from_secs(10)).await);
    assert_eq!(read(&directory.0).len(), 100);
}

#[tokio::test]
async fn size_of_a_history_is_bounded() {
    let directory = Directory::new();
    let mut limits = HistoryLimits::default();
    limits.max_bytes = 64 << 10;
    let writer = HistoryWriter::new(&directory.0, limits).expect("a directory");
    for number in 0..2_000 {
        writer.write(at_rest(number));
        if number % 500 == 0 {
            assert!(writer.flush(Duration::from_secs(10)).await);
        }
    }
    drop(writer);
    assert!(directory.size() <= limits.max_bytes, "{} bytes", directory.size());
    let kept = read(&directory.0);
    assert!(kept.len() > 20, "{} reconciles", kept.len());
    assert_eq!(kept.last(), Some(&at_rest(1_999)), "the oldest are deleted");
}

#[test]
fn torn_last_line_is_skipped() {
    let directory = Directory::new();
    let writer = HistoryWriter::new(&directory.0, HistoryLimits::default()).expect("a directory");
    (0..3).for_each(|number| writer.write(at_rest(number)));
    drop(writer);
    let file = directory.files().remove(0);
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, &text[..text.len() - 10]).expect("written");
    assert_eq!(read(&directory.0), [at_rest(0), at_rest(1)]);
}

#[test]
fn malformed_lines_are_named() {
    let lines = "{\"lcm_history\":1,\"version\":\"0.1.0\",\"started_at\":\"2026-02-06T08:00:00Z\"}\n{\"at\":7}\n";
    let error = HistoryReader::from_lines(lines.as_bytes()).next().expect("a line").expect_err("malformed");
    assert!(error.to_string().starts_with("(lines):2: invalid type: integer `7`"), "{error}");
}

#[test]
fn later_formats_are_refused() {
    let lines = "{\"lcm_history\":2,\"version\":\"9.0.0\",\"started_at\":\"2026-02-06T08:00:00Z\"}\n";
    let error = HistoryReader::from_lines(lines.as_bytes()).next().expect("a line").expect_err("too new");
    assert!(matches!(error, HistoryError::Version { found: 2, .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = Directory::new();
    let writer = HistoryWriter::new(&directory.0, HistoryLimits::default()).expect("a directory");
    writer.write(at_rest(1));
    drop(writer);
    let mode = directory.files()[0].metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
