//! Defines pairs of concurrent calls on one semaphore: for every interleaving of their steps, the replies and the final state
//! must be those of one call after the other, as the core decides.

use std::mem::take;
use std::sync::{Mutex, PoisonError};

use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Execute, Grant, GrantFinish, GrantItem,
    Machine, MemberInfo, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo,
    SemaphoreKey, SemaphoreReply, Span, TaskId, Timestamp,
};

use super::commands::key;

/// The tasks of the calls.
const TASKS: u64 = 12;

/// Two calls, and the state of their semaphore before.
pub struct Pair {
    /// Its description, for messages.
    pub name: &'static str,
    /// The steps that prepare the semaphore.
    before: fn(&PairSemaphore) -> Vec<SetupStep>,
    /// The calls, one batch each. The events are those that were fetched before and not acknowledged.
    calls: fn(&PairSemaphore, &[EventId]) -> [Vec<Command>; 2],
}

/// A step before the calls.
enum SetupStep {
    Run(Command),
    /// Fetch and acknowledge all events.
    DrainEvents,
    /// Fetch all events.
    Fetch,
}

/// What a client observes after both calls: the replies, then the whole state of the semaphore.
#[derive(Debug, PartialEq)]
pub struct Observation {
    replies: [Vec<Result<Reply, Error>>; 2],
    info: Option<SemaphoreInfo>,
    members: Vec<MemberInfo>,
    events: Vec<(TaskId, Grant, EventKind, u32)>,
}

/// Builds the commands for the semaphore of a pair.
struct PairSemaphore(SemaphoreKey);

impl PairSemaphore {
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

use SetupStep::{DrainEvents, Fetch, Run};

/// Holders 1 and 2 of priority 1, both notified.
fn two_hold(semaphore: &PairSemaphore) -> Vec<SetupStep> {
    let enqueue = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    vec![Run(semaphore.limits(2, 2)), Run(enqueue), DrainEvents]
}

/// The same, two tasks wait, and 2 was commands to release for a higher priority.
fn one_is_asked(semaphore: &PairSemaphore) -> Vec<SetupStep> {
    let lease = Some(Some(Span::from_secs(600)));
    let change = SemaphoreChange { lease, ..SemaphoreChange::limits(2, 2) };
    let holders = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    let waiters = semaphore.enqueue(&[(3, 2.0), (4, 0.0)]);
    vec![Run(semaphore.change(change)), Run(holders), DrainEvents, Run(waiters), DrainEvents]
}

/// Two tasks received a grant but did not acknowledge it, and must within a minute.
fn two_must_acknowledge(semaphore: &PairSemaphore) -> Vec<SetupStep> {
    let ack_timeout = Some(Some(Span::from_secs(60)));
    let change = SemaphoreChange { ack_timeout, ..SemaphoreChange::limits(2, 2) };
    let holders = semaphore.enqueue(&[(1, 1.0), (2, 1.0)]);
    vec![Run(semaphore.change(change)), Run(holders), Fetch]
}

/// All pairs.
pub const PAIRS: &[Pair] = &[
    Pair {
        name: "the only grant is released while a task is enqueued",
        before: |s| vec![Run(s.limits(1, 0)), Run(s.enqueue(&[(1, 1.0)])), DrainEvents],
        calls: |s, _| [vec![s.release(1)], vec![s.enqueue(&[(2, 1.0)])]],
    },
    Pair {
        name: "a grant is released while a higher priority is enqueued",
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
        name: "several are released while several are enqueued",
        before: two_hold,
        calls: |s, _| {
            [
                vec![s.release_many(&[2, 1])],
                vec![s.enqueue(&[(5, 2.0), (6, 3.0)]), s.enqueue(&[(7, 1.0)])],
            ]
        },
    },
    Pair {
        name: "two grants are released while two tasks wait",
        before: |s| {
            let mut before = two_hold(s);
            before.push(Run(s.enqueue(&[(3, 0.5), (4, 0.25)])));
            before
        },
        calls: |s, _| [vec![s.release(1)], vec![s.release(2)]],
    },
    Pair {
        name: "one grant is released twice while another task gets it",
        before: |s| {
            let enqueue = s.enqueue(&[(1, 2.0), (2, 1.0)]);
            vec![Run(s.limits(1, 0)), Run(enqueue), DrainEvents]
        },
        calls: |s, _| {
            let release = s.finish(1, Some(1), GrantFinish::Release);
            [vec![release.clone()], vec![release, s.enqueue(&[(1, 3.0)])]]
        },
    },
    Pair {
        name: "two tasks of higher priority than one holder are enqueued",
        before: |s| vec![Run(s.limits(1, 1)), Run(s.enqueue(&[(1, 1.0)])), DrainEvents],
        calls: |s, _| [vec![s.enqueue(&[(2, 2.0)])], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "a higher priority is enqueued than that of an unnotified holder",
        before: |s| vec![Run(s.limits(1, 1))],
        calls: |s, _| [vec![s.enqueue(&[(2, 2.0)])], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "one task is enqueued twice with different priorities",
        before: two_hold,
        calls: |s, _| [vec![s.enqueue(&[(3, 2.0)])], vec![s.enqueue(&[(3, 0.0), (1, 5.0)])]],
    },
    Pair {
        name: "an commands holder extends its grant while it is released",
        before: one_is_asked,
        calls: |s, _| {
            let extend = s.finish(2, Some(2), GrantFinish::Extend(Span::from_secs(900)));
            [vec![s.release(2)], vec![extend]]
        },
    },
    Pair {
        name: "an commands holder declines while the waiting task leaves",
        before: one_is_asked,
        calls: |s, _| [vec![s.release(3)], vec![s.finish(2, None, GrantFinish::Decline)]],
    },
    Pair {
        name: "an commands holder yields while a higher priority is enqueued",
        before: one_is_asked,
        calls: |s, _| [vec![s.finish(2, None, GrantFinish::Yield)], vec![s.enqueue(&[(5, 9.0)])]],
    },
    Pair {
        name: "the capacity is lowered while a task is enqueued",
        before: |s| vec![Run(s.limits(2, 2)), Run(s.enqueue(&[(1, 1.0)])), DrainEvents],
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.enqueue(&[(2, 2.0)])]],
    },
    Pair {
        name: "the capacity is raised while a task is enqueued",
        before: |s| vec![Run(s.limits(0, 0)), Run(s.enqueue(&[(1, 1.0), (2, 2.0)]))],
        calls: |s, _| [vec![s.limits(2, 0)], vec![s.enqueue(&[(3, 3.0)])]],
    },
    Pair {
        name: "the capacity is lowered while grants are released",
        before: one_is_asked,
        calls: |s, _| {
            let shed = SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(1, 1) };
            [vec![s.change(shed)], vec![s.release(1)]]
        },
    },
    Pair {
        name: "a semaphore is created while a task is enqueued",
        before: |_| Vec::new(),
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.enqueue(&[(1, 1.0)])]],
    },
    Pair {
        name: "a semaphore is created twice",
        before: |_| Vec::new(),
        calls: |s, _| [vec![s.limits(1, 1)], vec![s.limits(5, 2)]],
    },
    Pair {
        name: "a grant is acknowledged while it is released",
        before: two_must_acknowledge,
        calls: |s, delivered| [vec![acknowledge(delivered)], vec![s.release_many(&[1, 2])]],
    },
    Pair {
        name: "a grant is acknowledged while a higher priority is enqueued",
        before: two_must_acknowledge,
        calls: |s, delivered| [vec![acknowledge(delivered)], vec![s.enqueue(&[(5, 9.0)])]],
    },
];

