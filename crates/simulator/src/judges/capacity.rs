//! Judges that a tube never has more tasks than its capacity.

use taskyard_core::Command;

use crate::evidence::{Evidence, PutTask};
use crate::history::RecordedCall;
use crate::tubes::{CAPACITY, TubeRole};

/// A call that may have changed the capacity, and the new one.
type Alter<'a> = (&'a RecordedCall, u64);

/// Finds a put that was accepted although the tube was surely full.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let tube = TubeRole::Small.tube();
    let alters: Vec<Alter<'_>> = evidence.history.calls.iter().filter_map(capacity).collect();
    let mut added: Vec<(&PutTask<'_>, Vec<u64>)> = Vec::new();
    let mut puts: Vec<_> = evidence.puts.values().filter(|put| *put.tube == tube).collect();
    puts.sort_by_key(|put| (put.call.begin, put.placed.map(|placed| placed.id)));
    for put in puts {
        let Some((_, end)) = put.call.replied().filter(|_| put.placed.is_some()) else { continue };
        let same = |other: &PutTask<'_>| std::ptr::eq(other.call, put.call);
        let present = added.iter().filter(|(earlier, removals)| {
            same(earlier) || is_surely_present(evidence, earlier, removals, put.call, end.number)
        });
        let (count, most) = (present.count() as u64 + 1, capacity_at(&alters, put.call));
        if count > most {
            return Some(format!(
                "tube '{tube}' has {count} tasks after a put, its capacity is at most {most}"
            ));
        }
        added.push((put, removals(evidence, put)));
    }
    None
}

/// When a task may have been removed: the begins of the calls.
fn removals(evidence: &Evidence<'_>, put: &PutTask<'_>) -> Vec<u64> {
    let Some(placed) = put.placed else { return Vec::new() };
    let changes = evidence.changes.get(&(put.tube, placed.id)).into_iter().flatten();
    let changes =
        changes.filter(|change| change.may_remove()).map(|change| change.call.begin.number);
    let all = evidence.tube_changes.get(put.tube).into_iter().flatten();
    let truncates = all.filter(|call| matches!(call.command, Command::Truncate { .. }));
    let later = truncates.filter(|call| call.may_run_after(put.call.begin));
    changes.chain(later.map(|call| call.begin.number)).collect()
}

fn is_surely_present(
    evidence: &Evidence<'_>,
    earlier: &PutTask<'_>,
    removals: &[u64],
    put: &RecordedCall,
    end: u64,
) -> bool {
    let is_added = earlier.call.end.is_some_and(|added| added < put.begin);
    let may_expire = earlier.task.ttl.is_some() || evidence.plan.lasts_days;
    is_added && !may_expire && removals.iter().all(|removal| *removal > end)
}

/// The largest capacity that the tube may have had during a call.
fn capacity_at(alters: &[Alter<'_>], put: &RecordedCall) -> u64 {
    let surely = |call: &RecordedCall| call.replied().is_some_and(|(_, end)| end < put.begin);
    let is_replaced = |by: Option<&RecordedCall>| {
        alters.iter().any(|(later, _)| {
            surely(later)
                && by.is_none_or(|by| by.replied().is_some_and(|(_, end)| end < later.begin))
        })
    };
    let may_apply = alters
        .iter()
        .filter(|(call, _)| put.end.is_none_or(|end| call.begin < end) && !is_replaced(Some(call)));
    let first = (!is_replaced(None)).then_some(CAPACITY);
    may_apply.map(|(_, capacity)| *capacity).chain(first).max().unwrap_or(u64::MAX)
}

fn capacity(call: &RecordedCall) -> Option<Alter<'_>> {
    match &call.command {
        Command::AlterTube { tube, change } if TubeRole::Small.is(tube) && call.may_have_run() => {
            Some((call, change.capacity??))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Command, Finish, Reply, TubeChange, TubeName};

    use crate::judges::script::Script;

    fn alter(script: &mut Script, capacity: u64) {
        let tube = TubeName::new("small").unwrap();
        let change = TubeChange { capacity: Some(Some(capacity)), ..TubeChange::default() };
        script.call(Command::AlterTube { tube, change }, Reply::Tubes(Vec::new()));
    }

    #[test]
    fn as_many_tasks_as_allowed_and_one_more() {
        let mut script = Script::new();
        (0..10).for_each(|id| script.put("small", id, |_| {}));
        assert_eq!(script.judge(super::judge), None);
        script.take("small", 0, 1, 10);
        script.finish("small", 0, 1, Finish::Ack, true);
        script.put("small", 10, |_| {});
        assert_eq!(script.judge(super::judge), None);
        alter(&mut script, 11);
        script.put("small", 11, |_| {});
        assert_eq!(script.judge(super::judge), None);
        alter(&mut script, 3);
        script.put("small", 12, |_| {});
        assert!(script.judge(super::judge).unwrap().contains("has 12 tasks"));
    }
}
