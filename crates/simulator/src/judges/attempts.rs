//! Judges that failed deliveries are counted, and that a task with no attempts left is buried.

use std::collections::HashMap;

use taskyard_core::{Command, Finish, Outcome};

use crate::evidence::{Delivery, Evidence, TaskKey};
use crate::tubes::{ATTEMPTS_MAX, TubeRole};

/// Finds a delivery with a wrong number of attempts.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut latest: HashMap<TaskKey<'_>, &Delivery<'_>> = HashMap::new();
    for delivery in &evidence.deliveries {
        if TubeRole::Keyed.is(delivery.tube) {
            // A put may have replaced the task.
            continue;
        }
        let name = || format!("task {} of '{}'", delivery.id, delivery.tube);
        if TubeRole::Retried.is(delivery.tube)
            && delivery.attempts >= ATTEMPTS_MAX
            && !may_be_kicked(evidence, delivery)
        {
            return Some(format!(
                "{} was delivered after {} failed attempts",
                name(),
                delivery.attempts
            ));
        }
        // Replies can arrive in another order than deliveries begin.
        let earlier = latest.get(&(delivery.tube, delivery.id)).copied();
        let earlier = earlier.filter(|earlier| earlier.from < delivery.call.begin);
        if let Some(earlier) = earlier.filter(|from| !may_be_reset(evidence, from, delivery)) {
            let least = earlier.attempts + u32::from(is_counted(evidence, earlier));
            if delivery.attempts < least {
                return Some(format!(
                    "{} was delivered with {} attempts, and has had at least {least}",
                    name(),
                    delivery.attempts
                ));
            }
        }
        latest.insert((delivery.tube, delivery.id), delivery);
    }
    None
}

/// Whether a kick that keeps the attempts may have brought back the task of a delivery after its last attempt.
fn may_be_kicked(evidence: &Evidence<'_>, delivery: &Delivery<'_>) -> bool {
    let mut kicks = evidence.kicks(delivery.tube).filter(|call| call.begin < delivery.from);
    kicks.any(|call| match &call.command {
        Command::KickTasks { ids, reset_attempts, .. } => {
            !reset_attempts && ids.contains(&delivery.id)
        }
        _ => true,
    })
}

/// Whether the attempts of a task may have been reset after one delivery began and before the next was received.
fn may_be_reset(evidence: &Evidence<'_>, from: &Delivery<'_>, to: &Delivery<'_>) -> bool {
    let kicks = evidence.kicked.get(&(to.tube, to.id)).into_iter().flatten();
    let mut resets = kicks.filter(|(call, _)| {
        matches!(call.command, Command::KickTasks { reset_attempts: true, .. })
    });
    resets.any(|(call, outcome)| {
        let may_have_run = matches!(outcome, None | Some(Outcome::Done(_)));
        may_have_run && call.begin < to.from && call.may_run_after(from.call.begin)
    })
}

/// Whether a delivery surely counts as an attempt.
fn is_counted(evidence: &Evidence<'_>, delivery: &Delivery<'_>) -> bool {
    let changes = evidence.changes.get(&(delivery.tube, delivery.id)).into_iter().flatten();
    let mut own = changes.filter(|change| change.lease == Some(delivery.lease) && change.is_done());
    own.any(|change| {
        matches!(change.finish, Some(Finish::Release { counted: true, .. } | Finish::Fail(_)))
    })
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Command, Finish, Outcome, Reply, Span, TaskId, TubeName};

    use crate::judges::script::Script;

    fn released(attempts: u32) -> Script {
        let mut script = Script::new();
        script.put("retried", 0, |_| {});
        script.take("retried", 0, 1, 10);
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        script.finish("retried", 0, 1, release, true);
        script.take("retried", 0, 2, 10);
        script.set_attempts(attempts);
        script
    }

    #[test]
    fn a_release_is_counted() {
        assert_eq!(released(1).judge(super::judge), None);
        assert!(released(0).judge(super::judge).unwrap().contains("has had at least 1"));
    }

    #[test]
    fn a_task_with_no_attempts_left_is_not_delivered() {
        assert!(released(3).judge(super::judge).unwrap().contains("after 3 failed attempts"));
    }

    fn kick(script: &mut Script, id: u64, reset_attempts: bool) {
        let (tube, ids) = (TubeName::new("retried").unwrap(), vec![TaskId(id)]);
        let kick = Command::KickTasks { tube, ids, reset_attempts };
        script.call(kick, Reply::Finished(vec![Outcome::Done(None)]));
    }

    fn fail_and_take(script: &mut Script, lease: u64, attempts: u32) {
        script.finish("retried", 0, lease, Finish::fail("failed", Some(Span::ZERO)), true);
        script.take("retried", 0, lease + 1, 10);
        script.set_attempts(attempts);
    }

    #[test]
    fn attempts_count_since_the_latest_reset_of_the_task() {
        let mut script = released(1);
        script.finish("retried", 0, 2, Finish::Bury, true);
        kick(&mut script, 0, true);
        script.take("retried", 0, 3, 10);
        fail_and_take(&mut script, 3, 1);
        assert_eq!(script.judge(super::judge), None);
        // The reset before does not excuse that this failure was not counted.
        fail_and_take(&mut script, 4, 1);
        assert!(script.judge(super::judge).unwrap().contains("has had at least 2"));
    }

    #[test]
    fn a_reset_of_another_task_excuses_nothing() {
        let mut script = released(1);
        script.finish("retried", 0, 2, Finish::fail("failed", Some(Span::ZERO)), true);
        kick(&mut script, 7, true);
        script.take("retried", 0, 3, 10);
        assert!(script.judge(super::judge).unwrap().contains("has had at least 2"));
    }

    #[test]
    fn only_a_kick_without_a_reset_brings_back_a_task_without_attempts() {
        for reset in [true, false] {
            let mut script = released(1);
            kick(&mut script, 0, reset);
            script.take("retried", 0, 3, 10);
            script.set_attempts(3);
            assert_eq!(script.judge(super::judge).is_some(), reset);
        }
    }
}
