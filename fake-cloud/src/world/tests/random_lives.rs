//! Random lives: whatever is done in whatever order, what EC2 promises holds.

use super::*;

#[test]
fn promises_hold_through_random_lives() {
    for seed in 0..60 {
        let world = World::new(Settings { seed, clock: Clock::new(Pace::Manual), ..Settings::default() });
        let mut rng = SeededRng::new(seed, "life");
        let mut ids: Vec<String> = Vec::new();
        let mut addresses = std::collections::BTreeMap::new();
        for _ in 0..120 {
            match rng.below(6) {
                0 if ids.len() < 12 => ids.push(launch(&world)),
                1 => pass(&world, rng.below(40)),
                2 => pass(&world, rng.below(4000)),
                _ if ids.is_empty() => {}
                wanted => {
                    let id = &ids[rng.below(ids.len() as u64) as usize];
                    let wanted = [Order::Start, Order::Stop, Order::Terminate][wanted as usize % 3];
                    let before = state(&world, id);
                    let allowed = order(&world, wanted, &[id]);
                    assert_eq!(
                        allowed.is_err() && before.is_some(),
                        is_refused(wanted, before, &world, id),
                        "{wanted:?} {before:?}"
                    );
                }
            }
            world.with_ec2(|ec2, now| {
                for instance in ec2.region(HERE, now).expect("a region").instances() {
                    let is_running = instance.state(now) == InstanceState::Running;
                    assert_eq!(instance.public_ip(now).is_some(), is_running);
                    if let Some(address) = instance.public_ip(now) {
                        let start = (instance.id.clone(), instance.launched_at);
                        assert_eq!(addresses.entry(address).or_insert(start.clone()), &start, "one address, one start");
                    }
                }
            });
        }
    }
}

/// The table of EC2's refusals, written down a second time. A refused order changes nothing, so it can be asked after it.
fn is_refused(order: Order, before: Option<&str>, world: &World, id: &str) -> bool {
    let has_run = || {
        world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").find(id).is_some_and(|one| one.has_run(now)))
    };
    match (order, before) {
        (_, None) | (Order::Terminate, _) => false,
        (Order::Start, Some(state)) => matches!(state, "stopping" | "shutting-down" | "terminated"),
        (Order::Stop, Some("pending")) => !has_run(),
        (Order::Stop | Order::Reboot, Some(state)) => matches!(state, "shutting-down" | "terminated"),
    }
}
