//! Distributes shards over members: pure, from the view of one member.
//!
//! # Guarantees
//! Members are ranked by the time of their registration. The fair share of a member is `⌊n/m⌋`, plus one for the first
//! `n mod m` members. The shares add up to the shards, differ by at most one, only fall when a member joins and only rise
//! when a member leaves. A new member gets exactly its share from those above theirs, only the shards of a member that
//! left move, and no member needs to know which shards another holds.

use std::collections::BTreeSet;

use crate::controller::hash::{Shard, Shards};

/// Rank of a member among all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberRank {
    /// Number of members.
    pub members: usize,
    /// Number of members that registered earlier.
    pub rank: usize,
}

/// Changes to the shards of a member. Each shard is named at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Assignment {
    /// Free shards to take.
    pub take: Vec<Shard>,
    /// Own shards to keep.
    pub keep: Vec<Shard>,
    /// Own shards to hand over.
    pub release: Vec<Shard>,
}

/// Number of shards a member may lead.
///
/// ```
/// use lcm_sdk::controller::{MemberRank, Shards, fair_share};
///
/// let four = Shards::new(4)?;
/// let shares = [0, 1, 2].map(|rank| fair_share(four, MemberRank { members: 3, rank }));
/// assert_eq!(shares, [2, 1, 1]);
/// # Ok::<(), lcm_sdk::controller::ShardsError>(())
/// ```
pub fn fair_share(shards: Shards, rank: MemberRank) -> usize {
    let (count, members) = (usize::from(shards.count()), rank.members.max(1));
    count / members + usize::from(rank.rank < count % members)
}

/// Assigns shards to a member, given the shards it leads or competes for (`own`) and those without a leader (`free`).
///
/// # Guarantees
/// A member never takes while it has its fair share and never releases while it has no more: two assignments for the same
/// members never undo each other. Members of different ranks begin with different free shards.
pub fn assign(shards: Shards, rank: MemberRank, own: &BTreeSet<Shard>, free: &BTreeSet<Shard>) -> Assignment {
    let fair = fair_share(shards, rank);
    let (keep, release) = match own.iter().nth(fair) {
        None => (own.iter().copied().collect(), Vec::new()),
        Some(first) => (own.range(..first).copied().collect(), own.range(first..).copied().collect()),
    };
    let free: Vec<Shard> = free.difference(own).copied().collect();
    let begin = free.len() * rank.rank / rank.members.max(1);
    let take = free.iter().cycle().skip(begin).take(free.len().min(fair.saturating_sub(own.len()))).copied().collect();
    Assignment { take, keep, release }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Members in the order of registration, with the shards each leads.
    #[derive(Debug, Clone)]
    struct Cluster {
        shards: Shards,
        members: Vec<(u32, BTreeSet<Shard>)>,
    }

    impl Cluster {
        fn free(&self) -> BTreeSet<Shard> {
            self.shards.all().filter(|shard| self.members.iter().all(|(_, mine)| !mine.contains(shard))).collect()
        }

        /// Applies assignments until nothing changes. Returns the number of shards taken.
        fn settle(&mut self) -> usize {
            let mut taken = 0;
            for _round in 0..2 {
                for rank in 0..self.members.len() {
                    let (member, free) = (MemberRank { members: self.members.len(), rank }, self.free());
                    let mine = &mut self.members[rank].1;
                    let moves = assign(self.shards, member, mine, &free);
                    assert!(moves.take.is_empty() || moves.release.is_empty(), "both at once: {moves:?}");
                    assert!(moves.take.iter().all(|shard| free.contains(shard)), "{moves:?}");
                    taken += moves.take.len();
                    *mine = moves.keep.into_iter().chain(moves.take).collect();
                }
            }
            taken
        }

        fn holder(&self, shard: Shard) -> u32 {
            let mut holders = self.members.iter().filter(|(_, mine)| mine.contains(&shard)).map(|(name, _)| *name);
            let holder = holders.next().expect("a leader");
            assert_eq!(holders.next(), None, "{shard} is led twice");
            holder
        }

        fn holders(&self) -> Vec<u32> {
            self.shards.all().map(|shard| self.holder(shard)).collect()
        }
    }

    fn settled(count: usize, members: u32) -> Cluster {
        let shards = Shards::new(count).expect("a good number");
        let mut cluster = Cluster { shards, members: (0..members).map(|name| (name, BTreeSet::new())).collect() };
        cluster.settle();
        cluster
    }

    fn moved(before: &[u32], after: &[u32]) -> usize {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    }

    #[test]
    fn member_with_its_share_takes_nothing() {
        let (shards, member) = (Shards::new(8).expect("good"), MemberRank { members: 2, rank: 1 });
        let mine: BTreeSet<_> = (0..4).map(Shard).collect();
        let moves = assign(shards, member, &mine, &(4..8).map(Shard).collect());
        assert_eq!((moves.take.len(), moves.keep.len(), moves.release.len()), (0, 4, 0));
    }

    proptest! {
        #[test]
        fn shares_add_up_and_differ_by_at_most_one(count in 1_usize..=1024, members in 1_usize..64) {
            let shards = Shards::new(count).expect("good");
            let shares: Vec<_> = (0..members).map(|rank| fair_share(shards, MemberRank { members, rank })).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), count);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            prop_assert!(*shares.iter().max().unwrap() <= count.div_ceil(members));
        }

        #[test]
        fn members_settle_on_their_shares(count in 1_usize..200, members in 1_u32..12) {
            let mut cluster = settled(count, members);
            for (rank, (_, mine)) in cluster.members.iter().enumerate() {
                let member = MemberRank { members: cluster.members.len(), rank };
                prop_assert_eq!(mine.len(), fair_share(cluster.shards, member));
            }
            let before = cluster.holders();
            prop_assert_eq!(cluster.settle(), 0);
            prop_assert_eq!(before, cluster.holders());
        }

        #[test]
        fn new_member_gets_its_share_and_nothing_else_moves(count in 1_usize..200, members in 1_u32..12) {
            let mut cluster = settled(count, members);
            let before = cluster.holders();
            cluster.members.push((members, BTreeSet::new()));
            cluster.settle();
            let after = cluster.holders();
            prop_assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == members));
            prop_assert_eq!(moved(&before, &after), count / (members as usize + 1));
        }

        #[test]
        fn only_shards_of_a_member_that_left_move(count in 1_usize..200, members in 2_u32..12, who in any::<prop::sample::Index>()) {
            let mut cluster = settled(count, members);
            let before = cluster.holders();
            let (gone, _) = cluster.members.remove(who.index(members as usize));
            cluster.settle();
            let after = cluster.holders();
            prop_assert!(before.iter().zip(&after).all(|(before, after)| (before == after) == (*before != gone)));
        }
    }
}
