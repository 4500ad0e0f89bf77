//! Splits large batches into two transactions that run on two connections at the same time.
//!
//! One connection is one process of the database, and so one core. If a batch has several large commands that are
//! independent, the later half of them is sent on a second connection, as a transaction of its own. That is done for
//! puts, acks by lease and takes without a session in tubes that have neither sub-queues nor a capacity, and never for
//! puts and takes of one tube. A command is never split.
//!
//! The result for callers is the same: the ids of the first half are reserved before the second begins, and the taken
//! tasks are distributed in the order of the queue among the takes of each worker.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use taskyard_core::limits::BATCH_BYTES_MAX;
use taskyard_core::{Command, Error, FinishItem, Holder, Reply, Span, Task, TubeName};

use super::calls::{is_special, task_count};
use super::plan::{CallBatch, CallGroup, Step, is_ack};
use super::statements::{self as sql, Call, param};

/// Fewer tasks than this are not worth a second transaction.
const TASKS_MIN: usize = 1_000;

/// The relative cost of a task in each command.
const PUT: usize = 7;
const TAKE: usize = 11;
const ACK: usize = 3;

/// The tube and the cost of a command that may run on either connection.
struct CommandLoad<'a> {
    tube: &'a TubeName,
    tasks: usize,
    each: usize,
}

fn load(command: &Command) -> Option<CommandLoad<'_>> {
    match command {
        // Ids cannot be reserved for tasks with keys: they may exist.
        Command::Put { tube, tasks, .. } if !tasks.iter().any(is_special) => {
            Some(CommandLoad { tube, tasks: tasks.len(), each: PUT })
        }
        // The leases of sessions come from one connection only, where they grow.
        Command::Take(take) if take.session.is_none() => {
            Some(CommandLoad { tube: &take.tube, tasks: take.count, each: TAKE })
        }
        Command::Finish { tube, items, show: false } if items.iter().all(is_ack_by_lease) => {
            Some(CommandLoad { tube, tasks: items.len(), each: ACK })
        }
        _ => None,
    }
}

fn is_ack_by_lease(item: &FinishItem) -> bool {
    is_ack(&item.finish) && matches!(item.holder, Holder::Lease(_))
}

fn cost(command: &Command) -> usize {
    load(command).map_or(0, |load| load.tasks * load.each)
}

/// Removes the groups for the second connection; none where one is enough.
pub(super) fn split(groups: &mut Vec<CallGroup>, plain: &HashSet<TubeName>) -> Vec<CallGroup> {
    if !may_split(groups, plain) {
        return Vec::new();
    }
    let half = groups.iter().flat_map(|group| &group.commands).map(cost).sum::<usize>() / 2;
    let (mut second, mut moved) = (Vec::new(), 0);
    while let Some(group) = groups.last_mut() {
        let mut left = group.commands.len();
        while left > 0 && moved + cost(&group.commands[left - 1]) <= half {
            moved += cost(&group.commands[left - 1]);
            left -= 1;
        }
        if left > 0 {
            if left < group.commands.len() {
                second.push(group.split_off(left));
            }
            break;
        }
        second.extend(groups.pop());
    }
    second.reverse();
    second
}

fn may_split(groups: &[CallGroup], plain: &HashSet<TubeName>) -> bool {
    let (mut commands, mut tasks, mut kinds) = (0, 0, HashSet::new());
    for group in groups {
        for command in &group.commands {
            let Some(load) = load(command).filter(|load| plain.contains(load.tube)) else {
                return false;
            };
            commands += 1;
            tasks += load.tasks;
        }
        let Some(load) = group.commands.first().and_then(load) else { return false };
        // Two calls with acks in one tube name the same task twice, or are too large for one call.
        if !kinds.insert((load.tube, load.each)) && load.each == ACK {
            return false;
        }
    }
    let mixed = |(tube, each): &(&TubeName, usize)| *each == PUT && kinds.contains(&(*tube, TAKE));
    commands > 1 && tasks >= TASKS_MIN && !kinds.iter().any(mixed)
}

