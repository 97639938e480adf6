//! A cluster of three real etcd members, each of which can be killed, paused and restarted.

use std::time::{Duration, Instant};

use etcd_client::Client;

use crate::etcd::{PATIENCE, RealEtcd};

/// Timeout of a status call.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Real etcd members on this machine. Dropping it ends them and deletes their data.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<RealEtcd>,
}

impl Cluster {
    /// Starts three members and waits until they have formed a cluster.
    ///
    /// # Panics
    /// If etcd is not installed or does not become ready.
    pub async fn start() -> Self {
        let mut cluster = Self { members: RealEtcd::new_members(3) };
        cluster.restart(&[0, 1, 2]).await;
        cluster
    }

    /// Endpoints of the members, separated by commas, in the format of a controller's settings.
    pub fn endpoints(&self) -> String {
        self.members.iter().map(RealEtcd::endpoint).collect::<Vec<_>>().join(",")
    }

    /// Waits for a leader and returns its index.
    ///
    /// # Panics
    /// If there is none within [`PATIENCE`].
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (index, member) in self.members.iter().enumerate() {
                if leads(&member.endpoint()).await {
                    return index;
                }
            }
            assert!(Instant::now() < deadline, "the real etcd cluster has no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills members and keeps their data. All of them are down before the call returns.
    pub fn kill(&mut self, members: &[usize]) {
        for member in members {
            self.members[*member].kill();
        }
    }

    /// Starts stopped members and waits until they have rejoined the cluster.
    ///
    /// # Panics
    /// If they do not.
    pub async fn restart(&mut self, members: &[usize]) {
        for member in members {
            self.members[*member].spawn();
        }
        for member in members {
            self.members[*member].wait_until_ready().await;
        }
    }

    /// Pauses a member: its connections stay open, but no call completes.
    pub fn pause(&self, member: usize) {
        self.members[member].pause();
    }

    /// Resumes a paused member and waits until it has rejoined the cluster.
    ///
    /// # Panics
    /// If it does not.
    pub async fn resume(&self, member: usize) {
        self.members[member].resume();
        self.members[member].wait_until_ready().await;
    }
}

/// Whether a member reports itself as the leader; false if it does not respond.
async fn leads(endpoint: &str) -> bool {
    let status = async {
        let status = Client::connect([endpoint], None).await?.status().await?;
        Ok::<_, etcd_client::Error>(status.header().is_some_and(|header| header.member_id() == status.leader()))
    };
    matches!(tokio::time::timeout(STATUS_TIMEOUT, status).await, Ok(Ok(true)))
}
