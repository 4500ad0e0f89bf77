//! What a task asks for, and what is decided about it.

use std::fmt;

use crate::time::{Span, Timestamp};

/// The number of a task in a pool. It is also its place: lower numbers came earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a task wants to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// For at most this long, and never cut before.
    Timed(Span),
    /// As long as nobody else needs the place.
    Default,
    /// Now or never, until somebody else needs the place.
    Interactive,
}

/// The three sorts of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It said how long it may run.
    Explicit,
    /// It left that to the pool, which may lower it under load.
    Default,
    /// A person sits before it; it never waits and is halted when it helps.
    Interactive,
}

impl Kind {
    /// The kind's name on every face of Taskyard.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Explicit => "explicit",
            Kind::Default => "default",
            Kind::Interactive => "interactive",
        }
    }
}

/// A task that runs already, as somebody else started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// What it is.
    pub kind: Kind,
    /// The class it counts in; the first for an interactive one.
    pub class: u8,
    /// When it started.
    pub started: Timestamp,
    /// How long it may run; `Span::FOREVER` for an interactive one.
    pub limit: Span,
    /// The longest it may run by its own wish.
    pub wish: Span,
}

/// What is to be done now, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run it on a free backend.
    Start {
        /// Which task.
        ticket: Ticket,
        /// The class it counts in; nothing for an interactive one.
        class: Option<u8>,
        /// How long it may run; `Span::FOREVER` for an interactive one.
        limit: Span,
    },
    /// It may run less long than it was told.
    Lower {
        /// Which task.
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
        /// Which task.
        ticket: Ticket,
    },
    /// It does not run and does not wait.
    Deny {
        /// Which task.
        ticket: Ticket,
        /// Why not.
        why: Denial,
    },
}

impl Decision {
    /// The task it is about.
    pub const fn ticket(&self) -> Ticket {
        match *self {
            Decision::Start { ticket, .. }
            | Decision::Lower { ticket, .. }
            | Decision::Halt { ticket }
            | Decision::Deny { ticket, .. } => ticket,
        }
    }
}

/// Why a task is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Every backend is busy, and interactive tasks do not wait.
    Busy,
    /// Too many wait already.
    QueueFull,
    /// It waited as long as a task may.
    Overloaded,
}

impl Denial {
    /// The denial's name on every face of Taskyard.
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
