//! Learns about the consumers of one tube, and compares its estimates with the starts of tasks.

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::{
    Calibrated, Calibration, QueueNow, QueueSample, RunTimes, ServiceModel,
};
use taskyard_core::{Forecast, Position, Span, TaskId, Timestamp};

use super::Moment;
use super::histogram::Histogram;

/// Samples within this time are one.
const SAMPLE_MIN: Span = Span::from_micros(500_000);
/// After a longer time without a sample the rates of that time say nothing.
const SAMPLE_MAX: Span = Span::from_secs(30);

/// The consumers of one tube.
#[derive(Debug, Default)]
pub(super) struct TubeService {
    model: ServiceModel,
    latest: Option<LatestSample>,
    /// Absent until an estimate was asked for.
    calibration: Option<Box<Calibration>>,
}

/// The counters at the latest sample.
#[derive(Clone, Copy, Debug)]
struct LatestSample {
    at: Timestamp,
    takes: u64,
    returns: u64,
}

impl TubeService {
    /// The bytes that it uses outside of its own size, unless estimates are asked for.
    pub const BYTES: usize = RunTimes::BYTES;

    /// Adds the deliveries that ended in a second.
    pub fn add_runs(&mut self, runs: &Histogram) {
        runs.for_each(|span, count| self.model.add_runs(span.as_secs_f64(), count));
    }

    /// Adds tasks that were put: all of them, and those with a priority of their own.
    pub fn add_puts(&mut self, count: usize, priorities: &[(u64, u32)]) {
        let mut usual = u32::try_from(count).unwrap_or(u32::MAX);
        for (pri, count) in priorities {
            self.model.add_arrivals(Some(*pri), *count);
            usual = usual.saturating_sub(*count);
        }
        self.model.add_arrivals(None, usual);
    }

    /// Adds a sample of the counters of the store, which all servers share.
    pub fn add_sample(&mut self, now: Timestamp, info: &TubeInfo) {
        let (calls, tasks) = (&info.stats.calls, &info.stats.tasks);
        let sample =
            LatestSample { at: now, takes: calls.take, returns: calls.release + calls.ttr };
        let Some(latest) = self.latest else {
            self.latest = Some(sample);
            return;
        };
        let elapsed = now.since(latest.at);
        if elapsed < SAMPLE_MIN {
            return;
        }
        self.latest = Some(sample);
        if elapsed <= SAMPLE_MAX {
            self.model.add_sample(QueueSample {
                seconds: elapsed.as_secs_f64(),
                takes: sample.takes.saturating_sub(latest.takes),
                returns: sample.returns.saturating_sub(latest.returns),
                ready: tasks.ready,
                taken: tasks.taken,
            });
        }
    }

    /// When tasks at these positions will start.
    pub fn forecast(
        &mut self,
        moment: Moment,
        positions: &[Position],
        queue: &QueueNow,
    ) -> Vec<Forecast> {
        let calibration = self.calibration.get_or_insert_default();
        let forecast = |position: &Position| {
            let raw = self.model.forecast(moment.wall, position, queue)?;
            Ok(calibration.give(position.id, moment.now, raw))
        };
        positions.iter().map(forecast).collect()
    }

    /// The same for the last ready task, whichever it is: nothing is compared.
    pub fn forecast_drain(
        &self,
        moment: Moment,
        position: &Position,
        queue: &QueueNow,
    ) -> Forecast {
        let raw = self.model.forecast(moment.wall, position, queue)?;
        Ok(self.calibration.as_ref().map_or(raw, |calibration| calibration.corrected(raw)))
    }

    /// Compares the estimate of a task that starts now.
    pub fn start(&mut self, id: TaskId, now: Timestamp) {
        if let Some(calibration) = self.calibration.as_mut().filter(|all| all.is_waiting()) {
            calibration.start(id, now);
        }
    }

    /// Whether estimates wait for the starts of their tasks.
    pub fn awaits_starts(&self) -> bool {
        self.calibration.as_ref().is_some_and(|calibration| calibration.is_waiting())
    }

    /// These tasks were removed, or started elsewhere: their estimates cannot be compared any more.
    pub fn forget(&mut self, ids: impl Iterator<Item = TaskId>) {
        if let Some(calibration) = self.calibration.as_mut().filter(|all| all.is_waiting()) {
            ids.for_each(|id| calibration.forget(id));
        }
    }

    /// The same for all tasks.
    pub fn forget_all(&mut self) {
        if let Some(calibration) = &mut self.calibration {
            calibration.forget_all();
        }
    }

    /// How many estimates held, if any were asked for.
    pub fn calibrated(&self) -> Option<Calibrated> {
        self.calibration.as_ref().map(|calibration| calibration.counts())
    }
}
