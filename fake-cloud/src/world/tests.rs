//! The rules of EC2, on a clock moved by hand.

mod random_lives;
mod tokens;

use std::time::Duration;

use super::*;
use crate::clock::Pace;

const HERE: &str = "us-east-1";

fn world() -> World {
    World::new(Settings { clock: Clock::new(Pace::Manual), ..Settings::default() })
}

fn pass(world: &World, seconds: u64) {
    world.clock().advance(Duration::from_secs(seconds));
}

fn wish(world: &World) -> LaunchRequest {
    let image = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").catalog.images[0].id.clone());
    LaunchRequest::new(image)
}

fn try_launch(world: &World, wish: LaunchRequest) -> Result<Launch, AwsError> {
    world.with_ec2(|ec2, now| ec2.launch(HERE, wish, Intent::Execute, now))
}

fn launch(world: &World) -> String {
    try_launch(world, wish(world)).expect("it launches").instances[0].id.clone()
}

fn select(world: &World, query: &InstanceQuery, view: &View) -> Result<Vec<String>, AwsError> {
    world.with_ec2(|ec2, now| {
        let page = ec2.region(HERE, now)?.select(query, view, now)?;
        Ok(page.items.iter().map(|instance| instance.id.clone()).collect())
    })
}

fn state(world: &World, id: &str) -> Option<&'static str> {
    world.with_ec2(|ec2, now| {
        ec2.region(HERE, now).expect("a region").find(id).map(|instance| instance.state(now).name())
    })
}

fn public_ip(world: &World, id: &str) -> Option<std::net::Ipv4Addr> {
    world.with_ec2(|ec2, now| {
        ec2.region(HERE, now).expect("a region").find(id).and_then(|instance| instance.public_ip(now))
    })
}

fn order(world: &World, order: Order, ids: &[&str]) -> Result<Vec<(&'static str, &'static str)>, AwsError> {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let changes = world.with_ec2(|ec2, now| ec2.order(HERE, &ids, order, Intent::Execute, &View::default(), now))?;
    Ok(changes.iter().map(|change| (change.previous.name(), change.current.name())).collect())
}

fn by_id(id: &str) -> InstanceQuery {
    InstanceQuery { ids: vec![id.to_owned()], ..InstanceQuery::default() }
}

#[test]
fn an_instance_goes_through_its_whole_life_with_the_clock() {
    let world = world();
    let id = launch(&world);
    assert_eq!(state(&world, &id), Some("pending"));
    pass(&world, 14);
    assert_eq!(state(&world, &id), Some("pending"));
    pass(&world, 1);
    assert_eq!(state(&world, &id), Some("running"));

    assert_eq!(order(&world, Order::Stop, &[&id]), Ok(vec![("running", "stopping")]));
    pass(&world, 20);
    assert_eq!(state(&world, &id), Some("stopped"));
    assert_eq!(order(&world, Order::Start, &[&id]), Ok(vec![("stopped", "pending")]));
    pass(&world, 15);
    assert_eq!(order(&world, Order::Terminate, &[&id]), Ok(vec![("running", "shutting-down")]));
    pass(&world, 20);
    assert_eq!(state(&world, &id), Some("terminated"));
    assert_eq!(order(&world, Order::Terminate, &[&id]), Ok(vec![("terminated", "terminated")]));
    pass(&world, 3599);
    assert_eq!(state(&world, &id), Some("terminated"));
    pass(&world, 1);
    assert_eq!(state(&world, &id), None);
    assert_eq!(select(&world, &by_id(&id), &View::default()).expect_err("gone").code, "InvalidInstanceID.NotFound");
}

#[test]
fn a_terminated_instance_is_seen_for_an_hour_once_however_often_it_is_terminated() {
    let world = world();
    let id = launch(&world);
    order(&world, Order::Terminate, &[&id]).expect("it ends");
    pass(&world, 1800);
    order(&world, Order::Terminate, &[&id]).expect("it has ended");
    pass(&world, 1820);
    assert_eq!(state(&world, &id), None);
}

