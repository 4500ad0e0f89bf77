//! Judges the order of deliveries at a time when nothing else happens: by priority, then by id.

use std::collections::HashMap;

use crate::evidence::Evidence;
use crate::tubes::TubeRole;

/// Finds two tasks that were delivered in the wrong order.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut latest = HashMap::new();
    for task in &evidence.facts.drained {
        // A semaphore has an order of its own.
        if TubeRole::Gated.is(&task.tube) {
            continue;
        }
        let put = task.payload.and_then(|payload| evidence.puts.get(&payload));
        let pri = put.and_then(|put| put.task.pri).unwrap_or(task.pri);
        let place = (pri, task.id);
        if let Some(before) = latest.insert(&task.tube, place).filter(|before| *before > place) {
            let ((first, first_id), (second, second_id)) = (before, place);
            return Some(format!(
                "task {first_id} of '{}' with priority {first} was delivered before task {second_id} with priority {second}",
                task.tube
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;

    #[test]
    fn the_smaller_priority_comes_first_then_the_smaller_id() {
        for (order, is_wrong) in [([1, 0, 2], false), ([0, 1, 2], true), ([1, 2, 0], true)] {
            let mut script = Script::new();
            script.put("plain", 0, |task| task.pri = Some(5));
            script.put("plain", 1, |task| task.pri = Some(1));
            script.put("plain", 2, |task| task.pri = Some(5));
            order.into_iter().for_each(|id| script.drain("plain", id));
            assert_eq!(script.judge(super::judge).is_some(), is_wrong, "{order:?}");
        }
    }
}
