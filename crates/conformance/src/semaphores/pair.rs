//! Two calls that meet at one semaphore: whatever came between the steps of the one, the answers and what is left must be
//! those of one call after the other, as the core decides.

use std::mem::take;
use std::sync::{Mutex, PoisonError};

use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Execute, Grant, GrantFinish, GrantItem,
    Machine, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey,
    SemaphoreReply, Span, Standing, TaskId, Timestamp,
};

use super::ask::key;

/// The tasks that the calls are about.
const TASKS: u64 = 12;

/// Two calls, and how their semaphore stands before.
pub struct Pair {
    /// What it is about, for messages.
    pub name: &'static str,
    /// How it is made.
    before: fn(&Semaphore) -> Vec<Before>,
    /// The calls, one batch each. The events are those that were fetched before and not acknowledged.
    calls: fn(&Semaphore, &[EventId]) -> [Vec<Command>; 2],
}

/// A step before the calls.
enum Before {
    Ask(Command),
    /// Everything is told and acknowledged.
    Hear,
    /// Everything is told.
    Fetch,
}

/// What somebody sees when both are done: the answers, then everything of the semaphore.
#[derive(Debug, PartialEq)]
pub struct Seen {
    answers: [Vec<Result<Reply, Error>>; 2],
    info: Option<SemaphoreInfo>,
    standings: Vec<Standing>,
    events: Vec<(TaskId, Grant, EventKind, u32)>,
}

/// The semaphore of a pair, and what can be asked of it.
struct Semaphore(SemaphoreKey);

impl Semaphore {
    fn limits(&self, active: i64, try_release: i64) -> Command {
        self.change(SemaphoreChange::limits(active, try_release))
    }

    fn change(&self, change: SemaphoreChange) -> Command {
        let (key, change) = (self.0.clone(), Box::new(change));
        Command::Semaphore(SemaphoreCommand::Configure { key, change, only_new: false })
    }

    fn enqueue(&self, entries: &[(u64, f64)]) -> Command {
        let wish = |(task, priority): &(u64, f64)| EnqueueItem {
            task: TaskId(*task),
            priority: *priority,
        };
        let entries = entries.iter().map(wish).collect();
        Command::Semaphore(SemaphoreCommand::Enqueue { key: self.0.clone(), entries })
    }

    fn finish(&self, task: u64, grant: Option<u64>, finish: GrantFinish) -> Command {
        let items = vec![GrantItem { task: TaskId(task), grant: grant.map(Grant), finish }];
        Command::Semaphore(SemaphoreCommand::Finish { key: self.0.clone(), items })
    }

    fn release(&self, task: u64) -> Command {
        self.finish(task, None, GrantFinish::Release)
    }

    fn release_many(&self, tasks: &[u64]) -> Command {
        let item = |task: &u64| GrantItem {
            task: TaskId(*task),
            grant: None,
            finish: GrantFinish::Release,
        };
        let items = tasks.iter().map(item).collect();
        Command::Semaphore(SemaphoreCommand::Finish { key: self.0.clone(), items })
    }
}

fn acknowledge(events: &[EventId]) -> Command {
    Command::Semaphore(SemaphoreCommand::Acknowledge { events: events.to_vec() })
}

use Before::{Ask, Fetch, Hear};

/// Holders 1 and 2 of priority 1, both told.
fn two_hold(semaphore: &Semaphore) -> Vec<Before> {
    let enqueue = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    vec![Ask(semaphore.limits(2, 2)), Ask(enqueue), Hear]
}

/// The same, two wait, and 2 was asked to release for a better one.
fn one_is_asked(semaphore: &Semaphore) -> Vec<Before> {
    let lease = Some(Some(Span::from_secs(600)));
    let change = SemaphoreChange { lease, ..SemaphoreChange::limits(2, 2) };
    let holders = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    let waiters = semaphore.enqueue(&[(3, 2.0), (4, 0.0)]);
    vec![Ask(semaphore.change(change)), Ask(holders), Hear, Ask(waiters), Hear]
}

/// Two hold a grant, of which they heard but did not say so, and must within a minute.
fn two_must_answer(semaphore: &Semaphore) -> Vec<Before> {
    let ack_timeout = Some(Some(Span::from_secs(60)));
    let change = SemaphoreChange { ack_timeout, ..SemaphoreChange::limits(2, 2) };
    let holders = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    vec![Ask(semaphore.change(change)), Ask(holders), Fetch]
}

