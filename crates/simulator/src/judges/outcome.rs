//! Judges that a worker tells the queue what its handlers did: an ack for a task that is done, a failure for one that failed.

use std::collections::HashMap;

use taskyard_core::Finish;

use crate::evidence::{Evidence, TaskChange, TaskKey};
use crate::workers::{HandlerRun, RunEnd, worker_of};

/// Finds a finish of a worker that differs from what its handlers did.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    if evidence.plan.workers.is_empty() {
        return None;
    }
    let mut runs: HashMap<TaskKey<'_>, Vec<&HandlerRun>> = HashMap::new();
    for run in &evidence.facts.runs {
        runs.entry((&run.tube, run.id)).or_default().push(run);
    }
    let mut changes: Vec<(TaskKey<'_>, &TaskChange<'_>)> = Vec::new();
    for (key, of_task) in &evidence.changes {
        let is_worked = evidence.plan.tubes.iter().any(|role| role.is(key.0));
        let done = of_task.iter().filter(|change| is_worked && change.is_done());
        changes.extend(done.map(|change| (*key, change)));
    }
    changes.sort_by_key(|(_, change)| change.call.begin);
    changes.into_iter().find_map(|(key, change)| {
        let own = runs.get(&key).map_or(&[][..], Vec::as_slice);
        check(key, change, own)
    })
}

fn check(key: TaskKey<'_>, change: &TaskChange<'_>, runs: &[&HandlerRun]) -> Option<String> {
    let worker = worker_of(change.call.operation)?;
    let ends = |wanted: fn(RunEnd) -> bool| {
        let own = runs.iter().filter(|run| run.worker == worker);
        let mut ended = own.filter_map(|run| run.end);
        ended.any(|(moment, end)| moment < change.call.begin && wanted(end))
    };
    let (id, tube) = (key.1, key.0);
    match change.finish? {
        Finish::Ack | Finish::AckWithResult(_) if !ends(|end| end == RunEnd::Succeeded) => {
            Some(format!("worker {worker} acked task {id} of '{tube}', which it has not done"))
        }
        // The other tasks of the batch ran for too long.
        Finish::Fail(fail) if fail.error.contains("run_max") => None,
        Finish::Fail(_) | Finish::Release { counted: true, .. } | Finish::Bury
            if !ends(|end| end != RunEnd::Succeeded) =>
        {
            Some(format!(
                "worker {worker} reported task {id} of '{tube}' as failed, which did not fail"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Finish, Span};

    use super::*;
    use crate::judges::script::Script;
    use crate::plan::{Plan, Scenario};

    fn script(end: RunEnd, finish: Finish) -> Script {
        let mut script = Script::new();
        script.plan = Plan::draw(0, Scenario::Workers);
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.run("plain", 0, end);
        script.finish_as((crate::workers::FIRST_WORKER, 0), "plain", 0, 1, finish);
        script
    }

    #[test]
    fn an_ack_needs_a_run_that_succeeded() {
        assert_eq!(script(RunEnd::Succeeded, Finish::Ack).judge(judge), None);
        let hidden = script(RunEnd::Panicked, Finish::Ack).judge(judge);
        assert!(hidden.unwrap().contains("which it has not done"));
    }

    #[test]
    fn a_failure_needs_a_run_that_failed() {
        let fail = || Finish::fail("failed", None);
        assert_eq!(script(RunEnd::Failed, fail()).judge(judge), None);
        assert!(script(RunEnd::Succeeded, fail()).judge(judge).unwrap().contains("did not fail"));
        let give_back = Finish::Release { delay: Span::ZERO, counted: false };
        assert_eq!(script(RunEnd::Succeeded, give_back).judge(judge), None);
    }
}
