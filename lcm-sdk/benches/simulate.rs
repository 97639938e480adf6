//! Time of a simulation: a large fleet for a month, and a small one for a day, as a notebook runs it.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lcm_sdk::Policy;
use lcm_sdk::lifecycle::ScaleDownPolicy;
use lcm_sdk::simulate::{Events, Fleet, run};

fn bench(criterion: &mut Criterion) {
    let policy = Policy { scale_down: ScaleDownPolicy::new(5), ..Policy::default() };
    let mut group = criterion.benchmark_group("simulate");
    group.sample_size(10);
    for (name, workers, hours, per_hour) in
        [("1,000 workers for 30 days", 1_000, 720.0, 400.0), ("50 workers for a day", 50, 24.0, 20.0)]
    {
        let mut events = Events::default();
        events.sessions_per_hour = per_hour;
        events.fault_rate = 0.01;
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(run(&Fleet::new(workers), &events, &policy, hours, 7).expect("valid")));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
