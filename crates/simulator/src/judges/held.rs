//! Judges that a session holds nothing that its client did not receive.

use std::collections::HashSet;

use taskyard_core::Reply;

use crate::evidence::Evidence;

/// Finds a delivery to a session that no client received.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let received: HashSet<_> = evidence.deliveries.iter().map(|delivery| delivery.lease).collect();
    evidence.history.calls.iter().find_map(|call| {
        let (taskyard_core::Command::Deliveries { tube, .. }, Some((Reply::Tasks(tasks), _))) =
            (&call.command, call.replied())
        else {
            return None;
        };
        // The first bytes of a session are the number of its client, which lists its own deliveries.
        let owner = call.operation.0.to_be_bytes();
        let own =
            tasks.iter().filter(|task| task.session.is_some_and(|id| id.0.starts_with(&owner)));
        let unknown = own
            .into_iter()
            .find(|task| task.lease.is_none_or(|lease| !received.contains(&lease)))?;
        Some(format!(
            "a session holds task {} of '{tube}' with a delivery that its client never received",
            unknown.id
        ))
    })
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;

    #[test]
    fn a_delivery_to_a_session_must_be_received() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.show_delivery("plain", 0, 1);
        assert_eq!(script.judge(super::judge), None);
        script.show_delivery("plain", 0, 2);
        assert!(script.judge(super::judge).unwrap().contains("never received"));
    }
}
