//! Tokens of launches that made several instances.

use super::*;

#[test]
fn a_token_lives_as_long_as_anything_it_launched() {
    let world = world();
    let wish = LaunchRequest { client_token: Some("pair".to_owned()), max_count: 2, ..wish(&world) };
    let pair = try_launch(&world, wish.clone()).expect("it launches").instances;
    pass(&world, 60);
    order(&world, Order::Terminate, &[&pair[0].id]).expect("one ends");
    // The one that ended is out of sight and its day is over; the other one runs.
    pass(&world, 3600 * 48);
    assert_eq!(state(&world, &pair[0].id), None);
    pass(&world, 3600 * 48);
    let again = try_launch(&world, wish).expect("found");
    assert_eq!((again.novelty, again.instances.len()), (Novelty::Known, 1));
    assert_eq!(again.instances[0].id, pair[1].id);
}
