//! Runs the same commands of the real `etcdctl` against the fake and against real etcd, and compares what they print.

use std::process::{Command, Stdio};

use super::servers::{FakeEtcd, RealEtcd, program};
use super::session::with_timeout;

/// Commands in the order they are run, each as one line. `LEASE` stands for the id that a server chose.
const COMMANDS: &[&str] = &[
    "put /k/1 one",
    "put /k/2 two",
    "put --prev-kv /k/2 zwei",
    "put --ignore-value /k/none",
    "get /k/1",
    "get /k/1 --print-value-only",
    "get --prefix /k/ --keys-only",
    "get --prefix /k/ --order DESCEND --sort-by KEY",
    "get --prefix /k/ --limit 1",
    "get --from-key /k/2",
    "get /k/1 --rev 2",
    "get /k/1 --rev 1000",
    "get --prefix /k/ --count-only --write-out fields",
    "get /k/1 -w json",
    "del /k/2 --prev-kv",
    "del /k/none",
    "compaction 2",
    "compaction 2",
    "endpoint hashkv",
    "lease grant 100",
    "put --lease LEASE /l v",
    "lease timetolive LEASE --keys",
    "lease list",
    "lease keep-alive --once LEASE",
    "lease revoke LEASE",
    "lease revoke LEASE",
    "lease timetolive LEASE",
    "lock door echo inside",
    "member list",
    "member list -w table",
    "member remove 7",
    "endpoint health",
    "endpoint status",
    "move-leader 7",
    "alarm list",
    "alarm disarm",
    "defrag",
    "auth status",
    "auth enable",
    "user add root:secret",
    "user add reader:open",
    "user add plain --no-password",
    "user add root:secret",
    "user list",
    "role add files",
    "role grant-permission files readwrite --prefix f/",
    "role grant-permission files read g",
    "role get files",
    "role list",
    "user grant-role reader files",
    "user get reader --detail",
    "user grant-role root root",
    "auth enable",
    "auth enable",
    "get f/1",
    "--user reader:wrong get f/1",
    "--user reader:open put f/1 v",
    "--user reader:open get f/1",
    "--user reader:open get secret",
    "--user reader:open user list",
    "--user reader:open auth disable",
    "--user root:secret user list",
    "--user root:secret role get root",
    "--user root:secret user revoke-role reader files",
    "--user reader:open get f/1",
    "--user root:secret role revoke-permission files g",
    "--user root:secret role delete files",
    "--user root:secret user delete reader",
    "--user root:secret user delete root",
    "--user root:secret auth status",
    "--user root:secret auth disable",
    "user passwd --interactive=false plain",
    "user delete root",
    "user delete plain",
];

/// Runs a command and returns its exit code and all it prints.
async fn run(endpoint: &str, line: &str) -> String {
    let mut command = Command::new(program("etcdctl"));
    command.args(["--endpoints", endpoint, "--command-timeout", "2s"]).args(line.split(' '));
    command.stdin(Stdio::null());
    let output = with_timeout(line, tokio::task::spawn_blocking(move || command.output()));
    let output = output.await.expect("no panic").expect("etcdctl runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("exit {:?}\n{stdout}{stderr}", output.status.code())
}

/// Replaces what differs between any two servers: ids, addresses, sizes, times and positions in the Raft log.
fn masked(text: &str, endpoint: &str) -> String {
    let lines = text.replace(endpoint, "127.0.0.1:PORT").lines().map(mask_line).collect::<Vec<_>>();
    lines.join("\n")
}

fn mask_line(line: &str) -> String {
    // Log lines of the client begin with a time and name its source.
    if line.starts_with('{') && line.contains("\"level\"") {
        return "a log line".to_owned();
    }
    // Members are listed in the order of their ids.
    if let Some(members) = line.strip_prefix("ETCD_INITIAL_CLUSTER=") {
        let mut members: Vec<_> = members.trim_matches('"').split(',').collect();
        members.sort_unstable();
        return mask_words(&members.join(","));
    }
    // The widths of a table's columns depend on ids.
    if line.starts_with("+-") {
        return "a border".to_owned();
    }
    if line.starts_with('|') {
        return mask_words(&line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    // The positions in the Raft log are at the end of a status.
    match line.split_once(", 3.5.1, ") {
        Some((before, status)) => mask_words(before) + status.split(", 2, ").next().unwrap_or_default(),
        None => mask_words(line),
    }
}

fn mask_words(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let mut masked = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let end = rest[start..].find(|c| !is_word(c)).map_or(rest.len(), |end| start + end);
        let word = &rest[start..end];
        let digits = word.chars().filter(char::is_ascii_digit).count();
        let is_id = word.len() >= 12 && digits > 3 && word.chars().all(|c| c.is_ascii_hexdigit());
        let is_duration = digits > 0 && (word.ends_with("ms") || rest[end..].starts_with("µs"));
        masked.push_str(&rest[..start]);
        // Real etcd has a port of its own for other members.
        let is_port = masked.ends_with("127.0.0.1:");
        masked.push_str(if is_id {
            "ID"
        } else if is_port {
            "PORT"
        } else if is_duration {
            "TIME"
        } else {
            word
        });
        rest = &rest[end..];
    }
    masked + rest
}

/// The first word of 12 or more hexadecimal digits.
fn first_id(text: &str) -> Option<String> {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words.filter(|word| word.len() >= 12).map(ToOwned::to_owned).next()
}

struct Commands {
    endpoint: String,
    lease: String,
}

impl Commands {
    fn new(endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned(), lease: String::new() }
    }

    async fn run(&mut self, line: &str) -> String {
        let output = run(&self.endpoint, &line.replace("LEASE", &self.lease)).await;
        if line == "lease grant 100" {
            self.lease = first_id(&output).unwrap_or_default();
        }
        masked(&output, &self.endpoint)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_print_the_same_as_with_real_etcd() {
    let (fake, real) = (FakeEtcd::start().await, RealEtcd::start().await);
    let (mut with_fake, mut with_real) = (Commands::new(&fake.endpoint), Commands::new(&real.endpoint));
    let mut differences = String::new();
    for line in COMMANDS {
        let (fake, real) = (with_fake.run(line).await, with_real.run(line).await);
        if fake != real {
            differences += &format!("\n## etcdctl {line}\n- real {real}\n+ fake {fake}\n");
        }
    }
    fake.stop().await;
    assert!(differences.is_empty(), "of {} commands some differ:\n{differences}", COMMANDS.len());
}
