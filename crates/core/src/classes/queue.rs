//! The waiting tasks in the order of arrival, found by class without a search.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::classes::{TaskKind, Ticket};
use crate::time::{Span, Timestamp};

/// A waiting task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// Explicit or default: interactive ones never wait.
    pub kind: TaskKind,
    /// The class whose limits hold it back: its own, or the shortest for a default one.
    pub class: u8,
    /// The longest time it may run at its own request.
    pub wish: Span,
    /// When its maximum wait is over.
    pub until: Timestamp,
}

/// All waiting tasks.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    tasks: HashMap<Ticket, Queued>,
    places: Vec<BTreeSet<Ticket>>,
    /// Tasks with a maximum wait, by the moment when it is over.
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

    /// The first task in the queue whose class is below this one.
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

    /// The next end of a maximum wait, and its task.
    pub fn next_deadline(&self) -> Option<(Timestamp, Ticket)> {
        self.deadlines.first().copied()
    }

    /// The number of waiting tasks of this class.
    pub fn count(&self, class: usize) -> usize {
        self.places[class].len()
    }

    /// All tasks in the order of arrival.
    pub fn in_order(&self) -> Vec<(Ticket, Queued)> {
        let mut all: Vec<_> = self.tasks.iter().map(|(ticket, task)| (*ticket, *task)).collect();
        all.sort_unstable_by_key(|(ticket, _)| *ticket);
        all
    }
}
