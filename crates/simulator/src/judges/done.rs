//! Judges that done tasks are kept with their results for as long as their tube says, and no longer.

use taskyard_core::{Command, Finish, Reply, State, Task, TaskId, TubeName};

use crate::evidence::{Evidence, TaskChange};
use crate::history::{Moment, RecordedCall};
use crate::tubes::{KEEP_DONE, TubeRole};

/// Finds a done task that is missing, has another result, or is there too long.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    evidence.history.calls.iter().find_map(|call| {
        let Command::Peek { tube, ids } = &call.command else { return None };
        let Some((Reply::Tasks(shown), end)) = call.replied() else { return None };
        if !TubeRole::Kept.is(tube) {
            return None;
        }
        ids.iter().find_map(|id| {
            let shown = shown.iter().find(|task| task.id == *id);
            check(evidence, (tube, *id), call, end, shown)
        })
    })
}

fn check(
    evidence: &Evidence<'_>,
    key: (&TubeName, TaskId),
    peek: &RecordedCall,
    end: Moment,
    shown: Option<&Task>,
) -> Option<String> {
    let changes = || evidence.changes.get(&key).into_iter().flatten();
    let is_ack = |change: &&TaskChange<'_>| change.finish.is_some_and(is_ack) && change.is_done();
    let ack = changes().find(is_ack)?;
    let acked = ack.call.end.filter(|acked| *acked < peek.begin)?;
    let (tube, id) = key;
    if peek.begin.at >= acked.at + KEEP_DONE {
        return shown.map(|_| {
            format!(
                "task {id} of '{tube}' is shown {:.3} s after its ack, its tube keeps done tasks for {} s",
                peek.begin.at.since(acked.at).as_secs_f64(),
                KEEP_DONE.as_secs_f64()
            )
        });
    }
    let mut deletes = changes().filter(|change| change.finish.is_none() && change.may_have_run());
    let may_be_deleted = deletes.any(|change| change.call.begin < end);
    if may_be_deleted
        || evidence.may_be_truncated(tube, ack.call.begin)
        || end.at >= ack.call.begin.at + KEEP_DONE
    {
        return None;
    }
    let name = || {
        format!("task {id} of '{tube}' was acked {:.3} s ago", end.at.since(acked.at).as_secs_f64())
    };
    let Some(task) = shown else { return Some(format!("{} and is not shown", name())) };
    if task.state != State::Done {
        return Some(format!("{} and is {:?}", name(), task.state));
    }
    let result = task.finished.as_ref().and_then(|finished| finished.result());
    (result != ack.finish.and_then(Finish::result))
        .then(|| format!("{} with another result than the one that is shown", name()))
}

fn is_ack(finish: &Finish) -> bool {
    matches!(finish, Finish::Ack | Finish::AckWithResult(_))
}

#[cfg(test)]
mod tests {
    use taskyard_core::{
        Command, Finish, Finished, Reply, Span, State, Task, TaskId, Timestamp, TubeName,
    };

    use crate::judges::script::Script;

    fn script() -> Script {
        let mut script = Script::new();
        script.put("kept", 0, |_| {});
        script.take("kept", 0, 1, 10);
        script.finish("kept", 0, 1, Finish::ack_with(b"7"), true);
        script
    }

    fn show(script: &mut Script, result: Option<&[u8]>) {
        let task = result.map(|result| Task {
            state: State::Done,
            finished: Some(Finished::new(Timestamp::EPOCH, Span::ZERO, None, result)),
            ..script.task(0, 0, 1, 10)
        });
        let (tube, ids) = (TubeName::new("kept").unwrap(), vec![TaskId(0)]);
        script.call(Command::Peek { tube, ids }, Reply::Tasks(task.into_iter().collect()));
    }

    #[test]
    fn a_done_task_is_shown_with_its_result_until_its_time_is_over() {
        let mut script = script();
        show(&mut script, Some(b"7"));
        script.pass(4);
        show(&mut script, None);
        assert_eq!(script.judge(super::judge), None);
        show(&mut script, Some(b"7"));
        assert!(script.judge(super::judge).unwrap().contains("is shown 4.000 s after its ack"));
    }

    #[test]
    fn a_missing_task_or_result_is_found() {
        let mut missing = script();
        show(&mut missing, None);
        assert!(missing.judge(super::judge).unwrap().contains("is not shown"));
        let mut other = script();
        show(&mut other, Some(b"8"));
        assert!(other.judge(super::judge).unwrap().contains("another result"));
    }
}
