//! Replaces replies of changes that are not on as many replicas as the URL requires: a failover may undo them. Refusals and reads
//! are answered as they are.

use taskyard_core::{Command, Error, Outcome, Reply, ScheduleReply};
use taskyard_redis::{Failure, Value};

use super::execute::TubeGroup;
use super::failure::error;
use super::results::{Results, has_changed};

/// The answer, and why a failover may undo it, if so.
pub(super) fn split(answer: Result<Value, Failure>) -> (Result<Value, Failure>, Option<String>) {
    match answer {
        Err(Failure::Unreplicated(why, value)) => (Ok(value), Some(why)),
        answer => (answer, None),
    }
}

/// The error for a change that may be undone.
pub(super) fn unreplicated(why: &str) -> Error {
    error(&Failure::Unreplicated(why.into(), Value::Nil))
}

impl Results<'_> {
    /// Replaces the replies of commands that changed a tube. Deliveries are undone, because their callers do not get them.
    pub fn replace_unreplicated(&mut self, group: &TubeGroup, why: &str, (first, end): (u64, u64)) {
        let mut taken = false;
        for (place, command) in &group.commands {
            let Some(reply) = &mut self.replies[*place] else { continue };
            if has_done(command, reply) {
                taken |= matches!(reply, Ok(Reply::Taken(_)));
                *reply = Err(unreplicated(why));
            }
        }
        if taken && first < end {
            self.unacknowledged(group, (first, end));
        }
    }

    /// Notes that the callers do not get the deliveries of these commands.
    pub fn unacknowledged(&mut self, group: &TubeGroup, (first, end): (u64, u64)) {
        if first < end {
            let delivery = (self.shared.address(&group.tube).tag, first, end - 1);
            self.shared.cache().request_resync().unacknowledged.push(delivery);
        }
    }

    /// The reply to a command that was sent alone, replaced if its change may be undone.
    pub fn check_replicated(&mut self, reply: Result<Reply, Error>) -> Result<Reply, Error> {
        let changed = match &reply {
            Ok(Reply::Created(true) | Reply::Nothing | Reply::Tubes(_) | Reply::Semaphore(_)) => {
                true
            }
            Ok(Reply::Schedule(reply)) => *reply != ScheduleReply::Fired(None),
            _ => false,
        };
        match self.short.take() {
            Some(why) if changed => Err(unreplicated(&why)),
            _ => reply,
        }
    }
}

fn has_done(command: &Command, reply: &Result<Reply, Error>) -> bool {
    match reply {
        Ok(Reply::Finished(outcomes)) => {
            outcomes.iter().any(|outcome| matches!(outcome, Outcome::Done(_)))
        }
        reply => has_changed(command, reply),
    }
}
