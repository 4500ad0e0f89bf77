//! Judges that a dropped tube and its tasks are gone, and that a tube with a delivery cannot be dropped.

use std::collections::HashMap;

use taskyard_core::{Command, Counts, Reply, TubeName};

use crate::evidence::Evidence;
use crate::history::{CallReply, RecordedCall};
use crate::tubes::SCRATCH;

/// What is known of a tube that one client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScratchState {
    Exists,
    Dropped,
    /// It was created after it was dropped.
    Empty,
    /// The outcome of a call is unknown.
    Nothing,
}

/// Finds a use of a dropped tube that succeeded, or a drop that must not.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let mut tubes: HashMap<&TubeName, ScratchState> = HashMap::new();
    evidence.history.calls.iter().find_map(|call| {
        let tube = call.tube().filter(|tube| tube.as_str().starts_with(SCRATCH))?;
        let known = tubes.entry(tube).or_insert(ScratchState::Exists);
        if call.reply == CallReply::Unknown {
            *known = ScratchState::Nothing;
        }
        let (reply, _) = call.replied()?;
        match (&call.command, *known) {
            (_, ScratchState::Nothing) => None,
            (Command::CreateTube { .. }, ScratchState::Dropped) => {
                *known = ScratchState::Empty;
                None
            }
            (Command::DropTube { .. }, _) => {
                *known = ScratchState::Dropped;
                dropped_while_held(evidence, tube, call)
            }
            (Command::Put { .. } | Command::Tubes { .. }, ScratchState::Dropped) => {
                Some(format!("tube '{tube}' is used after it was dropped"))
            }
            (Command::Tubes { .. }, ScratchState::Empty) => tasks_of(reply).map(|count| {
                format!("tube '{tube}' was dropped and created again, and has {count} tasks")
            }),
            _ => None,
        }
    })
}

fn dropped_while_held(
    evidence: &Evidence<'_>,
    tube: &TubeName,
    drop: &RecordedCall,
) -> Option<String> {
    let end = drop.end?;
    let mut held = evidence.deliveries.iter().filter(|delivery| delivery.tube == tube);
    let delivery = held.find(|delivery| delivery.is_held_at(end))?;
    Some(format!("tube '{tube}' was dropped while task {} was taken", delivery.id))
}

/// How many tasks a shown tube has, if it has any.
fn tasks_of(reply: &Reply) -> Option<u64> {
    let Reply::Tubes(tubes) = reply else { return None };
    let Counts { ready, taken, delayed, buried, .. } = tubes.first()?.stats.tasks;
    Some(ready + taken + delayed + buried).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Command, Reply, TubeName};

    use crate::judges::script::Script;

    fn drop_tube(script: &mut Script) {
        let tube = TubeName::new("scratch-1").unwrap();
        script.call(Command::DropTube { tube }, Reply::Nothing);
    }

    #[test]
    fn a_dropped_tube_cannot_be_used() {
        let mut script = Script::new();
        script.put("scratch-1", 0, |_| {});
        drop_tube(&mut script);
        assert_eq!(script.judge(super::judge), None);
        script.put("scratch-1", 1, |_| {});
        assert!(script.judge(super::judge).unwrap().contains("used after it was dropped"));
    }

    #[test]
    fn a_tube_with_a_delivery_cannot_be_dropped() {
        let mut script = Script::new();
        script.put("scratch-1", 0, |_| {});
        script.take("scratch-1", 0, 1, 10);
        drop_tube(&mut script);
        assert!(script.judge(super::judge).unwrap().contains("while task 0 was taken"));
    }
}
