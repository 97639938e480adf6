//! The suite: every case once against the fake and once against the real one.

use super::cases::CASES;
use super::servers::{FakeEtcd, RealEtcd, connect};
use super::session::Session;

/// Both servers start empty and see the same calls in the same order, so their revisions agree from the first case to
/// the last. After a difference they are started afresh, for the next case to be judged alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_fake_and_the_real_etcd_tell_the_same() {
    let mut differences = String::new();
    let (mut fake, mut real) = (FakeEtcd::start().await, RealEtcd::start().await);
    for (name, case) in CASES {
        let mut transcripts = Vec::new();
        for endpoint in [&fake.endpoint, &real.endpoint] {
            let session = case(Session::new(connect(endpoint).await)).await;
            let mut session = tidy_up(session).await;
            // Where the case left the store, for the next one.
            session.call("afterwards", async |client| client.get("none", None).await).await;
            transcripts.push(session.into_transcript());
        }
        let [told_by_fake, told_by_real] = [&transcripts[0], &transcripts[1]];
        assert!(!told_by_real.is_empty(), "{name} tells nothing");
        if std::env::var_os("LCM_SHOW_TRANSCRIPTS").is_some() {
            println!("## {name}\n{}\n", told_by_real.join("\n"));
        }
        if told_by_fake != told_by_real {
            differences += &format!("\n## {name}\n{}", difference(told_by_fake, told_by_real));
            fake.stop().await;
            (fake, real) = (FakeEtcd::start().await, RealEtcd::start().await);
        }
    }
    fake.stop().await;
    assert!(differences.is_empty(), "the fake differs from the real etcd:\n{differences}");
}

/// Leaves no key and no lease behind.
async fn tidy_up(mut session: Session) -> Session {
    let all = etcd_client::DeleteOptions::new().with_all_keys();
    session.client.delete("", Some(all)).await.expect("keys go");
    let leases = session.client.leases().await.expect("a list of leases");
    for lease in leases.leases() {
        session.client.lease_revoke(lease.id()).await.expect("leases go");
    }
    session
}

fn difference(fake: &[String], real: &[String]) -> String {
    let mut told = String::new();
    for place in 0..fake.len().max(real.len()) {
        let (fake, real) = (fake.get(place), real.get(place));
        if fake != real {
            let or_nothing = |line: Option<&String>| line.cloned().unwrap_or_else(|| "(nothing)".to_owned());
            told += &format!("- real {}\n+ fake {}\n", or_nothing(real), or_nothing(fake));
        }
    }
    told
}
