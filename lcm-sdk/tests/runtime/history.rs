//! The history file of a reconciler: complete, bounded, readable, and decided again without a difference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lcm_sdk::history::{
    Expected, HistoryError, HistoryLimits, HistoryReader, HistoryWriter, MAX_DIFFERENCES, RecordedDecision,
    RecordedReconcile, ReplayPolicy, replay, replay_paths, why,
};
use lcm_sdk::lifecycle::drain::Operation;
use lcm_sdk::lifecycle::{DrainRequest, ReasonCode};
use lcm_sdk::providers::memory::ComputeOperation;
use lcm_sdk::reconciler::Reconciler;
use lcm_sdk::{
    CallFailure, Decision, DesiredStatus, Ec2State, FailureKind, Observation, Policy, Timestamp, Worker, WorkerStatus,
    decide,
};
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
    let replayed = replay_paths(&[&directory.0], &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same(), "{:?}", replayed.differences);
}

#[tokio::test(start_paused = true)]
async fn operations_of_an_operator_are_replayed_without_a_difference() {
    let (harness, directory) = (Harness::new(), Directory::new());
    let reconciler = recorder(&harness, &directory);
    harness.worker(1, WorkerStatus::Running, Ec2State::Running);
    harness.session("s-1", "running", 1);
    let request = |reason: &str| DrainRequest { reason: reason.to_owned(), requested_by: "alice".to_owned() };
    let drained = reconciler.drain(&worker_id(1), &request("maintenance")).await.expect("drained");
    assert_eq!(drained.to_status, WorkerStatus::Draining);
    let _ = harness.reconcile(&reconciler, 1).await;
    let canceled = reconciler.cancel_drain(&worker_id(1), &request("class goes on")).await.expect("canceled");
    assert_eq!(canceled.to_status, WorkerStatus::Running);
    assert!(reconciler.cancel_drain(&worker_id(1), &request("again")).await.is_err());
    drop(reconciler);

    let recorded = read(&directory.0);
    let operations: Vec<_> = recorded.iter().filter_map(|recorded| recorded.operation.clone()).collect();
    assert_eq!(
        operations,
        [Operation::Drain(request("maintenance")), Operation::CancelDrain(request("class goes on"))]
    );
    assert_eq!(recorded[0].seen.sessions.found().map(Vec::len), Some(1));
    let replayed = replay_paths(&[&directory.0], &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same() && replayed.decisions >= 3, "{replayed:?}");

    // A version that drained without an announcement would differ.
    let mut silent = recorded[0].clone();
    silent.decision = RecordedDecision::from(&Decision { notices: Vec::new(), ..silent.decide(&Policy::default()) });
    let replayed = replay([Ok(silent)], &ReplayPolicy::AsRecorded).expect("valid");
    assert_eq!(replayed.changed, 1, "{replayed:?}");
}

