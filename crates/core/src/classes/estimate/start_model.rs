//! Learns how long tasks of each class run, and how well estimates of their starts held.

use super::LikelyStart;
use crate::classes::TaskKind;
use crate::estimate::{
    Basis, Calibrated, CorrectionPace, Corrections, Estimate, GivenEstimate, Held, RunTimes,
};
use crate::limits::CLASSES_MAX;
use crate::time::{Span, Timestamp};

/// After this many seconds run times have half of their weight, but not before [`HALF_LIFE_RUNS`] others were added.
const HALF_LIFE: f64 = 60.0;
/// After this many further run times one has half of its weight, but not before [`HALF_LIFE`] is over.
const HALF_LIFE_RUNS: f64 = 32.0;
/// Parts of the table of quantiles.
const PARTS: usize = 128;
/// The 90 % quantile of the normal distribution.
const NORMAL_P90: f64 = 1.2816;
/// How wrong an estimate is even if very many tasks are ahead.
const ERROR_MIN: f64 = 0.02;

/// More comparisons of one second count than in a tube: otherwise times in which few tasks start would count more than
/// others.
const PACE: CorrectionPace = CorrectionPace { per_second_max: 8, moved_per_second: 0.005 };

/// What was learned of a pool.
#[derive(Clone, Debug)]
pub struct StartModel {
    /// Tasks with a duration, by the class in which they ended.
    explicit: [LearnedRuns; CLASSES_MAX],
    /// Default tasks, whichever class they ended in.
    default: LearnedRuns,
    /// By the class that tasks waited for.
    corrections: [Corrections; CLASSES_MAX],
    has_history: bool,
}

/// Recent run times of one class.
#[derive(Clone, Debug, Default)]
struct LearnedRuns {
    times: Option<Box<RunTimes>>,
    latest: Option<Timestamp>,
    /// The times in seconds that growing parts of the tasks do not exceed.
    quantiles: Option<Box<[f32; PARTS + 1]>>,
}

/// A start from simulated futures.
#[derive(Clone, Copy, Debug)]
pub(in crate::classes) struct SimulatedStart {
    pub kind: TaskKind,
    /// The class that the task waits for.
    pub class: u8,
    /// The tasks that wait for this class or a longer one, and go first.
    pub ahead: usize,
    /// The middle one of the simulated starts.
    pub middle: Span,
    /// The guaranteed bound.
    pub at_most: Span,
}

impl Default for StartModel {
    fn default() -> Self {
        StartModel {
            explicit: Default::default(),
            default: LearnedRuns::default(),
            corrections: std::array::from_fn(|_| Corrections::new(PACE)),
            has_history: false,
        }
    }
}

impl StartModel {
    /// A task has ended in this class after it held its backend for this time.
    pub fn add_run(&mut self, now: Timestamp, kind: TaskKind, class: u8, took: Span) {
        let class = usize::from(class).min(CLASSES_MAX - 1);
        match kind {
            TaskKind::Explicit => self.explicit[class].add(now, took),
            TaskKind::Default => self.default.add(now, took),
            TaskKind::Interactive => return,
        }
        self.has_history = true;
    }

    /// Whether any task has ended.
    pub fn has_history(&self) -> bool {
        self.has_history
    }

    /// The run time that this part of such tasks does not exceed, of those that run for longer than `age`; `None`
    /// without history.
    pub(in crate::classes) fn run_time(
        &self,
        kind: TaskKind,
        class: u8,
        age: Span,
        part: f64,
    ) -> Option<Span> {
        self.runs(kind, class).time(age, part)
    }

    fn runs(&self, kind: TaskKind, class: u8) -> &LearnedRuns {
        match kind {
            TaskKind::Default => &self.default,
            _ => &self.explicit[usize::from(class).min(CLASSES_MAX - 1)],
        }
    }

    /// The likely start, corrected by what was found and never after the guaranteed bound.
    pub(in crate::classes) fn likely(&self, start: &SimulatedStart) -> LikelyStart {
        let times = self.runs(start.kind, start.class).times.as_ref();
        let variation = times.map_or(1.0, |times| times.variation());
        let error = (variation / (start.ahead + 1) as f64 + ERROR_MIN * ERROR_MIN).sqrt();
        let p90 = start.middle.as_secs_f64() * (1.0 + NORMAL_P90 * error);
        let raw = Estimate {
            ahead: start.ahead as u64,
            p50: start.middle,
            p90: Span::from_secs_f64(p90).unwrap_or(start.at_most),
            basis: Basis::RunTimes,
        };
        let shown = self.corrections[usize::from(start.class)].corrected(raw);
        let (p50, p90) = (shown.p50.min(start.at_most), shown.p90.min(start.at_most));
        LikelyStart { shown: Estimate { p50, p90, ..shown }, raw }
    }

