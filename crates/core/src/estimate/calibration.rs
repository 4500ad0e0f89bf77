//! Compares estimates with the starts of their tasks, and corrects later estimates by what was found.
//!
//! A correction is the ratio of real and estimated waits in recent comparisons, for each magnitude of the number of tasks
//! ahead. Its quantiles are used, so that half of the tasks start within p50 and nine of ten within p90, however wrong the
//! model is.

use std::collections::{HashMap, VecDeque};

use super::{Basis, Estimate};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// Estimates of one tube that are remembered until their tasks start.
const GIVEN_MAX: usize = 4_096;
/// Seconds whose comparisons decide a correction.
const COMPARED_SECONDS: usize = 512;
/// With this many comparisons the correction has half of its weight.
const HALF_WEIGHT: f64 = 4.0;
/// How far a level is moved at most.
const MOVED_MAX: f64 = 0.2;
/// Shorter waits are all the same.
const SHORTEST: f64 = 0.001;
/// Few tasks ahead, some, many; then delayed tasks, and those for which a consumer waits.
const MAGNITUDES: usize = 5;

/// The comparisons of one tube.
#[derive(Debug, Default)]
pub struct Calibration {
    given: HashMap<TaskId, GivenEstimate>,
    /// In the order in which they were given.
    order: VecDeque<(TaskId, Timestamp)>,
    corrections: Corrections,
}

/// The corrections that were found, and how many estimates held.
#[derive(Clone, Debug)]
pub struct Corrections {
    by_magnitude: [Correction; MAGNITUDES],
    counts: Calibrated,
    pace: CorrectionPace,
}

/// How fast corrections follow what is found.
#[derive(Clone, Copy, Debug)]
pub struct CorrectionPace {
    /// Comparisons of one second and magnitude that count.
    pub per_second_max: u32,
    /// How much the comparisons of one second move the level of a quantile at most. Tasks that arrive together have
    /// the same error, so a fast move follows each such group.
    pub moved_per_second: f64,
}

impl CorrectionPace {
    /// The pace of a tube.
    const TUBE: CorrectionPace = CorrectionPace { per_second_max: 1, moved_per_second: 0.02 };
}

impl Default for Corrections {
    fn default() -> Self {
        Corrections::new(CorrectionPace::TUBE)
    }
}

/// How many estimates held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calibrated {
    /// Tasks that started within p50.
    pub p50: u64,
    /// Tasks that started after p50 and within p90.
    pub p90: u64,
    /// Tasks that started later.
    pub late: u64,
    /// Estimates that were not compared: their task was removed before it started or started elsewhere, or too many others
    /// waited for the starts of their tasks.
    pub dropped: u64,
}

/// Which part of an estimate held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The task started within p50.
    P50,
    /// It started within p90.
    P90,
    /// It started later.
    Late,
}

/// An estimate that waits for the start of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenEstimate {
    /// When it was given.
    pub at: Timestamp,
    /// As it was shown.
    pub shown: Estimate,
    /// Before the correction.
    pub raw: Estimate,
}

/// Logarithms of the ratios of real waits to estimated ones.
#[derive(Clone, Debug, Default)]
struct Correction {
    ratios: VecDeque<Ratio>,
    /// The second of the latest comparison, and how many there were in it.
    second: (i64, u32),
    /// How far the levels of the quantiles are moved, because too many or too few estimates held.
    moved: [f64; 2],
    /// What p50 and p90 are multiplied with.
    factors: Option<[f64; 2]>,
}

/// How much longer a task waited than was estimated, as logarithms.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    p50: f32,
    p90: f32,
    /// When the estimate was given, in seconds. Estimates of one moment are wrong together.
    given: i64,
}

impl Calibrated {
    /// All comparisons. Dropped estimates are none.
    pub fn total(&self) -> u64 {
        self.p50 + self.p90 + self.late
    }

    /// Counts a comparison.
    pub fn add(&mut self, held: Held) {
        match held {
            Held::P50 => self.p50 += 1,
            Held::P90 => self.p90 += 1,
            Held::Late => self.late += 1,
        }
    }
}

