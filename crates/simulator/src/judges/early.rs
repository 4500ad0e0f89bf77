//! Judges that no task is delivered before its delay is over, and no buried one before a kick.

use taskyard_core::{AfterFailure, Finish, Span};

use crate::evidence::{Delivery, Evidence};
use crate::tubes::TubeRole;

/// Finds a delivery that came too early.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    evidence.deliveries.iter().find_map(|delivery| {
        if TubeRole::Keyed.is(delivery.tube) {
            // A put may have replaced the delay.
            return None;
        }
        let put = evidence.put_of(delivery)?;
        let delay = put.task.delay.unwrap_or(Span::ZERO);
        if delivery.from.at < put.call.begin.at + delay && !may_be_kicked(evidence, delivery) {
            let name = name(delivery);
            let early = (put.call.begin.at + delay).since(delivery.from.at).as_secs_f64();
            return Some(format!("{name} was delivered {early:.3} s before the end of its delay"));
        }
        check_changes(evidence, delivery)
    })
}

/// Whether the task may have been buried before its delay was over, by a client that chose it from a list, and then kicked.
fn may_be_kicked(evidence: &Evidence<'_>, delivery: &Delivery<'_>) -> bool {
    let changes = evidence.changes.get(&(delivery.tube, delivery.id)).into_iter().flatten();
    let mut chosen = changes.filter(|change| change.finish.is_some() && change.lease.is_none());
    let is_buried = chosen.any(|change| change.may_have_run());
    is_buried && evidence.kicks(delivery.tube).any(|call| call.begin < delivery.from)
}

fn name(delivery: &Delivery<'_>) -> String {
    format!("task {} of '{}'", delivery.id, delivery.tube)
}

fn check_changes(evidence: &Evidence<'_>, delivery: &Delivery<'_>) -> Option<String> {
    let changes = evidence.changes.get(&(delivery.tube, delivery.id)).into_iter().flatten();
    for change in changes.filter(|change| change.is_done()) {
        if change.call.end.is_none_or(|end| end > delivery.call.begin) {
            continue;
        }
        // A kick, or a later delivery that ended, came in between.
        let mut kicks = evidence.kicks(delivery.tube);
        if kicks.any(|call| call.begin < delivery.from && call.may_run_after(change.call.begin)) {
            continue;
        }
        let delay = match change.finish {
            Some(Finish::Release { delay, .. }) => *delay,
            Some(Finish::Fail(fail)) => match fail.then {
                AfterFailure::Retry(delay) => delay,
                _ => continue,
            },
            Some(Finish::Bury) => {
                let name = name(delivery);
                return Some(format!(
                    "{name} was delivered after it was buried, and no client kicked it"
                ));
            }
            _ => continue,
        };
        let ready = change.call.begin.at + delay;
        if delivery.from.at < ready {
            let name = name(delivery);
            let early = ready.since(delivery.from.at).as_secs_f64();
            return Some(format!(
                "{name} was delivered {early:.3} s before the end of the delay of its release"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Finish, Span};

    use crate::judges::script::Script;

    #[test]
    fn a_delay_must_be_over() {
        for (passed, is_early) in [(5, false), (4, true)] {
            let mut script = Script::new();
            script.put("plain", 0, |task| task.delay = Some(Span::from_secs(5)));
            script.pass(passed);
            script.take("plain", 0, 1, 10);
            assert_eq!(script.judge(super::judge).is_some(), is_early);
        }
    }

    #[test]
    fn the_delay_of_a_release_must_be_over() {
        for (passed, is_early) in [(5, false), (4, true)] {
            let mut script = Script::new();
            script.put("plain", 0, |_| {});
            script.take("plain", 0, 1, 10);
            let release = Finish::Release { delay: Span::from_secs(5), counted: true };
            script.finish("plain", 0, 1, release, true);
            script.pass(passed);
            script.take("plain", 0, 2, 10);
            assert_eq!(script.judge(super::judge).is_some(), is_early);
        }
    }

    #[test]
    fn a_buried_task_waits_for_a_kick() {
        for kicks in [true, false] {
            let mut script = Script::new();
            script.put("plain", 0, |_| {});
            script.take("plain", 0, 1, 10);
            script.finish("plain", 0, 1, Finish::Bury, true);
            if kicks {
                script.kick("plain");
            }
            script.take("plain", 0, 2, 10);
            assert_eq!(script.judge(super::judge).is_none(), kicks);
        }
    }
}
