//! Tests of the rules of EC2 on a manual clock.

use std::time::Duration;

use super::*;
use crate::clock::Pace;

const HERE: &str = "us-east-1";

fn world() -> World {
    World::new(Settings { clock: Clock::new(Pace::Manual), ..Settings::default() })
}

fn advance(world: &World, seconds: u64) {
    world.clock().advance(Duration::from_secs(seconds));
}

fn launch_request(world: &World) -> LaunchRequest {
    let image = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").catalog.images[0].id.clone());
    LaunchRequest::new(image)
}

fn try_launch(world: &World, request: LaunchRequest) -> Result<Launch, AwsError> {
    world.with_ec2(|ec2, now| ec2.launch(HERE, request, Intent::Execute, now))
}

fn launch(world: &World) -> String {
    try_launch(world, launch_request(world)).expect("it launches").instances[0].id.clone()
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

fn change_state(
    world: &World,
    action: InstanceAction,
    ids: &[&str],
) -> Result<Vec<(&'static str, &'static str)>, AwsError> {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let changes =
        world.with_ec2(|ec2, now| ec2.change_state(HERE, &ids, action, Intent::Execute, &View::default(), now))?;
    Ok(changes.iter().map(|change| (change.previous.name(), change.current.name())).collect())
}

fn by_id(id: &str) -> InstanceQuery {
    InstanceQuery { ids: vec![id.to_owned()], ..InstanceQuery::default() }
}

#[test]
fn instance_states_follow_the_clock() {
    let world = world();
    let id = launch(&world);
    assert_eq!(state(&world, &id), Some("pending"));
    advance(&world, 14);
    assert_eq!(state(&world, &id), Some("pending"));
    advance(&world, 1);
    assert_eq!(state(&world, &id), Some("running"));

    assert_eq!(change_state(&world, InstanceAction::Stop, &[&id]), Ok(vec![("running", "stopping")]));
    advance(&world, 20);
    assert_eq!(state(&world, &id), Some("stopped"));
    assert_eq!(change_state(&world, InstanceAction::Start, &[&id]), Ok(vec![("stopped", "pending")]));
    advance(&world, 15);
    assert_eq!(change_state(&world, InstanceAction::Terminate, &[&id]), Ok(vec![("running", "shutting-down")]));
    advance(&world, 20);
    assert_eq!(state(&world, &id), Some("terminated"));
    assert_eq!(change_state(&world, InstanceAction::Terminate, &[&id]), Ok(vec![("terminated", "terminated")]));
    advance(&world, 3599);
    assert_eq!(state(&world, &id), Some("terminated"));
    advance(&world, 1);
    assert_eq!(state(&world, &id), None);
    assert_eq!(select(&world, &by_id(&id), &View::default()).expect_err("gone").code, "InvalidInstanceID.NotFound");
}

#[test]
fn repeated_termination_does_not_extend_visibility() {
    let world = world();
    let id = launch(&world);
    change_state(&world, InstanceAction::Terminate, &[&id]).expect("terminates");
    advance(&world, 1800);
    change_state(&world, InstanceAction::Terminate, &[&id]).expect("it has ended");
    advance(&world, 1820);
    assert_eq!(state(&world, &id), None);
}

#[test]
fn actions_from_wrong_states_are_rejected() {
    let world = world();
    let id = launch(&world);
    let rejected = |wanted: InstanceAction| change_state(&world, wanted, &[&id]).expect_err("rejected");
    let error = rejected(InstanceAction::Stop);
    assert_eq!(error.code, "IncorrectInstanceState");
    assert_eq!(
        error.message,
        format!("Instance '{id}' cannot be stopped as it has never reached the 'running' state.")
    );
    advance(&world, 15);
    change_state(&world, InstanceAction::Stop, &[&id]).expect("it stops");
    assert_eq!(
        rejected(InstanceAction::Start).message,
        format!("The instance '{id}' is not in a state from which it can be started")
    );
    assert_eq!(change_state(&world, InstanceAction::Stop, &[&id]), Ok(vec![("stopping", "stopping")]));
    advance(&world, 20);
    assert_eq!(rejected(InstanceAction::Reboot).code, "IncorrectInstanceState");
    assert_eq!(change_state(&world, InstanceAction::Stop, &[&id]), Ok(vec![("stopped", "stopped")]));
    change_state(&world, InstanceAction::Terminate, &[&id]).expect("terminates");
    for wanted in [InstanceAction::Start, InstanceAction::Stop, InstanceAction::Reboot] {
        assert_eq!(rejected(wanted).code, "IncorrectInstanceState");
    }
}

#[test]
fn start_is_idempotent() {
    let world = world();
    let id = launch(&world);
    assert_eq!(change_state(&world, InstanceAction::Start, &[&id]), Ok(vec![("pending", "pending")]));
    advance(&world, 15);
    assert_eq!(change_state(&world, InstanceAction::Start, &[&id]), Ok(vec![("running", "running")]));
}

#[test]
fn one_invalid_id_rejects_the_whole_request() {
    let world = world();
    let good = launch(&world);
    advance(&world, 15);
    for (bad, code) in [("i-12345678", "InvalidInstanceID.NotFound"), ("banana", "InvalidInstanceID.Malformed")] {
        assert_eq!(change_state(&world, InstanceAction::Terminate, &[&good, bad]).expect_err("rejected").code, code);
        assert_eq!(state(&world, &good), Some("running"));
    }
    let fresh = launch(&world);
    assert_eq!(
        change_state(&world, InstanceAction::Stop, &[&good, &fresh]).expect_err("rejected").code,
        "IncorrectInstanceState"
    );
    assert_eq!(state(&world, &good), Some("running"));
}

#[test]
fn public_address_changes_with_every_start() {
    let world = world();
    let id = launch(&world);
    assert_eq!(public_ip(&world, &id), None);
    advance(&world, 15);
    let first = public_ip(&world, &id).expect("it runs");
    change_state(&world, InstanceAction::Stop, &[&id]).expect("it stops");
    assert_eq!(public_ip(&world, &id), None);
    advance(&world, 20);
    change_state(&world, InstanceAction::Start, &[&id]).expect("it starts");
    advance(&world, 15);
    let second = public_ip(&world, &id).expect("it runs again");
    assert_ne!(first, second);
    assert!(second.is_loopback());
}

#[test]
fn client_token_launches_once() {
    let world = world();
    let request = LaunchRequest { client_token: Some("token".to_owned()), max_count: 2, ..launch_request(&world) };
    let first = try_launch(&world, request.clone()).expect("it launches");
    advance(&world, 60);
    let again = try_launch(&world, request.clone()).expect("it finds it");
    assert_eq!(first.reservation_id, again.reservation_id);
    assert_eq!(again.kind, LaunchKind::Repeated);
    assert_eq!(select(&world, &InstanceQuery::default(), &View::default()).expect("a list").len(), 2);

    let other = LaunchRequest { instance_type: "c5.large".to_owned(), ..request.clone() };
    assert_eq!(try_launch(&world, other).expect_err("rejected").code, "IdempotentParameterMismatch");
    let elsewhere = world.with_ec2(|ec2, now| {
        let image = ec2.region("eu-west-1", now)?.catalog.images[0].id.clone();
        let request = LaunchRequest { image_id: image, ..request.clone() };
        ec2.launch("eu-west-1", request, Intent::Execute, now)
    });
    assert_eq!(elsewhere.expect("tokens are a region's own").kind, LaunchKind::New);
}

#[test]
fn token_of_terminated_instance_stays_used_for_a_day() {
    let world = world();
    let request = LaunchRequest { client_token: Some("token".to_owned()), ..launch_request(&world) };
    let id = try_launch(&world, request.clone()).expect("it launches").instances[0].id.clone();
    change_state(&world, InstanceAction::Terminate, &[&id]).expect("terminates");
    let rejected = |world: &World| try_launch(world, request.clone()).expect_err("rejected").code;
    assert_eq!(rejected(&world), "IdempotentInstanceTerminated");
    advance(&world, 20 + 3600 + 10);
    assert_eq!(state(&world, &id), None);
    assert_eq!(rejected(&world), "IdempotentInstanceTerminated");
    advance(&world, 23 * 3600 - 10 - 1);
    assert_eq!(rejected(&world), "IdempotentInstanceTerminated");
    advance(&world, 1);
    assert_eq!(try_launch(&world, request).expect("the token has expired").kind, LaunchKind::New);
}

#[test]
fn invalid_launches_are_rejected_with_ec2_codes() {
    let world = world();
    let good = || launch_request(&world);
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
fn dry_run_validates_and_changes_nothing() {
    let world = world();
    let dry_run =
        |request| world.with_ec2(|ec2, now| ec2.launch(HERE, request, Intent::DryRun, now)).expect_err("a dry run");
    assert_eq!(dry_run(launch_request(&world)).code, "DryRunOperation");
    assert_eq!(dry_run(LaunchRequest::new("ami-12345678")).code, "InvalidAMIID.NotFound");
    assert!(select(&world, &InstanceQuery::default(), &View::default()).expect("a list").is_empty());
}

#[test]
fn error_names_all_unknown_ids() {
    let world = world();
    let query = InstanceQuery { ids: ["i-00000001", "i-00000002"].map(str::to_owned).to_vec(), ..Default::default() };
    let error = select(&world, &query, &View::default()).expect_err("rejected");
    assert_eq!(error.message, "The instance IDs 'i-00000001, i-00000002' do not exist");
}

#[test]
fn visibility_lag_hides_new_instances() {
    let world = world();
    let id = launch(&world);
    let lag = Hidden { instance: None, reason: HiddenReason::VisibilityLag(Duration::from_secs(5)) };
    let view = View { hidden: vec![lag], ..View::default() };
    assert_eq!(select(&world, &by_id(&id), &view).expect_err("hidden").code, "InvalidInstanceID.NotFound");
    assert!(select(&world, &InstanceQuery::default(), &view).expect("a list").is_empty());
    advance(&world, 5);
    assert_eq!(select(&world, &by_id(&id), &view), Ok(vec![id]));
}

#[test]
fn omitted_instance_is_found_by_id() {
    let world = world();
    let (omitted, kept) = (launch(&world), launch(&world));
    let reason = HiddenReason::Omitted { probability: 1.0, roll: 0 };
    let view = View { hidden: vec![Hidden { instance: Some(omitted.clone()), reason }], ..View::default() };
    assert_eq!(select(&world, &InstanceQuery::default(), &view), Ok(vec![kept]));
    assert_eq!(select(&world, &by_id(&omitted), &view), Ok(vec![omitted]));
}

#[test]
fn tags_change_on_all_resources_or_none() {
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
    assert_eq!(tag(&[id.clone(), "i-12345678".to_owned()]).expect_err("rejected").code, "InvalidInstanceID.NotFound");
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
fn console_actions_are_not_logged() {
    let world = world();
    let id = launch(&world);
    advance(&world, 15);
    world.console_tag(HERE, &id, "owner", "operator").expect("tagged");
    assert_eq!(
        world.console_action(HERE, &id, InstanceAction::Stop).expect("stopped").current,
        InstanceState::Stopping
    );
    assert!(world.console_action(HERE, "i-12345678", InstanceAction::Stop).is_err());
    assert_eq!(world.request_log().total(), 0);
}

#[test]
fn ids_depend_on_the_seed() {
    let first = |seed| {
        let world = World::new(Settings { seed, clock: Clock::new(Pace::Manual), ..Settings::default() });
        (launch(&world), launch(&world), world.request_id())
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn reset_world_is_empty() {
    let world = world();
    let id = launch(&world);
    world.faults().add(crate::faults::Rule::new(crate::faults::Action::Reset)).expect("a good rule");
    world.reset();
    assert_eq!(state(&world, &id), None);
    assert!(world.faults().list().is_empty());
}

#[test]
fn expired_instances_leave_no_state() {
    let world = world();
    let request = LaunchRequest { min_count: 1000, max_count: 1000, ..launch_request(&world) };
    for _ in 0..3 {
        let launch = try_launch(&world, request.clone()).expect("it launches");
        let ids: Vec<&str> = launch.instances.iter().map(|instance| instance.id.as_str()).collect();
        change_state(&world, InstanceAction::Terminate, &ids).expect("they end");
        advance(&world, 4000);
    }
    world.with_ec2(|ec2, now| {
        let region = ec2.region(HERE, now).expect("a region");
        assert!(region.instances.is_empty() && region.by_id.is_empty() && region.expirations.is_empty());
    });
}

#[test]
fn pending_instance_can_be_stopped_if_allowed() {
    let settings = Settings {
        clock: Clock::new(Pace::Manual),
        stop_while_pending: StopWhilePending::Allowed,
        ..Settings::default()
    };
    let world = World::new(settings);
    let id = launch(&world);
    assert_eq!(change_state(&world, InstanceAction::Stop, &[&id]), Ok(vec![("pending", "stopping")]));
    advance(&world, 20);
    assert_eq!(state(&world, &id), Some("stopped"));
}

#[test]
fn only_running_instances_are_found_by_address() {
    let world = world();
    let id = launch(&world);
    advance(&world, 15);
    let address = public_ip(&world, &id).expect("it runs");
    let found = |world: &World| {
        world.with_ec2(|ec2, now| {
            ec2.find_by_address(address, now).map(|(region, instance)| (region, instance.id.clone()))
        })
    };
    assert_eq!(found(&world), Some((HERE, id.clone())));
    change_state(&world, InstanceAction::Stop, &[&id]).expect("it stops");
    assert_eq!(found(&world), None);
}

#[test]
fn change_feed_reports_launches_and_actions_only() {
    let world = world();
    let feed = world.subscribe();
    let id = launch(&world);
    let sequence = world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").find(&id).map(|it| it.sequence));
    let changed = vec![InstanceChange { region: HERE, sequence: sequence.expect("launched") }];
    assert_eq!(feed.take().instances, changed);
    advance(&world, 15);
    assert_eq!(state(&world, &id), Some("running"));
    change_state(&world, InstanceAction::Start, &[&id]).expect("it runs already");
    assert_eq!(feed.take(), Changes::default());
    change_state(&world, InstanceAction::Stop, &[&id]).expect("it stops");
    assert_eq!(feed.take().instances, changed);
    launch(&world);
    world.reset();
    launch(&world);
    let Changes { was_reset, instances } = feed.take();
    assert!(was_reset && instances.len() == 1, "changes before the reset are dropped");
}

#[test]
fn token_lives_as_long_as_one_of_its_instances() {
    let world = world();
    let request = LaunchRequest { client_token: Some("pair".to_owned()), max_count: 2, ..launch_request(&world) };
    let pair = try_launch(&world, request.clone()).expect("it launches").instances;
    advance(&world, 60);
    change_state(&world, InstanceAction::Terminate, &[&pair[0].id]).expect("one ends");
    // The terminated instance is removed and its day is over; the other one runs.
    advance(&world, 3600 * 48);
    assert_eq!(state(&world, &pair[0].id), None);
    advance(&world, 3600 * 48);
    let again = try_launch(&world, request).expect("found");
    assert_eq!((again.kind, again.instances.len()), (LaunchKind::Repeated, 1));
    assert_eq!(again.instances[0].id, pair[1].id);
}

#[test]
fn invariants_hold_for_random_actions() {
    for seed in 0..60 {
        let world = World::new(Settings { seed, clock: Clock::new(Pace::Manual), ..Settings::default() });
        let mut rng = SeededRng::new(seed, "life");
        let mut ids: Vec<String> = Vec::new();
        let mut addresses = std::collections::BTreeMap::new();
        for _ in 0..120 {
            match rng.below(6) {
                0 if ids.len() < 12 => ids.push(launch(&world)),
                1 => advance(&world, rng.below(40)),
                2 => advance(&world, rng.below(4000)),
                _ if ids.is_empty() => {}
                wanted => {
                    let id = &ids[rng.below(ids.len() as u64) as usize];
                    let wanted =
                        [InstanceAction::Start, InstanceAction::Stop, InstanceAction::Terminate][wanted as usize % 3];
                    let before = state(&world, id);
                    let allowed = change_state(&world, wanted, &[id]);
                    assert_eq!(
                        allowed.is_err() && before.is_some(),
                        is_rejected(wanted, before, &world, id),
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
                        assert_eq!(
                            addresses.entry(address).or_insert(start.clone()),
                            &start,
                            "an address belongs to one start"
                        );
                    }
                }
            });
        }
    }
}

/// Independent copy of EC2's transition table. A rejected action changes nothing, so this can be evaluated after it.
fn is_rejected(action: InstanceAction, before: Option<&str>, world: &World, id: &str) -> bool {
    let has_run = || {
        world.with_ec2(|ec2, now| ec2.region(HERE, now).expect("a region").find(id).is_some_and(|one| one.has_run(now)))
    };
    match (action, before) {
        (_, None) | (InstanceAction::Terminate, _) => false,
        (InstanceAction::Start, Some(state)) => matches!(state, "stopping" | "shutting-down" | "terminated"),
        (InstanceAction::Stop, Some("pending")) => !has_run(),
        // No instance of this test is configured for hibernation.
        (InstanceAction::Hibernate, Some(_)) => true,
        (InstanceAction::Stop | InstanceAction::Reboot, Some(state)) => matches!(state, "shutting-down" | "terminated"),
    }
}
