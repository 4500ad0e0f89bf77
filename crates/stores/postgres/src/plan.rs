//! From a batch of commands to calls.
//!
//! Commands that ask the same of the same tube become one call, where that cannot change an answer: puts,
//! takes of one task each, and acks. Which may pass which is in `gather`.

use std::collections::HashSet;

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::names::check_names;
use taskyard_core::{
    Command, Error, Finish, FinishItem, NewTask, SemaphoreKey, SessionId, Span, TaskId, TubeChange,
    TubeName, check_tasks, refuse_priorities,
};

use super::gather::OpenGroups;
use super::heads::{Heads, Start, Timers, Touched};
use super::places::Places;
use super::statements::{self as sql, Call};
use super::{calls, lanes, order, semaphores};

/// What every call of a batch needs to know.
pub(super) struct Context<'a> {
    /// The moment, or `None` for the database's clock.
    pub now: Option<i64>,
    /// This server's identity.
    pub server: &'a [u8],
    /// Where takes and ticks may begin, and the moment by the caller's clock.
    pub heads: &'a Heads,
    pub timers: &'a Timers,
    pub moment: i64,
    /// Where deliveries lie.
    pub places: &'a Places,
    /// Tubes that are known to have neither sub-queues, a capacity nor a semaphore, and those that are known to have one.
    pub plain: &'a HashSet<TubeName>,
    pub gated: &'a HashSet<TubeName>,
    /// Whether a large batch may go by two connections.
    pub may_split: bool,
}

/// What goes by one connection. Steps without a call have none in the second list.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub steps: Vec<Step>,
    pub calls: Vec<Call>,
}

/// One call, or a refusal that needs none, for the commands at these places of the batch.
#[derive(Debug)]
pub(super) struct Step {
    pub places: Vec<usize>,
    pub ask: Ask,
}

/// What was asked, as far as its answer needs it.
#[derive(Debug)]
pub(super) enum Ask {
    Refused(Error),
    Create {
        tube: TubeName,
        if_not_exists: bool,
        semaphore: Option<SemaphoreKey>,
        queue_num: Option<u32>,
    },
    Name {
        tube: TubeName,
        name: TubeName,
        queue_num: Option<u32>,
    },
    Alter {
        tube: TubeName,
        change: TubeChange,
    },
    Drop {
        tube: TubeName,
    },
    Tubes {
        tube: Option<TubeName>,
    },
    /// `usual` when no task names its priority.
    Put {
        tube: TubeName,
        sizes: Vec<usize>,
        usual: bool,
    },
    Take {
        tube: TubeName,
        session: Option<SessionId>,
        lease: Option<Span>,
        counts: Vec<usize>,
        start: Start,
    },
    /// `order` has the place of each item of the call among those of the commands.
    Ack {
        tube: TubeName,
        sizes: Vec<usize>,
        order: Vec<usize>,
        show: bool,
    },
    Finish {
        tube: TubeName,
        size: usize,
        show: bool,
    },
    Delete {
        tube: TubeName,
        size: usize,
        show: bool,
    },
    Kick {
        tube: TubeName,
    },
    Peek {
        tube: TubeName,
    },
    Deliveries {
        tube: TubeName,
    },
    Truncate {
        tube: TubeName,
    },
    ReleaseAll {
        tube: TubeName,
    },
    Join {
        session: SessionId,
    },
    Leave {
        session: SessionId,
    },
    Configure,
    /// `from` when it does not begin at the beginning.
    Tick {
        from: Option<i64>,
    },
    Semaphore(semaphores::Ask),
    /// What many callers ask of semaphores, in the order of the rows.
    Semaphores(Vec<semaphores::Ask>),
    /// Comes before everything else; nobody asked for it.
    LockSemaphores,
    /// Comes before what a tube is asked; nobody asked for it.
    LockTube,
    /// Comes last: what semaphores did beside what was asked.
    Moved,
}

