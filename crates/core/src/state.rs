//! The states of a task and the only ways between them.
//!
//! This table is the source: documents, SQL checks and Lua tables are derived from it or
//! compared with it.

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// May be taken.
    Ready,
    /// Delivered to somebody who has not answered yet.
    Taken,
    /// Waits for its time.
    Delayed,
    /// Put aside until somebody kicks it.
    Buried,
    /// Gone. Seen only in answers.
    Done,
}

/// What happens to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Put without a delay.
    Put,
    /// Put with a delay or a start time.
    PutDelayed,
    /// The delay is over.
    Due,
    /// Delivered.
    Take,
    /// Finished by its holder.
    Ack,
    /// Given back by its holder, by `release_all` or by the end of its session.
    Release,
    /// Given back by its holder, for later.
    ReleaseDelayed,
    /// The lease ran out.
    LeaseOver,
    /// The holder asked for more time.
    Touch,
    /// Put aside by somebody.
    Bury,
    /// Put aside because its attempts are used up.
    DeadLetter,
    /// The semaphore before its tube lets it in.
    Admit,
    /// The semaphore before its tube lets others go first.
    Gate,
    /// Brought back from the buried.
    Kick,
    /// Removed by somebody.
    Delete,
    /// Its time to live ran out.
    Expire,
}

/// Every allowed step: in this state, on this event, the task goes to that state.
/// `None` is a task that does not exist yet.
pub const TRANSITIONS: &[(Option<State>, Event, State)] = &[
    (None, Event::Put, State::Ready),
    (None, Event::PutDelayed, State::Delayed),
    (Some(State::Delayed), Event::Due, State::Ready),
    (Some(State::Delayed), Event::Admit, State::Ready),
    (Some(State::Ready), Event::Gate, State::Delayed),
    (Some(State::Ready), Event::Take, State::Taken),
    (Some(State::Taken), Event::Ack, State::Done),
    (Some(State::Taken), Event::Release, State::Ready),
    (Some(State::Taken), Event::ReleaseDelayed, State::Delayed),
    (Some(State::Taken), Event::LeaseOver, State::Ready),
    (Some(State::Taken), Event::Touch, State::Taken),
    (Some(State::Taken), Event::DeadLetter, State::Buried),
    (Some(State::Ready), Event::Bury, State::Buried),
    (Some(State::Taken), Event::Bury, State::Buried),
    (Some(State::Delayed), Event::Bury, State::Buried),
    (Some(State::Buried), Event::Kick, State::Ready),
    (Some(State::Ready), Event::Delete, State::Done),
    (Some(State::Taken), Event::Delete, State::Done),
    (Some(State::Delayed), Event::Delete, State::Done),
    (Some(State::Buried), Event::Delete, State::Done),
    (Some(State::Ready), Event::Expire, State::Done),
    (Some(State::Buried), Event::Expire, State::Done),
    // The time to live runs while a task waits for its semaphore.
    (Some(State::Delayed), Event::Expire, State::Done),
];

impl State {
    /// The letter of the state in the Tarantool queue protocol.
    pub const fn letter(self) -> char {
        match self {
            State::Ready => 'r',
            State::Taken => 't',
            State::Delayed => '~',
            State::Buried => '!',
            State::Done => '-',
        }
    }

    /// The state's name on every face of Taskyard.
    pub const fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Taken => "taken",
            State::Delayed => "delayed",
            State::Buried => "buried",
            State::Done => "done",
        }
    }
}

/// Where `event` leads from `from`, or `None` where the table has no such step.
pub fn next(from: Option<State>, event: Event) -> Option<State> {
    let step = TRANSITIONS.iter().find(|step| step.0 == from && step.1 == event);
    step.map(|step| step.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_end() {
        for (i, step) in TRANSITIONS.iter().enumerate() {
            let twins = TRANSITIONS[i + 1..].iter().filter(|s| (s.0, s.1) == (step.0, step.1));
            assert_eq!(twins.count(), 0, "{step:?} stands twice");
        }
    }

    #[test]
    fn nothing_comes_back_from_done() {
        assert!(TRANSITIONS.iter().all(|step| step.0 != Some(State::Done)));
    }

    #[test]
    fn a_taken_task_never_dies_of_old_age() {
        assert_eq!(next(Some(State::Taken), Event::Expire), None);
    }
}