/// The calls that reserve ids for puts of the first half, where the second half has puts into the same tube.
pub(super) fn reservations(main: &CallBatch, second: &CallBatch) -> (Vec<TubeName>, Vec<Call>) {
    let later: HashSet<&TubeName> = puts(&second.steps).map(|(tube, _)| tube).collect();
    let mut counts = BTreeMap::<&TubeName, usize>::new();
    for (tube, count) in puts(&main.steps).filter(|(tube, _)| later.contains(tube)) {
        *counts.entry(tube).or_default() += count;
    }
    let call = |(tube, count): (&TubeName, usize)| {
        let name = tube.as_str().to_owned();
        (tube.clone(), Call::new(&sql::RESERVE_IDS, [param(name), param(count as i64)]))
    };
    counts.into_iter().map(call).unzip()
}

fn puts(steps: &[Step]) -> impl Iterator<Item = (&TubeName, usize)> {
    steps.iter().filter_map(|step| match step.command()? {
        Command::Put { tube, .. } => Some((tube, tasks_of(step))),
        _ => None,
    })
}

/// How many tasks the commands of a step have together.
fn tasks_of(step: &Step) -> usize {
    step.commands().iter().map(task_count).sum()
}

/// Lets the puts into a tube use ids that were reserved in the one with this number.
pub(super) fn use_ids(part: &mut CallBatch, tube: &TubeName, number: i32, ids: Vec<i64>) {
    let mut ids = ids.into_iter();
    let asked = part.steps.iter().filter(|step| step.has_call());
    for (step, call) in asked.zip(&mut part.calls) {
        let Some(Command::Put { tube: into, .. }) = step.command() else { continue };
        if into == tube {
            let own: Vec<i64> = ids.by_ref().take(tasks_of(step)).collect();
            call.params.truncate(call.params.len() - 2);
            call.params.extend([param(Some(number)), param(Some(own))]);
        }
    }
}

/// The place of a take in its batch, and how many it asks for.
type TakeSize = (usize, usize);

/// What takes without a session have in common if their tasks are interchangeable: tube, lease time and name of the worker.
type TakeKey = (TubeName, Option<Span>, Option<Arc<str>>);

/// The takes whose tasks are interchangeable.
#[derive(Default)]
pub(super) struct SplitTakes(BTreeMap<TakeKey, Vec<TakeSize>>);

impl SplitTakes {
    /// The takes among these steps, which have no session.
    pub fn of<'a>(steps: impl Iterator<Item = &'a Step>) -> Self {
        let mut takes = SplitTakes::default();
        let commands = steps.flat_map(|step| step.places.iter().zip(step.commands()));
        for (place, command) in commands {
            if let Command::Take(take) = command {
                let key = (take.tube.clone(), take.lease, take.worker.clone());
                takes.0.entry(key).or_default().push((*place, take.count));
            }
        }
        takes
    }

    /// Distributes the taken tasks in the order of the queue.
    pub fn distribute(self, replies: &mut [Result<Reply, Error>]) {
        for mut alike in self.0.into_values().filter(|alike| alike.len() > 1) {
            alike.sort_unstable();
            let taken = alike.iter().map(|(place, _)| match &replies[*place] {
                Ok(Reply::Taken(tasks)) => Some(tasks.iter().map(bytes).sum::<usize>()),
                _ => None,
            });
            // One answer must not exceed its limit.
            if taken.sum::<Option<usize>>().is_none_or(|bytes| bytes > BATCH_BYTES_MAX) {
                continue;
            }
            let mut tasks: Vec<Task> = Vec::new();
            for (place, _) in &alike {
                if let Ok(Reply::Taken(part)) = &mut replies[*place] {
                    tasks.append(part);
                }
            }
            tasks.sort_unstable_by_key(|task| (task.pri, task.id));
            let mut tasks = tasks.into_iter();
            for (place, count) in alike {
                replies[place] = Ok(Reply::Taken(tasks.by_ref().take(count).collect()));
            }
        }
    }
}

fn bytes(task: &Task) -> usize {
    let size =
        |body: &taskyard_core::Body| body.payload().len() + body.meta().map_or(0, <[u8]>::len);
    task.body.as_ref().map_or(0, size)
}
