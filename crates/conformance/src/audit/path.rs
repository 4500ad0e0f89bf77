//! Searches for an order of calls that is a path of the table of transitions.

use std::collections::HashSet;

use taskyard_core::state::next;
use taskyard_core::{Event, Lease, State, Timestamp};

use super::{Call, Operation, Unrecorded};

/// The state of a task at one point of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PathState {
    state: Option<State>,
    /// The delivery under way, and when it ends by itself.
    held: Option<(Lease, Timestamp)>,
    /// The earliest possible current time, by the store's clock.
    not_before: Timestamp,
}

/// Searches for a valid order of the calls that ends in the final state of the task.
pub(super) fn find(
    calls: &[Call],
    left: Option<State>,
    unrecorded: Unrecorded,
) -> Result<(), String> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.begin);
    let mut search = Search { calls, left, unrecorded, dead_ends: HashSet::new(), furthest: 0 };
    let initial =
        PathState { state: None, held: None, not_before: Timestamp::from_micros(i64::MIN) };
    let mut open = vec![true; search.calls.len()];
    if search.go(initial, &mut open) {
        return Ok(());
    }
    let lines: Vec<String> = search.calls.iter().map(|call| format!("{call:?}")).collect();
    Err(format!(
        "no order of these calls is valid and ends {}; the best one explains {} of {}:\n  {}",
        left.map_or("anywhere", State::name),
        search.furthest,
        search.calls.len(),
        lines.join("\n  ")
    ))
}

struct Search {
    calls: Vec<Call>,
    left: Option<State>,
    unrecorded: Unrecorded,
    dead_ends: HashSet<(PathState, Vec<bool>)>,
    furthest: usize,
}

impl Search {
    /// Whether the calls that are still open can follow from here.
    fn go(&mut self, state: PathState, open: &mut Vec<bool>) -> bool {
        let done = open.iter().filter(|open| !**open).count();
        self.furthest = self.furthest.max(done);
        if done == open.len() && self.is_end(state) {
            return true;
        }
        if self.dead_ends.contains(&(state, open.clone())) {
            return false;
        }
        let found = self.try_calls(state, open) || self.try_unrecorded(state, open);
        if !found {
            self.dead_ends.insert((state, open.clone()));
        }
        found
    }

    fn try_calls(&mut self, state: PathState, open: &mut Vec<bool>) -> bool {
        for number in 0..open.len() {
            if !open[number] || !self.may_be_next(number, open) {
                continue;
            }
            let call = self.calls[number];
            open[number] = false;
            if let Some(after) = apply(state, call.operation)
                && self.go(after, open)
            {
                return true;
            }
            if may_be_nothing(call) && self.go(state, open) {
                return true;
            }
            open[number] = true;
        }
        false
    }

    /// A call cannot precede one that had ended when it began.
    fn may_be_next(&self, number: usize, open: &[bool]) -> bool {
        let begin = self.calls[number].begin;
        let mut others = self.calls.iter().zip(open).filter(|(_, open)| **open);
        others.all(|(other, _)| other.end.is_none_or(|end| end >= begin))
    }

    /// Tries the changes that time can have made meanwhile.
    fn try_unrecorded(&mut self, state: PathState, open: &mut Vec<bool>) -> bool {
        let over = state.held.map(|held| held.1).filter(|until| *until <= self.unrecorded.ended);
        let events = [
            (Event::Due, true, None),
            (Event::LeaseOver, over.is_some(), over),
            (Event::DeadLetter, over.is_some() && self.unrecorded.dead_letter, over),
            (Event::Expire, self.unrecorded.expire, None),
        ];
        for (event, possible, moment) in events {
            let Some(to) = next(state.state, event).filter(|_| possible) else { continue };
            let not_before = moment.map_or(state.not_before, |moment| moment.max(state.not_before));
            if self.go(PathState { state: Some(to), held: None, not_before }, open) {
                return true;
            }
        }
        false
    }

    /// Whether the final state of the task is possible here.
    fn is_end(&self, state: PathState) -> bool {
        match (self.left, state.state) {
            (None, _) => true,
            // Never put, as far as the records show: an interrupted put.
            (Some(State::Done), None) => true,
            (Some(State::Taken), Some(State::Ready)) => self.unrecorded.lost_takes,
            (left, state) => left == state,
        }
    }
}

/// The state after a call, if the table allows it and the caller held the lease that it names.
fn apply(state: PathState, operation: Operation) -> Option<PathState> {
    let step = |event| {
        next(state.state, event).map(|to| PathState { state: Some(to), held: None, ..state })
    };
    let holds = |lease| state.held.is_some_and(|held| held.0 == lease);
    match operation {
        Operation::Put(State::Delayed) => step(Event::PutDelayed),
        Operation::Put(_) => step(Event::Put),
        Operation::Take { lease, start, until } => {
            let taken = step(Event::Take).filter(|state| start >= state.not_before)?;
            Some(PathState { held: Some((lease, until)), not_before: start, ..taken })
        }
        Operation::Ack(lease) => step(Event::Ack).filter(|_| holds(lease)),
        Operation::Release(lease, to) => {
            let event = match to {
                State::Delayed => Event::ReleaseDelayed,
                State::Buried => Event::DeadLetter,
                _ => Event::Release,
            };
            step(event).filter(|_| holds(lease))
        }
        Operation::Touch(lease, until) => {
            let touched = step(Event::Touch).filter(|_| holds(lease))?;
            Some(PathState { held: Some((lease, until)), ..touched })
        }
        // A second bury is done and changes nothing.
        Operation::Bury(None) if state.state == Some(State::Buried) => Some(state),
        Operation::Bury(holder) => step(Event::Bury).filter(|_| holder.is_none_or(holds)),
        Operation::Delete => step(Event::Delete),
        Operation::Kick => step(Event::Kick),
        Operation::Disconnect(lease) => step(Event::Release).filter(|_| holds(lease)),
        Operation::ReleaseTaken => step(Event::Release),
    }
}

/// Whether the call can have had no effect on the task.
fn may_be_nothing(call: Call) -> bool {
    call.end.is_none()
        || matches!(
            call.operation,
            Operation::Kick | Operation::Disconnect(_) | Operation::ReleaseTaken
        )
}
