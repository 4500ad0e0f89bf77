//! The series of one tube: an hour of seconds, two days of minutes, and all durations and failures
//! since it began.

use std::ops::Range;

use taskyard_core::Span;

use super::deliveries::Deliveries;
use super::histogram::{Histogram, Latency};
use super::ring::{CommandCounts, Depth, Ring, SeriesPoint};
use super::service::TubeService;
use super::{MINUTES, SECONDS, Step, TubeFigures};

/// The series of one tube.
#[derive(Debug)]
pub(super) struct TubeSeries {
    /// Absent in a tube that has been idle for a day.
    recent: Option<Box<Recent>>,
    /// The minute that has not ended.
    minute: Interval,
    minutes: Ring,
    wait: Latency,
    run: Latency,
    /// Failed deliveries before the second that has not ended.
    failures: u64,
}

/// What a tube needs only while it is used.
#[derive(Debug)]
struct Recent {
    /// The second that has not ended.
    second: Interval,
    seconds: Ring,
    deliveries: Deliveries,
    service: TubeService,
}

/// An interval that has not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    /// What commands did in it.
    pub counts: CommandCounts,
    /// How long taken tasks had been ready.
    pub wait: Histogram,
    /// How long finished deliveries had lasted.
    pub run: Histogram,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its task is done.
    Acked,
    /// It failed.
    Failed,
    /// It ended without a result.
    Returned,
}

impl Interval {
    /// Counts a delivery and how long its task had been ready.
    pub fn begin_delivery(&mut self, wait: Option<Span>) {
        self.counts.takes = self.counts.takes.saturating_add(1);
        if let Some(wait) = wait {
            self.wait.record(wait);
        }
    }

    /// Counts the end of a delivery and how long it lasted, if that is known.
    pub fn end_delivery(&mut self, ending: Ending, run: Option<Span>) {
        let count = match ending {
            Ending::Acked => &mut self.counts.acks,
            Ending::Failed => &mut self.counts.fails,
            Ending::Returned => return,
        };
        *count = count.saturating_add(1);
        if let Some(run) = run {
            self.run.record(run);
        }
    }

    /// Adds another interval.
    pub fn add(&mut self, other: &Interval) {
        self.counts.add(other.counts);
        self.wait.add(&other.wait);
        self.run.add(&other.run);
    }

    fn clear(&mut self) {
        self.counts = CommandCounts::default();
        self.wait.clear();
        self.run.clear();
    }

    fn point(&self, depth: Depth) -> SeriesPoint {
        SeriesPoint::new(self.counts, depth, self.wait.percentiles(), self.run.percentiles())
    }
}

impl TubeSeries {
    /// The most bytes that the series of one tube uses.
    pub const BYTES_MAX: usize = size_of::<TubeSeries>()
        + size_of::<Recent>()
        + Deliveries::BYTES
        + TubeService::BYTES
        + Ring::bytes_max(SECONDS)
        + Ring::bytes_max(MINUTES);

    /// The bytes that it uses now.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let recent = |recent: &Recent| {
            size_of::<Recent>() + Deliveries::BYTES + TubeService::BYTES + recent.seconds.bytes()
        };
        let recent = self.recent.as_deref().map_or(0, recent);
        size_of::<TubeSeries>() + self.minutes.bytes() + recent
    }

    /// A series that begins with this depth.
    pub fn new(depth: Depth) -> Self {
        TubeSeries {
            recent: None,
            minute: Interval::default(),
            minutes: Ring::new(MINUTES, depth),
            wait: Latency::default(),
            run: Latency::default(),
            failures: 0,
        }
    }

    /// The second that has not ended.
    pub fn second(&mut self) -> &mut Interval {
        &mut self.recent().second
    }

    /// The deliveries that have not ended.
    pub fn deliveries(&mut self) -> &mut Deliveries {
        &mut self.recent().deliveries
    }

    /// What is learned of its consumers.
    pub fn service(&mut self) -> &mut TubeService {
        &mut self.recent().service
    }

    /// The same, if the tube was used.
    pub fn known_service(&self) -> Option<&TubeService> {
        self.recent.as_ref().map(|recent| &recent.service)
    }

    /// Ends a second, and adds it to the sum of all tubes.
    pub fn close_second(&mut self, second: u32, depth: Depth, sum: Option<&mut TubeSeries>) {
        let minutes = &self.minutes;
        let Recent { second: closed, seconds, service, .. } =
            &mut **self.recent.get_or_insert_with(|| Recent::boxed(minutes));
        service.add_runs(&closed.run);
        seconds.store(second, closed.point(depth));
        self.minute.add(closed);
        self.wait.add_histogram(&closed.wait);
        self.run.add_histogram(&closed.run);
        self.failures += u64::from(closed.counts.fails);
        if let Some(sum) = sum {
            sum.second().add(closed);
        }
        closed.clear();
    }

    /// Ends a minute.
    pub fn close_minute(&mut self, minute: u32, depth: Depth) {
        self.minutes.store(minute, self.minute.point(depth));
        self.minute.clear();
    }

    /// The points from one interval to before another.
    pub fn points(&self, step: Step, from: u32, to: u32) -> Vec<SeriesPoint> {
        match (step, &self.recent) {
            (Step::Second, Some(recent)) => recent.seconds.points(from, to),
            (Step::Second, None) => {
                Ring::new(SECONDS, self.minutes.latest_depth()).points(from, to)
            }
            (Step::Minute, _) => self.minutes.points(from, to),
        }
    }

    /// All durations since the series began: wait and run.
    pub fn latencies(&self) -> [Latency; 2] {
        let (mut wait, mut run) = (self.wait.clone(), self.run.clone());
        if let Some(recent) = &self.recent {
            wait.add_histogram(&recent.second.wait);
            run.add_histogram(&recent.second.run);
        }
        [wait, run]
    }

    /// All failed deliveries since the series began, and the latest durations of these seconds.
    pub fn figures(&self, seconds: Range<u32>) -> TubeFigures {
        let Some(recent) = self.recent.as_deref() else {
            return TubeFigures { failures: self.failures, ..TubeFigures::default() };
        };
        TubeFigures {
            failures: self.failures + u64::from(recent.second.counts.fails),
            wait: recent.seconds.latest(seconds.clone(), SeriesPoint::wait),
            run: recent.seconds.latest(seconds, SeriesPoint::run),
        }
    }

    /// Frees what is older than these intervals, and, in an idle tube, everything but the minutes.
    /// Returns whether any minute is left.
    pub fn free_before(&mut self, second: u32, minute: u32, idle: bool) -> bool {
        match &mut self.recent {
            Some(recent) if !idle => _ = recent.seconds.free_before(second),
            recent => *recent = None,
        }
        self.minutes.free_before(minute)
    }

    fn recent(&mut self) -> &mut Recent {
        let minutes = &self.minutes;
        self.recent.get_or_insert_with(|| Recent::boxed(minutes))
    }
}

impl Recent {
    fn boxed(minutes: &Ring) -> Box<Self> {
        Box::new(Recent {
            second: Interval::default(),
            seconds: Ring::new(SECONDS, minutes.latest_depth()),
            deliveries: Deliveries::default(),
            service: TubeService::default(),
        })
    }
}
