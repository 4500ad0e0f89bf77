//! Who runs, and since when.

use std::collections::{BTreeMap, BTreeSet};

use crate::classes::{Kind, Ticket};
use crate::time::{Span, Timestamp};

/// A task that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub kind: Kind,
    /// The class it counts in: the shortest for one that is about to end, and for an interactive one.
    pub class: u8,
    pub started: Timestamp,
    /// How long it may run.
    pub limit: Span,
    /// The longest it may run by its own wish.
    pub wish: Span,
    /// Since when it is about to end, because its time was cut.
    pub stopping: Option<Timestamp>,
}

/// Everybody who runs, and those of them who may be made to yield.
#[derive(Clone, Debug)]
pub(crate) struct RunningTasks {
    tasks: BTreeMap<Ticket, Running>,
    /// Default tasks that are not about to end, by class.
    defaults: Vec<BTreeSet<(Timestamp, Ticket)>>,
    interactive: BTreeSet<(Timestamp, Ticket)>,
    stopping: usize,
}

impl RunningTasks {
    pub fn new(classes: usize) -> Self {
        RunningTasks {
            tasks: BTreeMap::new(),
            defaults: vec![BTreeSet::new(); classes],
            interactive: BTreeSet::new(),
            stopping: 0,
        }
    }

    pub fn get(&self, ticket: Ticket) -> Option<Running> {
        self.tasks.get(&ticket).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Running)> {
        self.tasks.iter().map(|(ticket, task)| (*ticket, task))
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn interactive(&self) -> &BTreeSet<(Timestamp, Ticket)> {
        &self.interactive
    }

    /// How many were told to end and have not ended yet.
    pub fn stopping(&self) -> usize {
        self.stopping
    }

    /// The default tasks of the longest class that has any, if that is at least `class`.
    pub fn defaults_from(&self, class: u8) -> Option<&BTreeSet<(Timestamp, Ticket)>> {
        self.defaults[usize::from(class)..].iter().rev().find(|tasks| !tasks.is_empty())
    }

    pub fn insert(&mut self, ticket: Ticket, task: Running) {
        let key = (task.started, ticket);
        match task.kind {
            _ if task.stopping.is_some() => self.stopping += 1,
            Kind::Default => _ = self.defaults[usize::from(task.class)].insert(key),
            Kind::Interactive => _ = self.interactive.insert(key),
            Kind::Explicit => {}
        }
        self.tasks.insert(ticket, task);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Running> {
        let task = self.tasks.remove(&ticket)?;
        let key = (task.started, ticket);
        match task.kind {
            _ if task.stopping.is_some() => self.stopping -= 1,
            Kind::Default => _ = self.defaults[usize::from(task.class)].remove(&key),
            Kind::Interactive => _ = self.interactive.remove(&key),
            Kind::Explicit => {}
        }
        Some(task)
    }
}
