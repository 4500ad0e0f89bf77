//! Runs commands on a queue and on the machine and compares the replies.

use std::collections::{BTreeMap, HashMap};

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Command, Error, EventId, FinishItem, Found, Grant, Holder, Lease, Machine, Outcome, Reply,
    Result, SemaphoreReply, Span, State, Take, Task, TaskId, Timestamp, TubeName,
};

use taskyard_store::Capabilities;

use crate::Harness;
use crate::commands::{brief, without_estimates};

/// How many tasks one tick of the machine moves: not the number of the harness, because the
/// number must not matter.
const TICK_LIMIT: usize = 1000;

/// Both, and the mapping between their lease numbers: a store can skip numbers.
pub(super) struct Comparison<H> {
    queue: H,
    machine: Machine,
    /// The random number of the ticks; `None` if a server draws others.
    tick_seed: Option<u32>,
    to_store: HashMap<Lease, Lease>,
    to_machine: HashMap<Lease, Lease>,
    /// Failed deliveries that the machine has reported as effects of the latest batch and the ticks before it.
    failures: BTreeMap<TubeName, u64>,
}

/// The description of a difference.
type Difference = String;

impl<H: Harness> Comparison<H> {
    /// Both, with this random number for ticks.
    pub(super) fn new(queue: H, tick_seed: u32) -> Self {
        let tick_seed = queue.seed_ticks(tick_seed).then_some(tick_seed);
        Comparison {
            queue,
            machine: Machine::default(),
            tick_seed,
            to_store: HashMap::new(),
            to_machine: HashMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Whether both have the same random numbers for ticks.
    pub(super) fn shares_tick_seed(&self) -> bool {
        self.tick_seed.is_some()
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.queue.now()
    }

    /// The id of the machine's next task in the tube.
    pub(super) fn next_id(&self, tube: &TubeName) -> u64 {
        let number = self.machine.tube_number(tube);
        number.and_then(|number| self.machine.tube_record(number)).map_or(0, |tube| tube.next_id)
    }

    pub(super) fn advance(&self, span: Span) {
        self.queue.advance(span);
    }

    /// Restarts both cleanly.
    pub(super) async fn restart(mut self) -> Self {
        self.machine.restart();
        self.machine.take_effects();
        Comparison { queue: self.queue.restart().await, ..self }
    }

    /// Runs the commands on both and returns the machine's replies, or how the queue differed.
    pub(super) async fn execute(
        &mut self,
        commands: &[Command],
    ) -> std::result::Result<Vec<Result<Reply>>, Difference> {
        let expected = self.execute_on_machine(commands);
        let commands_for_queue = commands.iter().map(|command| self.for_store(command)).collect();
        let got = self.queue.execute(commands_for_queue).await;
        if got.len() != expected.len() {
            return Err(format!("{} replies to {} commands", got.len(), expected.len()));
        }
        for ((command, expected), got) in commands.iter().zip(&expected).zip(got) {
            let said = brief(&got);
            let expected = self.without_removed(command, expected, &got);
            self.compare(&expected, got).map_err(|difference| {
                let (command, expected) = (brief(command), brief(&expected));
                format!("{difference}\n{command}\n  machine: {expected}\n  queue:   {said}")
            })?;
        }
        self.compare_failures(commands)?;
        Ok(expected)
    }

    /// Compares the failures that are effects. A tube that a batch renamed or removed may be reported with its name before.
    fn compare_failures(&mut self, commands: &[Command]) -> std::result::Result<(), Difference> {
        let expected = std::mem::take(&mut self.failures);
        let Some(got) = self.queue.take_failures() else { return Ok(()) };
        let renames = |command: &Command| {
            matches!(command, Command::NameTube { .. } | Command::DropTube { .. })
        };
        if expected == got || commands.iter().any(renames) {
            return Ok(());
        }
        let commands: Vec<_> = commands.iter().map(brief).collect();
        let commands = commands.join("\n");
        Err(format!(
            "the failed deliveries differ\n{commands}\n  machine: {expected:?}\n  queue:   {got:?}"
        ))
    }

    fn note_effects(&mut self) {
        for (tube, count) in self.machine.take_effects().failed {
            *self.failures.entry(tube).or_default() += count;
        }
    }

    fn execute_on_machine(&mut self, commands: &[Command]) -> Vec<Result<Reply>> {
        let now = self.queue.now();
        let tick = Command::Tick { limit: TICK_LIMIT, seed: self.tick_seed.unwrap_or(0) };
        while self.machine.apply(now, tick.clone()) != Ok(Reply::Ticked(0)) {}
        // A later command may rename a tube.
        self.note_effects();
        let replies =
            commands.iter().map(|command| self.machine.apply(now, command.clone())).collect();
        self.note_effects();
        replies
    }

    /// The command for the queue: with the queue's lease numbers.
    fn for_store(&self, command: &Command) -> Command {
        let Command::Finish { tube, items, show } = command else { return command.clone() };
        let own = |item: &FinishItem| {
            let holder = match item.holder {
                Holder::Lease(lease) => {
                    Holder::Lease(self.to_store.get(&lease).copied().unwrap_or(lease))
                }
                other => other,
            };
            FinishItem { holder, ..item.clone() }
        };
        Command::Finish { tube: tube.clone(), items: items.iter().map(own).collect(), show: *show }
    }

    /// A task that a later command of the batch removed can be missing in a reply: its body was
    /// removed before the store read it.
    fn without_removed(
        &mut self,
        command: &Command,
        expected: &Result<Reply>,
        got: &Result<Reply>,
    ) -> Result<Reply> {
        let mut expected = expected.clone();
        let (
            Ok(Reply::Taken(wanted) | Reply::Tasks(wanted)),
            Ok(Reply::Taken(got) | Reply::Tasks(got)),
        ) = (&mut expected, got)
        else {
            return expected;
        };
        if wanted.len() != got.len() {
            wanted.retain(|task| {
                got.iter().any(|other| other.id == task.id) || self.exists(command, task.id)
            });
        }
        expected
    }

    fn exists(&mut self, command: &Command, id: TaskId) -> bool {
        let (Command::Take(Take { tube, .. }) | Command::Peek { tube, .. }) = command else {
            return true;
        };
        let peek = Command::Peek { tube: tube.clone(), ids: vec![id] };
        let seen = self.machine.apply(self.queue.now(), peek);
        matches!(seen, Ok(Reply::Tasks(tasks)) if !tasks.is_empty())
    }

    /// A store may show tasks that it did not compare.
    fn compare_found(
        &mut self,
        expected: &Found,
        mut got: Found,
    ) -> std::result::Result<(), Difference> {
        same(expected.compared, got.compared, "the number of compared tasks")?;
        same(expected.last, got.last, "the last compared task")?;
        same(got.tasks.len(), got.ranks.len(), "the number of ranks")?;
        let is_expected = |id| expected.tasks.iter().any(|task| task.id == id);
        let mut kept =
            got.tasks.iter().map(|task| is_expected(task.id)).collect::<Vec<_>>().into_iter();
        got.ranks.retain(|_| kept.next().unwrap_or(false));
        got.tasks.retain(|task| is_expected(task.id));
        same(expected.ranks.as_slice(), got.ranks.as_slice(), "the ranks")?;
        self.compare_tasks(&expected.tasks, got.tasks)
    }

    fn compare(
        &mut self,
        expected: &Result<Reply>,
        got: Result<Reply>,
    ) -> std::result::Result<(), Difference> {
        match (expected, got) {
            (Ok(Reply::Taken(expected)), Ok(Reply::Taken(got))) => {
                let leases = expected.iter().zip(&got).map(|(a, b)| (a.lease, b.lease));
                for (expected, got) in leases {
                    self.map_lease(expected, got)?;
                }
                self.compare_tasks(expected, got)
            }
            (Ok(Reply::Tasks(expected)), Ok(Reply::Tasks(got))) => {
                self.compare_tasks(expected, got)
            }
            (Ok(Reply::Found(expected)), Ok(Reply::Found(got))) => {
                self.compare_found(expected, got)
            }
            (Ok(Reply::Positions(expected)), Ok(Reply::Positions(got))) => {
                same(expected.as_slice(), without_estimates(got).as_slice(), "the positions")
            }
            (Ok(Reply::Finished(expected)), Ok(Reply::Finished(got))) => {
                same(expected.len(), got.len(), "the number of outcomes")?;
                let mut pairs = expected.iter().zip(got);
                pairs.try_for_each(|(expected, got)| self.compare_outcome(expected, got))
            }
            (Ok(Reply::Tubes(expected)), Ok(Reply::Tubes(got))) => {
                same(expected.len(), got.len(), "the number of tubes")?;
                let mut pairs = expected.iter().zip(got);
                pairs.try_for_each(|(expected, mut got)| {
                    // A server removes done tasks that are too old some time later; until then they are counted.
                    let (shown, kept) = (&mut got.stats.tasks.kept, expected.stats.tasks.kept);
                    if self.tick_seed.is_none() && *shown > kept {
                        *shown = kept;
                    }
                    // A store chooses the numbers of its tubes.
                    same(expected, &TubeInfo { number: expected.number, ..got }, "a tube")
                })
            }
            (Ok(Reply::Semaphore(expected)), Ok(Reply::Semaphore(got))) => {
                same(unnumbered(expected), unnumbered(&got), "the reply of a semaphore")
            }
            (Err(expected), Err(got)) => compare_errors(expected, &got),
            (expected, got) => same(expected, &got, "the reply"),
        }
    }

    /// Maps the lease of a new delivery, which must be new in the queue.
    fn map_lease(
        &mut self,
        expected: Option<Lease>,
        got: Option<Lease>,
    ) -> std::result::Result<(), Difference> {
        let (Some(expected), Some(got)) = (expected, got) else {
            return Err("a delivery without a lease".into());
        };
        self.to_store.insert(expected, got);
        match self.to_machine.insert(got, expected) {
            None => Ok(()),
            Some(_) => Err(format!("lease {got} was issued twice")),
        }
    }

    fn compare_tasks(
        &mut self,
        expected: &[Task],
        got: Vec<Task>,
    ) -> std::result::Result<(), Difference> {
        same(expected.len(), got.len(), "the number of tasks")?;
        let mut pairs = expected.iter().zip(got);
        pairs.try_for_each(|(expected, got)| {
            let got = self.for_machine(got, expected.lease)?;
            same(expected, &got, "a task")
        })
    }

    fn compare_outcome(
        &mut self,
        expected: &Outcome,
        got: Outcome,
    ) -> std::result::Result<(), Difference> {
        let (Outcome::Done(Some(expected)), Outcome::Done(Some(got))) = (expected, &got) else {
            return same(expected, &got, "an outcome");
        };
        let got = self.for_machine(got.as_ref().clone(), expected.lease)?;
        same(known_due(expected.as_ref().clone()), known_due(got), "a task")
    }

    /// The task with the machine's number of its delivery.
    fn for_machine(
        &mut self,
        task: Task,
        expected: Option<Lease>,
    ) -> std::result::Result<Task, Difference> {
        let Some(lease) = task.lease else { return Ok(task) };
        if expected.is_some_and(|expected| !self.to_store.contains_key(&expected)) {
            // The take omitted this task, because a later command of its batch removed it.
            self.map_lease(expected, task.lease)?;
        }
        match self.to_machine.get(&lease) {
            Some(known) => Ok(Task { lease: Some(*known), ..task }),
            None => Err(format!("lease {lease} was never issued")),
        }
    }
}

/// HTTP has no moment that never comes: a task that was removed is not shown as delayed until then.
fn known_due(task: Task) -> Task {
    let is_removed = task.state == State::Done;
    let due = task.due.filter(|due| !is_removed || *due != Timestamp::NEVER);
    Task { due, ..task }
}

/// Without numbers: a store chooses the numbers of its events, and the number of grants given while time passed
/// depends on the sizes of its ticks.
fn unnumbered(reply: &SemaphoreReply) -> SemaphoreReply {
    let mut reply = reply.clone();
    match &mut reply {
        SemaphoreReply::Events(events) => {
            events.iter_mut().for_each(|event| (event.id, event.grant) = (EventId(0), Grant(0)));
        }
        SemaphoreReply::MemberInfos(all) => {
            all.iter_mut().for_each(|member| member.grant = member.grant.map(|_| Grant(0)));
        }
        _ => {}
    }
    reply
}

/// Errors are equal if their kind is; texts can differ.
fn compare_errors(expected: &Error, got: &Error) -> std::result::Result<(), Difference> {
    match (expected, got) {
        (Error::Invalid(_), Error::Invalid(_)) => Ok(()),
        (Error::TooLarge { .. }, Error::TooLarge { .. }) => Ok(()),
        _ => same(expected, got, "the refusal"),
    }
}

fn same<T: PartialEq>(expected: T, got: T, what: &str) -> std::result::Result<(), Difference> {
    if expected == got { Ok(()) } else { Err(format!("{what} differs")) }
}
