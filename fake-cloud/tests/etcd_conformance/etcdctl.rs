//! Runs the real `etcdctl` against the fake.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::servers::{FakeEtcd, RealEtcd, Running, program, temporary_directory};
use super::session::with_timeout;

/// Runs `etcdctl` with `input` on its standard input and returns its standard output.
async fn etcdctl(endpoint: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(program("etcdctl"));
    command.args(["--endpoints", endpoint, "--command-timeout", "10s"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let input = input.to_owned();
    let run = tokio::task::spawn_blocking(move || -> std::io::Result<Output> {
        let mut child = command.spawn()?;
        child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())).transpose()?;
        child.wait_with_output()
    });
    let output = with_timeout("etcdctl", run).await.expect("no panic").expect("etcdctl runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} failed: {stdout}{stderr}");
    stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn put_get_del() {
    let fake = FakeEtcd::start().await;
    let run = async |arguments: &[&str]| etcdctl(&fake.endpoint, arguments, "").await;
    assert_eq!(run(&["put", "/k/1", "one"]).await, "OK\n");
    assert_eq!(run(&["put", "/k/2", "two"]).await, "OK\n");
    assert_eq!(run(&["put", "--prev-kv", "/k/2", "zwei"]).await, "OK\n/k/2\ntwo\n");
    assert_eq!(run(&["get", "/k/1"]).await, "/k/1\none\n");
    assert_eq!(
        run(&["get", "--prefix", "/k/", "--order", "DESCEND", "--sort-by", "KEY"]).await,
        "/k/2\nzwei\n/k/1\none\n"
    );
    assert_eq!(run(&["get", "--prefix", "/k/", "--rev", "3"]).await, "/k/1\none\n/k/2\ntwo\n");
    assert_eq!(run(&["del", "--prefix", "/k/"]).await, "2\n");
    assert_eq!(run(&["compaction", "4"]).await, "compacted revision 4\n");
    assert!(run(&["get", "x", "-w", "json"]).await.contains(r#""revision":5"#));
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn txn_is_read_from_stdin() {
    let fake = FakeEtcd::start().await;
    let input = "create(\"job\") = \"0\"\n\nput job mine\n\nget job\n\n";
    assert_eq!(etcdctl(&fake.endpoint, &["txn"], input).await, "SUCCESS\n\nOK\n");
    assert_eq!(etcdctl(&fake.endpoint, &["txn"], input).await, "FAILURE\n\njob\nmine\n");
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_commands() {
    let fake = FakeEtcd::start().await;
    let run = async |arguments: &[&str]| etcdctl(&fake.endpoint, arguments, "").await;
    let granted = run(&["lease", "grant", "100"]).await;
    let id = granted.split(' ').nth(1).expect("an id").to_owned();
    assert_eq!(granted, format!("lease {id} granted with TTL(100s)\n"));
    run(&["put", "--lease", &id, "k", "v"]).await;
    let status = run(&["lease", "timetolive", "--keys", &id]).await;
    assert!(status.contains("granted with TTL(100s)") && status.contains("attached keys([k])"), "{status}");
    assert_eq!(run(&["lease", "list"]).await, format!("found 1 leases\n{id}\n"));
    assert_eq!(run(&["lease", "keep-alive", "--once", &id]).await, format!("lease {id} keepalived with TTL(100)\n"));
    assert_eq!(run(&["lease", "revoke", &id]).await, format!("lease {id} revoked\n"));
    assert_eq!(run(&["get", "k"]).await, "");
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_history_and_live_events() {
    let fake = FakeEtcd::start().await;
    etcdctl(&fake.endpoint, &["put", "w", "1"], "").await;
    etcdctl(&fake.endpoint, &["del", "w"], "").await;
    let mut command = Command::new(program("etcdctl"));
    command.args(["--endpoints", &fake.endpoint, "watch", "w", "--rev", "2"]);
    let mut watch = Running::start(command.stdout(Stdio::piped()));
    let stdout = watch.output();
    let lines = tokio::task::spawn_blocking(move || {
        use std::io::BufRead;
        std::io::BufReader::new(stdout).lines().take(8).collect::<Result<Vec<_>, _>>()
    });
    etcdctl(&fake.endpoint, &["put", "w", "2"], "").await;
    let lines = with_timeout("the watch", lines).await.expect("no panic").expect("lines");
    assert_eq!(lines, ["PUT", "w", "1", "DELETE", "w", "", "PUT", "w"]);
    drop(watch);
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_and_elect() {
    let fake = FakeEtcd::start().await;
    assert_eq!(etcdctl(&fake.endpoint, &["lock", "door", "echo", "inside"], "").await, "inside\n");
    assert_eq!(etcdctl(&fake.endpoint, &["get", "--prefix", "door"], "").await, "", "the lock is released");
    let mut command = Command::new(program("etcdctl"));
    command.args(["--endpoints", &fake.endpoint, "elect", "seat", "me"]);
    let candidate = Running::start(command.stdout(Stdio::null()));
    let mut client = fake.client().await;
    let leader = with_timeout("a leader", async {
        loop {
            match client.leader("seat").await {
                Ok(response) => break response,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    assert_eq!(leader.kv().expect("a leader").value(), b"me");
    let listed = etcdctl(&fake.endpoint, &["get", "--prefix", "seat/"], "").await;
    assert!(listed.ends_with("\nme\n"), "{listed}");
    drop(candidate);
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn member_list_and_endpoint_status() {
    let fake = FakeEtcd::start().await;
    let run = async |arguments: &[&str]| etcdctl(&fake.endpoint, arguments, "").await;
    let members = run(&["member", "list"]).await;
    assert!(
        members.contains(&format!(", started, default, http://{0}, http://{0}, false", fake.endpoint)),
        "{members}"
    );
    let status = run(&["endpoint", "status"]).await;
    assert!(status.contains(", 3.5.1, ") && status.contains(", true, false, 2, "), "{status}");
    run(&["endpoint", "health"]).await;
    assert_eq!(run(&["alarm", "list"]).await, "");
    fake.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_is_restored_by_real_etcd() {
    let fake = FakeEtcd::start().await;
    let mut client = fake.client().await;
    // Rows of many sizes: some fill several pages, and the tree needs more than one level.
    for number in 0..600 {
        let value = "v".repeat(if number % 100 == 7 { 20_000 } else { number % 50 });
        client.put(format!("/k/{number:04}"), value, None).await.expect("a response");
    }
    client.delete("/k/0003", None).await.expect("a response");
    client.compact(300, None).await.expect("a response");
    client.user_add("root", "secret", None).await.expect("a response");
    client.role_add("files").await.expect("a response");
    let lease = client.lease_grant(600, None).await.expect("a lease").id();
    let directory = temporary_directory();
    let file = directory.with_extension("db").display().to_string();
    let saved = etcdctl(&fake.endpoint, &["snapshot", "save", &file], "").await;
    assert!(saved.starts_with("Snapshot saved at "), "{saved}");
    let status = etcdctl(&fake.endpoint, &["snapshot", "status", &file], "").await;
    assert_eq!(status.split(", ").nth(1), Some("602"), "{status}");
    let data = directory.display().to_string();
    etcdctl(&fake.endpoint, &["snapshot", "restore", &file, "--data-dir", &data], "").await;
    std::fs::remove_file(&file).expect("removed");
    let restored = RealEtcd::start_in(directory).await;
    let mut real = restored.client().await;
    let all = || Some(etcd_client::GetOptions::new().with_prefix());
    let (ours, theirs) = (client.get("/k/", all()).await.expect("keys"), real.get("/k/", all()).await.expect("keys"));
    assert_eq!((ours.count(), format!("{:?}", ours.kvs())), (599, format!("{:?}", theirs.kvs())));
    assert_eq!(real.hash_kv(0).await.expect("a hash").hash(), client.hash_kv(0).await.expect("a hash").hash());
    assert_eq!(real.user_list().await.expect("users").users(), ["root"]);
    assert_eq!(real.role_list().await.expect("roles").roles(), ["files"]);
    let leases: Vec<_> = real.leases().await.expect("leases").leases().iter().map(|lease| lease.id()).collect();
    assert_eq!(leases, [lease]);
    let compacted = real.get("/k/", Some(etcd_client::GetOptions::new().with_revision(200))).await;
    assert!(compacted.expect_err("compacted").to_string().contains("has been compacted"));
    fake.stop().await;
}
