//! Tests of snapshots: restored clouds go on as the original does, and branches are independent.

use std::time::Duration;

use etcd_client::{Client, PutOptions};
use fake_cloud::cml::NewLab;
use fake_cloud::control_plane::Generation;
use fake_cloud::etcd::{KeyRange, Put};
use fake_cloud::faults::{Action, Rule};
use fake_cloud::world::SeededRng;
use fake_cloud::{FakeCloud, LeaseClock, Pace, Scenario, Secrets, Snapshot, SnapshotError};
use proptest::prelude::*;
use serde_json::{Value, json};

const REGION: &str = "us-east-1";

fn manual() -> fake_cloud::FakeCloudBuilder {
    FakeCloud::builder().pace(Pace::Manual).lease_clock(LeaseClock::World).control_plane(Generation::Extended)
}

/// Starts a cloud with state in every service.
async fn lived_in(seed: u64) -> FakeCloud {
    let scenario = "
        control_plane: extended
        fleet: [{name: old, region: us-east-1, state: stopped, age: 3h}]
        workers: [{id: w-0, name: zero, status: running, instance: old}]
        timeline: [{at: 100m, terminate: old}, {at: 2h, heal: all}]";
    let scenario = Scenario::parse("test", scenario).expect("a scenario");
    let cloud = manual().seed(seed).scenario(scenario).start().await.expect("starts on free ports");
    for actor in 0..12 {
        act(&cloud, seed.wrapping_add(actor)).await;
    }
    cloud
}

/// Takes one action that depends on the number only, and returns all that can be seen of its result.
async fn act(cloud: &FakeCloud, number: u64) -> String {
    let mut rng = SeededRng::new(number, "actions");
    let instances = cloud.instances(REGION);
    let some = |rng: &mut SeededRng| {
        let index = rng.below(instances.len() as u64) as usize;
        instances.get(index).map_or_else(|| "i-0".to_owned(), |instance| instance.id.clone())
    };
    let etcd = cloud.etcd();
    match rng.below(13) {
        0 | 1 => format!("{:?}", cloud.run_instance(REGION, &[("Name", &rng.hex(4))])),
        2 => format!("{:?}", cloud.stop_instance(REGION, &some(&mut rng))),
        3 => format!("{:?}", cloud.start_instance(REGION, &some(&mut rng))),
        4 => format!("{:?}", cloud.terminate_instance(REGION, &some(&mut rng))),
        5 => {
            cloud.advance(Duration::from_secs(rng.below(2000))).await;
            cloud.now().to_string()
        }
        6 => format!(
            "{:?}",
            cloud.add_worker(json!({"name": rng.hex(4), "template_name": "metal"})).map(|w| w.id().to_owned())
        ),
        7 => {
            let lease = etcd.lease_grant(0, 60 + rng.below(5000) as i64).expect("a lease");
            let put = Put {
                lease: fake_cloud::etcd::Assign::Set(lease.0),
                ..Put::new(format!("/test/{}", rng.below(5)), rng.hex(6))
            };
            format!("{lease:?} {:?}", etcd.put(&put))
        }
        8 => format!("{:?}", etcd.delete(&fake_cloud::etcd::Delete { keys: KeyRange::prefix("/test/") })),
        9 => format!("{:?}", etcd.compact(etcd.revision() - rng.below(3) as i64)),
        10 => {
            let rule = Rule { probability: 0.5, ..Rule::new(Action::Omit { fraction: 0.5 }) };
            format!("{:?}", cloud.inject(rule))
        }
        11 => {
            let value = rng.below(100) as f64 / 7.0;
            format!("{:?}", cloud.set_metric(REGION, "AWS/EC2", "CPUUtilization", &some(&mut rng), value))
        }
        _ => match cloud.cml(&some(&mut rng)) {
            Some(cml) => {
                let lab = NewLab { title: Some(rng.hex(4)), ..NewLab::default() };
                format!("{:?} {:?}", cml.create_lab(lab).is_ok(), cml.log_in("admin", "admin").is_ok())
            }
            None => cloud.world().request_id(),
        },
    }
}

fn state(cloud: &FakeCloud) -> Value {
    let mut document = cloud.snapshot(Secrets::Included).expect("a snapshot").as_json().clone();
    for server in document["cml"]["servers"].as_object_mut().expect("servers").values_mut() {
        // Random by design: a token of one server is not valid at another.
        if let Some(secret) = server.pointer_mut("/state/tokens/secret") {
            *secret = Value::Null;
        }
    }
    document
}

