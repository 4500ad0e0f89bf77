//! A trace in memory: the tasks in the order of their puts, and the changes between them.
//!
//! A task that was delivered and acknowledged once needs [`TaskRow`] alone; everything else is in a [`TaskDetails`].

use taskyard_core::{Span, TubeOptions};

use crate::consumer_count::ConsumerCount;
use crate::event::{EndReason, Ending};
use crate::figures::{WaitCurve, WaitFigures};

/// Stands for a delivery that did not happen.
pub(crate) const NO_DELIVERY: i64 = -1;

/// A trace. Times are microseconds since its start.
#[derive(Debug, Default)]
pub struct Trace {
    /// When it began, in microseconds since 1970.
    pub wall_start: u64,
    /// The time of its last event.
    pub end: u64,
    /// Why it ended; `None` if the server was killed.
    pub end_reason: Option<EndReason>,
    /// How many events are missing because the disk was too slow or full.
    pub dropped: u64,
    /// Whether its last block is incomplete or damaged.
    pub is_torn: bool,
    /// Its tubes.
    pub tubes: Vec<RecordedTube>,
    pub(crate) rows: Vec<TaskRow>,
    pub(crate) details: Vec<TaskDetails>,
    pub(crate) changes: Vec<Change>,
}

/// A tube of a trace.
#[derive(Debug, Default)]
pub struct RecordedTube {
    /// Its name; a tube that was removed and created again is listed twice.
    pub name: String,
    /// Its options when it was first used.
    pub options: Option<Box<TubeOptions>>,
    /// How many of its tasks ran at once.
    pub consumers: ConsumerCount,
    /// How many deliveries ended with an expired lease or a session.
    pub lost: u64,
    /// The time of its last put.
    pub last_put: u64,
    /// The time of the last end of a delivery.
    pub last_end: u64,
    /// The sum of the bytes of its payloads.
    pub bytes: u64,
    /// Some run times, for tasks that did not run.
    pub(crate) samples: RunSamples,
}

impl RecordedTube {
    /// Whether tasks wait for other reasons than a consumer: a rate limit, a semaphore, or their sub-queue.
    pub(crate) fn has_other_reasons(&self) -> bool {
        self.options.as_ref().is_some_and(|options| {
            options.rate.is_some() || options.semaphore.is_some() || options.kind.has_subqueues()
        })
    }
}

/// A task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskRow {
    /// When it was put.
    pub put: i64,
    /// How long its only delivery lasted; [`NO_DELIVERY`] if it has none or several.
    pub run: i64,
    /// How long it had waited for it.
    pub wait: i64,
    pub pri: u64,
    pub tube: u32,
    /// Its details, counted from 1.
    pub details: u32,
    /// Whether the put gave the priority.
    pub has_pri: bool,
}

/// What few tasks have.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskDetails {
    pub delay: Option<Span>,
    pub ttl: Option<Span>,
    pub subqueue: Option<u64>,
    pub attempts_max: Option<u32>,
    /// All deliveries, unless the row has the only one.
    pub deliveries: Vec<RecordedDelivery>,
}

/// A delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedDelivery {
    pub run: i64,
    pub wait: i64,
    pub ending: Ending,
}

/// A change that is not a put, a take or the end of a delivery.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub at: i64,
    pub tube: u32,
    pub kind: ChangeKind,
}

#[derive(Clone, Debug)]
pub(crate) enum ChangeKind {
    Options(Box<TubeOptions>),
    Delete { row: u32 },
    Kick { count: u64 },
    Clear,
}

/// A part of the run times of a tube, evenly chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunSamples {
    runs: Vec<i64>,
    stride: u64,
    seen: u64,
}

/// The most run times that are kept for a tube.
const SAMPLES_MAX: usize = 4_096;

impl RunSamples {
    pub fn add(&mut self, run: i64) {
        self.stride = self.stride.max(1);
        if self.seen.is_multiple_of(self.stride) {
            if self.runs.len() >= SAMPLES_MAX {
                let mut nth = 0;
                self.runs.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
                self.stride *= 2;
            }
            self.runs.push(run);
        }
        self.seen += 1;
    }