/// All pairs.
pub const PAIRS: &[Pair] = &[
    Pair {
        name: "the only place is released while one comes",
        before: |s| vec![Ask(s.limits(1, 0)), Ask(s.enqueue(&[(1, 1.0)])), Hear],
        calls: |s, _| [vec![s.release(1)], vec![s.enqueue(&[(2, 1.0)])]],
    },
    Pair {
        name: "a place is released while a better one comes",
        before: one_is_asked,
        calls: |s, _| [vec![s.release(2)], vec![s.enqueue(&[(5, 9.0)])]],
    },
    Pair {
        name: "batches that release and enqueue",
        before: two_hold,
        calls: |s, _| {
            [
                vec![s.release(1), s.enqueue(&[(6, 3.0)])],
                vec![s.enqueue(&[(5, 2.0)]), s.release(2), s.enqueue(&[(1, 4.0)])],
            ]
        },
    },
    Pair {
        name: "several go at once while several come",
        before: two_hold,
        calls: |s, _| {
            [
                vec![s.release_many(&[2, 1])],
                vec![s.enqueue(&[(5, 2.0), (6, 3.0)]), s.enqueue(&[(7, 1.0)])],
            ]
        },
    },
    Pair {
        name: "two places are released while two wait",
        before: |s| {
            let mut before = two_hold(s);
            before.push(Ask(s.enqueue(&[(3, 0.5), (4, 0.25)])));
            before
        },
        calls: |s, _| [vec![s.release(1)], vec![s.release(2)]],
    },
    Pair {
        name: "one grant is released twice while another takes it anew",
        before: |s| {
            let enqueue = s.enqueue(&[(1, 2.0), (2, 1.0)]);
            vec![Ask(s.limits(1, 0)), Ask(enqueue), Hear]
        },
        calls: |s, _| {
            let release = s.finish(1, Some(1), GrantFinish::Release);
            [vec![release.clone()], vec![release, s.enqueue(&[(1, 3.0)])]]
        },
    },
    Pair {
        name: "two come who are both better than one holder",
        before: |s| vec![Ask(s.limits(1, 1)), Ask(s.enqueue(&[(1, 1.0)])), Hear],
        calls: |s, _| [vec![s.enqueue(&[(2, 2.0)])], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "a better one comes than one who never heard of its grant",
        before: |s| vec![Ask(s.limits(1, 1))],
        calls: |s, _| [vec![s.enqueue(&[(2, 2.0)])], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "one task comes twice with different priorities",
        before: two_hold,
        calls: |s, _| [vec![s.enqueue(&[(3, 2.0)])], vec![s.enqueue(&[(3, 0.0), (1, 5.0)])]],
    },
    Pair {
        name: "who was asked prolongs its grant while it is released",
        before: one_is_asked,
        calls: |s, _| {
            let extend = s.finish(2, Some(2), GrantFinish::Extend(Span::from_secs(900)));
            [vec![s.release(2)], vec![extend]]
        },
    },
    Pair {
        name: "who was asked declines while the better one leaves",
        before: one_is_asked,
        calls: |s, _| [vec![s.release(3)], vec![s.finish(2, None, GrantFinish::Decline)]],
    },
    Pair {
        name: "who was asked yields while a better one comes",
        before: one_is_asked,
        calls: |s, _| [vec![s.finish(2, None, GrantFinish::Yield)], vec![s.enqueue(&[(5, 9.0)])]],
    },
    Pair {
        name: "the capacity is lowered while one comes",
        before: |s| vec![Ask(s.limits(2, 2)), Ask(s.enqueue(&[(1, 1.0)])), Hear],
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.enqueue(&[(2, 2.0)])]],
    },
    Pair {
        name: "the capacity is raised while one comes",
        before: |s| vec![Ask(s.limits(0, 0)), Ask(s.enqueue(&[(1, 1.0), (2, 2.0)]))],
        calls: |s, _| [vec![s.limits(2, 0)], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "the capacity is lowered while places are released",
        before: one_is_asked,
        calls: |s, _| {
            let shed = SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(1, 1) };
            [vec![s.change(shed)], vec![s.release(1)]]
        },
    },
    Pair {
        name: "a semaphore is made while one comes",
        before: |_| Vec::new(),
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.enqueue(&[(1, 1.0)])]],
    },
    Pair {
        name: "a semaphore is made twice",
        before: |_| Vec::new(),
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.limits(5, 2)]],
    },
    Pair {
        name: "a grant is acknowledged while it is released",
        before: two_must_answer,
        calls: |s, told| [vec![acknowledge(told)], vec![s.release_many(&[1, 2])]],
    },
    Pair {
        name: "a grant is acknowledged while a better one comes",
        before: two_must_answer,
        calls: |s, told| [vec![acknowledge(told)], vec![s.enqueue(&[(5, 9.0)])]],
    },
];

