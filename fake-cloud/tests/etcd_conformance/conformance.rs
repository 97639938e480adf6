//! Runs every case against the fake and against real etcd.

use super::cases::CASES;
use super::servers::{FakeEtcd, RealEtcd, connect};
use super::session::Session;

/// Both servers start empty and receive the same calls in the same order, so their revisions stay equal from case to
/// case. After a difference both are restarted, so that it does not affect the next case.
#[tokio::test(flavor = "multi_thread")]
async fn transcripts_match_real_etcd() {
    let mut differences = String::new();
    let (mut fake, mut real) = (FakeEtcd::start().await, RealEtcd::start().await);
    for (name, case) in CASES {
        let mut transcripts = Vec::new();
        for endpoint in [&fake.endpoint, &real.endpoint] {
            let session = case(Session::new(connect(endpoint).await)).await;
            let mut session = clean_up(session).await;
            // Detects a difference in revisions within the case that caused it.
            session.call("final revision", async |client| client.get("none", None).await).await;
            transcripts.push(session.into_transcript());
        }
        let [fake_transcript, real_transcript] = [&transcripts[0], &transcripts[1]];
        assert!(!real_transcript.is_empty(), "{name} has an empty transcript");
        if std::env::var_os("LCM_SHOW_TRANSCRIPTS").is_some() {
            println!("## {name}\n{}\n", real_transcript.join("\n"));
        }
        if fake_transcript != real_transcript {
            differences += &format!("\n## {name}\n{}", difference(fake_transcript, real_transcript));
            fake.stop().await;
            (fake, real) = (FakeEtcd::start().await, RealEtcd::start().await);
        }
    }
    fake.stop().await;
    assert!(differences.is_empty(), "the fake differs from real etcd:\n{differences}");
}

/// Deletes all keys and leases.
async fn clean_up(mut session: Session) -> Session {
    let all = etcd_client::DeleteOptions::new().with_all_keys();
    session.client.delete("", Some(all)).await.expect("a response");
    let leases = session.client.leases().await.expect("a response");
    for lease in leases.leases() {
        session.client.lease_revoke(lease.id()).await.expect("a response");
    }
    session
}

fn difference(fake: &[String], real: &[String]) -> String {
    let mut lines = String::new();
    for index in 0..fake.len().max(real.len()) {
        let (fake, real) = (fake.get(index), real.get(index));
        if fake != real {
            let or_missing = |line: Option<&String>| line.cloned().unwrap_or_else(|| "(missing)".to_owned());
            lines += &format!("- real {}\n+ fake {}\n", or_missing(real), or_missing(fake));
        }
    }
    lines
}
