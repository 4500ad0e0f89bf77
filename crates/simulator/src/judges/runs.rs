//! Judges that no task has two runs at the same time while the worker of the first believes that it holds the task.

use crate::evidence::Evidence;

/// Finds a run that began during another one of the same task.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let runs = &evidence.facts.runs;
    let second = runs.iter().find(|run| run.overlaps.is_some())?;
    let first = second.overlaps.and_then(|first| runs.get(first))?;
    Some(format!(
        "worker {} began task {} of '{}' {:.3} s after worker {}, which still ran it and believed its lease",
        second.worker,
        second.id,
        second.tube,
        second.begin.at.since(first.begin.at).as_secs_f64(),
        first.worker
    ))
}

#[cfg(test)]
mod tests {
    use crate::judges::script::Script;
    use crate::workers::RunEnd;

    #[test]
    fn a_run_during_another_one() {
        let mut script = Script::new();
        script.run("plain", 0, RunEnd::Failed);
        script.run("plain", 0, RunEnd::Succeeded);
        assert_eq!(script.judge(super::judge), None);
        script.facts.runs[1].overlaps = Some(0);
        assert!(script.judge(super::judge).unwrap().contains("began task 0 of 'plain'"));
    }
}
