//! Plans the calls of a batch of commands.
//!
//! Commands of one kind for one tube share a call where that cannot change an answer: puts, takes of one task each, and
//! acks. `call_grouping` decides which may be reordered for that.

use std::collections::HashSet;

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::names::check_names;
use taskyard_core::{
    Command, Error, Finish, FinishItem, Key, NewTask, TaskId, TubeName, check_positions,
    check_queue_num, check_results, check_tasks, refuse_priorities,
};

use super::call_grouping::CallGrouping;
use super::head_hints::{HeadHints, TakeStart, TimerHint, TouchedTubes};
use super::row_locations::RowLocations;
use super::statements::{self as sql, Call};
use super::{calls, connections, order, schedules, semaphores};

/// How many takes of workers with different names share a call: the database finds the name for each task by a search through all
/// of them.
const DIFFERENT_WORKERS_MAX: usize = 128;

/// What the planning of a batch needs to know.
pub(super) struct PlanContext<'a> {
    /// The moment, or `None` for the database's clock.
    pub now: Option<i64>,
    /// This server's identity.
    pub server: &'a [u8],
    /// Where takes and ticks may begin, and the moment by the caller's clock.
    pub head_hints: &'a HeadHints,
    pub timers: &'a TimerHint,
    pub moment: i64,
    /// The row locations of deliveries.
    pub row_locations: &'a RowLocations,
    /// Tubes that are known to have neither sub-queues, a capacity nor a semaphore, and those that are known to have one.
    pub plain: &'a HashSet<TubeName>,
    pub gated: &'a HashSet<TubeName>,
    /// Whether a large batch may use two connections.
    pub may_split: bool,
}

/// The steps and calls of one transaction. Steps without a call have none in the second list.
#[derive(Debug, Default)]
pub(super) struct CallBatch {
    pub steps: Vec<Step>,
    pub calls: Vec<Call>,
}

/// One call, or a refusal that needs none, for the commands at these places of the batch.
#[derive(Debug)]
pub(super) struct Step {
    pub places: Vec<usize>,
    pub request: StepRequest,
}

/// What a step asks of the database.
#[derive(Debug)]
pub(super) enum StepRequest {
    /// Nothing: the command is refused.
    Refused(Error),
    /// Commands of one kind that share a call.
    Commands(Vec<Command>, CallDetail),
    /// To lock what later calls of the transaction change.
    Lock,
    /// What semaphores did beside what was asked: the last call.
    Moved,
}

/// What the answer of a call needs to know beside its commands.
#[derive(Debug)]
pub(super) enum CallDetail {
    None,
    /// `usual` when no task names its priority.
    Put {
        usual: bool,
    },
    Take(TakeStart),
    /// The place of each item of the call among those of the commands.
    Ack {
        order: Vec<usize>,
    },
    /// `from` when it does not begin at the beginning.
    Tick {
        from: Option<i64>,
    },
}

impl Step {
    /// The first of its commands. The others are of the same kind.
    pub fn command(&self) -> Option<&Command> {
        self.commands().first()
    }

    /// All its commands.
    pub fn commands(&self) -> &[Command] {
        match &self.request {
            StepRequest::Commands(commands, _) => commands,
            _ => &[],
        }
    }

    /// Whether it has a call.
    pub fn has_call(&self) -> bool {
        !matches!(self.request, StepRequest::Refused(_))
    }
}

/// Turns commands into steps and calls: of one transaction, or of two for a large batch.
pub(super) fn plan(
    commands: Vec<Command>,
    context: &PlanContext<'_>,
) -> (CallBatch, Option<CallBatch>) {
    let mut main = CallBatch::default();
    if let Some(lock) = semaphores::lock(&commands, context.gated) {
        main.push(Vec::new(), StepRequest::Lock, lock);
    }
    let moves = semaphores::may_change_semaphores(&commands, context.plain);
    let mut groups: Vec<CallGroup> = Vec::new();
    let mut open = CallGrouping::default();
    for (place, command) in commands.into_iter().enumerate() {
        if let Some(refusal) = refusal(&command) {
            main.steps.push(Step { places: vec![place], request: StepRequest::Refused(refusal) });
            continue;
        }
        let found = open.admitting(&command, &mut groups, context.plain);
        match found {
            Some(group) => groups[group].push(place, command),
            None => {
                open.begin(&command, groups.len());
                groups.push(CallGroup::new(place, command));
            }
        }
    }
    order::sort(&mut groups);
    let may_split = context.may_split && main.calls.is_empty();
    let second =
        if may_split { connections::split(&mut groups, context.plain) } else { Vec::new() };
    main.ask(groups, context);
    if moves {
        main.push(Vec::new(), StepRequest::Moved, Call::new(&sql::MOVED, []));
    }
    let second = (!second.is_empty()).then(|| {
        let mut part = CallBatch::default();
        part.ask(second, context);
        part
    });
    (main, second)
}

impl CallBatch {
    fn push(&mut self, places: Vec<usize>, request: StepRequest, call: Call) {
        self.steps.push(Step { places, request });
        self.calls.push(call);
    }

