//! The recent running times of each class.

use crate::limits::CLASSES_MAX;
use crate::time::Span;

/// The weight of the newest task.
const WEIGHT: f64 = 0.1;

/// A moving mean of running times for each class.
#[derive(Clone, Debug, Default)]
pub struct Means {
    micros: [Option<f64>; CLASSES_MAX],
}

impl Means {
    /// Records the running time of a task of this class.
    pub fn note(&mut self, class: u8, took: Span) {
        let Some(mean) = self.micros.get_mut(usize::from(class)) else { return };
        let took = took.as_micros() as f64;
        *mean = Some(mean.map_or(took, |mean| mean + WEIGHT * (took - mean)));
    }

    /// The expected running time of a task of this class, at most `limit`.
    pub fn usual(&self, class: u8, limit: Span) -> Span {
        let mean = self.micros.get(usize::from(class)).copied().flatten();
        mean.map_or(limit, |mean| Span::from_micros(mean.round() as i64).min(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_what_happens_and_never_passes_the_limit() {
        let mut means = Means::default();
        assert_eq!(means.usual(1, Span::from_secs(10)), Span::from_secs(10));
        means.note(1, Span::from_secs(2));
        assert_eq!(means.usual(1, Span::from_secs(10)), Span::from_secs(2));
        means.note(1, Span::from_secs(4));
        assert_eq!(means.usual(1, Span::from_secs(10)), Span::from_micros(2_200_000));
        assert_eq!(means.usual(1, Span::from_secs(1)), Span::from_secs(1));
        assert_eq!(means.usual(0, Span::from_secs(3)), Span::from_secs(3));
    }
}