/// Turns commands into steps and calls, and for a large batch into those of two connections.
pub(super) fn plan(commands: Vec<Command>, context: &Context<'_>) -> (Part, Option<Part>) {
    let mut main = Part::default();
    if let Some(lock) = semaphores::lock(&commands, context.gated) {
        main.push(Vec::new(), Ask::LockSemaphores, lock);
    }
    let moves = semaphores::may_move(&commands, context.plain);
    let mut groups: Vec<Group> = Vec::new();
    let mut open = OpenGroups::default();
    for (place, command) in commands.into_iter().enumerate() {
        if let Some(refusal) = refusal(&command) {
            main.steps.push(Step { places: vec![place], ask: Ask::Refused(refusal) });
            continue;
        }
        let found = open.admitting(&command, &mut groups, context.plain);
        match found {
            Some(group) => groups[group].push(place, command),
            None => {
                open.begin(&command, groups.len());
                groups.push(Group::new(place, command));
            }
        }
    }
    order::sort(&mut groups);
    let may_split = context.may_split && main.calls.is_empty();
    let side = if may_split { lanes::split(&mut groups, context.plain) } else { Vec::new() };
    main.ask(groups, context);
    if moves {
        main.push(Vec::new(), Ask::Moved, Call::new(&sql::MOVED, []));
    }
    let side = (!side.is_empty()).then(|| {
        let mut part = Part::default();
        part.ask(side, context);
        part
    });
    (main, side)
}

impl Part {
    fn push(&mut self, places: Vec<usize>, ask: Ask, call: Call) {
        self.steps.push(Step { places, ask });
        self.calls.push(call);
    }

    /// Adds the calls of these groups, in their order.
    fn ask(&mut self, groups: Vec<Group>, context: &Context<'_>) {
        let locks = order::locks(&groups, context.plain);
        let mut touched = Touched::default();
        for (mut group, lock) in groups.into_iter().zip(locks) {
            if let Some(lock) = lock {
                self.push(Vec::new(), Ask::LockTube, lock);
            }
            let places = std::mem::take(&mut group.places);
            let (ask, call) = group.call(context, &mut touched);
            self.push(places, ask, call);
        }
    }
}

/// What can be refused without asking the database.
fn refusal(command: &Command) -> Option<Error> {
    if let Err(refused) = check_names(command) {
        return Some(refused);
    }
    match command {
        Command::CreateTube { options, .. } => {
            refuse_options(options.capacity, options.attempts_max)
                .or_else(|| refuse_queue_num(options.queue_num))
        }
        Command::NameTube { queue_num, .. } => refuse_queue_num(*queue_num),
        Command::AlterTube { change, .. } => {
            refuse_options(change.capacity.flatten(), change.attempts_max.flatten())
        }
        Command::Put { tasks, .. } => refuse_tasks(tasks),
        Command::Take(take) => refuse_count("the number of tasks in one take", take.count),
        Command::Finish { items, .. } => {
            refuse_count("the number of tasks in one command", items.len())
        }
        Command::Delete { ids, .. } | Command::Peek { ids, .. } => {
            refuse_count("the number of tasks in one command", ids.len())
        }
        Command::Semaphore(command) => command.check().err(),
        _ => None,
    }
}

fn refuse_options(capacity: Option<u64>, attempts_max: Option<u32>) -> Option<Error> {
    if capacity == Some(0) {
        let message = "a capacity must be at least 1; leave it out for no limit";
        return Some(Error::Invalid(message.into()));
    }
    (attempts_max == Some(0)).then(|| {
        let message = "attempts_max must be at least 1; leave it out to retry forever";
        Error::Invalid(message.into())
    })
}

fn refuse_queue_num(queue_num: Option<u32>) -> Option<Error> {
    let message = "a queue number must be at least 1";
    (queue_num == Some(0)).then(|| Error::Invalid(message.into()))
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
    let message = "PostgreSQL cannot keep a zero character in the name of a sub-queue";
    let refused = check_tasks(tasks).err();
    refused.or_else(|| tasks.iter().any(zero).then(|| Error::Invalid(message.into())))
}

/// Commands that share a call.
pub(super) struct Group {
    pub(super) commands: Vec<Command>,
    /// Where they stand in the batch.
    places: Vec<usize>,
    /// What they have together.
    tasks: usize,
    bytes: usize,
    acked: HashSet<TaskId>,
    /// Whether they are acks, none of which names a task that another names.
    acks: bool,
}

