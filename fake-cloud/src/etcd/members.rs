//! The members of the cluster: this server, and those that were added to it but have no process.

use super::error::EtcdError;

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) peer_urls: Vec<String>,
    pub(super) is_learner: bool,
}

/// The part that a new member has in elections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Voter,
    Learner,
}

/// All members but this server, which is started, votes and leads.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Members {
    others: Vec<Member>,
    /// The peer URLs of this server, once they were changed.
    own_peer_urls: Option<Vec<String>>,
}

impl Members {
    /// The members that were added, in order of their ids.
    pub(super) fn others(&self) -> &[Member] {
        &self.others
    }

    /// The peer URLs of this server, if they were changed.
    pub(super) fn own_peer_urls(&self) -> Option<&[String]> {
        self.own_peer_urls.as_deref()
    }

    /// Adds a member that is not started.
    pub(super) fn add(&mut self, own: &[String], id: u64, urls: &[String], role: Role) -> Result<Member, EtcdError> {
        let peer_urls = check_urls(urls)?;
        let is_learner = role == Role::Learner;
        let voters = 1 + self.others.iter().filter(|member| !member.is_learner).count();
        // One member may grow to two; any further voter needs a quorum of started members.
        if !is_learner && voters > 1 {
            return Err(EtcdError::NotEnoughStartedMembers);
        }
        if self.is_used(own, &peer_urls, None) {
            return Err(EtcdError::PeerUrlExists);
        }
        if is_learner && self.others.iter().any(|member| member.is_learner) {
            return Err(EtcdError::TooManyLearners);
        }
        let member = Member { id, peer_urls, is_learner };
        self.others.push(member.clone());
        self.others.sort_by_key(|member| member.id);
        Ok(member)
    }

    /// Removes a member that was added. This server cannot be removed.
    pub(super) fn remove(&mut self, own_id: u64, id: u64) -> Result<(), EtcdError> {
        if id == own_id {
            return Err(EtcdError::NotEnoughStartedMembers);
        }
        let index = self.others.iter().position(|member| member.id == id).ok_or(EtcdError::MemberNotFound)?;
        self.others.remove(index);
        Ok(())
    }

    /// Changes the peer URLs of a member.
    pub(super) fn update(&mut self, own_id: u64, own: &[String], id: u64, urls: &[String]) -> Result<(), EtcdError> {
        if id != own_id && self.others.iter().all(|member| member.id != id) {
            return Err(EtcdError::MemberNotFound);
        }
        if self.is_used(if id == own_id { &[] } else { own }, urls, Some(id)) {
            return Err(EtcdError::PeerUrlExists);
        }
        match self.others.iter_mut().find(|member| member.id == id) {
            Some(member) => member.peer_urls = urls.to_vec(),
            None => self.own_peer_urls = Some(urls.to_vec()),
        }
        Ok(())
    }

    /// Fails: a learner without a process never catches up.
    pub(super) fn promote(&self, own_id: u64, id: u64) -> Result<(), EtcdError> {
        let is_learner = match self.others.iter().find(|member| member.id == id) {
            Some(member) => member.is_learner,
            None if id == own_id => false,
            None => return Err(EtcdError::MemberNotFound),
        };
        Err(if is_learner { EtcdError::LearnerNotReady } else { EtcdError::MemberNotLearner })
    }

    /// Moves the leadership, which only this server can take over: the others have no process.
    pub(super) fn move_leader(&self, own_id: u64, id: u64) -> Result<(), EtcdError> {
        match self.others.iter().find(|member| member.id == id) {
            None if id == own_id => Ok(()),
            Some(member) if !member.is_learner => Err(EtcdError::TransferTimeout),
            Some(_) | None => Err(EtcdError::BadTransferee),
        }
    }

    fn is_used(&self, own: &[String], urls: &[String], except: Option<u64>) -> bool {
        let others = self.others.iter().filter(|member| Some(member.id) != except);
        others.flat_map(|member| &member.peer_urls).chain(own).any(|used| urls.contains(used))
    }
}

/// Checks peer URLs as real etcd does: a scheme, a host with a port, and no path.
fn check_urls(urls: &[String]) -> Result<Vec<String>, EtcdError> {
    let is_valid = |url: &String| {
        let rest = ["http://", "https://", "unix://", "unixs://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let port = rest.and_then(|rest| rest.rsplit_once(':'));
        port.is_some_and(|(host, port)| !host.contains('/') && port.parse::<u16>().is_ok())
    };
    if urls.is_empty() || !urls.iter().all(is_valid) {
        return Err(EtcdError::BadMemberUrls);
    }
    let mut urls = urls.to_vec();
    urls.sort();
    Ok(urls)
}
