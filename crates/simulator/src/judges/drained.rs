//! Judges that a server that is stopped answers everything that is under way, and ends.

use std::time::Duration;

use taskyard_core::{Command, Error};

use crate::evidence::Evidence;
use crate::history::{CallReply, RecordedCall};
use crate::server_stops::ServerStop;

/// How long a stop may take: the connections have ten seconds.
const STOP_MAX: Duration = Duration::from_secs(15);

/// Finds a call without a reply although its server was stopped gracefully, or a server that did not end.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let stops = &evidence.facts.server_stops;
    stops.iter().filter(|stop| stop.is_alone).find_map(|stop| {
        if stop.lasted > STOP_MAX {
            let (most, server) = (STOP_MAX.as_secs(), stop.server);
            return Some(format!("server {server} did not stop within {most} s"));
        }
        // A client on the network does not know which of its requests were read.
        let calls = evidence.history.calls.iter().filter(|_| !evidence.plan.scenario.has_network());
        let lost = calls.into_iter().find(|call| is_lost(call, stop))?;
        Some(format!(
            "server {} was stopped gracefully, and a {} under way got no reply",
            stop.server,
            lost.command.verb()
        ))
    })
}

fn is_lost(call: &RecordedCall, stop: &ServerStop) -> bool {
    let Some(ended) = stop.ended else { return false };
    let is_under_way = call.begin < ended && call.end.is_none_or(|end| end > stop.begun);
    // What waits is refused, and what comes later.
    let is_refused = call.begin < stop.begun
        && !matches!(call.command, Command::Put { wait, .. } if !wait.is_zero())
        && call.reply == CallReply::Refused(Error::ShuttingDown);
    let has_none = call.reply == CallReply::Unknown && !call.is_given_up;
    call.server == stop.server && is_under_way && (has_none || is_refused)
}

#[cfg(test)]
mod tests {
    use taskyard_core::Reply;

    use super::*;
    use crate::history::Moment;
    use crate::judges::script::Script;

    #[test]
    fn a_stop_answers_what_is_under_way_and_ends() {
        let mut script = Script::new();
        let moment = |number| Moment { number, at: taskyard_core::Timestamp::EPOCH };
        let stop = ServerStop {
            server: 0,
            begun: moment(0),
            ended: Some(moment(u64::MAX)),
            lasted: Duration::from_secs(5),
            is_alone: true,
        };
        script.call(Command::Tubes { tube: None }, Reply::Nothing);
        script.facts.server_stops = vec![stop];
        assert_eq!(script.judge(judge), None);
        let lasted = Duration::from_secs(16);
        script.facts.server_stops = vec![ServerStop { ended: None, lasted, ..stop }];
        assert!(script.judge(judge).unwrap().contains("did not stop within 15 s"));
        script.facts.server_stops = vec![stop];
        script.lose_reply();
        assert!(script.judge(judge).unwrap().contains("got no reply"));
        script.facts.server_stops = vec![ServerStop { is_alone: false, ..stop }];
        assert_eq!(script.judge(judge), None);
    }
}