/// The core's machine at one time.
struct CoreMachine(Mutex<Machine>, Timestamp);

impl Execute for CoreMachine {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let replies = commands.into_iter().map(|command| machine.apply(self.1, command)).collect();
        machine.take_effects();
        replies
    }
}

impl Pair {
    /// Prepares the semaphore of this name and returns the calls.
    pub async fn prepare<E: Execute>(&self, queue: &E, name: &str) -> [Vec<Command>; 2] {
        let semaphore = PairSemaphore(key(name));
        let (mut delivered, mut commands) = (Vec::new(), Vec::new());
        for step in (self.before)(&semaphore) {
            match step {
                Run(command) => commands.push(command),
                DrainEvents => {
                    let ids: Vec<EventId> = fetch(queue, name, take(&mut commands)).await;
                    commands.push(acknowledge(&ids));
                }
                Fetch => delivered = fetch(queue, name, take(&mut commands)).await,
            }
        }
        if !commands.is_empty() {
            queue.execute(commands).await;
        }
        (self.calls)(&semaphore, &delivered)
    }

    /// Observes the semaphore after these replies.
    pub async fn observe<E: Execute>(
        &self,
        queue: &E,
        name: &str,
        replies: [Vec<Result<Reply, Error>>; 2],
    ) -> Observation {
        let tasks = (0..TASKS).map(TaskId).collect();
        let list = Command::Semaphore(SemaphoreCommand::List { key: Some(key(name)) });
        let peek = Command::Semaphore(SemaphoreCommand::Peek { key: key(name), tasks });
        let (mut info, mut members, mut events) = (None, Vec::new(), Vec::new());
        // An absent semaphore has no state.
        for reply in queue.execute(vec![list, peek, events_of(name)]).await.into_iter().flatten() {
            match reply {
                Reply::Semaphore(SemaphoreReply::Semaphores(mut infos)) => info = infos.pop(),
                Reply::Semaphore(SemaphoreReply::MemberInfos(all)) => members = all,
                Reply::Semaphore(SemaphoreReply::Events(delivered)) => events = delivered,
                other => panic!("unexpected reply: {other:?}"),
            }
        }
        let fields = |event: SemaphoreEvent| (event.task, event.grant, event.kind, event.attempt);
        let events = events.into_iter().map(fields).collect();
        Observation { replies, info, members, events }
    }

    /// What the core decides when the call of this index is first.
    pub async fn serial(&self, now: Timestamp, name: &str, first: usize) -> Observation {
        let machine = CoreMachine(Mutex::default(), now);
        let calls = self.prepare(&machine, name).await;
        let mut replies = [Vec::new(), Vec::new()];
        for index in [first, 1 - first] {
            replies[index] = machine.execute(calls[index].clone()).await;
        }
        self.observe(&machine, name, replies).await
    }

    /// Which call was first, if the observation is that of one order or the other.
    pub async fn order(&self, now: Timestamp, name: &str, observed: &Observation) -> Option<usize> {
        let orders = [self.serial(now, name, 0).await, self.serial(now, name, 1).await];
        orders.iter().position(|order| order == observed)
    }
}

fn events_of(name: &str) -> Command {
    let (key, count, wait) = (Some(key(name)), 100, Span::ZERO);
    Command::Semaphore(SemaphoreCommand::Events { key, count, wait })
}

/// Runs these, and fetches the events that are due then.
async fn fetch<E: Execute>(queue: &E, name: &str, mut commands: Vec<Command>) -> Vec<EventId> {
    commands.push(events_of(name));
    match queue.execute(commands).await.pop() {
        Some(Ok(Reply::Semaphore(SemaphoreReply::Events(events)))) => {
            events.iter().map(|event| event.id).collect()
        }
        other => panic!("unexpected reply: {other:?}"),
    }
}
