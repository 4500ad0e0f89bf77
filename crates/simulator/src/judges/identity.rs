//! Judges that no id and no lease is used twice, and that each task has the payload of its put, once.

use crate::evidence::Evidence;
use crate::fast_map::FastMap;
use crate::tubes::TubeRole;

/// Finds a number that was used twice, or a payload in the wrong task.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut ids = FastMap::default();
    for (payload, put) in &evidence.puts {
        let Some(placed) = put.placed.filter(|placed| !placed.existing) else { continue };
        if let Some(other) = ids.insert((put.tube, placed.id), payload) {
            let [first, second] = if other < payload { [other, payload] } else { [payload, other] };
            return Some(format!(
                "task {} of '{}' was added twice, with the payloads {first:x} and {second:x}",
                placed.id, put.tube
            ));
        }
    }
    let mut leases = FastMap::default();
    let mut homes = FastMap::default();
    for delivery in &evidence.deliveries {
        let (tube, id, lease) = (delivery.tube, delivery.id, delivery.lease);
        if let Some((other_tube, other_id)) = leases.insert(lease, (tube, id)) {
            return Some(format!(
                "lease {lease} was issued for task {other_id} of '{other_tube}' and for task {id} of '{tube}'"
            ));
        }
        let Some(payload) = delivery.payload else { continue };
        if TubeRole::Keyed.is(tube) {
            // A put may have replaced the payload of its holder.
            continue;
        }
        let Some(put) = evidence.puts.get(&payload) else {
            return Some(format!(
                "task {id} of '{tube}' has the payload {payload:x}, which no client put"
            ));
        };
        if evidence.may_be_truncated_during(put) {
            // A truncate forgets keys, so a repeated put adds its tasks again.
            continue;
        }
        let (home, expected) = (put.tube, put.placed.map(|placed| placed.id));
        if home != tube || expected.is_some_and(|expected| expected != id) {
            let expected = expected.map_or_else(String::new, |id| format!(" as task {id}"));
            return Some(format!(
                "task {id} of '{tube}' has the payload {payload:x}, which was put into '{home}'{expected}"
            ));
        }
        if let Some(other) = homes.insert(payload, id).filter(|other| *other != id) {
            return Some(format!(
                "the payload {payload:x} of '{tube}' is in task {other} and in task {id}"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;

    #[test]
    fn each_task_and_lease_once() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.put("plain", 1, |_| {});
        script.take("plain", 0, 1, 10);
        script.take("plain", 1, 2, 10);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn an_id_that_is_used_twice() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.put_as("plain", 7, 0, |_| {});
        assert!(script.judge(super::judge).unwrap().contains("was added twice"));
    }

    #[test]
    fn a_lease_that_is_used_twice() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.put("plain", 1, |_| {});
        script.take("plain", 0, 1, 10);
        script.take("plain", 1, 1, 10);
        assert!(script.judge(super::judge).unwrap().contains("lease 1 was issued"));
    }

    #[test]
    fn a_payload_in_another_task() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take_as("plain", 0, 5, 1, 10);
        assert!(
            script.judge(super::judge).unwrap().contains("which was put into 'plain' as task 0")
        );
    }
}
