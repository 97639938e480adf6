//! Cost of a replay: over decisions in memory, and from the lines of a file.

#[path = "../tests/support/fleet.rs"]
mod fleet;
#[path = "../tests/support/recorded_day.rs"]
mod recorded_day;

use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lcm_sdk::decide;
use lcm_sdk::history::{HistoryEncoder, HistoryReader, RecordedReconcile, ReplayPolicy, replay};

/// Number of workers, each of which is recorded once where every line differs from all others.
const WORKERS: usize = 10_000;

/// Number of workers of the day.
const FLEET: u32 = 200;

fn once(fleet: &[(lcm_sdk::Worker, lcm_sdk::Observation)]) -> Vec<RecordedReconcile> {
    let (policy, now) = (Arc::new(fleet::policy()), fleet::now());
    let record = |(worker, seen): &(_, _)| {
        let decision = decide(worker, seen, &policy, now);
        RecordedReconcile::new(worker, seen, Arc::clone(&policy), now, &decision, &[])
    };
    fleet.iter().map(record).collect()
}

fn bench(criterion: &mut Criterion) {
    let histories = [
        ("a day of 200 workers", recorded_day::recorded_day(FLEET)),
        ("10,000 workers once, nothing to do", once(&fleet::at_work(WORKERS))),
        ("10,000 workers once, one in ten to act on", once(&fleet::in_motion(WORKERS))),
    ];
    for (name, recorded) in histories {
        let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
        encoder.header(fleet::now(), &mut lines).expect("encodes");
        for reconcile in &recorded {
            encoder.reconcile(reconcile, &mut lines).expect("encodes");
        }
        let mut group =
            criterion.benchmark_group(format!("history of {name}, {} bytes a line", lines.len() / recorded.len()));
        group.throughput(Throughput::Elements(recorded.len() as u64));
        group.bench_function("replay in memory", |bencher| {
            bencher.iter(|| black_box(replay(recorded.iter().map(Ok), &ReplayPolicy::AsRecorded).expect("readable")));
        });
        group.bench_function("replay from lines", |bencher| {
            bencher.iter_batched(
                || HistoryReader::from_lines(Cursor::new(lines.clone())),
                |reader| black_box(replay(reader, &ReplayPolicy::AsRecorded).expect("readable")),
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function("encode", |bencher| {
            bencher.iter(|| {
                let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
                for reconcile in &recorded {
                    encoder.reconcile(reconcile, &mut lines).expect("encodes");
                }
                black_box(lines.len())
            });
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