    /// Adds the calls of these groups, in their order.
    fn ask(&mut self, groups: Vec<CallGroup>, context: &PlanContext<'_>) {
        let locks = order::locks(&groups, context.plain, context.now);
        let mut touched = TouchedTubes::default();
        for (mut group, locks) in groups.into_iter().zip(locks) {
            for lock in locks {
                self.push(Vec::new(), StepRequest::Lock, lock);
            }
            let places = std::mem::take(&mut group.places);
            let (detail, call) = group.call(context, &mut touched);
            self.push(places, StepRequest::Commands(group.commands, detail), call);
        }
    }
}

/// The error of a command that can be refused without a call.
fn refusal(command: &Command) -> Option<Error> {
    if let Err(refused) = check_names(command) {
        return Some(refused);
    }
    match command {
        Command::CreateTube { options, .. } => options.check().err(),
        Command::NameTube { queue_num, .. } => check_queue_num(*queue_num).err(),
        Command::AlterTube { change, .. } => change.check().err(),
        Command::Put { tasks, .. } => refuse_tasks(tasks),
        Command::Take(take) => refuse_count("the number of tasks in one take", take.count),
        Command::Finish { items, .. } => {
            refuse_count("the number of tasks in one command", items.len())
                .or_else(|| check_results(items).err())
        }
        Command::KickTasks { ids, .. }
        | Command::Delete { ids, .. }
        | Command::Peek { ids, .. } => {
            refuse_count("the number of tasks in one command", ids.len())
        }
        Command::List(list) => list.check().err(),
        Command::Search(search) => search.check().err(),
        Command::Positions { ids, .. } => check_positions(ids).err(),
        Command::Semaphore(command) => command.check().err(),
        Command::Schedule(command) => schedules::refusal(command),
        _ => None,
    }
}

fn refuse_count(what: &'static str, size: usize) -> Option<Error> {
    let advice = "use several batches";
    (size > BATCH_TASKS_MAX).then_some(Error::TooLarge {
        what,
        size,
        limit: BATCH_TASKS_MAX,
        advice,
    })
}

pub(super) fn refuse_tasks(tasks: &[NewTask]) -> Option<Error> {
    let zero = |task: &NewTask| task.subqueue.as_deref().is_some_and(|key| key.contains('\0'));
    let message = "PostgreSQL cannot store a zero character in the name of a sub-queue";
    let refused = check_tasks(tasks).err();
    refused.or_else(|| tasks.iter().any(zero).then(|| Error::Invalid(message.into())))
}

/// Commands that share a call.
pub(super) struct CallGroup {
    pub(super) commands: Vec<Command>,
    /// Their places in the batch.
    places: Vec<usize>,
    /// Their tasks and payload bytes together.
    tasks: usize,
    bytes: usize,
    acked: HashSet<TaskId>,
    /// The keys of their tasks, and whether one occurs twice.
    keys: HashSet<Key>,
    repeats_key: bool,
    /// Whether they are acks, none of which names a task that another names.
    acks: bool,
    /// Whether they are takes of workers with different names.
    different_workers: bool,
}

impl CallGroup {
    fn new(place: usize, command: Command) -> Self {
        let mut group = CallGroup {
            commands: Vec::new(),
            places: vec![place],
            tasks: 0,
            bytes: command.payload_bytes(),
            acked: HashSet::new(),
            keys: HashSet::new(),
            repeats_key: false,
            acks: false,
            different_workers: false,
        };
        match &command {
            Command::Put { tasks, .. } => {
                group.tasks = tasks.len();
                group.repeats_key = !keys_of(tasks).all(|key| group.keys.insert(key.clone()));
            }
            Command::Finish { items, .. } => group.acks = group.admits_acks(items),
            Command::Semaphore(command) => group.tasks = command.items(),
            _ => {}
        }
        group.commands.push(command);
        group
    }

    fn push(&mut self, place: usize, command: Command) {
        self.places.push(place);
        self.commands.push(command);
    }

    /// Removes the commands from this one on.
    pub(super) fn split_off(&mut self, from: usize) -> CallGroup {
        let (commands, places) = (self.commands.split_off(from), self.places.split_off(from));
        let (tasks, bytes, acked) = (self.tasks, self.bytes, HashSet::new());
        let (acks, different_workers) = (self.acks, self.different_workers);
        let (keys, repeats_key) = (HashSet::new(), self.repeats_key);
        CallGroup {
            commands,
            places,
            tasks,
            bytes,
            acked,
            keys,
            repeats_key,
            acks,
            different_workers,
        }
    }

