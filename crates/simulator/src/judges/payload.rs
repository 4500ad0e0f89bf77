//! Judges that every task that is shown has a whole payload, as some client or schedule put it.

use taskyard_core::{Body, Command, Reply, Task, TubeName};

use crate::evidence::Evidence;
use crate::final_phase::SCHEDULES;
use crate::history::RecordedCall;
use crate::operations::{packed, read_payload};
use crate::tubes::TubeRole;

/// Finds a payload that differs from all that were put into its tube. Which task has which is judged by `identity`.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    evidence.history.calls.iter().find_map(|call| {
        let Some((Reply::Taken(tasks) | Reply::Tasks(tasks), _)) = call.replied() else {
            return None;
        };
        let tube = match &call.command {
            Command::Take(take) => &take.tube,
            Command::Peek { tube, .. } | Command::Deliveries { tube, .. } => tube,
            _ => return None,
        };
        if tube.is_internal() {
            return None;
        }
        tasks.iter().find_map(|task| check(evidence, call, tube, task))
    })
}

fn check(
    evidence: &Evidence<'_>,
    call: &RecordedCall,
    tube: &TubeName,
    task: &Task,
) -> Option<String> {
    let body = task.body.as_ref()?;
    let is_whole = match read_payload(body).and_then(|number| evidence.puts.get(&number)) {
        _ if TubeRole::Scheduled.is(tube) => is_of_schedule(body),
        Some(put) => put.tube == tube && is_same(body, &put.task.body),
        None => false,
    };
    (!is_whole).then(|| {
        format!(
            "the reply to a {} shows task {} of '{tube}' with the payload {:02x?}, which was never put there",
            call.command.verb(),
            task.id,
            body.payload()
        )
    })
}

fn is_of_schedule(body: &Body) -> bool {
    SCHEDULES.iter().any(|name| is_same(body, &Body::new(name.as_bytes())))
}

/// Whether it is what was put, perhaps over iproto.
fn is_same(shown: &Body, put: &Body) -> bool {
    [put.payload(), packed(put).payload()].contains(&shown.payload())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::script::Script;

    fn taken(body: &[u8]) -> Option<String> {
        let mut script = Script::new();
        script.put("plain", 7, |_| {});
        script.take("plain", 7, 1, 10);
        script.set_body(Body::new(body));
        script.judge(judge)
    }

    #[test]
    fn a_payload_stays_as_it_was_put() {
        let whole = Body::new(&7_u64.to_be_bytes());
        assert_eq!(taken(whole.payload()), None);
        assert_eq!(taken(packed(&whole).payload()), None, "over iproto");
        assert!(taken(&whole.payload()[..7]).unwrap().contains("which was never put there"));
        assert!(taken(b"").is_some());
    }

    #[test]
    fn tasks_of_schedules_have_the_payload_of_their_schedule() {
        assert!(
            is_of_schedule(&Body::new(b"cron")) && is_of_schedule(&packed(&Body::new(b"cron")))
        );
        assert!(!is_of_schedule(&Body::new(b"cro")));
    }
}
