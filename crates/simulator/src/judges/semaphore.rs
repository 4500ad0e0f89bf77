//! Judges that never more tasks are held than the semaphore of their tube allows.

use crate::evidence::{Delivery, Evidence};
use crate::tubes::TubeRole;

/// Finds a moment with too many deliveries.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    if evidence.facts.excess.is_some() {
        return evidence.facts.excess.clone();
    }
    let limit = evidence.plan.semaphore_limit as usize;
    let mut held: Vec<&Delivery<'_>> = Vec::new();
    for delivery in evidence.deliveries.iter().filter(|delivery| TubeRole::Gated.is(delivery.tube))
    {
        held.retain(|earlier| earlier.is_held_at(delivery.from));
        // The lease of a late reply is over already.
        if delivery.until > delivery.from.at {
            held.push(delivery);
        }
        if held.len() > limit {
            let leases: Vec<_> = held.iter().map(|delivery| delivery.lease.0).collect();
            return Some(format!(
                "{} tasks of '{}' are held with the leases {leases:?}, its semaphore allows {limit}",
                held.len(),
                delivery.tube
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;

    use crate::judges::script::Script;

    #[test]
    fn as_many_as_allowed_and_one_more() {
        let mut script = Script::new();
        script.plan.semaphore_limit = 1;
        script.put("gated", 0, |_| {});
        script.put("gated", 1, |_| {});
        script.put("gated", 2, |_| {});
        script.take("gated", 0, 1, 10);
        script.finish("gated", 0, 1, Finish::Ack, true);
        script.take("gated", 1, 2, 10);
        assert_eq!(script.judge(super::judge), None);
        script.take("gated", 2, 3, 10);
        assert!(script.judge(super::judge).unwrap().contains("2 tasks of 'gated' are held"));
    }
}
