//! The events of a trace.

use taskyard_core::{AfterFailure, Fail, Finish, NewTask, Span, Task, Timestamp, TubeOptions};

/// An event. Tubes have numbers, which a `Tube` event introduces.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The name of a tube, and its options if they are known. It comes again when they change.
    Tube {
        /// Its number in this trace.
        tube: u32,
        /// Its name.
        name: String,
        /// Its options.
        options: Option<Box<TubeOptions>>,
    },
    /// A task was added.
    Put {
        /// The tube.
        tube: u32,
        /// The task.
        id: u64,
        /// What the put said.
        facts: PutFacts,
    },
    /// A task was delivered.
    Take {
        /// The tube.
        tube: u32,
        /// The task.
        id: u64,
        /// What is known about the task.
        facts: TakeFacts,
    },
    /// A delivery ended.
    Finish {
        /// The tube.
        tube: u32,
        /// The task.
        id: u64,
        /// How.
        ending: Ending,
    },
    /// A task was removed by command.
    Delete {
        /// The tube.
        tube: u32,
        /// The task.
        id: u64,
    },
    /// Buried tasks became ready.
    Kick {
        /// The tube.
        tube: u32,
        /// How many.
        count: u64,
    },
    /// All tasks of a tube were removed.
    Clear {
        /// The tube.
        tube: u32,
    },
    /// Deliveries ended because a lease expired or a session ended.
    Lost {
        /// The tube.
        tube: u32,
        /// How many.
        count: u64,
    },
    /// Events before this one are missing: the disk was too slow or full, or there were too many tubes.
    Dropped {
        /// How many.
        count: u64,
    },
    /// The recording ended in an orderly way.
    End {
        /// Why.
        reason: EndReason,
    },
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The server stopped.
    Stopped,
    /// The file had its maximum size.
    SizeLimit,
}

/// What a put said. `None` is the default of the tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutFacts {
    /// The bytes of the payload.
    pub bytes: u32,
    /// The priority.
    pub pri: Option<u64>,
    /// The delay, also if the put named a moment.
    pub delay: Option<Span>,
    /// Time to live.
    pub ttl: Option<Span>,
    /// Time to run.
    pub ttr: Option<Span>,
    /// The hash of the name of the sub-queue.
    pub subqueue: Option<u64>,
    /// The number of deliveries before it is buried.
    pub attempts_max: Option<u32>,
}

impl PutFacts {
    /// What a put at this wall time says; `hash` hides the name of a sub-queue.
    pub fn of(task: &NewTask, wall: Timestamp, hash: impl FnOnce(&str) -> u64) -> Self {
        PutFacts {
            bytes: u32::try_from(task.body.payload().len()).unwrap_or(u32::MAX),
            pri: task.pri,
            delay: task.at.map(|at| at.since(wall)).or(task.delay),
            ttl: task.ttl,
            ttr: task.ttr,
            subqueue: task.subqueue.as_deref().map(hash),
            attempts_max: task.attempts_max,
        }
    }
}

/// What is known about a delivered task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeFacts {
    /// How long it had been ready.
    pub wait: Span,
    /// The time since its put.
    pub age: Span,
    /// Its priority.
    pub pri: u64,
    /// The number of earlier deliveries that count.
    pub attempts: u32,
    /// The hash of the name of the sub-queue.
    pub subqueue: Option<u64>,
}

impl TakeFacts {
    /// What a take shows; `hash` hides the name of a sub-queue.
    pub fn of(task: &Task, hash: impl FnOnce(&str) -> u64) -> Self {
        let start = task.start.unwrap_or(task.created);
        let age = start.since(task.created);
        TakeFacts {
            wait: task.due.map_or(age, |due| start.since(due)),
            age,
            pri: task.pri,
            attempts: task.attempts,
            subqueue: task.subqueue.as_deref().map(hash),
        }
    }
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The task is done.
    Acked,
    /// It was released.
    Released {
        /// Not ready before this time has passed.
        delay: Span,
        /// Whether the delivery counts as an attempt.
        counted: bool,
    },
    /// It was buried.
    Buried,
    /// It failed, and the delay of the next attempt was given.
    FailedRetry(Span),
    /// It failed and was buried.
    FailedBuried,
    /// It failed, and the retry policy of the tube decides; with the delay for a tube without one.
    FailedPolicy(Span),
}

impl Ending {
    /// How a finish ends its delivery; `None` if the delivery goes on.
    pub fn of(finish: &Finish) -> Option<Self> {
        Some(match finish {
            Finish::Ack | Finish::AckWithResult(_) => Ending::Acked,
            Finish::Release { delay, counted } => {
                Ending::Released { delay: *delay, counted: *counted }
            }
            Finish::Bury => Ending::Buried,
            Finish::Fail(fail) => match fail.then {
                AfterFailure::Retry(delay) => Ending::FailedRetry(delay),
                AfterFailure::Bury => Ending::FailedBuried,
                AfterFailure::Policy { default_delay, .. } => Ending::FailedPolicy(default_delay),
            },
            Finish::Touch(_) => return None,
        })
    }

    /// The finish that ends a delivery in this way; `seed` is the random number of a retry policy.
    pub fn finish(self, seed: u32) -> Finish {
        let fail = |then| Finish::Fail(Box::new(Fail { error: "".into(), then }));
        match self {
            Ending::Acked => Finish::Ack,
            Ending::Released { delay, counted } => Finish::Release { delay, counted },
            Ending::Buried => Finish::Bury,
            Ending::FailedRetry(delay) => fail(AfterFailure::Retry(delay)),
            Ending::FailedBuried => fail(AfterFailure::Bury),
            Ending::FailedPolicy(default_delay) => {
                fail(AfterFailure::Policy { seed, default_delay })
            }
        }
    }
}