#[test]
fn orders_from_the_wrong_state_are_refused() {
    let world = world();
    let id = launch(&world);
    let refused = |wanted: Order| order(&world, wanted, &[&id]).expect_err("refused");
    let error = refused(Order::Stop);
    assert_eq!(error.code, "IncorrectInstanceState");
    assert_eq!(
        error.message,
        format!("Instance '{id}' cannot be stopped as it has never reached the 'running' state.")
    );
    pass(&world, 15);
    order(&world, Order::Stop, &[&id]).expect("it stops");
    assert_eq!(
        refused(Order::Start).message,
        format!("The instance '{id}' is not in a state from which it can be started")
    );
    assert_eq!(order(&world, Order::Stop, &[&id]), Ok(vec![("stopping", "stopping")]));
    pass(&world, 20);
    assert_eq!(refused(Order::Reboot).code, "IncorrectInstanceState");
    assert_eq!(order(&world, Order::Stop, &[&id]), Ok(vec![("stopped", "stopped")]));
    order(&world, Order::Terminate, &[&id]).expect("it ends");
    for wanted in [Order::Start, Order::Stop, Order::Reboot] {
        assert_eq!(refused(wanted).code, "IncorrectInstanceState");
    }
}

#[test]
fn starting_what_runs_and_what_starts_is_fine() {
    let world = world();
    let id = launch(&world);
    assert_eq!(order(&world, Order::Start, &[&id]), Ok(vec![("pending", "pending")]));
    pass(&world, 15);
    assert_eq!(order(&world, Order::Start, &[&id]), Ok(vec![("running", "running")]));
}

#[test]
fn one_bad_id_stops_the_whole_order() {
    let world = world();
    let good = launch(&world);
    pass(&world, 15);
    for (bad, code) in [("i-12345678", "InvalidInstanceID.NotFound"), ("banana", "InvalidInstanceID.Malformed")] {
        assert_eq!(order(&world, Order::Terminate, &[&good, bad]).expect_err("refused").code, code);
        assert_eq!(state(&world, &good), Some("running"));
    }
    let fresh = launch(&world);
    assert_eq!(order(&world, Order::Stop, &[&good, &fresh]).expect_err("refused").code, "IncorrectInstanceState");
    assert_eq!(state(&world, &good), Some("running"));
}

#[test]
fn the_outside_address_goes_on_stop_and_is_another_one_after_a_start() {
    let world = world();
    let id = launch(&world);
    assert_eq!(public_ip(&world, &id), None);
    pass(&world, 15);
    let first = public_ip(&world, &id).expect("it runs");
    order(&world, Order::Stop, &[&id]).expect("it stops");
    assert_eq!(public_ip(&world, &id), None);
    pass(&world, 20);
    order(&world, Order::Start, &[&id]).expect("it starts");
    pass(&world, 15);
    let second = public_ip(&world, &id).expect("it runs again");
    assert_ne!(first, second);
    assert!(second.is_loopback());
}

#[test]
fn the_same_token_launches_once() {
    let world = world();
    let wish = LaunchRequest { client_token: Some("token".to_owned()), max_count: 2, ..wish(&world) };
    let first = try_launch(&world, wish.clone()).expect("it launches");
    pass(&world, 60);
    let again = try_launch(&world, wish.clone()).expect("it finds it");
    assert_eq!(first.reservation_id, again.reservation_id);
    assert_eq!(again.novelty, Novelty::Known);
    assert_eq!(select(&world, &InstanceQuery::default(), &View::default()).expect("a list").len(), 2);

    let other = LaunchRequest { instance_type: "c5.large".to_owned(), ..wish.clone() };
    assert_eq!(try_launch(&world, other).expect_err("refused").code, "IdempotentParameterMismatch");
    let elsewhere = world.with_ec2(|ec2, now| {
        let image = ec2.region("eu-west-1", now)?.catalog.images[0].id.clone();
        let wish = LaunchRequest { image_id: image, ..wish.clone() };
        ec2.launch("eu-west-1", wish, Intent::Execute, now)
    });
    assert_eq!(elsewhere.expect("tokens are a region's own").novelty, Novelty::New);
}

#[test]
fn the_token_of_a_terminated_instance_is_spent_for_a_day() {
    let world = world();
    let wish = LaunchRequest { client_token: Some("token".to_owned()), ..wish(&world) };
    let id = try_launch(&world, wish.clone()).expect("it launches").instances[0].id.clone();
    order(&world, Order::Terminate, &[&id]).expect("it ends");
    let refused = |world: &World| try_launch(world, wish.clone()).expect_err("refused").code;
    assert_eq!(refused(&world), "IdempotentInstanceTerminated");
    pass(&world, 20 + 3600 + 10);
    assert_eq!(state(&world, &id), None);
    assert_eq!(refused(&world), "IdempotentInstanceTerminated");
    pass(&world, 23 * 3600 - 10 - 1);
    assert_eq!(refused(&world), "IdempotentInstanceTerminated");
    pass(&world, 1);
    assert_eq!(try_launch(&world, wish).expect("forgotten by now").novelty, Novelty::New);
}

