//! The search for an order of calls that is a path of the table.

use std::collections::HashSet;

use taskyard_core::state::next;
use taskyard_core::{Event, Lease, State, Timestamp};

use super::{Call, Did, Unseen};

/// Where a task stands somewhere on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    state: Option<State>,
    /// The delivery under way, and when it ends by itself.
    held: Option<(Lease, Timestamp)>,
    /// The earliest moment it can be now, by the store's clock.
    not_before: Timestamp,
}

/// Looks for an order of the calls that may have happened and ends where the task was found.
pub(super) fn find(calls: &[Call], left: Option<State>, unseen: Unseen) -> Result<(), String> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.begin);
    let mut search = Search { calls, left, unseen, dead_ends: HashSet::new(), furthest: 0 };
    let nowhere = Place { state: None, held: None, not_before: Timestamp::from_micros(i64::MIN) };
    let mut open = vec![true; search.calls.len()];
    if search.go(nowhere, &mut open) {
        return Ok(());
    }
    let lines: Vec<String> = search.calls.iter().map(|call| format!("{call:?}")).collect();
    Err(format!(
        "no order of these calls is allowed that ends {}; the best one explains {} of {}:\n  {}",
        left.map_or("anywhere", State::name),
        search.furthest,
        search.calls.len(),
        lines.join("\n  ")
    ))
}

struct Search {
    calls: Vec<Call>,
    left: Option<State>,
    unseen: Unseen,
    dead_ends: HashSet<(Place, Vec<bool>)>,
    furthest: usize,
}

impl Search {
    /// Whether the calls that are still open can follow from here.
    fn go(&mut self, place: Place, open: &mut Vec<bool>) -> bool {
        let done = open.iter().filter(|open| !**open).count();
        self.furthest = self.furthest.max(done);
        if done == open.len() && self.is_end(place) {
            return true;
        }
        if self.dead_ends.contains(&(place, open.clone())) {
            return false;
        }
        let found = self.try_calls(place, open) || self.try_unseen(place, open);
        if !found {
            self.dead_ends.insert((place, open.clone()));
        }
        found
    }

    fn try_calls(&mut self, place: Place, open: &mut Vec<bool>) -> bool {
        for number in 0..open.len() {
            if !open[number] || !self.may_be_next(number, open) {
                continue;
            }
            let call = self.calls[number];
            open[number] = false;
            if let Some(after) = apply(place, call.did)
                && self.go(after, open)
            {
                return true;
            }
            if may_be_nothing(call) && self.go(place, open) {
                return true;
            }
            open[number] = true;
        }
        false
    }

    /// A call cannot come before one that was over when it began.
    fn may_be_next(&self, number: usize, open: &[bool]) -> bool {
        let begin = self.calls[number].begin;
        let mut others = self.calls.iter().zip(open).filter(|(_, open)| **open);
        others.all(|(other, _)| other.end.is_none_or(|end| end >= begin))
    }

    /// What time may have done meanwhile.
    fn try_unseen(&mut self, place: Place, open: &mut Vec<bool>) -> bool {
        let over = place.held.map(|held| held.1).filter(|until| *until <= self.unseen.ended);
        let events = [
            (Event::Due, true, None),
            (Event::LeaseOver, over.is_some(), over),
            (Event::DeadLetter, over.is_some() && self.unseen.dead_letter, over),
            (Event::Expire, self.unseen.expire, None),
        ];
        for (event, possible, moment) in events {
            let Some(state) = next(place.state, event).filter(|_| possible) else { continue };
            let not_before = moment.map_or(place.not_before, |moment| moment.max(place.not_before));
            if self.go(Place { state: Some(state), held: None, not_before }, open) {
                return true;
            }
        }
        false
    }

    /// Whether the task may have been found as it was.
    fn is_end(&self, place: Place) -> bool {
        match (self.left, place.state) {
            (None, _) => true,
            // Never put, as far as anybody knows: a put that was cut off.
            (Some(State::Done), None) => true,
            (Some(State::Taken), Some(State::Ready)) => self.unseen.lost_takes,
            (left, state) => left == state,
        }
    }
}

/// Where a call leads, if the table allows it and the caller held what it says.
fn apply(place: Place, did: Did) -> Option<Place> {
    let step =
        |event| next(place.state, event).map(|to| Place { state: Some(to), held: None, ..place });
    let holds = |lease| place.held.is_some_and(|held| held.0 == lease);
    match did {
        Did::Put(State::Delayed) => step(Event::PutDelayed),
        Did::Put(_) => step(Event::Put),
        Did::Take { lease, start, until } => {
            let taken = step(Event::Take).filter(|place| start >= place.not_before)?;
            Some(Place { held: Some((lease, until)), not_before: start, ..taken })
        }
        Did::Ack(lease) => step(Event::Ack).filter(|_| holds(lease)),
        Did::Release(lease, to) => {
            let event = match to {
                State::Delayed => Event::ReleaseDelayed,
                State::Buried => Event::DeadLetter,
                _ => Event::Release,
            };
            step(event).filter(|_| holds(lease))
        }
        Did::Touch(lease, until) => {
            let touched = step(Event::Touch).filter(|_| holds(lease))?;
            Some(Place { held: Some((lease, until)), ..touched })
        }
        // A second bury is done and changes nothing.
        Did::Bury(None) if place.state == Some(State::Buried) => Some(place),
        Did::Bury(holder) => step(Event::Bury).filter(|_| holder.is_none_or(holds)),
        Did::Delete => step(Event::Delete),
        Did::Kick => step(Event::Kick),
        Did::Gone(lease) => step(Event::Release).filter(|_| holds(lease)),
        Did::GiveBack => step(Event::Release),
    }
}

/// Whether the call may have done nothing to the task.
fn may_be_nothing(call: Call) -> bool {
    call.end.is_none() || matches!(call.did, Did::Kick | Did::Gone(_) | Did::GiveBack)
}
