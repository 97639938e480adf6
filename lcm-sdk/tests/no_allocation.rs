//! A reconcile in which nothing is to be done allocates nothing.

#[path = "support/fleet.rs"]
mod fleet;

use std::hint::black_box;

use lcm_sdk::{decide, queries};

fn allocations(fleet: &[(lcm_sdk::Worker, lcm_sdk::Observation)]) -> u64 {
    let (policy, now) = (fleet::policy(), fleet::now());
    allocation_counter::measure(|| {
        for (worker, seen) in fleet {
            black_box(queries(worker, seen, &policy, now));
            drop(black_box(decide(worker, seen, &policy, now)));
        }
    })
    .count_total
}

#[test]
fn no_op_decisions_allocate_nothing() {
    let fleet = fleet::at_work(1_000);
    for (worker, seen) in &fleet {
        let decision = decide(worker, seen, &fleet::policy(), fleet::now());
        assert!(decision.does_nothing(), "{worker:?}: {decision:?}");
    }
    assert_eq!(allocations(&fleet), 0);
}

#[test]
fn allocations_are_counted() {
    assert!(allocations(&fleet::in_motion(1_000)) >= 100);
}