impl Calibration {
    /// Corrects an estimate and remembers it until its task starts.
    pub fn give(&mut self, id: TaskId, now: Timestamp, raw: Estimate) -> Estimate {
        let shown = self.corrected(raw);
        // The first estimate of a task is the one that is compared.
        if let std::collections::hash_map::Entry::Vacant(place) = self.given.entry(id) {
            place.insert(GivenEstimate { at: now, shown, raw });
            self.order.push_back((id, now));
        }
        while self.given.len() > GIVEN_MAX
            && let Some((oldest, at)) = self.order.pop_front()
        {
            if self.given.get(&oldest).is_some_and(|given| given.at == at) {
                self.forget(oldest);
            }
        }
        if self.order.len() > 2 * GIVEN_MAX {
            let given = &self.given;
            self.order.retain(|(id, at)| given.get(id).is_some_and(|given| given.at == *at));
        }
        shown
    }

    /// The correction of an estimate that is not compared.
    pub fn corrected(&self, raw: Estimate) -> Estimate {
        self.corrections.corrected(raw)
    }

    /// Whether estimates wait for the starts of their tasks.
    pub fn is_waiting(&self) -> bool {
        !self.given.is_empty()
    }

    /// A task has started.
    pub fn start(&mut self, id: TaskId, now: Timestamp) -> Option<Held> {
        let given = self.given.remove(&id)?;
        Some(self.corrections.compare(given, now))
    }

    /// A task was removed without a start, or it started elsewhere.
    pub fn forget(&mut self, id: TaskId) {
        let is_given = self.given.remove(&id).is_some();
        self.corrections.counts.dropped += u64::from(is_given);
    }

    /// All tasks were removed.
    pub fn forget_all(&mut self) {
        self.corrections.counts.dropped += self.given.len() as u64;
        self.given.clear();
        self.order.clear();
    }

    /// How many estimates held.
    pub fn counts(&self) -> Calibrated {
        self.corrections.counts()
    }
}

impl Corrections {
    /// No correction yet.
    pub fn new(pace: CorrectionPace) -> Self {
        Corrections { by_magnitude: Default::default(), counts: Calibrated::default(), pace }
    }

    /// Corrects an estimate.
    pub fn corrected(&self, raw: Estimate) -> Estimate {
        self.by_magnitude[magnitude(&raw)].corrected(raw)
    }

    /// Compares an estimate with the start of its task.
    pub fn compare(&mut self, given: GivenEstimate, now: Timestamp) -> Held {
        let real = now.since(given.at);
        let shown = given.shown;
        let correction = &mut self.by_magnitude[magnitude(&given.raw)];
        if correction.counts_in(now, self.pace) {
            correction.compare(given, now, self.pace);
        }
        let held = if real <= shown.p50.max(Span::from_micros(1_000)) {
            Held::P50
        } else if real <= shown.p90.max(Span::from_micros(1_000)) {
            Held::P90
        } else {
            Held::Late
        };
        self.counts.add(held);
        held
    }

    /// How many estimates held.
    pub fn counts(&self) -> Calibrated {
        self.counts
    }
}

fn magnitude(raw: &Estimate) -> usize {
    match (raw.basis, raw.ahead) {
        (Basis::IdleConsumer, _) => 4,
        (Basis::Delay, _) => 3,
        (_, ..16) => 0,
        (_, ..128) => 1,
        _ => 2,
    }
}

impl Correction {
    /// Whether a comparison counts: in one second only so many do.
    fn counts_in(&mut self, now: Timestamp, pace: CorrectionPace) -> bool {
        let second = now.as_micros() / 1_000_000;
        if self.second.0 != second {
            self.second = (second, 0);
        }
        self.second.1 = self.second.1.saturating_add(1);
        self.second.1 <= pace.per_second_max
    }

