//! Judges that no more tasks are delivered than a rate limit allows.

use crate::evidence::Evidence;
use crate::tubes::{RATE, TubeRole};

/// Finds a delivery for which there was no token.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let rated = evidence.deliveries.iter().filter(|delivery| TubeRole::Rated.is(delivery.tube));
    let mut starts: Vec<_> = rated.filter_map(|delivery| delivery.start).collect();
    starts.sort();
    let mut bucket = None;
    for start in starts {
        let refilled = RATE.refilled(bucket, start);
        if RATE.tokens(refilled) == 0 {
            return Some(format!(
                "more deliveries of '{}' than {} in {} s and {} at once",
                TubeRole::Rated.name(),
                RATE.count,
                RATE.per.as_secs_f64(),
                RATE.burst
            ));
        }
        bucket = Some(RATE.spent(refilled, 1));
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;
    use crate::tubes::RATE;

    #[test]
    fn a_burst_is_allowed_and_one_more_is_not() {
        let mut script = Script::new();
        for id in 0..u64::from(RATE.burst) {
            script.put("rated", id, |_| {});
            script.take("rated", id, id + 1, 10);
        }
        assert_eq!(script.judge(super::judge), None);
        script.put("rated", 99, |_| {});
        script.take("rated", 99, 99, 10);
        assert!(script.judge(super::judge).is_some());
    }
}
