//! What was done, but is not on as many replicas as the URL asks for: a failover may undo it, and whoever asked is told so. What was refused, and
//! what only looked, is answered as it is.

use taskyard_core::{Command, Error, Outcome, Reply};
use taskyard_redis::{Failure, Value};

use super::execute::Group;
use super::failure::error;
use super::results::{Results, has_changed};

/// The answer, and why it may be undone if it may.
pub(super) fn split(answer: Result<Value, Failure>) -> (Result<Value, Failure>, Option<String>) {
    match answer {
        Err(Failure::Unreplicated(why, value)) => (Ok(value), Some(why)),
        answer => (answer, None),
    }
}

/// What to tell whoever asked for something that may be undone.
pub(super) fn undoable(why: &str) -> Error {
    error(&Failure::Unreplicated(why.into(), Value::Nil))
}

impl Results<'_> {
    /// Tells those whose command changed a tube that it may be undone. What was taken is given back: nobody is told of it.
    pub fn doubt_replies(&mut self, group: &Group, why: &str, (first, end): (u64, u64)) {
        let mut taken = false;
        for (place, command) in &group.commands {
            let Some(reply) = &mut self.replies[*place] else { continue };
            if has_done(command, reply) {
                taken |= matches!(reply, Ok(Reply::Taken(_)));
                *reply = Err(undoable(why));
            }
        }
        if taken && first < end {
            self.unheard(group, (first, end));
        }
    }

    /// Nobody hears of what these commands took.
    pub fn unheard(&mut self, group: &Group, (first, end): (u64, u64)) {
        if first < end {
            let delivery = (self.shared.whom(&group.tube).home, first, end - 1);
            self.shared.known().doubt().unheard.push(delivery);
        }
    }

    /// The reply to a command that was asked alone: whether it may be undone is known since its change.
    pub fn doubt_reply(&mut self, reply: Result<Reply, Error>) -> Result<Reply, Error> {
        let changed = matches!(
            reply,
            Ok(Reply::Created(true) | Reply::Nothing | Reply::Tubes(_) | Reply::Semaphore(_))
        );
        match self.short.take() {
            Some(why) if changed => Err(undoable(&why)),
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