/// Where two clouds differ first, once their CML servers have followed their instances.
async fn differs(one: &FakeCloud, other: impl Fn() -> Value) -> Option<String> {
    let mut last = None;
    for _ in 0..200 {
        last = difference(&state(one), &other(), "");
        last.as_ref()?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    last
}

/// Number of labs on the CML server of an instance.
fn labs(cloud: &FakeCloud, id: &str) -> Option<usize> {
    state(cloud)["cml"]["servers"].get(id)?["state"]["labs"].as_object().map(serde_json::Map::len)
}

/// Where two documents differ first.
fn difference(one: &Value, other: &Value, path: &str) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            names.into_iter().find_map(|name| {
                let place = format!("{path}.{name}");
                difference(one.get(name).unwrap_or(&Value::Null), other.get(name).unwrap_or(&Value::Null), &place)
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(index, (one, other))| difference(one, other, &format!("{path}[{index}]")))
        }
        (one, other) => (one != other).then(|| format!("{path}: {one} and {other}")),
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn restored_clouds_have_the_same_history(seed in 0_u64..1_000_000, actions in prop::collection::vec(any::<u64>(), 1..25)) {
        run(async {
            let cloud = lived_in(seed).await;
            let text = cloud.snapshot(Secrets::Included).expect("a snapshot").to_string();
            let snapshot = Snapshot::parse(&text).expect("a snapshot");
            let other = FakeCloud::builder().lease_clock(LeaseClock::World).restore(snapshot.clone()).start().await;
            let other = other.expect("starts from a snapshot");
            other.settle().await;
            prop_assert_eq!(differs(&other, || state(&cloud)).await, None);
            let mut first = Vec::new();
            for action in &actions {
                first.push(act(&cloud, *action).await);
                prop_assert_eq!(first.last(), Some(&act(&other, *action).await));
            }
            // CML servers follow the clock and the instances in a task of their own.
            cloud.settle().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let after = state(&cloud);
            prop_assert_eq!(differs(&other, || after.clone()).await, None);
            // The same again, in the cloud itself.
            cloud.restore(&snapshot).await.expect("restores");
            for (action, before) in actions.iter().zip(&first) {
                prop_assert_eq!(&act(&cloud, *action).await, before);
            }
            prop_assert_eq!(differs(&cloud, || after.clone()).await, None);
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn branches_are_independent() {
    let cloud = lived_in(7).await;
    let branch = cloud.branch().await.expect("a branch");
    branch.settle().await;
    assert_eq!(differs(&branch, || state(&cloud)).await, None);
    let before = state(&cloud);
    let launched = branch.run_instance(REGION, &[]).expect("launches");
    branch.advance(Duration::from_secs(3 * 3600)).await;
    branch.add_worker(json!({"id": "w-9", "name": "nine"})).expect("a worker");
    branch.etcd().put(&Put::new("/only/there", "1")).expect("a put");
    assert_eq!(difference(&before, &state(&cloud), ""), None, "the original has not changed");
    assert_eq!(cloud.run_instance(REGION, &[]).expect("launches").id, launched.id, "the same draw");
    branch.stop().await;
    assert!(cloud.worker("w-9").is_err());
}

#[tokio::test]
async fn timelines_and_stopped_cml_servers_go_on() {
    let cloud = FakeCloud::builder().pace(Pace::Manual).start().await.expect("starts on free ports");
    let id = cloud.run_instance(REGION, &[]).expect("launches").id.clone();
    cloud.advance(Duration::from_secs(60)).await;
    let title = |title: &str| NewLab { title: Some(title.to_owned()), ..NewLab::default() };
    cloud.cml(&id).expect("a server").create_lab(title("kept")).expect("a lab");
    cloud.stop_instance(REGION, &id).expect("stops");
    cloud.advance(Duration::from_secs(60)).await;
    let branch = cloud.branch().await.expect("a branch");
    assert_eq!(labs(&branch, &id), Some(1), "of an instance that does not run");
    branch.start_instance(REGION, &id).expect("starts");
    branch.advance(Duration::from_secs(60)).await;
    assert_eq!(labs(&branch, &id), Some(1));
    branch.terminate_instance(REGION, &id).expect("terminates");
    branch.advance(Duration::from_secs(2 * 3600)).await;
    assert!(branch.cml(&id).is_none(), "a server ends with its instance");
}

#[tokio::test]
async fn invalid_snapshots_are_refused_and_change_nothing() {
    let cloud = lived_in(3).await;
    let good = state(&cloud);
    let changed = |pointer: &str, value: Value| {
        let mut document = good.clone();
        *document.pointer_mut(pointer).expect(pointer) = value;
        document
    };
    let mut unknown = good.clone();
    unknown["world"]["gravity"] = 9.81.into();
    let cases = [
        ("{".to_owned(), "the snapshot is not JSON: "),
        ("[1]".to_owned(), "not a snapshot: it is no object"),
        ("{}".to_owned(), "not a snapshot: it has no format"),
        (changed("/version", json!(2)).to_string(), "the snapshot has version 2, written by fake-cloud "),
        (changed("/world/ec2/rng", Value::Null).to_string(), "the snapshot is invalid at world.ec2.rng"),
        (changed("/world/ec2/regions/0/name", json!("mars-1")).to_string(), "unknown region 'mars-1'"),
        (unknown.to_string(), "the snapshot is invalid at world.gravity: unknown field `gravity`"),
        (
            changed("/etcd/store/revision", json!(900)).to_string(),
            "the snapshot is invalid at etcd.store: revision 900",
        ),
        (changed("/control_plane/generation", json!("original")).to_string(), "the control plane original"),
    ];
    for (text, expected) in cases {
        let error = match Snapshot::parse(&text) {
            Ok(snapshot) => cloud.restore(&snapshot).await.expect_err(expected),
            Err(error) => error,
        };
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(differs(&cloud, || good.clone()).await, None, "{expected}");
    }
    assert!(matches!(Snapshot::read("/nonexistent/cloud.json"), Err(SnapshotError::Unreadable { .. })));
    let broken = Snapshot::parse(&changed("/world/ec2/rng", Value::Null).to_string()).expect("a head");
    let error = FakeCloud::builder().restore(broken).start().await.expect_err("refused").to_string();
    assert!(error.contains("world.ec2.rng"), "{error}");
}

#[tokio::test]
async fn secrets_are_masked_unless_requested() {
    let cloud = manual().cml(|cml| cml.password = "hunter2".to_owned()).start().await.expect("starts on free ports");
    let id = cloud.run_instance(REGION, &[]).expect("launches").id.clone();
    cloud.advance(Duration::from_secs(60)).await;
    let token = cloud.cml(&id).expect("a server").log_in("admin", "hunter2").expect("a token");
    cloud
        .add_worker(json!({"id": "w-1", "name": "blue", "cml_password": "hunter2", "license": {"token": "t0ken"}}))
        .expect("a worker");
    let masked = cloud.snapshot(Secrets::Masked).expect("a snapshot");
    for secret in ["hunter2", "t0ken"] {
        assert!(!masked.to_string().contains(secret));
        assert!(cloud.snapshot(Secrets::Included).expect("a snapshot").to_string().contains(secret));
    }
    let kinds: Vec<_> = masked.masked().iter().map(|masked| (masked.secret, masked.count)).collect();
    assert_eq!(kinds, [("passwords of CML users", 3), ("logins of CML clients", 1), ("tokens and other secrets", 1)]);
    let other = FakeCloud::builder().restore(masked).start().await.expect("starts from a snapshot");
    other.settle().await;
    assert_eq!(other.restored().masked.len(), 3);
    let cml = other.cml(&id).expect("a server");
    assert!(cml.check_token(&token).is_err(), "logins are forgotten");
    assert!(cml.log_in("admin", &other.endpoints().cml_password).is_ok(), "the default works");
    let worker = other.worker("w-1").expect("a worker");
    assert_eq!(worker.get("cml_password"), Some(&json!("admin")));

    let open = cloud.snapshot(Secrets::Included).expect("a snapshot");
    let other = FakeCloud::builder().restore(open).start().await.expect("starts from a snapshot");
    assert_eq!(other.endpoints().cml_password, "hunter2");
    assert!(other.cml(&id).expect("a server").check_token(&token).is_ok());
    assert!(other.restored().masked.is_empty());
}

#[tokio::test]
async fn etcd_clients_go_on_with_a_restored_store() {
    let cloud = manual().start().await.expect("starts on free ports");
    let mut client = Client::connect([&cloud.endpoints().etcd_endpoint], None).await.expect("connects");
    let lease = client.lease_grant(3600, None).await.expect("a lease").id();
    client.put("/a", "1", Some(PutOptions::new().with_lease(lease))).await.expect("a put");
    client.put("/a", "2", None).await.expect("a put");
    let revision = client.put("/b", [0xff_u8, 0], None).await.expect("a put").header().expect("a header").revision();
    client.user_add("root", "hunter2", None).await.expect("a user");
    client.user_grant_role("root", "root").await.expect("a role");
    let branch = cloud.branch().await.expect("a branch");
    let mut other = Client::connect([&branch.endpoints().etcd_endpoint], None).await.expect("connects");
    let found = other.get("/b", None).await.expect("a range");
    assert_eq!((found.header().expect("a header").revision(), found.kvs()[0].value()), (revision, &[0xff, 0][..]));
    let old = etcd_client::GetOptions::new().with_revision(revision - 1);
    assert_eq!(other.get("/a", Some(old)).await.expect("a range").kvs()[0].value(), b"2");
    let mut watch = other
        .watch("/a", Some(etcd_client::WatchOptions::new().with_start_revision(2).with_prev_key()))
        .await
        .expect("a watch of the past");
    watch.message().await.expect("a message").expect("created");
    let events = watch.message().await.expect("a message").expect("events");
    let previous: Vec<_> = events.events().iter().map(|event| event.prev_kv().map(|kv| kv.value().to_vec())).collect();
    assert_eq!(previous, [None, Some(b"1".to_vec())]);
    assert_eq!(other.lease_time_to_live(lease, None).await.expect("a lease").ttl(), 3600);
    other.auth_enable().await.expect("root exists");
    let user = etcd_client::ConnectOptions::new().with_user("root", "hunter2");
    assert!(Client::connect([&branch.endpoints().etcd_endpoint], Some(user)).await.is_ok());
}

#[tokio::test]
async fn leases_on_another_clock_keep_their_time() {
    let cloud = manual().lease_clock(LeaseClock::Wall).start().await.expect("starts on free ports");
    let (lease, _) = cloud.etcd().lease_grant(0, 600).expect("a lease");
    cloud.advance(Duration::from_secs(3600)).await;
    let branch = cloud.branch().await.expect("a branch");
    let left = branch.etcd().lease_status(lease).expect("a lease").ttl;
    assert!((590..=600).contains(&left), "{left}");
}

#[tokio::test]
async fn thousand_workers_fit_into_a_snapshot() {
    let cloud = FakeCloud::builder().pace(Pace::Manual).cml_limit(0).start().await.expect("starts on free ports");
    for number in 0..1000 {
        let instance = cloud.run_instance(REGION, &[("Name", &format!("w-{number}"))]).expect("launches");
        let worker = json!({"id": format!("w-{number}"), "name": format!("w-{number}"), "status": "running",
            "template_name": "metal", "aws_region": REGION, "ec2_instance_id": instance.id});
        cloud.add_worker(worker).expect("a worker");
    }
    let text = cloud.snapshot(Secrets::Masked).expect("a snapshot").to_string();
    println!("{} bytes for 1,000 workers", text.len());
    assert!(text.len() < 8_000_000, "{} bytes", text.len());
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = |verb: &str| format!("{}{verb}", cloud.endpoints().admin_url);
    let restored = client.post(url("restore")).body(text).send().await.expect("a response");
    assert_eq!(restored.status(), 200, "{:?}", restored.text().await);
    assert_eq!(cloud.workers().len(), 1000);
    let bad = client.post(url("restore")).body("{}").send().await.expect("a response");
    assert_eq!(bad.status(), 422);
    assert_eq!(cloud.workers().len(), 1000);
}

#[tokio::test]
async fn admin_api_starts_and_stops_branches() {
    let cloud = lived_in(5).await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = |path: &str| format!("{}{path}", cloud.endpoints().admin_url);
    let branch: Value = client.post(url("branch")).send().await.expect("a response").json().await.expect("JSON");
    let state = async |base: &str| -> Value {
        client.get(format!("{base}state")).send().await.expect("a response").json().await.expect("JSON")
    };
    let admin = branch["endpoints"]["admin_url"].as_str().expect("an address").to_owned();
    assert_ne!(admin, cloud.endpoints().admin_url);
    assert_eq!(state(&admin).await["regions"], state(&cloud.endpoints().admin_url).await["regions"]);
    let page = client.get(branch["page"].as_str().expect("a page")).send().await.expect("a response");
    assert_eq!(page.status(), 200);
    let all: Value = client.get(url("branches")).send().await.expect("a response").json().await.expect("JSON");
    assert_eq!(all[0]["number"], 1);
    let stopped = client.delete(url("branches/1")).send().await.expect("a response");
    assert_eq!(stopped.status(), 200);
    assert!(client.get(format!("{admin}state")).send().await.is_err(), "it has stopped");
    assert_eq!(client.delete(url("branches/1")).send().await.expect("a response").status(), 404);
}

#[tokio::test]
async fn reset_returns_to_the_snapshot_at_startup() {
    let cloud = lived_in(11).await;
    let (snapshot, before) = (cloud.snapshot(Secrets::Included).expect("a snapshot"), state(&cloud));
    let other = FakeCloud::builder().lease_clock(LeaseClock::World).restore(snapshot).start().await;
    let other = other.expect("starts from a snapshot");
    other.run_instance(REGION, &[]).expect("launches");
    other.advance(Duration::from_secs(60)).await;
    other.reset(fake_cloud::admin::ResetTo::Scenario).expect("resets");
    assert_eq!(differs(&other, || before.clone()).await, None);
}