impl Group {
    fn new(place: usize, command: Command) -> Self {
        let mut group = Group {
            commands: Vec::new(),
            places: vec![place],
            tasks: 0,
            bytes: command.payload_bytes(),
            acked: HashSet::new(),
            acks: false,
        };
        match &command {
            Command::Put { tasks, .. } => group.tasks = tasks.len(),
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

    /// Takes out the commands from this one on.
    pub(super) fn split_off(&mut self, from: usize) -> Group {
        let (commands, places) = (self.commands.split_off(from), self.places.split_off(from));
        let (tasks, bytes, acked) = (self.tasks, self.bytes, HashSet::new());
        Group { commands, places, tasks, bytes, acked, acks: self.acks }
    }

    /// Whether a command can share the call of those before it; then it counts as one of them.
    pub(super) fn admits(&mut self, next: &Command) -> bool {
        match (&self.commands[0], next) {
            (Command::Put { tube, tasks: first, .. }, Command::Put { tube: other, tasks, .. }) => {
                // A tube without a semaphore refuses a call with priorities for it as a whole.
                let alike = refuse_priorities(tube, first) == refuse_priorities(tube, tasks);
                let (count, bytes) = (tasks.len(), next.payload_bytes());
                let fits =
                    self.tasks + count <= BATCH_TASKS_MAX && self.bytes + bytes <= BATCH_BYTES_MAX;
                let admits = tube == other && alike && fits;
                if admits {
                    self.tasks += count;
                    self.bytes += bytes;
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
                // Of more than one an answer may have too many bytes, which ends only that take.
                (&first.tube, first.session, first.lease) == (&take.tube, take.session, take.lease)
                    && first.count == 1
                    && take.count == 1
            }
            (
                Command::Finish { tube, show: false, .. },
                Command::Finish { tube: other, items, show: false },
            ) => tube == other && self.acks && self.admits_acks(items),
            _ => false,
        }
    }

    /// Whether these are all acks of tasks that no ack of the group names.
    fn admits_acks(&mut self, items: &[FinishItem]) -> bool {
        let acks = items.iter().all(|item| item.finish == Finish::Ack);
        let fit = self.acked.len() + items.len() <= BATCH_TASKS_MAX;
        let known = self.acked.len();
        let new = acks && fit && items.iter().all(|item| !self.acked.contains(&item.id));
        if new {
            self.acked.extend(items.iter().map(|item| item.id));
        }
        new && self.acked.len() == known + items.len()
    }

    fn call(self, context: &Context<'_>, touched: &mut Touched) -> (Ask, Call) {
        let Group { mut commands, acks, .. } = self;
        match &commands[0] {
            Command::Put { tube, .. } => {
                if !calls::are_usual(&commands) || !context.heads.put_is_behind(tube) {
                    touched.tube(tube);
                }
                calls::put(commands, context.now)
            }
            Command::Take(take) => {
                let mut start = context.heads.of(&take.tube, context.moment);
                if touched.has(&take.tube) {
                    start.may_sweep = true;
                    start.from = start.from.filter(|_| context.heads.is_costly(&take.tube));
                }
                calls::take(commands, context.now, start)
            }
            Command::Finish { .. } if acks => calls::ack(commands, context.now, context.places),
            Command::Semaphore(_) if commands.len() > 1 => {
                let (asks, call) = semaphores::call_all(commands, context.now);
                (Ask::Semaphores(asks), call)
            }
            command => {
                touch(command, touched);
                calls::single(commands.remove(0), context)
            }
        }
    }
}

/// Notes which tubes may get tasks back.
fn touch(command: &Command, touched: &mut Touched) {
    match command {
        Command::Tubes { .. }
        | Command::Peek { .. }
        | Command::Deliveries { .. }
        | Command::Semaphore(_) => {}
        Command::Finish { tube, .. }
        | Command::Kick { tube, .. }
        | Command::ReleaseAll { tube }
        | Command::AlterTube { tube, .. }
        | Command::DropTube { tube }
        | Command::CreateTube { tube, .. } => touched.tube(tube),
        _ => touched.all(),
    }
}