#[test]
fn what_cannot_be_launched_is_refused_in_ec2s_words() {
    let world = world();
    let good = || wish(&world);
    for (bad, code) in [
        (LaunchRequest { image_id: "ami-12345678".to_owned(), ..good() }, "InvalidAMIID.NotFound"),
        (LaunchRequest { image_id: "banana".to_owned(), ..good() }, "InvalidAMIID.Malformed"),
        (LaunchRequest { subnet_id: Some("subnet-1".to_owned()), ..good() }, "InvalidSubnetID.NotFound"),
        (LaunchRequest { groups: vec!["sg-1".to_owned()], ..good() }, "InvalidGroup.NotFound"),
        (LaunchRequest { min_count: 0, ..good() }, "InvalidParameterValue"),
        (LaunchRequest { min_count: 3, max_count: 2, ..good() }, "InvalidParameterValue"),
        (LaunchRequest { max_count: 1001, ..good() }, "InstanceLimitExceeded"),
        (LaunchRequest { instance_type: "huge".to_owned(), ..good() }, "InvalidParameterValue"),
        (LaunchRequest { client_token: Some("t".repeat(65)), ..good() }, "InvalidParameterValue"),
    ] {
        assert_eq!(try_launch(&world, bad).expect_err(code).code, code);
    }
    assert!(select(&world, &InstanceQuery::default(), &View::default()).expect("a list").is_empty());
}

#[test]
fn a_rehearsal_checks_everything_and_changes_nothing() {
    let world = world();
    let rehearse =
        |wish| world.with_ec2(|ec2, now| ec2.launch(HERE, wish, Intent::DryRun, now)).expect_err("a dry run");
    assert_eq!(rehearse(wish(&world)).code, "DryRunOperation");
    assert_eq!(rehearse(LaunchRequest::new("ami-12345678")).code, "InvalidAMIID.NotFound");
    assert!(select(&world, &InstanceQuery::default(), &View::default()).expect("a list").is_empty());
}

#[test]
fn all_unknown_ids_are_named() {
    let world = world();
    let query = InstanceQuery { ids: ["i-00000001", "i-00000002"].map(str::to_owned).to_vec(), ..Default::default() };
    let error = select(&world, &query, &View::default()).expect_err("refused");
    assert_eq!(error.message, "The instance IDs 'i-00000001, i-00000002' do not exist");
}

#[test]
fn a_young_instance_hides_from_ids_and_lists_until_the_lag_is_over() {
    let world = world();
    let id = launch(&world);
    let lag = Hidden { instance: None, reason: HiddenReason::Young(Duration::from_secs(5)) };
    let view = View { hidden: vec![lag], ..View::default() };
    assert_eq!(select(&world, &by_id(&id), &view).expect_err("hidden").code, "InvalidInstanceID.NotFound");
    assert!(select(&world, &InstanceQuery::default(), &view).expect("a list").is_empty());
    pass(&world, 5);
    assert_eq!(select(&world, &by_id(&id), &view), Ok(vec![id]));
}

#[test]
fn a_list_that_omits_still_finds_by_id() {
    let world = world();
    let (omitted, kept) = (launch(&world), launch(&world));
    let reason = HiddenReason::LeftOut { probability: 1.0, roll: 0 };
    let view = View { hidden: vec![Hidden { instance: Some(omitted.clone()), reason }], ..View::default() };
    assert_eq!(select(&world, &InstanceQuery::default(), &view), Ok(vec![kept]));
    assert_eq!(select(&world, &by_id(&omitted), &view), Ok(vec![omitted]));
}

