//! Decides how many tasks of a list are read by one command, so that other commands do not wait long for it.
//!
//! A part is limited by the number of its tasks, by the bytes of their payloads and by the time that it takes. The payloads of the
//! next part are expected to be as large as those of the latest one.

use taskyard_core::Span;

/// How many tasks the first part has, before anything is known of their payloads.
pub(super) const PART_FIRST: usize = 10;
/// How many tasks a part has at most, as far as the store sends them.
const PART_MAX: usize = 500;
/// How many ids a part has at most, if the store compares payloads itself and sends few of them.
const COMPARED_MAX: usize = 1_200;
/// About how many bytes the payloads of a part have: they are in memory at the same time.
pub(super) const PART_BYTES: usize = 1 << 20;
/// A part that takes longer is followed by a smaller one.
const PART_TIME: Span = Span::from_micros(5_000);
/// How many times larger than the latest part the next one is at most: its payloads may be larger.
const GROWTH_MAX: usize = 10;
/// How many times larger it is after a part that took long for another reason than its tasks.
const PROBE_GROWTH: usize = 8;

/// The size of the next part.
pub(super) struct PartSize {
    tasks: usize,
    /// How long all parts took.
    spent: Span,
    /// The latest part, if it took too long.
    slow: Option<MeasuredPart>,
}

/// A part that was read.
#[derive(Clone, Copy)]
pub(super) struct MeasuredPart {
    /// How many ids were looked up.
    pub ids: usize,
    /// How many tasks the store sent.
    pub tasks: usize,
    /// The bytes of the payloads that were read.
    pub bytes: usize,
    /// How long it took until its tasks could be compared.
    pub took: Span,
}

impl PartSize {
    /// The size of the first part.
    pub fn first() -> Self {
        PartSize { tasks: PART_FIRST, spent: Span::ZERO, slow: None }
    }

    /// How many tasks the next part has.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    /// How long all parts took.
    pub fn spent(&self) -> Span {
        self.spent
    }

    /// Sets the size of the next part after this one.
    pub fn record(&mut self, part: MeasuredPart) {
        self.spent = self.spent + part.took;
        let by_time = self.by_time(part);
        let by_tasks = (part.ids.saturating_mul(PART_MAX) / part.tasks.max(1)).max(PART_MAX);
        let most = by_tasks.min(COMPARED_MAX);
        self.tasks = by_time.min(within_bytes(part.ids, part.bytes)).clamp(1, most);
    }

    /// The size that the time of a part allows. Half of a slow part that takes about as long shows that something else takes the
    /// time: other commands, or the network. Then smaller parts would only delay the search.
    fn by_time(&mut self, part: MeasuredPart) -> usize {
        if part.took <= PART_TIME {
            self.slow = None;
            let (took, allowed) = (part.took.as_micros().max(1), PART_TIME.as_micros());
            let growth = (allowed / took).clamp(1, GROWTH_MAX as i64) as usize;
            return part.ids.saturating_mul(growth);
        }
        let slow = self.slow.take();
        // One task cannot be halved. Two that take about as long show the same.
        if part.ids == 1 && slow.is_some_and(|slow| slow.ids == 1) {
            return 2;
        }
        let is_unrelated = |slow: MeasuredPart| {
            part.ids < slow.ids && part.took.as_micros() / 3 > slow.took.as_micros() / 4
        };
        if slow.is_some_and(is_unrelated) {
            return part.ids.saturating_mul(PROBE_GROWTH);
        }
        self.slow = Some(part);
        part.ids / 2
    }
}

/// How many tasks have payloads of about `PART_BYTES`, if this many have `bytes`.
pub(super) fn within_bytes(tasks: usize, bytes: usize) -> usize {
    (tasks.saturating_mul(PART_BYTES) / bytes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the first parts if each takes so many microseconds, and so many for each of its tasks with so many bytes.
    fn sizes(latency: i64, task: i64, bytes: usize) -> Vec<usize> {
        let mut size = PartSize::first();
        let part = |_| {
            let ids = size.tasks();
            let took = Span::from_micros(latency + task * ids as i64);
            size.record(MeasuredPart { ids, tasks: ids, bytes: bytes * ids, took });
            ids
        };
        (0..8).map(part).collect()
    }

    #[test]
    fn parts_of_small_tasks_grow() {
        assert_eq!(sizes(50, 1, 100), [10, 100, 500, 500, 500, 500, 500, 500]);
    }

    #[test]
    fn parts_of_large_payloads_have_few_tasks() {
        assert_eq!(sizes(50, 1, PART_BYTES / 2)[..3], [10, 2, 2]);
        assert_eq!(sizes(50, 1, PART_BYTES * 50)[..3], [10, 1, 1]);
    }

    #[test]
    fn parts_take_at_most_five_milliseconds_if_tasks_do() {
        assert_eq!(sizes(0, 100, 100)[..4], [10, 50, 50, 50]);
        assert_eq!(sizes(0, 1_000, 100)[..4], [10, 5, 5, 5]);
        assert_eq!(sizes(0, 4_000, 100)[..6], [10, 5, 2, 1, 1, 1]);
        assert_eq!(sizes(0, 90_000, 100), [10, 5, 2, 1, 1, 2, 1, 1]);
    }

    /// The parts became as small as one task while other clients kept the store busy, and a search took minutes.
    #[test]
    fn parts_grow_if_their_size_is_not_the_reason() {
        assert_eq!(sizes(20_000, 0, 100), [10, 5, 40, 20, 160, 80, 500, 250]);
        assert_eq!(sizes(6_000, 8, 100)[4..], [160, 80, 500, 250]);
    }

    /// Large payloads made the parts as small as one task, and they stayed so on a store with a slow network.
    #[test]
    fn parts_of_one_task_grow_if_their_size_is_not_the_reason() {
        let mut size = PartSize { tasks: 1, ..PartSize::first() };
        let part = |_| {
            let ids = size.tasks();
            let took = Span::from_micros(6_000);
            size.record(MeasuredPart { ids, tasks: ids, bytes: 100 * ids, took });
            ids
        };
        let sizes: Vec<usize> = (0..10).map(part).collect();
        assert_eq!(sizes, [1, 1, 2, 1, 8, 4, 32, 16, 128, 64]);
    }

    #[test]
    fn parts_of_which_the_store_sends_few_tasks_have_more_ids() {
        let next = |ids, tasks| {
            let mut size = PartSize { tasks: ids, ..PartSize::first() };
            let took = Span::from_micros(500);
            size.record(MeasuredPart { ids, tasks, bytes: 100 * ids, took });
            size.tasks()
        };
        assert_eq!(
            [next(500, 0), next(500, 1), next(500, 250), next(500, 500)],
            [COMPARED_MAX, COMPARED_MAX, 1_000, PART_MAX]
        );
        assert_eq!(next(COMPARED_MAX, COMPARED_MAX), PART_MAX);
    }

    #[test]
    fn a_part_without_payloads_is_no_reason_for_a_limit() {
        assert_eq!(sizes(0, 0, 0)[..3], [10, 100, 500]);
    }
}
