//! The running tasks.

use std::collections::{BTreeMap, BTreeSet};

use crate::classes::{TaskKind, Ticket};
use crate::time::{Span, Timestamp};

/// A running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunningTask {
    pub kind: TaskKind,
    /// The class it counts in: the shortest for one that is about to end, and for an interactive one.
    pub class: u8,
    pub started: Timestamp,
    /// How long it may run.
    pub limit: Span,
    /// The longest time it may run at its own request.
    pub wish: Span,
    /// Since when it is about to end, because its time was cut.
    pub stopping: Option<Timestamp>,
    /// Since when the last task is about to end whose backend a waiting task may use instead of
    /// this one's.
    pub spared: Option<Timestamp>,
}

/// All running tasks, and those of them that may be made to yield.
#[derive(Clone, Debug)]
pub(crate) struct RunningTasks {
    tasks: BTreeMap<Ticket, RunningTask>,
    /// Default tasks that are not about to end, by class.
    defaults: Vec<BTreeSet<(Timestamp, Ticket)>>,
    interactive: BTreeSet<(Timestamp, Ticket)>,
    stopping: BTreeSet<(Timestamp, Ticket)>,
    /// Whether interactive tasks are spared while others are about to end.
    patient: bool,
}

impl RunningTasks {
    pub fn new(classes: usize, patient: bool) -> Self {
        RunningTasks {
            tasks: BTreeMap::new(),
            defaults: vec![BTreeSet::new(); classes],
            interactive: BTreeSet::new(),
            stopping: BTreeSet::new(),
            patient,
        }
    }

    pub fn get(&self, ticket: Ticket) -> Option<RunningTask> {
        self.tasks.get(&ticket).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &RunningTask)> {
        self.tasks.iter().map(|(ticket, task)| (*ticket, task))
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn interactive(&self) -> &BTreeSet<(Timestamp, Ticket)> {
        &self.interactive
    }

    /// How many were asked to end and have not ended yet.
    pub fn stopping(&self) -> usize {
        self.stopping.len()
    }

    /// The default tasks of the longest class that has any, if that is at least `class`.
    pub fn defaults_from(&self, class: u8) -> Option<&BTreeSet<(Timestamp, Ticket)>> {
        self.defaults[usize::from(class)..].iter().rev().find(|tasks| !tasks.is_empty())
    }

    pub fn insert(&mut self, ticket: Ticket, task: RunningTask) {
        let key = (task.started, ticket);
        match task.kind {
            _ if task.stopping.is_some() => {}
            TaskKind::Default => _ = self.defaults[usize::from(task.class)].insert(key),
            TaskKind::Interactive => _ = self.interactive.insert(key),
            TaskKind::Explicit => {}
        }
        self.stopping.extend(task.stopping.map(|since| (since, ticket)));
        self.tasks.insert(ticket, task);
        self.spare();
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<RunningTask> {
        let task = self.tasks.remove(&ticket)?;
        let key = (task.started, ticket);
        match task.kind {
            _ if task.stopping.is_some() => {}
            TaskKind::Default => _ = self.defaults[usize::from(task.class)].remove(&key),
            TaskKind::Interactive => _ = self.interactive.remove(&key),
            TaskKind::Explicit => {}
        }
        if let Some(since) = task.stopping {
            self.stopping.remove(&(since, ticket));
        }
        self.spare();
        Some(task)
    }

    /// Updates how long interactive tasks are spared.
    fn spare(&mut self) {
        if !self.patient {
            return;
        }
        let last = self.stopping.last().map(|(since, _)| *since);
        for (_, ticket) in &self.interactive {
            if let Some(task) = self.tasks.get_mut(ticket) {
                task.spared = last;
            }
        }
    }
}