/// The core itself, at one moment.
struct Rules(Mutex<Machine>, Timestamp);

impl Execute for Rules {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let replies = commands.into_iter().map(|command| machine.apply(self.1, command)).collect();
        machine.take_effects();
        replies
    }
}

impl Pair {
    /// Brings the semaphore of this name to where the calls meet it; the calls.
    pub async fn prepare<E: Execute>(&self, queue: &E, name: &str) -> [Vec<Command>; 2] {
        let semaphore = Semaphore(key(name));
        let (mut told, mut asked) = (Vec::new(), Vec::new());
        for step in (self.before)(&semaphore) {
            match step {
                Ask(command) => asked.push(command),
                Hear => {
                    let ids: Vec<EventId> = fetch(queue, name, take(&mut asked)).await;
                    asked.push(acknowledge(&ids));
                }
                Fetch => told = fetch(queue, name, take(&mut asked)).await,
            }
        }
        if !asked.is_empty() {
            queue.execute(asked).await;
        }
        (self.calls)(&semaphore, &told)
    }

    /// What is seen after these answers.
    pub async fn look<E: Execute>(
        &self,
        queue: &E,
        name: &str,
        answers: [Vec<Result<Reply, Error>>; 2],
    ) -> Seen {
        let tasks = (0..TASKS).map(TaskId).collect();
        let list = Command::Semaphore(SemaphoreCommand::List { key: Some(key(name)) });
        let look = Command::Semaphore(SemaphoreCommand::Look { key: key(name), tasks });
        let (mut info, mut standings, mut events) = (None, Vec::new(), Vec::new());
        // Of a semaphore that is not there, nothing is seen.
        for reply in queue.execute(vec![list, look, events_of(name)]).await.into_iter().flatten() {
            match reply {
                Reply::Semaphore(SemaphoreReply::Semaphores(mut infos)) => info = infos.pop(),
                Reply::Semaphore(SemaphoreReply::Standings(all)) => standings = all,
                Reply::Semaphore(SemaphoreReply::Events(told)) => events = told,
                other => panic!("a semaphore answered {other:?}"),
            }
        }
        let said = |event: SemaphoreEvent| (event.task, event.grant, event.kind, event.attempt);
        let events = events.into_iter().map(said).collect();
        Seen { answers, info, standings, events }
    }

    /// What the core says when the call of this place comes first.
    pub async fn serial(&self, now: Timestamp, name: &str, first: usize) -> Seen {
        let rules = Rules(Mutex::default(), now);
        let calls = self.prepare(&rules, name).await;
        let mut answers = [Vec::new(), Vec::new()];
        for place in [first, 1 - first] {
            answers[place] = rules.execute(calls[place].clone()).await;
        }
        self.look(&rules, name, answers).await
    }

    /// Which call came first, if the core says this of one order or the other.
    pub async fn order(&self, now: Timestamp, name: &str, seen: &Seen) -> Option<usize> {
        let orders = [self.serial(now, name, 0).await, self.serial(now, name, 1).await];
        orders.iter().position(|order| order == seen)
    }
}

fn events_of(name: &str) -> Command {
    let (key, count, wait) = (Some(key(name)), 100, Span::ZERO);
    Command::Semaphore(SemaphoreCommand::Events { key, count, wait })
}

/// Asks these, and fetches what is due then.
async fn fetch<E: Execute>(queue: &E, name: &str, mut asked: Vec<Command>) -> Vec<EventId> {
    asked.push(events_of(name));
    match queue.execute(asked).await.pop() {
        Some(Ok(Reply::Semaphore(SemaphoreReply::Events(events)))) => {
            events.iter().map(|event| event.id).collect()
        }
        other => panic!("events were wanted, not {other:?}"),
    }
}
