//! Three real etcds that form one cluster, each of which can be killed, frozen and started again.

use std::time::{Duration, Instant};

use etcd_client::Client;

use crate::etcd::{PATIENCE, RealEtcd};

/// How long a member may take to say how it is.
const ANSWER: Duration = Duration::from_secs(2);

/// A cluster of real etcds on this machine, gone when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<RealEtcd>,
}

impl Cluster {
    /// Three members that run and agree.
    ///
    /// # Panics
    /// When there is no etcd to start, or it does not come up.
    pub async fn start() -> Self {
        let mut cluster = Self { members: RealEtcd::reserved_together(3) };
        cluster.restart(&[0, 1, 2]).await;
        cluster
    }

    /// Where the members listen, as a controller's settings take it.
    pub fn endpoints(&self) -> String {
        self.members.iter().map(RealEtcd::endpoint).collect::<Vec<_>>().join(",")
    }

    /// Which member leads the cluster, as soon as one does.
    ///
    /// # Panics
    /// When none does for long.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (place, member) in self.members.iter().enumerate() {
                if leads(&member.endpoint()).await {
                    return place;
                }
            }
            assert!(Instant::now() < deadline, "the real etcds found no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends members at once, all of them before any is started again. What they stored stays.
    pub fn kill(&mut self, members: &[usize]) {
        for member in members {
            self.members[*member].kill();
        }
    }

    /// Starts members that do not run, and waits until they have found the others.
    ///
    /// # Panics
    /// When they do not.
    pub async fn restart(&mut self, members: &[usize]) {
        for member in members {
            self.members[*member].spawn();
        }
        for member in members {
            self.members[*member].come_up().await;
        }
    }

    /// Freezes a member: its connections stay, nobody answers.
    pub fn pause(&self, member: usize) {
        self.members[member].pause();
    }

    /// Lets a member go on, and waits until it has found the others.
    ///
    /// # Panics
    /// When it does not.
    pub async fn resume(&self, member: usize) {
        self.members[member].resume();
        self.members[member].come_up().await;
    }
}

/// Whether a member says that it leads; one that does not answer does not.
async fn leads(endpoint: &str) -> bool {
    let asked = async {
        let status = Client::connect([endpoint], None).await?.status().await?;
        Ok::<_, etcd_client::Error>(status.header().is_some_and(|header| header.member_id() == status.leader()))
    };
    matches!(tokio::time::timeout(ANSWER, asked).await, Ok(Ok(true)))
}