    pub fn runs(&self) -> &[i64] {
        &self.runs
    }

    /// The run time of a task that has none.
    pub fn pick(&self, row: u32) -> Option<i64> {
        let mixed = u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let count = self.runs.len() as u64;
        (count > 0).then(|| self.runs[(mixed % count) as usize])
    }
}

impl TaskRow {
    pub fn details<'a>(&self, trace: &'a Trace) -> Option<&'a TaskDetails> {
        self.details.checked_sub(1).and_then(|index| trace.details.get(index as usize))
    }
}

impl Trace {
    /// The number of tasks.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no task.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A recorded delivery of a task, counted from 0.
    pub(crate) fn delivery(&self, row: &TaskRow, nth: usize) -> Option<RecordedDelivery> {
        if row.run != NO_DELIVERY {
            let only = RecordedDelivery { run: row.run, wait: row.wait, ending: Ending::Acked };
            return (nth == 0).then_some(only);
        }
        row.details(self)?.deliveries.get(nth).copied()
    }

    /// What a delivery in a replay does: as recorded, or for further ones as long as the last one, and with an ack.
    pub(crate) fn replayed_delivery(&self, index: u32, nth: usize) -> RecordedDelivery {
        let row = &self.rows[index as usize];
        if let Some(recorded) = self.delivery(row, nth) {
            return recorded;
        }
        let last = row.details(self).and_then(|details| details.deliveries.last());
        let run = if row.run == NO_DELIVERY { last.map(|last| last.run) } else { Some(row.run) };
        let samples = &self.tubes[row.tube as usize].samples;
        let run = run.or_else(|| samples.pick(index)).unwrap_or(0);
        RecordedDelivery { run, wait: NO_DELIVERY, ending: Ending::Acked }
    }

    /// Calls `pass` with the tube, the wait and the start of each recorded delivery whose start is known.
    fn for_each_wait(&self, mut pass: impl FnMut(u32, u64)) {
        for row in &self.rows {
            let mut pass_one = |wait: i64| {
                if wait != NO_DELIVERY {
                    pass(row.tube, wait.unsigned_abs());
                }
            };
            if row.run != NO_DELIVERY {
                pass_one(row.wait);
            } else if let Some(details) = row.details(self) {
                details.deliveries.iter().for_each(|delivery| pass_one(delivery.wait));
            }
        }
    }

    /// The recorded waits of each tube.
    pub fn recorded_waits(&self) -> Vec<Vec<u64>> {
        let mut waits = vec![Vec::new(); self.tubes.len()];
        self.for_each_wait(|tube, wait| waits[tube as usize].push(wait));
        waits
    }

    /// The figures of the recorded waits of each tube.
    pub fn recorded_figures(&self) -> Vec<WaitFigures> {
        self.recorded_waits().iter_mut().map(|waits| WaitFigures::of(waits)).collect()
    }

    /// How the recorded waits of a tube changed.
    pub fn recorded_curve(&self, tube: usize) -> &WaitCurve {
        self.tubes[tube].consumers.waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_even() {
        let mut samples = RunSamples::default();
        assert_eq!(samples.pick(7), None);
        (0..100_000).for_each(|run| samples.add(run));
        assert!(samples.runs.len() <= SAMPLES_MAX && samples.runs.len() > SAMPLES_MAX / 2);
        let mean = samples.runs.iter().sum::<i64>() / samples.runs.len() as i64;
        assert!((45_000..55_000).contains(&mean), "{mean}");
        assert!(samples.pick(7).is_some());
    }

    // docs/estimates.md names these sizes.
    #[test]
    fn a_task_needs_48_bytes_and_another_delivery_32() {
        assert_eq!((size_of::<TaskRow>(), size_of::<RecordedDelivery>()), (48, 32));
        assert!(size_of::<TaskDetails>() <= 100);
    }
}
