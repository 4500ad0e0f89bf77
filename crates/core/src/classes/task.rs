//! The requests of tasks, and the decisions about them.

use std::fmt;

use crate::time::{Span, Timestamp};

/// The number of a task in a pool. It is also its place in the queue: lower numbers arrived
/// earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a task is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRequest {
    /// For at most this long, and never cut before.
    Timed(Span),
    /// As long as no other task needs the backend.
    Default,
    /// At once or not at all, until another task needs the backend.
    Interactive,
}

/// The three kinds of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Its client set how long it may run.
    Explicit,
    /// The pool sets its time, and may lower it under load.
    Default,
    /// Used by a person; it never waits, and is halted when that helps another task.
    Interactive,
}

impl TaskKind {
    /// The name of the kind in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            TaskKind::Explicit => "explicit",
            TaskKind::Default => "default",
            TaskKind::Interactive => "interactive",
        }
    }
}

/// A running task that another scheduler started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Its kind.
    pub kind: TaskKind,
    /// The class it counts in; the first for an interactive one.
    pub class: u8,
    /// When it started.
    pub started: Timestamp,
    /// How long it may run; `Span::FOREVER` for an interactive one.
    pub limit: Span,
    /// The longest time it may run at its own request.
    pub wish: Span,
}

/// What is to be done now, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run it on a free backend.
    Start {
        /// The task.
        ticket: Ticket,
        /// The class it counts in; `None` for an interactive one.
        class: Option<u8>,
        /// How long it may run; `Span::FOREVER` for an interactive one.
        limit: Span,
    },
    /// Its time is shorter than announced.
    Lower {
        /// The task.
        ticket: Ticket,
        /// The class it counts in from now on.
        class: u8,
        /// How long it may run, counted from its start.
        limit: Span,
        /// Whether that time is over, so that it has to end now.
        stop: bool,
    },
    /// End it now; its backend is considered free at once.
    Halt {
        /// The task.
        ticket: Ticket,
    },
    /// It neither runs nor waits.
    Deny {
        /// The task.
        ticket: Ticket,
        /// The reason.
        why: Denial,
    },
}

impl Decision {
    /// The task of the decision.
    pub const fn ticket(&self) -> Ticket {
        match *self {
            Decision::Start { ticket, .. }
            | Decision::Lower { ticket, .. }
            | Decision::Halt { ticket }
            | Decision::Deny { ticket, .. } => ticket,
        }
    }
}

/// Why a task is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Every backend is busy, and interactive tasks do not wait.
    Busy,
    /// Too many tasks wait already.
    QueueFull,
    /// Its maximum wait is over.
    Overloaded,
}

impl Denial {
    /// The name of the denial in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Denial::Busy => "busy",
            Denial::QueueFull => "queue_full",
            Denial::Overloaded => "overloaded",
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Denial::Busy => "all backends are busy; try again later",
            Denial::QueueFull => "too many tasks wait already; try again later",
            Denial::Overloaded => "overloaded: it waited as long as a task may; try again later",
        })
    }
}