    fn compare(&mut self, given: GivenEstimate, now: Timestamp, pace: CorrectionPace) {
        let GivenEstimate { at: given, shown, raw } = given;
        for (moved, (level, estimated)) in
            self.moved.iter_mut().zip([(0.5, shown.p50), (0.9, shown.p90)])
        {
            let held = if now.since(given) <= estimated { 1.0 } else { 0.0 };
            let step = pace.moved_per_second / f64::from(pace.per_second_max);
            *moved = (*moved + step * (level - held)).clamp(-MOVED_MAX, MOVED_MAX);
        }
        let real = now.since(given).as_secs_f64().max(SHORTEST);
        let ratio = |estimated: Span| (real / estimated.as_secs_f64().max(SHORTEST)).ln() as f32;
        if self.ratios.len() == COMPARED_SECONDS * pace.per_second_max as usize {
            self.ratios.pop_front();
        }
        let given = given.as_micros() / 1_000_000;
        self.ratios.push_back(Ratio { p50: ratio(raw.p50), p90: ratio(raw.p90), given });
        if self.second.1 == 1 {
            self.factors = Some(self.new_factors());
        }
    }

    fn corrected(&self, raw: Estimate) -> Estimate {
        let Some([p50, p90]) = self.factors else { return raw };
        let scaled = |span: Span, factor: f64| {
            let seconds = span.as_secs_f64().max(SHORTEST);
            Span::from_secs_f64(seconds * factor).unwrap_or(span)
        };
        let p50 = scaled(raw.p50, p50);
        Estimate { p50, p90: scaled(raw.p90, p90).max(p50), ..raw }
    }

    /// What p50 and p90 are to be multiplied with.
    fn new_factors(&self) -> [f64; 2] {
        let moments = self.moments();
        let weight = moments / (moments + HALF_WEIGHT);
        let p50 = self.ratios.iter().map(|ratio| ratio.p50).collect();
        let p50 = weight * f64::from(quantile_of(p50, 0.5 + self.moved[0]));
        // With few independent comparisons a larger part of them must be covered.
        let level = 0.9 * (1.0 + 1.0 / moments) + self.moved[1];
        let p90 = self.ratios.iter().map(|ratio| ratio.p90).collect();
        let p90 = f64::from(quantile_of(p90, level.min(1.0)));
        // Where even the largest is not enough, more is added.
        [p50.exp(), level.max(1.0) * p90.exp()]
    }

    /// The number of moments at which the compared estimates were given.
    fn moments(&self) -> f64 {
        let mut moments: Vec<i64> = self.ratios.iter().map(|ratio| ratio.given / 10).collect();
        moments.sort_unstable();
        moments.dedup();
        moments.len() as f64
    }
}

fn quantile_of(mut values: Vec<f32>, quantile: f64) -> f32 {
    let place = ((values.len() - 1) as f64 * quantile).round() as usize;
    *values.select_nth_unstable_by(place, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn give(calibration: &mut Calibration, id: u64) {
        let (p50, p90) = (Span::from_secs(5), Span::from_secs(9));
        let raw = Estimate { ahead: 1, p50, p90, basis: Basis::RunTimes };
        calibration.give(TaskId(id), at(id as i64), raw);
    }

    /// Estimates whose tasks never started disappeared without a trace.
    #[test]
    fn every_estimate_is_compared_or_counted_as_dropped() {
        let mut calibration = Calibration::default();
        (0..10).for_each(|id| give(&mut calibration, id));
        give(&mut calibration, 3);
        calibration.forget(TaskId(4));
        calibration.forget(TaskId(4));
        assert_eq!(calibration.start(TaskId(4), at(20)), None);
        assert!(calibration.start(TaskId(5), at(20)).is_some());
        let counts = calibration.counts();
        assert_eq!((counts.total(), counts.dropped), (1, 1));
        calibration.forget_all();
        assert!(!calibration.is_waiting());
        assert_eq!(calibration.counts().dropped, 9);
        let many = GIVEN_MAX as u64 + 7;
        (100..100 + many).for_each(|id| give(&mut calibration, id));
        assert_eq!((calibration.given.len(), calibration.counts().dropped), (GIVEN_MAX, 16));
        assert_eq!(calibration.start(TaskId(106), at(9_999)), None, "the oldest are dropped");
        assert!(calibration.start(TaskId(107), at(9_999)).is_some());
    }
}
