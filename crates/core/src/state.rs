//! The states of a task and all allowed transitions.
//!
//! The machine asserts every step against this table in debug builds, a test of this crate checks
//! that random histories take every transition and no other, and the conformance auditor checks the
//! steps of every store against it. SQL and Lua do not read the table.

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Can be taken.
    Ready,
    /// Delivered to a consumer that has not finished it yet.
    Taken,
    /// Not ready before a moment, or waiting for a semaphore.
    Delayed,
    /// Set aside until it is kicked.
    Buried,
    /// Finished or removed. Listed only if its tube keeps done tasks.
    Done,
}

/// A set of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSet(u8);

impl StateSet {
    /// No state.
    pub const EMPTY: StateSet = StateSet(0);
    /// All states, in the order in which sets are shown.
    pub const STATES: [State; 5] =
        [State::Ready, State::Taken, State::Delayed, State::Buried, State::Done];
    /// All states but done.
    pub const UNFINISHED: StateSet = StateSet(0b1111);
    /// All states.
    pub const ALL: StateSet = StateSet(0b1_1111);

    /// The set with this state too.
    #[must_use]
    pub fn with(self, state: State) -> Self {
        StateSet(self.0 | StateSet::bit(state))
    }

    /// Whether it has this state.
    pub fn contains(self, state: State) -> bool {
        self.0 & StateSet::bit(state) != 0
    }

    /// Its states.
    pub fn iter(self) -> impl Iterator<Item = State> {
        StateSet::STATES.into_iter().filter(move |state| self.contains(*state))
    }

    /// The set as a number: 1 ready, 2 taken, 4 delayed, 8 buried, 16 done.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of such a number, if it is one.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !StateSet::ALL.0 == 0 { Some(StateSet(bits)) } else { None }
    }

    const fn bit(state: State) -> u8 {
        match state {
            State::Ready => 1,
            State::Taken => 2,
            State::Delayed => 4,
            State::Buried => 8,
            State::Done => 16,
        }
    }
}

/// An event in the life of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Put without a delay.
    Put,
    /// Put with a delay or a start time.
    PutDelayed,
    /// Replaced by a put with the same key, without a delay.
    Replace,
    /// Replaced by a put with the same key, with a delay or a start time.
    ReplaceDelayed,
    /// The delay is over.
    Due,
    /// Delivered.
    Take,
    /// Finished by its holder.
    Ack,
    /// Released by its holder, by `release_all` or by the end of its session.
    Release,
    /// Released with a delay: by its holder, or by the retry policy after its lease expired.
    ReleaseDelayed,
    /// The lease expired.
    LeaseOver,
    /// The holder extended the delivery.
    Touch,
    /// Buried by a command.
    Bury,
    /// Buried because its attempts are used up.
    DeadLetter,
    /// The semaphore of its tube granted it.
    Admit,
    /// The semaphore of its tube granted others instead.
    Gate,
    /// Made ready again by a kick.
    Kick,
    /// Deleted by a command.
    Delete,
    /// Its time to live is over.
    Expire,
}

/// Every allowed transition: in this state, on this event, the task changes to that state. `None`
/// is a task that does not exist yet.
pub const TRANSITIONS: &[(Option<State>, Event, State)] = &[
    (None, Event::Put, State::Ready),
    (None, Event::PutDelayed, State::Delayed),
    (Some(State::Ready), Event::Replace, State::Ready),
    (Some(State::Delayed), Event::Replace, State::Ready),
    (Some(State::Ready), Event::ReplaceDelayed, State::Delayed),
    (Some(State::Delayed), Event::ReplaceDelayed, State::Delayed),
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

    /// The name of the state in all interfaces.
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

/// The state after `event` in state `from`, or `None` if the table has no such transition.
pub fn next(from: Option<State>, event: Event) -> Option<State> {
    let step = TRANSITIONS.iter().find(|step| step.0 == from && step.1 == event);
    step.map(|step| step.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_states_that_were_added() {
        let set = StateSet::EMPTY.with(State::Buried).with(State::Ready).with(State::Done);
        assert_eq!(set.iter().collect::<Vec<_>>(), [State::Ready, State::Buried, State::Done]);
        assert_eq!(StateSet::from_bits(set.bits()), Some(set));
        assert_eq!(StateSet::from_bits(32), None);
        assert!(StateSet::STATES.iter().all(|state| StateSet::ALL.contains(*state)));
        assert_eq!(StateSet::UNFINISHED.with(State::Done), StateSet::ALL);
    }

    #[test]
    fn a_transition_has_one_target() {
        for (i, step) in TRANSITIONS.iter().enumerate() {
            let twins = TRANSITIONS[i + 1..].iter().filter(|s| (s.0, s.1) == (step.0, step.1));
            assert_eq!(twins.count(), 0, "{step:?} is listed twice");
        }
    }

    #[test]
    fn no_transition_leaves_done() {
        assert!(TRANSITIONS.iter().all(|step| step.0 != Some(State::Done)));
    }

    #[test]
    fn a_taken_task_does_not_expire() {
        assert_eq!(next(Some(State::Taken), Event::Expire), None);
    }
}
