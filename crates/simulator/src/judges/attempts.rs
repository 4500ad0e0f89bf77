//! Judges that failed deliveries are counted, and that a task with no attempts left is buried.

use std::collections::HashMap;

use taskyard_core::{Command, Finish};

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
        let kicks = || evidence.kicks(delivery.tube).filter(|call| call.begin < delivery.from);
        let is_kicked = kicks().next().is_some();
        let is_reset = kicks()
            .any(|call| matches!(call.command, Command::KickTasks { reset_attempts: true, .. }));
        if TubeRole::Retried.is(delivery.tube) && delivery.attempts >= ATTEMPTS_MAX && !is_kicked {
            return Some(format!(
                "{} was delivered after {} failed attempts",
                name(),
                delivery.attempts
            ));
        }
        // Replies can arrive in another order than deliveries begin.
        let earlier = latest.get(&(delivery.tube, delivery.id)).copied();
        let earlier = earlier.filter(|earlier| earlier.from < delivery.call.begin);
        if let Some(earlier) = earlier.filter(|_| !is_reset) {
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
    use taskyard_core::{Finish, Span};

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
}
