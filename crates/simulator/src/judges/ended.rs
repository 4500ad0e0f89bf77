//! Judges that a task that was acked or deleted is never seen again.

use crate::evidence::{Evidence, TaskKey};
use crate::fast_map::FastMap;
use crate::history::Moment;
use crate::tubes::TubeRole;

/// Finds a delivery or a second end of a task that has ended.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut ends: FastMap<TaskKey<'_>, Moment> = FastMap::default();
    for (key, changes) in &evidence.changes {
        for change in changes.iter().filter(|change| change.may_remove() && change.is_done()) {
            let Some(end) = change.call.end else { continue };
            let first = ends.entry(*key).or_insert(end);
            *first = (*first).min(end);
        }
    }
    for delivery in &evidence.deliveries {
        let (tube, id) = (delivery.tube, delivery.id);
        if ends.get(&(tube, id)).is_some_and(|end| *end < delivery.call.begin) {
            return Some(format!(
                "task {id} of '{tube}' was delivered after it was acked or deleted"
            ));
        }
        let end = ends.get(&(tube, id));
        let changes = evidence.changes.get(&(tube, id)).into_iter().flatten();
        // A done task that its tube keeps can be deleted.
        let is_kept = TubeRole::Kept.is(tube);
        let mut again =
            changes.filter(|change| change.is_done() && (change.finish.is_some() || !is_kept));
        if again.any(|change| end.is_some_and(|end| *end < change.call.begin)) {
            return Some(format!(
                "task {id} of '{tube}' was finished again after it was acked or deleted"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;

    use crate::judges::script::Script;

    fn script() -> Script {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.finish("plain", 0, 1, Finish::Ack, true);
        script
    }

    #[test]
    fn an_acked_task_is_gone() {
        assert_eq!(script().judge(super::judge), None);
    }

    #[test]
    fn an_acked_task_is_delivered() {
        let mut script = script();
        script.take("plain", 0, 2, 10);
        assert!(script.judge(super::judge).unwrap().contains("delivered after it was acked"));
    }

    #[test]
    fn an_acked_task_is_acked_again() {
        let mut script = script();
        script.finish("plain", 0, 1, Finish::Ack, true);
        assert!(script.judge(super::judge).unwrap().contains("finished again"));
    }
}
