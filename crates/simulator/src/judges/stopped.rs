//! Judges that a worker that is stopped lets its handlers finish for its grace, cancels them then, and ends in time.

use taskyard_core::Span;
use taskyard_worker::CancelReason;

use crate::evidence::Evidence;
use crate::workers::{HandlerRun, RunEnd, STOP_MAX, WorkerStop};

/// Finds a stop that took too long, or a handler that was not allowed to finish.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let facts = evidence.facts;
    let late = facts.stops.iter().find_map(|stop| {
        let took = stop.ended.at.since(stop.asked.at);
        (took > Span::from(stop.grace + STOP_MAX + stop.frozen)).then(|| {
            format!(
                "worker {} ended {:.3} s after its stop, its grace is {:.3} s",
                stop.worker,
                took.as_secs_f64(),
                stop.grace.as_secs_f64()
            )
        })
    });
    late.or_else(|| facts.runs.iter().find_map(|run| check(run, &facts.stops)))
}

fn check(run: &HandlerRun, stops: &[WorkerStop]) -> Option<String> {
    let (moment, end) = run.end?;
    let name = || format!("the run of task {} of '{}' by worker {}", run.id, run.tube, run.worker);
    match end {
        RunEnd::Dropped => Some(format!("{} was dropped and not cancelled", name())),
        RunEnd::Cancelled(CancelReason::Stopping) => {
            let of_run =
                |stop: &&WorkerStop| (stop.worker, stop.process) == (run.worker, run.process);
            let stop = stops.iter().find(of_run)?;
            let allowed = stop.asked.at + Span::from(stop.grace);
            (moment.at < allowed).then(|| {
                format!(
                    "{} was cancelled {:.3} s before the end of the grace of its stop",
                    name(),
                    allowed.since(moment.at).as_secs_f64()
                )
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::judges::script::Script;

    fn script(end: RunEnd, grace: u64) -> Script {
        let mut script = Script::new();
        script.run("plain", 0, end);
        let run = &script.facts.runs[0];
        let (asked, ended) = (run.begin, run.end.unwrap().0);
        let (worker, process, grace) = (run.worker, run.process, Duration::from_secs(grace));
        let frozen = Duration::ZERO;
        script.facts.stops.push(WorkerStop { worker, process, asked, grace, ended, frozen });
        script
    }

    #[test]
    fn handlers_may_finish_during_the_grace() {
        assert_eq!(script(RunEnd::Succeeded, 5).judge(judge), None);
        let stopping = RunEnd::Cancelled(CancelReason::Stopping);
        assert_eq!(script(stopping, 0).judge(judge), None);
        assert!(script(stopping, 5).judge(judge).unwrap().contains("cancelled 5.000 s before"));
        assert!(script(RunEnd::Dropped, 5).judge(judge).unwrap().contains("was dropped"));
    }

    #[test]
    fn a_stop_ends_in_time() {
        let mut script = script(RunEnd::Succeeded, 5);
        let stop = &mut script.facts.stops[0];
        stop.ended.at = stop.ended.at + Span::from_secs(11);
        assert!(script.judge(judge).unwrap().contains("ended 11.000 s after its stop"));
    }
}