    /// Compares an estimate with the start of its task, which waited for this class.
    pub fn start(&mut self, now: Timestamp, class: u8, given: GivenEstimate) -> Held {
        self.corrections[usize::from(class).min(CLASSES_MAX - 1)].compare(given, now)
    }

    /// How many estimates of tasks that waited for this class held.
    pub fn calibrated(&self, class: u8) -> Calibrated {
        self.corrections[usize::from(class).min(CLASSES_MAX - 1)].counts()
    }
}

impl LearnedRuns {
    fn add(&mut self, now: Timestamp, took: Span) {
        let times = self.times.get_or_insert_default();
        let age = self.latest.map_or(0.0, |latest| now.since(latest).as_secs_f64());
        let (by_time, by_count) =
            (0.5_f64.powf(age / HALF_LIFE), 0.5_f64.powf(1.0 / HALF_LIFE_RUNS));
        times.fade(by_time.max(by_count));
        times.add(took.as_secs_f64(), 1.0);
        self.latest = Some(now);
        self.quantiles = times.quantiles().map(Box::new);
    }

    fn time(&self, age: Span, part: f64) -> Option<Span> {
        let quantiles = self.quantiles.as_deref()?;
        let age = age.as_secs_f64();
        let passed = part_of(quantiles, age);
        let part = passed + (1.0 - passed) * part;
        let seconds = f64::from(quantile(quantiles, part)).max(age);
        // It runs longer than all others did: then it may run much longer.
        let seconds = if passed >= 1.0 { age * (1.0 + part) } else { seconds };
        Span::from_secs_f64(seconds).map(|time| time.max(Span::from_micros(1)))
    }
}

/// The value at this part of the table.
fn quantile(quantiles: &[f32; PARTS + 1], part: f64) -> f32 {
    let place = (part * PARTS as f64).clamp(0.0, PARTS as f64);
    let low = (place as usize).min(PARTS - 1);
    let within = (place - low as f64) as f32;
    quantiles[low] + (quantiles[low + 1] - quantiles[low]) * within
}

/// The part of the table that this value exceeds.
fn part_of(quantiles: &[f32; PARTS + 1], value: f64) -> f64 {
    let value = value as f32;
    if value <= quantiles[0] {
        return 0.0;
    }
    let high = quantiles.partition_point(|quantile| *quantile < value);
    if high > PARTS {
        return 1.0;
    }
    let (low, width) = (quantiles[high - 1], quantiles[high] - quantiles[high - 1]);
    let within = if width > 0.0 { (value - low) / width } else { 0.0 };
    (high as f64 - 1.0 + f64::from(within)) / PARTS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0) + Span::from_secs(seconds)
    }

    fn median(model: &StartModel, class: u8, age: u64) -> Option<f64> {
        let time = model.run_time(TaskKind::Explicit, class, Span::from_secs(age), 0.5);
        time.map(|time| time.as_secs_f64())
    }

    #[test]
    fn without_history_there_is_no_run_time() {
        let mut model = StartModel::default();
        assert!(!model.has_history() && median(&model, 0, 0).is_none());
        model.add_run(at(1), TaskKind::Interactive, 0, Span::from_secs(1));
        assert!(!model.has_history());
        model.add_run(at(1), TaskKind::Explicit, 1, Span::from_secs(1));
        assert!(model.has_history() && median(&model, 0, 0).is_none());
        assert!((median(&model, 1, 0).expect("a run time") - 1.0).abs() < 0.2);
    }

    #[test]
    fn a_task_that_runs_for_long_ends_later() {
        let mut model = StartModel::default();
        for second in 0..100 {
            let took = if second % 2 == 0 { 1 } else { 20 };
            model.add_run(at(second), TaskKind::Explicit, 0, Span::from_secs(took));
        }
        let of_age = |age| median(&model, 0, age).expect("a run time");
        assert!((15.0..25.0).contains(&of_age(2)), "{}", of_age(2));
        assert!((30.0..100.0).contains(&of_age(40)), "{}", of_age(40));
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        for step in [1, 10] {
            let mut model = StartModel::default();
            for run in 0..400 {
                let took = if run < 200 { 1 } else { 3 };
                model.add_run(at(run * step), TaskKind::Explicit, 0, Span::from_secs(took));
            }
            let median = median(&model, 0, 0).expect("a run time");
            assert!((2.5..3.5).contains(&median), "{median}");
        }
    }
}
