//! Finds what the ratios of turns show: their median, its confidence interval, and whether a limit is kept.

/// The probability that the true median is outside of the interval: one in twenty.
const OUTSIDE_MAX: f64 = 0.05;

/// The median of ratios and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    /// `None` with too few ratios: six are the fewest whose range contains the median with 95 %.
    pub interval: Option<(f64, f64)>,
}

/// How much worse NEW may be.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub percent: f64,
}

/// Whether the limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResult {
    Shown,
    Refuted,
    Open,
}

impl LimitResult {
    pub fn name(self) -> &'static str {
        match self {
            LimitResult::Shown => "shown",
            LimitResult::Refuted => "refuted",
            LimitResult::Open => "open",
        }
    }
}

impl Summary {
    /// Summarizes ratios, which are finite; at least one is given.
    pub fn of(ratios: &[f64]) -> Self {
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        let interval = cut(sorted.len()).map(|cut| (sorted[cut], sorted[sorted.len() - 1 - cut]));
        Summary { median, interval }
    }
}

impl Limit {
    /// Whether NEW is at most this much worse than OLD.
    pub fn result(self, summary: &Summary, is_higher_better: bool) -> LimitResult {
        let Some((low, high)) = summary.interval else { return LimitResult::Open };
        let share = self.percent / 100.0;
        // How bad the best and the worst end of the interval are, and what is allowed.
        let (best, worst, allowed) = match is_higher_better {
            false => (low, high, 1.0 + share),
            true => (-high, -low, share - 1.0),
        };
        match () {
            () if worst <= allowed => LimitResult::Shown,
            () if best > allowed => LimitResult::Refuted,
            () => LimitResult::Open,
        }
    }
}

/// How many of the lowest and of the highest of so many observations can be left out such that the range of the others contains the
/// median with 95 %: each observation is below the median with probability 1/2, so their number is binomial. No assumption is made about how the
/// ratios are distributed.
fn cut(count: usize) -> Option<usize> {
    // The probability that at most `below` of all are below the median.
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = term;
    let mut found = None;
    for below in 0..count / 2 {
        if 2.0 * tail > OUTSIDE_MAX {
            break;
        }
        found = Some(below);
        term *= (count - below) as f64 / (below + 1) as f64;
        tail += term;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_tables() {
        // Ranks from the tables of the sign test, counted from 1: 6 → 1 and 6, 10 → 2 and 9, 15 → 4 and 12, 20 → 6 and 15.
        for (count, left_out) in
            [(1, None), (5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (10, Some(1))]
        {
            assert_eq!(cut(count), left_out, "{count}");
        }
        assert_eq!([15, 20, 25, 50].map(cut), [Some(3), Some(5), Some(7), Some(17)]);
    }

    #[test]
    fn the_median_and_its_interval_are_found() {
        let ratios = [1.05, 0.99, 1.01, 1.00, 1.02, 0.98, 1.03, 0.97, 1.04, 2.0];
        let summary = Summary::of(&ratios);
        assert!((summary.median - 1.015).abs() < 1e-9);
        assert_eq!(summary.interval, Some((0.98, 1.05)));
        let few = Summary::of(&[1.0, 1.2, 1.1]);
        assert_eq!(few, Summary { median: 1.1, interval: None });
    }

    /// Of random samples with a known median, at least 95 % of the intervals contain it.
    #[test]
    fn the_interval_contains_the_median_often_enough() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for count in [6, 10, 17] {
            let trials = 2_000;
            let contained = (0..trials).filter(|_| {
                // Skewed, with the median 1/4.
                let sample: Vec<f64> = (0..count).map(|_| random().powi(2)).collect();
                let (low, high) = Summary::of(&sample).interval.unwrap();
                (low..=high).contains(&0.25)
            });
            assert!(contained.count() >= trials * 94 / 100, "{count}");
        }
    }

    #[test]
    fn a_limit_is_shown_refuted_or_open() {
        let limit = Limit { percent: 3.0 };
        let of = |low, high| Summary { median: 1.0, interval: Some((low, high)) };
        for (low, high, cost, rate) in [
            (0.99, 1.02, LimitResult::Shown, LimitResult::Shown),
            (1.04, 1.10, LimitResult::Refuted, LimitResult::Shown),
            (0.90, 0.96, LimitResult::Shown, LimitResult::Refuted),
            (0.95, 1.05, LimitResult::Open, LimitResult::Open),
        ] {
            assert_eq!(limit.result(&of(low, high), false), cost, "cost {low} to {high}");
            assert_eq!(limit.result(&of(low, high), true), rate, "rate {low} to {high}");
        }
        let unknown = Summary { median: 1.0, interval: None };
        assert_eq!(limit.result(&unknown, true), LimitResult::Open);
    }
}