#[test]
fn tags_change_all_or_nothing() {
    let world = world();
    let id = launch(&world);
    let added = [("a".to_owned(), "1".to_owned())];
    let tag = |ids: &[String]| {
        world.with_ec2(|ec2, now| {
            ec2.region(HERE, now)?.create_tags(ids, &added, Intent::Execute, &View::default(), now)
        })
    };
    let tags = || {
        world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").find(&id).expect("it is there").tags.clone())
    };
    assert_eq!(tag(&[id.clone(), "i-12345678".to_owned()]).expect_err("refused").code, "InvalidInstanceID.NotFound");
    assert!(tags().is_empty());
    tag(std::slice::from_ref(&id)).expect("tagged");
    assert_eq!(tags().get("a").map(String::as_str), Some("1"));

    let remove = |value: Option<&str>| {
        let removals = [TagRemoval { key: "a".to_owned(), value: value.map(str::to_owned) }];
        world.with_ec2(|ec2, now| {
            ec2.region(HERE, now)?.delete_tags(
                std::slice::from_ref(&id),
                &removals,
                Intent::Execute,
                &View::default(),
                now,
            )
        })
    };
    remove(Some("another value")).expect("nothing to do");
    assert_eq!(tags().len(), 1);
    remove(None).expect("removed");
    assert!(tags().is_empty());
}

#[test]
fn hands_act_without_leaving_a_record() {
    let world = world();
    let id = launch(&world);
    pass(&world, 15);
    world.hand_tag(HERE, &id, "owner", "somebody").expect("tagged");
    assert_eq!(world.hand_order(HERE, &id, Order::Stop).expect("stopped").current, InstanceState::Stopping);
    assert!(world.hand_order(HERE, "i-12345678", Order::Stop).is_err());
    assert_eq!(world.request_log().total(), 0);
}

#[test]
fn the_same_seed_makes_the_same_world_and_another_one_another() {
    let first = |seed| {
        let world = World::new(Settings { seed, clock: Clock::new(Pace::Manual), ..Settings::default() });
        (launch(&world), launch(&world), world.request_id())
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn a_reset_world_is_empty() {
    let world = world();
    let id = launch(&world);
    world.faults().add(crate::faults::Rule::always(crate::faults::Action::Reset)).expect("a good rule");
    world.reset();
    assert_eq!(state(&world, &id), None);
    assert!(world.faults().list().is_empty());
}

#[test]
fn many_instances_come_and_go_without_a_trace() {
    let world = world();
    let wish = LaunchRequest { min_count: 1000, max_count: 1000, ..wish(&world) };
    for _ in 0..3 {
        let launch = try_launch(&world, wish.clone()).expect("it launches");
        let ids: Vec<&str> = launch.instances.iter().map(|instance| instance.id.as_str()).collect();
        order(&world, Order::Terminate, &ids).expect("they end");
        pass(&world, 4000);
    }
    world.with_ec2(|ec2, now| {
        let region = ec2.region(HERE, now).expect("a region");
        assert!(region.instances.is_empty() && region.by_id.is_empty() && region.departures.is_empty());
    });
}

#[test]
fn a_launch_can_be_stopped_before_it_runs_where_the_settings_say_so() {
    let settings = Settings {
        clock: Clock::new(Pace::Manual),
        stop_while_pending: StopWhilePending::Allowed,
        ..Settings::default()
    };
    let world = World::new(settings);
    let id = launch(&world);
    assert_eq!(order(&world, Order::Stop, &[&id]), Ok(vec![("pending", "stopping")]));
    pass(&world, 20);
    assert_eq!(state(&world, &id), Some("stopped"));
}

#[test]
fn an_instance_is_found_by_the_address_it_runs_at_and_only_while_it_runs() {
    let world = world();
    let id = launch(&world);
    pass(&world, 15);
    let address = public_ip(&world, &id).expect("it runs");
    let found = |world: &World| {
        world.with_ec2(|ec2, now| ec2.at_address(address, now).map(|(region, instance)| (region, instance.id.clone())))
    };
    assert_eq!(found(&world), Some((HERE, id.clone())));
    order(&world, Order::Stop, &[&id]).expect("it stops");
    assert_eq!(found(&world), None);
}

#[test]
fn orders_are_news_and_looking_is_none() {
    let world = world();
    let orders = world.orders();
    let id = launch(&world);
    let sequence = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").find(&id).map(|it| it.sequence));
    let told = vec![Told { region: HERE, sequence: sequence.expect("launched") }];
    assert_eq!(orders.take().told, told);
    pass(&world, 15);
    assert_eq!(state(&world, &id), Some("running"));
    order(&world, Order::Start, &[&id]).expect("it runs already");
    assert_eq!(orders.take(), News::default());
    order(&world, Order::Stop, &[&id]).expect("it stops");
    assert_eq!(orders.take().told, told);
    launch(&world);
    world.reset();
    launch(&world);
    let News { began_anew, told } = orders.take();
    assert!(began_anew && told.len() == 1, "what was before the beginning is no news");
}
