//! Judges that a paused tube delivers nothing.

use taskyard_core::Command;

use crate::evidence::{Delivery, Evidence};
use crate::history::RecordedCall;

/// Finds a delivery that began while its tube was surely paused.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let alters: Vec<_> = evidence.history.calls.iter().filter_map(paused).collect();
    evidence.deliveries.iter().find_map(|delivery| {
        let of_tube = || alters.iter().filter(|(call, _)| call.tube() == Some(delivery.tube));
        let pauses = of_tube().filter(|(call, pauses)| *pauses && begins_after(delivery, call));
        let is_resumed_after = |pause: &RecordedCall| {
            of_tube().any(|(call, pauses)| {
                !pauses && call.begin < delivery.from && call.may_run_after(pause.begin)
            })
        };
        let pause = pauses.into_iter().find(|(pause, _)| !is_resumed_after(pause))?;
        Some(format!(
            "task {} of '{}' was delivered {:.3} s after the tube was paused",
            delivery.id,
            delivery.tube,
            delivery.from.at.since(pause.0.begin.at).as_secs_f64()
        ))
    })
}

/// Whether the call may have paused or resumed a tube, and which of both.
fn paused(call: &RecordedCall) -> Option<(&RecordedCall, bool)> {
    match &call.command {
        Command::AlterTube { change, .. } if call.may_have_run() => Some((call, change.paused?)),
        _ => None,
    }
}

/// Whether a delivery surely began after a call was executed.
fn begins_after(delivery: &Delivery<'_>, call: &RecordedCall) -> bool {
    let Some((_, end)) = call.replied() else { return false };
    delivery.call.begin > end || delivery.start.is_some_and(|start| start > end.at)
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Command, Reply, TubeChange, TubeName};

    use crate::judges::script::Script;

    fn pause(script: &mut Script, paused: bool) {
        let tube = TubeName::new("plain").unwrap();
        let change = TubeChange { paused: Some(paused), ..TubeChange::default() };
        script.call(Command::AlterTube { tube, change }, Reply::Tubes(Vec::new()));
    }

    #[test]
    fn a_resumed_tube_delivers_and_a_paused_one_does_not() {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        pause(&mut script, true);
        pause(&mut script, false);
        script.take("plain", 0, 1, 10);
        assert_eq!(script.judge(super::judge), None);
        pause(&mut script, true);
        script.put("plain", 1, |_| {});
        script.take("plain", 1, 2, 10);
        assert!(script.judge(super::judge).unwrap().contains("task 1 of 'plain'"));
    }
}