#[tokio::test(start_paused = true)]
async fn changed_policy_shows_in_the_replay() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let respect = ReplayPolicy::Changed(json!({"external_stop_policy": "respect"}));
    let replayed = replay_paths(&[&directory.0], &respect).expect("readable");
    assert_eq!((replayed.changed, replayed.by_reason()[&("drift", "external_stop")]), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn invalid_policy_is_refused() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let error =
        replay_paths(&[&directory.0], &ReplayPolicy::Changed(json!({"drain_settle": -1}))).expect_err("invalid");
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

/// Writes of two processes, which share nothing but the directory.
#[tokio::test]
async fn writers_of_one_directory_keep_their_files() {
    let directory = Directory::new();
    let mut limits = HistoryLimits::default();
    limits.max_bytes = 128 << 10;
    let writers = [(); 2].map(|()| HistoryWriter::new(&directory.0, limits).expect("a directory"));
    let [quiet, busy] = &writers;
    quiet.write(at_rest(0));
    assert!(quiet.flush(Duration::from_secs(10)).await);
    for number in 1..=2_000 {
        busy.write(at_rest(number));
        if number % 200 == 0 {
            assert!(busy.flush(Duration::from_secs(10)).await);
            assert!(directory.size() <= limits.max_bytes, "{} bytes", directory.size());
        }
    }
    quiet.write(at_rest(2_001));
    let lost = writers.iter().map(HistoryWriter::lost).sum::<u64>();
    drop(writers);
    let kept = read(&directory.0);
    let has = |number| kept.iter().any(|recorded| recorded.worker.id == at_rest(number).worker.id);
    assert!(has(0) && has(2_000) && has(2_001), "{} reconciles", kept.len());
    assert_eq!((has(1), lost), (false, 0), "the oldest of those that are closed are deleted");
}

#[tokio::test]
async fn size_of_a_history_is_bounded_for_any_number_of_writers() {
    let directory = Directory::new();
    let mut limits = HistoryLimits::default();
    limits.max_bytes = 256 << 10;
    let writers: Vec<_> = (0..12).map(|_| HistoryWriter::new(&directory.0, limits).expect("a directory")).collect();
    for number in 0..200 {
        for (index, writer) in writers.iter().enumerate() {
            writer.write(at_rest(1_000 * index as u64 + number));
        }
        if number % 50 == 0 {
            for writer in &writers {
                assert!(writer.flush(Duration::from_secs(10)).await);
            }
            assert!(directory.size() <= limits.max_bytes, "{} bytes", directory.size());
        }
    }
    drop(writers);
    assert!(directory.size() <= limits.max_bytes, "{} bytes", directory.size());
    let kept = read(&directory.0);
    for index in 0..12 {
        let last = at_rest(1_000 * index + 199);
        assert!(kept.contains(&last), "writer {index} has no room");
    }
}

#[tokio::test]
async fn old_files_are_deleted_though_nothing_is_written() {
    let directory = Directory::new();
    let mut limits = HistoryLimits::default();
    limits.max_age = Duration::from_millis(400);
    let writer = HistoryWriter::new(&directory.0, limits).expect("a directory");
    writer.write(at_rest(1));
    assert!(writer.flush(Duration::from_secs(10)).await);
    assert_eq!(directory.files().len(), 1);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !directory.files().is_empty() {
        assert!(std::time::Instant::now() < until, "{:?} is still there", directory.files());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    writer.write(at_rest(2));
    assert!(writer.flush(Duration::from_secs(10)).await);
    assert_eq!(read(&directory.0), [at_rest(2)]);
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

/// Written by the first version that recorded.
const FORMAT_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime/recordings/format-1.ndjson");

#[test]
fn files_of_earlier_formats_are_replayed() {
    let recorded = read(Path::new(FORMAT_1));
    assert!(recorded.iter().any(|line| line.operation.is_some()), "an operation of an operator");
    assert!(recorded.iter().any(|line| line.seen.instance.failure().is_some()), "a call that failed");
    assert!(recorded.iter().any(|line| !line.decision.effects().is_empty()), "an effect");
    assert!(recorded.iter().any(|line| !line.decision.notices().is_empty()), "an event");
    let replayed = replay_paths(&[FORMAT_1], &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same(), "{:?} {:?}", replayed.differences.first(), replayed.undecided);
    assert_eq!(replayed.decisions, recorded.len() as u64);
}

#[test]
fn unknown_fields_of_another_version_are_skipped_and_named() {
    let lines = std::fs::read_to_string(FORMAT_1).expect("text");
    let lines = [
        ("\"fields\":{", "\"patience\":7,"),
        ("\"scale_down\":{", "\"haste\":true,"),
        ("\"seen\":{", "\"weather\":1,"),
    ]
    .into_iter()
    .fold(lines, |lines, (place, field)| lines.replacen(place, &format!("{place}{field}"), 1));
    assert!(lines.contains("patience") && lines.contains("haste") && lines.contains("weather"));
    let mut reader = HistoryReader::from_lines(std::io::Cursor::new(lines.into_bytes()));
    let replayed = replay(&mut reader, &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same() && replayed.decisions > 5, "{replayed:?}");
    let [warning] = reader.warnings() else { panic!("{:?}", reader.warnings()) };
    assert!(warning.ends_with(": this version does not know patience, scale_down.haste: skipped"), "{warning}");
}

#[tokio::test(start_paused = true)]
async fn chain_leads_to_the_status_at_a_time() {
    let (harness, directory) = (Harness::new(), Directory::new());
    let reconciler = recorder(&harness, &directory);
    bad_day(&harness, &reconciler).await;
    drop(reconciler);
    let at =
        |minutes: u64| "2026-02-06T08:00:30Z".parse::<Timestamp>().expect("valid") + Duration::from_secs(60 * minutes);
    let chain = |minutes| {
        let reader = HistoryReader::open(&directory.0).expect("a history");
        let steps = why(reader, &worker_id(1), at(minutes)).expect("readable");
        steps.iter().map(|step| (step.from_status, step.to_status, step.reason.code.clone())).collect::<Vec<_>>()
    };
    use WorkerStatus as Status;
    let started = (Status::Stopped, Status::Starting, "start_requested".to_owned());
    assert_eq!(chain(0), std::slice::from_ref(&started));
    assert_eq!(chain(1), [started, (Status::Starting, Status::Running, "up".to_owned())]);
    assert_eq!(chain(5).last(), Some(&(Status::Running, Status::Stopped, "drift".to_owned())), "stopped from outside");
    assert!(chain(5).iter().all(|step| step.0 == Status::Running), "it begins after the worker was in service");
    assert_eq!(chain(20).last().map(|step| step.1), Some(Status::Terminated));

    let reader = HistoryReader::open(&directory.0).expect("a history");
    let first = why(reader, &worker_id(1), at(0)).expect("readable").remove(0);
    assert_eq!(
        (first.effects.as_slice(), first.results.as_slice()),
        (["start_instance i-1".to_owned()].as_slice(), ["done".to_owned()].as_slice())
    );
    assert_eq!(first.observed[0].found, "i-1 is stopped, at 10.0.0.1");
    let none = |worker: u8, at| {
        let reader = HistoryReader::open(&directory.0).expect("a history");
        why(reader, &worker_id(worker), at).expect("readable").is_empty()
    };
    assert!(none(2, at(20)) && none(1, at(0) - Duration::from_secs(3600)));
}

#[tokio::test(start_paused = true)]
async fn failed_effects_show_in_the_chain() {
    let (harness, directory) = (Harness::new(), Directory::new());
    let reconciler = recorder(&harness, &directory);
    harness.worker(1, WorkerStatus::Stopped, Ec2State::Stopped);
    harness.control_plane.edit(&worker_id(1), |worker| worker.desired_status = Some(DesiredStatus::Running));
    for _ in 0..2 {
        harness.compute.fail_next(ComputeOperation::Start, CallFailure::new(FailureKind::Throttled, "slow down"));
    }
    for _ in 0..3 {
        let _ = harness.reconcile(&reconciler, 1).await;
    }
    drop(reconciler);
    let reader = HistoryReader::open(&directory.0).expect("a history");
    let chain =
        why(reader, &worker_id(1), harness.record(1).updated_at.unwrap_or(Timestamp::MAX_UTC)).expect("readable");
    let [failed, started] = chain.as_slice() else { panic!("{chain:?}") };
    assert_eq!(
        (failed.from_status, failed.to_status, failed.repeats),
        (WorkerStatus::Stopped, WorkerStatus::Stopped, 1)
    );
    assert!(failed.results[0].starts_with("failed: "), "{failed}");
    assert_eq!(started.to_status, WorkerStatus::Starting);
    let replayed = replay_paths(&[&directory.0], &ReplayPolicy::AsRecorded).expect("readable");
    assert!(replayed.is_same(), "{:?}", replayed.differences.first());
}

#[tokio::test(start_paused = true)]
async fn expectations_cover_their_reason_and_their_worker() {
    let (harness, directory) = (Harness::new(), Directory::new());
    bad_day(&harness, &recorder(&harness, &directory)).await;
    let respect = ReplayPolicy::Changed(json!({"external_stop_policy": "respect"}));
    let replayed = replay_paths(&[&directory.0], &respect).expect("readable");
    let left = |expected: &[Expected]| replayed.unexpected(expected).len();
    assert_eq!(left(&[]), 1);
    assert_eq!(left(&[Expected::Reason(ReasonCode::Up), Expected::Worker(worker_id(2))]), 1);
    for expected in [
        Expected::Reason(ReasonCode::Drift),
        Expected::Reason(ReasonCode::ExternalStop),
        Expected::Worker(worker_id(1)),
    ] {
        assert_eq!(left(std::slice::from_ref(&expected)), 0, "{expected:?}");
    }
}

#[test]
fn summary_counts_all_differences() {
    let mut worker = Worker::new("w-1", WorkerStatus::Stopped);
    worker.ec2_instance_id = Some("i-1".into());
    let seen = Observation::with_instance_state("i-1", Ec2State::Stopped);
    let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse().expect("valid"));
    let decision = decide(&worker, &seen, &policy, now);
    let mut wrong = RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[]);
    wrong.decision.reason = "drift".to_owned();
    let count = MAX_DIFFERENCES as u64 + 7;
    let replayed = replay((0..count).map(|_| Ok(&wrong)), &ReplayPolicy::AsRecorded).expect("valid");
    assert_eq!((replayed.changed, replayed.differences.len()), (count, MAX_DIFFERENCES));
    let reason = wrong.decide(&Policy::default()).reason.code.as_str();
    assert_eq!(replayed.by_reason()[&("drift", reason)], count);
    assert_eq!(replayed.by_worker()[&worker_id(1)], count);
    let json = serde_json::to_value(&replayed).expect("serializes");
    assert_eq!(
        json["summary"],
        json!([{"worker": "w-1", "recorded": "drift", "replayed": reason, "decisions": count}])
    );
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
