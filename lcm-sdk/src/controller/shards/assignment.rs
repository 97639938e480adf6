//! Who of several members leads how many shards: pure, and from what one member can see by itself.
//!
//! # Guarantees
//! Members are ranked by how long they are there. Everybody's share is `⌊n/m⌋`, and one more for the `n mod m` who are
//! there longest. The shares add up to the shards, differ by one at the most, and only fall when somebody comes and only
//! rise when somebody goes. So a newcomer gets exactly its share, from those who have too much; the shards of somebody
//! who went are all that moves; and nobody has to know who holds what.

use std::collections::BTreeSet;

use crate::controller::hash::{Shard, Shards};

/// Where a member stands among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// How many members there are.
    pub members: usize,
    /// How many of them are there longer.
    pub rank: usize,
}

/// What a member is to do about its shards. Each shard is named at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Share {
    /// Free ones, to be taken.
    pub take: Vec<Shard>,
    /// Its own, which it stays with.
    pub keep: Vec<Shard>,
    /// Its own, for somebody else.
    pub release: Vec<Shard>,
}

/// How many shards a member may lead.
///
/// ```
/// use lcm_sdk::controller::shards::{Shards, Standing, fair_share};
///
/// let four = Shards::new(4)?;
/// let shares = [0, 1, 2].map(|rank| fair_share(four, Standing { members: 3, rank }));
/// assert_eq!(shares, [2, 1, 1]);
/// # Ok::<(), lcm_sdk::controller::shards::ShardsError>(())
/// ```
pub fn fair_share(shards: Shards, standing: Standing) -> usize {
    let (count, members) = (usize::from(shards.count()), standing.members.max(1));
    count / members + usize::from(standing.rank < count % members)
}

/// What a member is to do, given what it leads or is about to, and what nobody leads.
///
/// # Guarantees
/// It never takes while it has its share, and never releases while it has no more: two looks at the same members
/// never undo each other. Members of different ranks begin with different free shards.
pub fn share(shards: Shards, standing: Standing, mine: &BTreeSet<Shard>, free: &BTreeSet<Shard>) -> Share {
    let fair = fair_share(shards, standing);
    let (keep, release) = match mine.iter().nth(fair) {
        None => (mine.iter().copied().collect(), Vec::new()),
        Some(first) => (mine.range(..first).copied().collect(), mine.range(first..).copied().collect()),
    };
    let free: Vec<Shard> = free.difference(mine).copied().collect();
    let begin = free.len() * standing.rank / standing.members.max(1);
    let take = free.iter().cycle().skip(begin).take(free.len().min(fair.saturating_sub(mine.len()))).copied().collect();
    Share { take, keep, release }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cluster as the members' moves make it: who is there longest comes first.
    #[derive(Debug, Clone)]
    struct Cluster {
        shards: Shards,
        members: Vec<(u32, BTreeSet<Shard>)>,
    }

    impl Cluster {
        fn free(&self) -> BTreeSet<Shard> {
            self.shards.all().filter(|shard| self.members.iter().all(|(_, mine)| !mine.contains(shard))).collect()
        }

        /// Lets everybody act on what it sees until nobody has anything to do; tells how many shards were taken.
        fn settle(&mut self) -> usize {
            let mut taken = 0;
            for _round in 0..2 {
                for rank in 0..self.members.len() {
                    let (standing, free) = (Standing { members: self.members.len(), rank }, self.free());
                    let mine = &mut self.members[rank].1;
                    let moves = share(self.shards, standing, mine, &free);
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
            let holder = holders.next().expect("somebody leads it");
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
    fn a_member_with_its_share_does_nothing_whatever_is_free() {
        let (shards, standing) = (Shards::new(8).expect("good"), Standing { members: 2, rank: 1 });
        let mine: BTreeSet<_> = (0..4).map(Shard).collect();
        let moves = share(shards, standing, &mine, &(4..8).map(Shard).collect());
        assert_eq!((moves.take.len(), moves.keep.len(), moves.release.len()), (0, 4, 0));
    }

    proptest! {
        #[test]
        fn the_shares_add_up_and_differ_by_one_at_the_most(count in 1_usize..=1024, members in 1_usize..64) {
            let shards = Shards::new(count).expect("good");
            let shares: Vec<_> = (0..members).map(|rank| fair_share(shards, Standing { members, rank })).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), count);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            prop_assert!(*shares.iter().max().unwrap() <= count.div_ceil(members));
        }

        #[test]
        fn everybody_settles_on_its_share_and_then_nothing_moves(count in 1_usize..200, members in 1_u32..12) {
            let mut cluster = settled(count, members);
            for (rank, (_, mine)) in cluster.members.iter().enumerate() {
                let standing = Standing { members: cluster.members.len(), rank };
                prop_assert_eq!(mine.len(), fair_share(cluster.shards, standing));
            }
            let before = cluster.holders();
            prop_assert_eq!(cluster.settle(), 0);
            prop_assert_eq!(before, cluster.holders());
        }

        #[test]
        fn a_newcomer_gets_its_share_and_nothing_else_moves(count in 1_usize..200, members in 1_u32..12) {
            let mut cluster = settled(count, members);
            let before = cluster.holders();
            cluster.members.push((members, BTreeSet::new()));
            cluster.settle();
            let after = cluster.holders();
            prop_assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == members));
            prop_assert_eq!(moved(&before, &after), count / (members as usize + 1));
        }

        #[test]
        fn only_the_shards_of_who_went_move(count in 1_usize..200, members in 2_u32..12, who in any::<prop::sample::Index>()) {
            let mut cluster = settled(count, members);
            let before = cluster.holders();
            let (gone, _) = cluster.members.remove(who.index(members as usize));
            cluster.settle();
            let after = cluster.holders();
            prop_assert!(before.iter().zip(&after).all(|(before, after)| (before == after) == (*before != gone)));
        }
    }
}
