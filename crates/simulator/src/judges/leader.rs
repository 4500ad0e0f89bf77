//! Judges that one manager leads at a time: one server holds the leader task of all.

use taskyard_core::TubeName;
use taskyard_wire::http::LEADER_TUBE;

use super::overlap;
use crate::evidence::Evidence;

/// Finds two managers that lead at the same time.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let is_leader_task = |tube: &TubeName| tube.as_str() == LEADER_TUBE;
    // Whatever the task is: there must be only one.
    let (held, new) =
        overlap::find(evidence, |delivery| is_leader_task(delivery.tube).then_some(()))?;
    Some(format!(
        "the manager of server {} leads by task {} while that of server {} leads by task {} for {:.3} s more",
        new.call.server,
        new.id,
        held.call.server,
        held.id,
        held.until.since(new.from.at).as_secs_f64()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::script::Script;

    #[test]
    fn one_manager_leads_after_the_other() {
        let mut script = Script::new();
        script.take(LEADER_TUBE, 0, 1, 15);
        script.pass(15);
        script.take(LEADER_TUBE, 0, 2, 15);
        script.take("plain", 1, 3, 15);
        assert_eq!(script.judge(judge), None);
    }

    #[test]
    fn two_leader_tasks_make_two_leaders() {
        let mut script = Script::new();
        script.take(LEADER_TUBE, 0, 1, 15);
        script.pass(14);
        script.take(LEADER_TUBE, 1, 2, 15);
        assert!(script.judge(judge).unwrap().contains("leads by task 0 for 1.000 s more"));
    }
}
