//! How many bytes of answers are expected of what is under way.
//!
//! A few bytes of a request may have a megabyte for an answer, and nobody knows before it is there. So
//! the answers of a connection are believed to be as large as those before them, and only so many
//! requests are under way at once that their answers fit together.

use taskyard_core::Command;

/// How many bytes of answers may be expected at once; one request more may pass it.
pub(super) const EXPECTED_BYTES_MAX: usize = 4 << 20;

/// As large a task, or a list of all tubes, is believed to be at first.
const FIRST_BYTES: usize = 256 << 10;
/// Nothing is believed to be smaller: the next one may be larger than those before it.
const FLOOR_BYTES: usize = 16 << 10;

/// How many bytes of answers are expected of what is under way.
#[derive(Debug)]
pub(super) struct Expected {
    bytes: usize,
    /// How large a task is believed to be.
    task: usize,
    /// How large a list of all tubes is believed to be.
    tubes: usize,
}

/// How large an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Never large, or not larger than its request.
    Small,
    /// So many tasks with all they carry.
    Tasks(usize),
    /// All tubes.
    Tubes,
    /// The rows of a space.
    Rows,
}

/// What was added for a request, to be taken away with its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    size: Size,
    bytes: usize,
}

impl Default for Expected {
    fn default() -> Self {
        Expected { bytes: 0, task: FIRST_BYTES, tubes: FIRST_BYTES }
    }
}

impl Expected {
    /// Whether one more request may be under way, whatever it is.
    pub fn has_room(&self) -> bool {
        self.bytes < EXPECTED_BYTES_MAX
    }

    /// Expects an answer of this size.
    pub fn add(&mut self, size: Size) -> Charge {
        let bytes = match size {
            Size::Small => 0,
            Size::Tasks(count) => count.saturating_mul(self.task).min(EXPECTED_BYTES_MAX),
            Size::Tubes => self.tubes.min(EXPECTED_BYTES_MAX),
            Size::Rows => EXPECTED_BYTES_MAX,
        };
        self.bytes += bytes;
        Charge { size, bytes }
    }

    /// Notes that an answer is there, and how many bytes it has.
    pub fn settle(&mut self, charge: Charge, written: usize) {
        self.bytes = self.bytes.saturating_sub(charge.bytes);
        match charge.size {
            Size::Tasks(count) => learn(&mut self.task, written / count.max(1)),
            Size::Tubes => learn(&mut self.tubes, written),
            Size::Small | Size::Rows => {}
        }
    }
}

/// Believes in what is larger at once, and in what is smaller slowly.
fn learn(believed: &mut usize, seen: usize) {
    *believed = seen.max(*believed - *believed / 8).max(FLOOR_BYTES);
}

/// How large the answer to a command may become.
pub(super) fn size_of(command: &Command) -> Size {
    match command {
        // One that waits is answered alone and at any time, and must not hold up the others till then.
        Command::Take(take) if take.wait.is_zero() => Size::Tasks(take.count),
        Command::Finish { items, show: true, .. } => Size::Tasks(items.len()),
        Command::Delete { ids, show: true, .. } | Command::Peek { ids, .. } => {
            Size::Tasks(ids.len())
        }
        Command::Tubes { tube: None } => Size::Tubes,
        Command::Deliveries { .. } => Size::Rows,
        _ => Size::Small,
    }
}

/// How large the answer to several commands together may become.
pub(super) fn size_of_all(commands: &[Command]) -> Size {
    commands.iter().map(size_of).fold(Size::Small, |all, one| match (all, one) {
        (Size::Small, size) | (size, Size::Small) => size,
        (Size::Tasks(some), Size::Tasks(more)) => Size::Tasks(some.saturating_add(more)),
        _ => Size::Rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests of this size may be under way together.
    fn together(expected: &mut Expected, size: Size) -> usize {
        let mut charges = Vec::new();
        while expected.has_room() {
            charges.push(expected.add(size));
        }
        let count = charges.len();
        charges.into_iter().for_each(|charge| expected.bytes -= charge.bytes);
        count
    }

    #[test]
    fn more_are_under_way_when_their_answers_are_small() {
        let mut expected = Expected::default();
        assert_eq!(together(&mut expected, Size::Tasks(1)), 16);
        for _ in 0..50 {
            let charge = expected.add(Size::Tasks(1));
            expected.settle(charge, 100);
        }
        assert_eq!(together(&mut expected, Size::Tasks(1)), 256);
        let charge = expected.add(Size::Tasks(1));
        expected.settle(charge, 1 << 20);
        assert_eq!(
            together(&mut expected, Size::Tasks(1)),
            4,
            "one large answer is warning enough"
        );
        assert_eq!(together(&mut expected, Size::Tubes), 16, "tubes are no tasks");
        assert_eq!(together(&mut expected, Size::Rows), 1);
        assert_eq!(together(&mut expected, Size::Tasks(usize::MAX)), 1);
        assert_eq!(expected.bytes, 0);
    }
}
