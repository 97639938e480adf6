//! Cost of a replay: over decisions in memory, and from the lines of a file.

#[path = "../tests/support/fleet.rs"]
mod fleet;

use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lcm_sdk::decide;
use lcm_sdk::history::{HistoryEncoder, HistoryReader, RecordedReconcile, ReplayPolicy, replay};

const DECISIONS: usize = 10_000;

fn bench(criterion: &mut Criterion) {
    let (policy, now) = (Arc::new(fleet::policy()), fleet::now());
    let mut group = criterion.benchmark_group("history of 10,000 decisions");
    group.throughput(Throughput::Elements(DECISIONS as u64));
    for (name, fleet) in
        [("nothing to do", fleet::at_work(DECISIONS)), ("one in ten to act on", fleet::in_motion(DECISIONS))]
    {
        let recorded: Vec<_> = fleet
            .iter()
            .map(|(worker, seen)| {
                let decision = decide(worker, seen, &policy, now);
                RecordedReconcile::new(worker, seen, Arc::clone(&policy), now, &decision, &[])
            })
            .collect();
        let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
        encoder.header(now, &mut lines).expect("encodes");
        for reconcile in &recorded {
            encoder.reconcile(reconcile, &mut lines).expect("encodes");
        }
        group.bench_function(format!("replay in memory, {name}"), |bencher| {
            bencher.iter(|| black_box(replay(recorded.iter().map(Ok), &ReplayPolicy::AsRecorded).expect("readable")));
        });
        group.bench_function(format!("replay from lines, {name}"), |bencher| {
            bencher.iter_batched(
                || HistoryReader::from_lines(Cursor::new(lines.clone())),
                |reader| black_box(replay(reader, &ReplayPolicy::AsRecorded).expect("readable")),
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function(format!("encode, {name}"), |bencher| {
            bencher.iter(|| {
                let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
                for reconcile in &recorded {
                    encoder.reconcile(reconcile, &mut lines).expect("encodes");
                }
                black_box(lines.len())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
