//! Who waits: in the order of arrival, found by class without a search.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::classes::{Kind, Ticket};
use crate::time::{Span, Timestamp};

/// A task that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// Explicit or default: interactive ones never wait.
    pub kind: Kind,
    /// The class whose limits hold it back: its own, or the shortest for a default one.
    pub class: u8,
    /// The longest it may run by its own wish.
    pub wish: Span,
    /// When it has waited as long as it may.
    pub until: Timestamp,
}

/// Everybody who waits.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    tasks: HashMap<Ticket, Queued>,
    places: Vec<BTreeSet<Ticket>>,
    /// Those who may not wait for ever, by the moment when that is over.
    deadlines: BTreeSet<(Timestamp, Ticket)>,
}

impl Queue {
    pub fn new(classes: usize) -> Self {
        let places = vec![BTreeSet::new(); classes];
        Queue { tasks: HashMap::new(), places, deadlines: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn get(&self, ticket: Ticket) -> Option<Queued> {
        self.tasks.get(&ticket).copied()
    }

    /// The first in the queue whose class is below this one.
    pub fn first_below(&self, class: u8) -> Option<(Ticket, Queued)> {
        let heads = self.places[..usize::from(class)].iter().filter_map(BTreeSet::first);
        let ticket = *heads.min()?;
        Some((ticket, self.tasks[&ticket]))
    }

    pub fn insert(&mut self, ticket: Ticket, task: Queued) {
        self.places[usize::from(task.class)].insert(ticket);
        if task.until < Timestamp::NEVER {
            self.deadlines.insert((task.until, ticket));
        }
        self.tasks.insert(ticket, task);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Queued> {
        let task = self.tasks.remove(&ticket)?;
        self.places[usize::from(task.class)].remove(&ticket);
        self.deadlines.remove(&(task.until, ticket));
        Some(task)
    }

    /// Who has to leave first, and when.
    pub fn next_deadline(&self) -> Option<(Timestamp, Ticket)> {
        self.deadlines.first().copied()
    }

    /// How many of this class wait.
    pub fn count(&self, class: usize) -> usize {
        self.places[class].len()
    }

    /// Everybody in the order of arrival.
    pub fn in_order(&self) -> Vec<(Ticket, Queued)> {
        let mut all: Vec<_> = self.tasks.iter().map(|(ticket, task)| (*ticket, *task)).collect();
        all.sort_unstable_by_key(|(ticket, _)| *ticket);
        all
    }
}
