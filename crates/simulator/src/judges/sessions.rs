//! Judges that a session that its client has left owns nothing any more, and that no other session ends without a reason.

use taskyard_core::{Command, Reply, SessionId, Task};

use crate::evidence::Evidence;
use crate::fast_map::FastMap;
use crate::faults::is_within_window;
use crate::history::{Moment, RecordedCall};

/// Finds a task of a session that its client has left, or a session that the store ended without a reason.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    held_after_end(evidence).or_else(|| ended_without_reason(evidence))
}

/// Finds a session that ended although its client did not leave it and nothing happened to its server or its connection.
fn ended_without_reason(evidence: &Evidence<'_>) -> Option<String> {
    evidence.history.calls.iter().find_map(|call| {
        let Command::JoinSession { session, .. } = &call.command else { return None };
        let ends = evidence.session_ends.get(session).into_iter().flatten();
        let mut ends = ends.filter(|end| **end > call.begin);
        let has_reason = |end: &Moment| {
            let is_left = evidence.left.get(session).is_some_and(|left| *left < end.number);
            is_left || is_within_window(&evidence.history.windows, call.server, end.at)
        };
        let end = ends.find(|end| !has_reason(end))?;
        let second = end.at.since(evidence.plan.start).as_secs_f64();
        Some(format!("session {session} was ended {second:.3} s after the start, without a reason"))
    })
}

/// Finds a task that is delivered to, or held by, a session that has ended.
fn held_after_end(evidence: &Evidence<'_>) -> Option<String> {
    let mut left: FastMap<SessionId, Moment> = FastMap::default();
    let mut joins: FastMap<SessionId, u32> = FastMap::default();
    for call in &evidence.history.calls {
        match (&call.command, call.replied()) {
            (Command::JoinSession { session, .. }, _) => {
                *joins.entry(*session).or_default() += 1;
            }
            (Command::LeaveSession { session }, Some((_, end))) => _ = left.insert(*session, end),
            _ => {}
        }
    }
    // With one connection the session ends with that.
    left.retain(|session, _| joins.get(session) == Some(&1));
    evidence.history.calls.iter().find_map(|call| {
        let Some((Reply::Taken(tasks) | Reply::Tasks(tasks), _)) = call.replied() else {
            return None;
        };
        tasks.iter().find_map(|task| check(call, task, &left))
    })
}

fn check(call: &RecordedCall, task: &Task, left: &FastMap<SessionId, Moment>) -> Option<String> {
    let session = task.session?;
    let end = left.get(&session).filter(|end| **end < call.begin)?;
    Some(format!(
        "the reply to a {} shows that session {session} holds task {}, {:.3} s after its client left it",
        call.command.verb(),
        task.id,
        call.begin.at.since(end.at).as_secs_f64()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::script::Script;

    fn script(joins: u32) -> Script {
        let session = SessionId([0; 16]);
        let mut script = Script::new();
        for _ in 0..joins {
            let join = Command::JoinSession { session, create: true };
            script.call(join, Reply::Session(session));
        }
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.show_delivery("plain", 0, 1);
        script.call(Command::LeaveSession { session }, Reply::Nothing);
        script
    }

    #[test]
    fn a_session_holds_tasks_until_its_client_leaves_it() {
        let mut script = script(1);
        assert_eq!(script.judge(judge), None);
        script.pass(3);
        script.show_delivery("plain", 0, 1);
        assert!(script.judge(judge).unwrap().contains("3.000 s after its client left it"));
    }

    #[test]
    fn a_session_with_another_connection_goes_on() {
        let mut script = script(2);
        script.show_delivery("plain", 0, 1);
        assert_eq!(script.judge(judge), None);
    }
}