    /// Whether a command can share the call of this group; then it is counted in.
    pub(super) fn admits(&mut self, next: &Command) -> bool {
        match (&self.commands[0], next) {
            (Command::Put { tube, tasks: first, .. }, Command::Put { tube: other, tasks, .. }) => {
                // A tube without a semaphore refuses a whole call if a task has a priority for one.
                let alike = refuse_priorities(tube, first) == refuse_priorities(tube, tasks)
                    && self.admits_keys(tasks);
                let (count, bytes) = (tasks.len(), next.payload_bytes());
                let fits =
                    self.tasks + count <= BATCH_TASKS_MAX && self.bytes + bytes <= BATCH_BYTES_MAX;
                let admits = tube == other && alike && fits;
                if admits {
                    self.tasks += count;
                    self.bytes += bytes;
                    self.keys.extend(keys_of(tasks).cloned());
                }
                admits
            }
            (first @ Command::Semaphore(_), Command::Semaphore(command)) => {
                let kind = |command| semaphores::shares(command).map(|(kind, _)| kind);
                let fits = self.tasks + command.items() <= BATCH_TASKS_MAX;
                let admits = kind(next).is_some() && kind(first) == kind(next) && fits;
                self.tasks += if admits { command.items() } else { 0 };
                admits
            }
            (Command::Take(first), Command::Take(take)) => {
                // The answer to a take of more than one task may be cut at the limit of bytes, which ends that take only.
                let alike = (&first.tube, first.session, first.lease)
                    == (&take.tube, take.session, take.lease)
                    && first.count == 1
                    && take.count == 1;
                let differ = self.different_workers || first.worker != take.worker;
                let admits = alike && (!differ || self.commands.len() < DIFFERENT_WORKERS_MAX);
                self.different_workers |= admits && differ;
                admits
            }
            (
                Command::Finish { tube, show: false, .. },
                Command::Finish { tube: other, items, show: false },
            ) => {
                let bytes = self.bytes + next.payload_bytes();
                let admits = tube == other && self.acks && bytes <= BATCH_BYTES_MAX;
                let admits = admits && self.admits_acks(items);
                self.bytes = if admits { bytes } else { self.bytes };
                admits
            }
            _ => false,
        }
    }

    /// Whether these tasks have no key that another of them or of the group has.
    fn admits_keys(&self, tasks: &[NewTask]) -> bool {
        let mut own = HashSet::new();
        !self.repeats_key && keys_of(tasks).all(|key| own.insert(key) && !self.keys.contains(key))
    }

    /// Whether these are all acks of tasks that no ack of the group names.
    fn admits_acks(&mut self, items: &[FinishItem]) -> bool {
        let acks = items.iter().all(|item| is_ack(&item.finish));
        let fit = self.acked.len() + items.len() <= BATCH_TASKS_MAX;
        let known = self.acked.len();
        let new = acks && fit && items.iter().all(|item| !self.acked.contains(&item.id));
        if new {
            self.acked.extend(items.iter().map(|item| item.id));
        }
        new && self.acked.len() == known + items.len()
    }

    fn call(&self, context: &PlanContext<'_>, touched: &mut TouchedTubes) -> (CallDetail, Call) {
        let commands = &self.commands;
        match &commands[0] {
            Command::Put { tube, .. } => {
                let usual = calls::have_default_priorities(commands);
                // A replaced task is ready at its old place.
                let keyed = !self.keys.is_empty();
                if keyed || !usual || !context.head_hints.put_is_behind(tube) {
                    touched.tube(tube);
                }
                (CallDetail::Put { usual }, calls::put(tube, commands, context.now))
            }
            Command::Take(take) => {
                let mut start = context.head_hints.of(&take.tube, context.moment);
                if touched.has(&take.tube) {
                    start.may_sweep = true;
                    start.from = start.from.filter(|_| context.head_hints.is_costly(&take.tube));
                }
                let call = calls::take(take, commands, context.now, &start);
                (CallDetail::Take(start), call)
            }
            Command::Finish { tube, show, .. } if self.acks => {
                let (order, call) = calls::ack(tube, *show, commands, context);
                (CallDetail::Ack { order }, call)
            }
            Command::Semaphore(_) if commands.len() > 1 => {
                (CallDetail::None, semaphores::call_all(commands, context.now))
            }
            Command::Tick { limit, seed } => {
                touched.all();
                let from = context.timers.begin(context.moment);
                (CallDetail::Tick { from }, calls::tick(*limit, *seed, from, context.now))
            }
            command => {
                touch(command, touched);
                (CallDetail::None, calls::single(command, context))
            }
        }
    }
}

/// The keys of tasks.
fn keys_of(tasks: &[NewTask]) -> impl Iterator<Item = &Key> {
    tasks.iter().filter_map(|task| task.key.as_ref()).map(|request| &request.held.key)
}

/// Whether a task is done with that.
pub(super) fn is_ack(finish: &Finish) -> bool {
    matches!(finish, Finish::Ack | Finish::AckWithResult(_))
}

/// Notes the tubes to which a command may return tasks.
fn touch(command: &Command, touched: &mut TouchedTubes) {
    match command {
        Command::Tubes { .. }
        | Command::Peek { .. }
        | Command::Deliveries { .. }
        | Command::List(_)
        | Command::Search(_)
        | Command::Positions { .. }
        | Command::Semaphore(_) => {}
        Command::Finish { tube, .. }
        | Command::Kick { tube, .. }
        | Command::KickTasks { tube, .. }
        | Command::ReleaseAll { tube }
        | Command::AlterTube { tube, .. }
        | Command::DropTube { tube }
        | Command::CreateTube { tube, .. } => touched.tube(tube),
        _ => touched.all(),
    }
}
