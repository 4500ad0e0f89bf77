//! Judges that no task is delivered while another client surely holds it.

use std::hash::Hash;

use crate::evidence::{Delivery, Evidence};
use crate::fast_map::FastMap;

/// Finds a delivery within the lease of another one.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let (held, new) = find(evidence, |delivery| Some((delivery.tube, delivery.id)))?;
    Some(format!(
        "task {} of '{}' was delivered with lease {} while the holder of lease {} had {:.3} s left",
        new.id,
        new.tube,
        new.lease,
        held.lease,
        held.until.since(new.from.at).as_secs_f64()
    ))
}

/// Finds two deliveries of the same group that were held at the same time.
pub fn find<'e, 'a, K: Eq + Hash>(
    evidence: &'e Evidence<'a>,
    group: impl Fn(&Delivery<'a>) -> Option<K>,
) -> Option<(&'e Delivery<'a>, &'e Delivery<'a>)> {
    let mut groups: FastMap<K, Vec<&Delivery<'a>>> = FastMap::default();
    for delivery in &evidence.deliveries {
        let Some(key) = group(delivery) else { continue };
        let held = groups.entry(key).or_default();
        held.retain(|earlier| {
            earlier.ended_by > delivery.from.number && earlier.until > delivery.from.at
        });
        // The lease of a late reply is over already.
        let is_late = delivery.until <= delivery.from.at;
        let overlapping = held.iter().find(|earlier| earlier.is_held_at(delivery.from));
        if let Some(earlier) = overlapping.filter(|_| !is_late) {
            return Some((earlier, delivery));
        }
        held.push(delivery);
    }
    None
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;

    use crate::judges::script::Script;

    #[test]
    fn after_the_lease_or_a_release_a_task_is_delivered_again() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.pass(10);
        script.take("plain", 0, 2, 10);
        let release = Finish::Release { delay: taskyard_core::Span::ZERO, counted: true };
        script.finish("plain", 0, 2, release, true);
        script.take("plain", 0, 3, 10);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn a_delivery_within_a_lease() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.pass(9);
        script.take("plain", 0, 2, 10);
        assert!(script.judge(super::judge).unwrap().contains("1.000 s left"));
    }
}
