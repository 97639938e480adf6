//! Cost of a decision, over a mixed fleet.

#[path = "../tests/support/fleet.rs"]
mod fleet;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lcm_sdk::{decide, queries};

const WORKERS: usize = 10_000;

fn bench(criterion: &mut Criterion) {
    let (policy, now) = (fleet::policy(), fleet::now());
    let mut group = criterion.benchmark_group("mixed fleet of 10,000");
    group.throughput(Throughput::Elements(WORKERS as u64));
    for (name, fleet) in
        [("nothing to do", fleet::at_work(WORKERS)), ("one in ten to act on", fleet::in_motion(WORKERS))]
    {
        group.bench_function(format!("decide, {name}"), |bencher| {
            bencher.iter(|| {
                for (worker, seen) in &fleet {
                    drop(black_box(decide(black_box(worker), black_box(seen), &policy, now)));
                }
            });
        });
        group.bench_function(format!("queries, {name}"), |bencher| {
            bencher.iter(|| {
                for (worker, seen) in &fleet {
                    black_box(queries(black_box(worker), black_box(seen), &policy, now));
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
