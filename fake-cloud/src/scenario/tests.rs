use super::*;
use crate::clock::Clock;
use crate::control_plane::{SessionFilter, WorkerFilter};
use crate::world::{InstanceState, Region, Settings};

fn settle(scenario: &Scenario) -> Result<(World, Records), ScenarioError> {
    let clock = Clock::new(Pace::Manual);
    let world = World::new(Settings { clock: clock.clone(), ..Settings::default() });
    let records = Records::new(clock);
    scenario.settle(&world, &records)?;
    Ok((world, records))
}

fn error_text(text: &str) -> String {
    let scenario = match Scenario::parse("mine.yaml", text) {
        Ok(scenario) => scenario,
        Err(error) => return error.to_string(),
    };
    settle(&scenario).expect_err(text).to_string()
}

#[test]
fn builtin_scenarios_settle_and_have_a_description() {
    let counts = BUILTIN.map(|builtin| {
        let scenario = builtin.load().expect(builtin.name);
        assert!(scenario.about().ends_with('.'), "{}", builtin.name);
        let (world, records) = settle(&scenario).expect(builtin.name);
        let instances = world.with_ec2(|ec2, _| ec2.regions().flat_map(Region::instances).count());
        let workers = records.workers(&WorkerFilter::default()).len();
        let sessions = records.sessions(&SessionFilter::default()).len();
        (builtin.name, instances, workers, sessions, world.faults().list().len())
    });
    assert_eq!(counts, [("orphans", 3, 13, 0, 0), ("drain", 2, 2, 8, 0), ("bad-day", 10, 10, 2, 7)]);
}

#[test]
fn instances_have_the_given_state_and_age() {
    let states = ["pending", "running", "stopping", "stopped", "shutting-down", "terminated"];
    let machines = states.map(|state| format!("{{name: {state}, region: eu-west-1, state: {state}, age: 3d}}"));
    let scenario =
        Scenario::parse("mine.yaml", &format!("fleet: [{}]", machines.join(", "))).expect("a valid scenario");
    let (world, _) = settle(&scenario).expect("a scenario that settles");
    world.with_ec2(|ec2, now| {
        let region = ec2.region("eu-west-1", now).expect("a region");
        for instance in region.instances() {
            assert_eq!(Some(&instance.state(now).name().to_owned()), instance.tags.get("Name"));
            let age = (now - instance.created_at).num_days();
            assert_eq!(age, if instance.state(now) == InstanceState::Pending { 0 } else { 3 }, "{}", instance.id);
        }
        assert_eq!(region.instances().count(), states.len());
    });
}

#[test]
fn updated_at_defaults_to_created_at() {
    let text = "workers: [{id: w-1, status: provisioning, age: 5d}, \
                {id: w-2, status: running, age: 5d, fields: {updated_at: '2026-02-06T08:00:00Z'}}]";
    let (_, records) =
        settle(&Scenario::parse("mine.yaml", text).expect("a valid scenario")).expect("a scenario that settles");
    let (old, changed) =
        (records.worker("w-1").expect("an existing worker"), records.worker("w-2").expect("an existing worker"));
    assert_eq!(old.text("updated_at"), old.text("created_at"));
    assert_eq!(changed.text("updated_at"), Some("2026-02-06T08:00:00Z"));
}

#[test]
fn worker_takes_instance_id_and_region_from_the_fleet() {
    let text = "fleet: [{name: blue, region: eu-west-1}]\nworkers: [{id: w-1, status: running, instance: blue}]";
    let (world, records) =
        settle(&Scenario::parse("mine.yaml", text).expect("a valid scenario")).expect("a scenario that settles");
    let worker = records.worker("w-1").expect("an existing worker");
    let id = worker.instance_id().expect("an instance").to_owned();
    assert_eq!(worker.text("aws_region"), Some("eu-west-1"));
    assert!(world.with_ec2(|ec2, now| ec2.region("eu-west-1", now).expect("a region").find(&id).is_some()));
}

#[test]
fn errors_name_file_position_value_and_accepted_values() {
    for (text, hints) in [
        ("flet: []", ["mine.yaml: ", "flet", "unknown field", "fleet"]),
        ("fleet: [{name: a, state: flying}]", ["mine.yaml: ", "fleet[0].state", "flying", "shutting-down"]),
        ("fleet: [{name: a, region: mars}]", ["mine.yaml: ", "fleet[0].region", "mars", "us-east-1"]),
        ("fleet: [{name: a, age: long}]", ["mine.yaml: ", "fleet[0].age", "long", "45m"]),
        ("fleet: [{name: a}, {name: a}]", ["mine.yaml: ", "fleet[1].name", "\"a\"", "a unique name"]),
        ("workers: [{id: w, status: asleep}]", ["mine.yaml: ", "workers[0].status", "asleep", "draining"]),
        ("fleet: [{name: a}]\nworkers: [{id: w, instance: b}]", ["mine.yaml: ", "workers[0].instance", "\"b\"", ": a"]),
        ("sessions: [{id: s, status: bored}]", ["mine.yaml: ", "sessions[0].status", "bored", "grading"]),
        ("sessions: [{id: s, worker: w-9}]", ["mine.yaml: ", "sessions[0]", "w-9", "no worker"]),
        ("clock: slow", ["mine.yaml: ", "clock", "slow", "x60"]),
        ("seed: many", ["mine.yaml: ", "seed", "many", "u64"]),
        ("faults: [{probability: 7, action: {kind: reset}}]", ["mine.yaml: ", "faults[0]", "7", "between 0 and 1"]),
        ("sesions: []", ["mine.yaml: ", "sesions", "expected one of", "did you mean 'sessions'?"]),
        (
            "workers: [{id: w, status: runing}]",
            ["mine.yaml: ", "workers[0].status", "runing", "did you mean 'running'?"],
        ),
        ("timeline: [{at: 5m}]", ["mine.yaml: ", "timeline[0]", "no step", "stop, reboot"]),
        ("timeline: [{at: 5m, stop: a, start: a}]", ["mine.yaml: ", "timeline[0]", "several steps", "one of"]),
        (
            "fleet: [{name: blue}]\ntimeline: [{at: 5m, stop: bleu}]",
            ["mine.yaml: ", "timeline[0]", "bleu", "did you mean 'blue'?"],
        ),
        ("timeline: [{at: -5m, heal: all}]", ["mine.yaml: ", "timeline[0]", "before the start", "5m"]),
        ("timeline: [{at: 5m, worker: {status: stopped}}]", ["mine.yaml: ", "timeline[0]", "no id", "w-1"]),
        (
            "timeline: [{at: 5m, fault: {times: 0, action: {kind: reset}}}]",
            ["mine.yaml: ", "timeline[0]", "times", "at least 1"],
        ),
        ("templates: [{name: big}]", ["mine.yaml: ", "templates[0].instance_type", "missing", "EC2"]),
    ] {
        let error = error_text(text);
        for hint in hints {
            assert!(error.contains(hint), "{text}: {error:?} does not contain {hint:?}");
        }
    }
}

#[test]
fn missing_file_error_lists_the_builtin_scenarios() {
    let error = Scenario::find("no-such-file.yaml").expect_err("no such file").to_string();
    assert!(error.starts_with("no-such-file.yaml: ") && error.contains("orphans, drain, bad-day"), "{error}");
}
