//! Judges that a finish succeeds for the holder of the delivery, and for no other client.

use taskyard_core::Outcome;

use crate::evidence::{Delivery, Evidence, TaskChange, TaskKey};
use crate::fast_map::FastMap;

/// Finds a finish of a stale delivery that succeeded, or one of a held delivery that did not.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut deliveries: FastMap<TaskKey<'_>, Vec<&Delivery<'_>>> = FastMap::default();
    for delivery in &evidence.deliveries {
        deliveries.entry((delivery.tube, delivery.id)).or_default().push(delivery);
    }
    // By the order of deliveries, so that the same run always gives the same sentence.
    for delivery in &evidence.deliveries {
        let key = (delivery.tube, delivery.id);
        let others = deliveries.get(&key).map_or(&[][..], Vec::as_slice);
        let changes = evidence.changes.get(&key).into_iter().flatten();
        for change in changes.filter(|change| change.lease == Some(delivery.lease)) {
            if let Some(sentence) = check(delivery, change, others) {
                return Some(sentence);
            }
        }
    }
    None
}

fn check(
    delivery: &Delivery<'_>,
    change: &TaskChange<'_>,
    others: &[&Delivery<'_>],
) -> Option<String> {
    let name = || format!("task {} of '{}'", delivery.id, delivery.tube);
    let (lease, begin) = (delivery.lease, change.call.begin);
    if change.is_done() {
        let newer = others.iter().find(|other| other.lease > lease && other.from < begin)?;
        return Some(format!(
            "{}: a finish with lease {lease} succeeded although lease {} was delivered before",
            name(),
            newer.lease
        ));
    }
    let refused = matches!(change.outcome, Some(Outcome::Stale | Outcome::Missing));
    let end = change.call.end?;
    let is_first = delivery.is_ended_by_no_other(change.call, end);
    let is_held = begin > delivery.from && is_first && end.at < delivery.until;
    (refused && is_held).then(|| {
        format!(
            "{}: a finish with lease {lease} was refused ({:?}) although its holder had it for {:.3} s more",
            name(),
            change.outcome,
            delivery.until.since(end.at).as_secs_f64()
        )
    })
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;

    use crate::judges::script::Script;

    fn script() -> Script {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script
    }

    #[test]
    fn the_holder_finishes() {
        let mut script = script();
        script.finish("plain", 0, 1, Finish::Ack, true);
        script.finish("plain", 0, 1, Finish::Ack, false);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn a_stale_lease_is_accepted() {
        let mut script = script();
        script.pass(20);
        script.take("plain", 0, 2, 10);
        script.finish("plain", 0, 1, Finish::Ack, true);
        assert!(script.judge(super::judge).unwrap().contains("lease 2 was delivered before"));
    }

    #[test]
    fn a_holder_is_refused() {
        let mut script = script();
        script.pass(3);
        script.finish("plain", 0, 1, Finish::Ack, false);
        assert!(script.judge(super::judge).unwrap().contains("for 7.000 s more"));
    }
}
