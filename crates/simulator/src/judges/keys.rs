//! Judges that no tube has two tasks with the same key, and that a key stays held after its task has ended.

use taskyard_core::{Key, OnConflict, Span, TaskId};

use crate::evidence::{Evidence, PutTask};
use crate::fast_map::FastMap;
use crate::tubes::TubeRole;

/// Finds a put that added a task although its key was held.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut added: FastMap<&Key, Vec<(TaskId, &PutTask<'_>)>> = FastMap::default();
    let mut replacing: FastMap<&Key, Vec<&PutTask<'_>>> = FastMap::default();
    for put in evidence.puts.values().filter(|put| put.call.may_have_run()) {
        let key = put.task.key.as_ref();
        if let Some(key) = key.filter(|key| key.on_conflict == OnConflict::Replace) {
            replacing.entry(&key.held.key).or_default().push(put);
        }
    }
    let mut puts: Vec<_> = evidence.puts.values().collect();
    puts.sort_by_key(|put| put.call.begin);
    for put in puts.into_iter().filter(|put| TubeRole::Keyed.is(put.tube)) {
        let (Some(key), Some(placed)) = (&put.task.key, put.placed) else { continue };
        let earlier = added.entry(&key.held.key).or_default();
        let replacing = replacing.get(&key.held.key).map_or(&[][..], Vec::as_slice);
        if placed.existing {
            continue;
        }
        for (id, holder) in earlier.iter() {
            if let Some(why) = surely_holds(evidence, replacing, (*id, holder), put) {
                return Some(format!(
                    "task {} of '{}' was added with the key '{}' although task {id} {why}",
                    placed.id, put.tube, key.held.key
                ));
            }
        }
        earlier.push((placed.id, put));
    }
    None
}

/// Why a task surely held its key while a later put ran, if it did.
fn surely_holds(
    evidence: &Evidence<'_>,
    replacing: &[&PutTask<'_>],
    (id, holder): (TaskId, &PutTask<'_>),
    put: &PutTask<'_>,
) -> Option<String> {
    let (begin, end) = (put.call.begin, put.call.end?);
    let added = holder.call.end.filter(|added| *added < begin)?;
    // A put that replaced the task may have changed its time to live and how long its key is held.
    let is_replaced = replacing.iter().any(|other| {
        other.call.may_run_after(holder.call.begin) && !std::ptr::eq(other.task, holder.task)
    });
    if is_replaced || evidence.may_be_truncated(put.tube, added) {
        return None;
    }
    if holder.task.ttl.is_some_and(|ttl| holder.call.begin.at + ttl <= end.at) {
        return None;
    }
    let changes = evidence.changes.get(&(put.tube, id)).into_iter().flatten();
    let first = changes.filter(|change| change.may_remove()).min_by_key(|change| change.call.begin);
    let Some(first) = first.filter(|first| first.call.begin < end) else {
        return Some("has it and has not ended".into());
    };
    let unique_for = holder.task.key.as_ref().map_or(Span::ZERO, |key| key.held.unique_for);
    let ended = first.call.end.filter(|_| first.is_done())?;
    let is_held = ended < begin && end.at < first.call.begin.at + unique_for;
    is_held.then(|| format!("ended less than {:.3} s ago", unique_for.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Finish, HeldKey, Key, KeyRequest, NewTask, OnConflict, Span};

    use crate::judges::script::Script;

    fn keyed(task: &mut NewTask) {
        let held = HeldKey { key: Key::new("k").unwrap(), unique_for: Span::from_secs(5) };
        task.key = Some(Box::new(KeyRequest { held, on_conflict: OnConflict::Keep }));
    }

    #[test]
    fn a_key_is_free_after_its_time() {
        let mut script = Script::new();
        script.put("keyed", 0, keyed);
        script.take("keyed", 0, 1, 10);
        script.finish("keyed", 0, 1, Finish::Ack, true);
        script.pass(5);
        script.put("keyed", 1, keyed);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn two_tasks_with_one_key() {
        let mut script = Script::new();
        script.put("keyed", 0, keyed);
        script.put("keyed", 1, keyed);
        assert!(script.judge(super::judge).unwrap().contains("has it and has not ended"));
    }

    #[test]
    fn a_key_that_was_free_too_early() {
        let mut script = Script::new();
        script.put("keyed", 0, keyed);
        script.take("keyed", 0, 1, 10);
        script.finish("keyed", 0, 1, Finish::Ack, true);
        script.pass(4);
        script.put("keyed", 1, keyed);
        assert!(script.judge(super::judge).unwrap().contains("ended less than 5.000 s ago"));
    }
}
