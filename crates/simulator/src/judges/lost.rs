//! Judges that no acknowledged task is lost: at the end each was acked, deleted or truncated, or its time to live was over.

use std::collections::HashSet;

use taskyard_core::{Key, OnConflict};

use crate::evidence::{Evidence, PutTask};
use crate::tubes::SCRATCH;

/// Finds a task that disappeared.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let with_ttl: HashSet<&Key> = evidence.puts.values().filter_map(replaces_ttl).collect();
    let mut puts: Vec<_> = evidence.puts.values().collect();
    puts.sort_by_key(|put| (put.call.begin, put.placed.map(|placed| placed.id)));
    puts.into_iter().find_map(|put| {
        let placed = put.placed.filter(|placed| !placed.existing)?;
        if put.tube.as_str().starts_with(SCRATCH) {
            return None;
        }
        let may_expire = put.task.ttl.is_some()
            || put.task.key.as_ref().is_some_and(|key| with_ttl.contains(&key.held.key));
        let changes = evidence.changes.get(&(put.tube, placed.id)).into_iter().flatten();
        let is_removed = changes.into_iter().any(|change| change.may_remove());
        let is_truncated = evidence.may_be_truncated(put.tube, put.call.begin);
        (!may_expire && !is_removed && !is_truncated).then(|| {
            format!(
                "task {} of '{}' was put and is gone, and no client removed it",
                placed.id, put.tube
            )
        })
    })
}

/// The key of a put that may give another task a time to live.
fn replaces_ttl<'a>(put: &PutTask<'a>) -> Option<&'a Key> {
    let key = put.task.key.as_ref()?;
    (key.on_conflict == OnConflict::Replace && put.task.ttl.is_some()).then_some(&key.held.key)
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Finish, Span};

    use crate::judges::script::Script;

    #[test]
    fn every_task_must_be_accounted_for() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.put("plain", 1, |task| task.ttl = Some(Span::from_secs(1)));
        script.take("plain", 0, 1, 10);
        assert!(script.judge(super::judge).unwrap().contains("task 0 of 'plain'"));
        script.finish("plain", 0, 1, Finish::Ack, true);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn a_refused_ack_removes_nothing() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.finish("plain", 0, 1, Finish::Ack, false);
        assert!(script.judge(super::judge).is_some());
    }
}
