//! Chooses among several candidates.

use std::collections::BTreeSet;

use crate::classes::Ticket;
use crate::time::Timestamp;

/// Which task is lowered or halted when several could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Any of them, with the same chance.
    #[default]
    Random,
    /// The one that started last: the least work is lost.
    Youngest,
    /// The one that started first.
    Oldest,
}

/// A source of choices that gives the same ones again for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Choice {
    state: u64,
}

impl Choice {
    pub fn new(seed: u64) -> Self {
        Choice { state: seed }
    }

    /// One of the candidates.
    pub fn pick(
        &mut self,
        policy: Policy,
        from: &BTreeSet<(Timestamp, Ticket)>,
    ) -> Option<(Timestamp, Ticket)> {
        match policy {
            Policy::Oldest => from.first().copied(),
            Policy::Youngest => from.last().copied(),
            Policy::Random if from.is_empty() => None,
            Policy::Random => from.iter().nth(self.below(from.len())).copied(),
        }
    }

    /// A number below `bound`; the bias of the multiplication is negligible.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
