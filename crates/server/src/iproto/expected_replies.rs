//! Estimates how many bytes the pending replies of a connection will have.
//!
//! A request of a few bytes may have a reply of a megabyte, and the size is not known before. The
//! estimate is the size of earlier replies of the connection, and only as many requests are in
//! flight at once as fit by that estimate.

use taskyard_core::Command;

/// How many bytes of replies may be expected at once; one more request may exceed it.
pub(super) const EXPECTED_BYTES_MAX: usize = 4 << 20;

/// The first estimate for a task, or for a list of all tubes.
const FIRST_BYTES: usize = 256 << 10;
/// The smallest estimate: the next reply may be larger than those before it.
const FLOOR_BYTES: usize = 16 << 10;

/// The expected bytes of all pending replies.
#[derive(Debug)]
pub(super) struct ExpectedReplies {
    bytes: usize,
    /// The estimate for one task.
    task: usize,
    /// The estimate for a list of all tubes.
    tubes: usize,
}

/// What determines the size of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplySize {
    /// The reply is never large, or not larger than its request.
    Small,
    /// This many tasks with their payloads.
    Tasks(usize),
    /// A list of all tubes.
    Tubes,
    /// The rows of a space.
    Rows,
}

/// What was added for a request; it is subtracted when the reply is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyCharge {
    size: ReplySize,
    bytes: usize,
}

impl Default for ExpectedReplies {
    fn default() -> Self {
        ExpectedReplies { bytes: 0, task: FIRST_BYTES, tubes: FIRST_BYTES }
    }
}

impl ExpectedReplies {
    /// Whether one more request of any size may be sent.
    pub fn has_capacity(&self) -> bool {
        self.bytes < EXPECTED_BYTES_MAX
    }

    /// Adds the estimate for a reply of this size.
    pub fn add(&mut self, size: ReplySize) -> ReplyCharge {
        let bytes = match size {
            ReplySize::Small => 0,
            ReplySize::Tasks(count) => count.saturating_mul(self.task).min(EXPECTED_BYTES_MAX),
            ReplySize::Tubes => self.tubes.min(EXPECTED_BYTES_MAX),
            ReplySize::Rows => EXPECTED_BYTES_MAX,
        };
        self.bytes += bytes;
        ReplyCharge { size, bytes }
    }

    /// Subtracts the estimate and updates it with the real number of bytes.
    pub fn record(&mut self, charge: ReplyCharge, written: usize) {
        self.bytes = self.bytes.saturating_sub(charge.bytes);
        match charge.size {
            ReplySize::Tasks(count) => learn(&mut self.task, written / count.max(1)),
            ReplySize::Tubes => learn(&mut self.tubes, written),
            ReplySize::Small | ReplySize::Rows => {}
        }
    }
}

/// Raises the estimate at once and lowers it slowly.
fn learn(estimate: &mut usize, seen: usize) {
    *estimate = seen.max(*estimate - *estimate / 8).max(FLOOR_BYTES);
}

/// What determines the size of the reply to a command.
pub(super) fn size_of(command: &Command) -> ReplySize {
    match command {
        // A take that waits is answered alone at any time and must not delay other requests until
        // then.
        Command::Take(take) if take.wait.is_zero() => ReplySize::Tasks(take.count),
        Command::Finish { items, show: true, .. } => ReplySize::Tasks(items.len()),
        Command::Delete { ids, show: true, .. } | Command::Peek { ids, .. } => {
            ReplySize::Tasks(ids.len())
        }
        Command::Tubes { tube: None } => ReplySize::Tubes,
        // A search sends few of the tasks that it compares.
        Command::Deliveries { .. }
        | Command::List(_)
        | Command::Search(_)
        | Command::Positions { .. } => ReplySize::Rows,
        _ => ReplySize::Small,
    }
}

/// What determines the size of the replies to several commands together.
pub(super) fn size_of_all(commands: &[Command]) -> ReplySize {
    commands.iter().map(size_of).fold(ReplySize::Small, |all, one| match (all, one) {
        (ReplySize::Small, size) | (size, ReplySize::Small) => size,
        (ReplySize::Tasks(some), ReplySize::Tasks(more)) => {
            ReplySize::Tasks(some.saturating_add(more))
        }
        _ => ReplySize::Rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests of this size may be in flight together.
    fn together(expected: &mut ExpectedReplies, size: ReplySize) -> usize {
        let mut charges = Vec::new();
        while expected.has_capacity() {
            charges.push(expected.add(size));
        }
        let count = charges.len();
        charges.into_iter().for_each(|charge| expected.bytes -= charge.bytes);
        count
    }

    #[test]
    fn more_requests_are_in_flight_when_replies_are_small() {
        let mut expected = ExpectedReplies::default();
        assert_eq!(together(&mut expected, ReplySize::Tasks(1)), 16);
        for _ in 0..50 {
            let charge = expected.add(ReplySize::Tasks(1));
            expected.record(charge, 100);
        }
        assert_eq!(together(&mut expected, ReplySize::Tasks(1)), 256);
        let charge = expected.add(ReplySize::Tasks(1));
        expected.record(charge, 1 << 20);
        assert_eq!(
            together(&mut expected, ReplySize::Tasks(1)),
            4,
            "one large answer is warning enough"
        );
        assert_eq!(together(&mut expected, ReplySize::Tubes), 16, "tubes are no tasks");
        assert_eq!(together(&mut expected, ReplySize::Rows), 1);
        assert_eq!(together(&mut expected, ReplySize::Tasks(usize::MAX)), 1);
        assert_eq!(expected.bytes, 0);
    }
}
