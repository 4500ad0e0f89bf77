//! A queue and the machine side by side.

use std::collections::HashMap;

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Command, Error, EventId, FinishItem, Grant, Holder, Lease, Machine, Outcome, Reply, Result,
    SemaphoreReply, Span, Take, Task, TaskId, Timestamp, TubeName,
};

use crate::Harness;
use crate::ask::brief;

/// How much one tick of the machine moves: another number than the harness uses, since the
/// number must not matter.
const TICK_LIMIT: usize = 1000;

/// Both, and which lease of the one is which of the other: a store may skip numbers.
pub(super) struct Twin<H> {
    queue: H,
    machine: Machine,
    to_store: HashMap<Lease, Lease>,
    to_machine: HashMap<Lease, Lease>,
}

/// What differs, in words.
type Difference = String;

impl<H: Harness> Twin<H> {
    pub(super) fn new(queue: H) -> Self {
        let machine = Machine::default();
        Twin { queue, machine, to_store: HashMap::new(), to_machine: HashMap::new() }
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

    /// Both are stopped properly and started again.
    pub(super) async fn restart(mut self) -> Self {
        self.machine.restart();
        Twin { queue: self.queue.restart().await, ..self }
    }

    /// Asks both and answers what the machine said, or how the queue differed from it.
    pub(super) async fn ask(
        &mut self,
        commands: &[Command],
    ) -> std::result::Result<Vec<Result<Reply>>, Difference> {
        let expected = self.ask_machine(commands);
        let asked = commands.iter().map(|command| self.for_store(command)).collect();
        let got = self.queue.execute(asked).await;
        if got.len() != expected.len() {
            return Err(format!("{} answers to {} commands", got.len(), expected.len()));
        }
        for ((command, expected), got) in commands.iter().zip(&expected).zip(got) {
            let said = brief(&got);
            let expected = self.without_gone(command, expected, &got);
            self.compare(&expected, got).map_err(|difference| {
                let (command, expected) = (brief(command), brief(&expected));
                format!("{difference}\n{command}\n  machine: {expected}\n  queue:   {said}")
            })?;
        }
        Ok(expected)
    }

    fn ask_machine(&mut self, commands: &[Command]) -> Vec<Result<Reply>> {
        let now = self.queue.now();
        let tick = Command::Tick { limit: TICK_LIMIT };
        while self.machine.apply(now, tick.clone()) != Ok(Reply::Ticked(0)) {}
        let replies =
            commands.iter().map(|command| self.machine.apply(now, command.clone())).collect();
        // Nobody waits here, but they must not pile up.
        self.machine.take_effects();
        replies
    }

    /// The command as the queue has to hear it: with its own lease numbers.
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

    /// A task that a later command of the batch removed may be missing in an answer: its body was
    /// gone when the store came to read it.
    fn without_gone(
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
                got.iter().any(|other| other.id == task.id) || self.is_there(command, task.id)
            });
        }
        expected
    }

    fn is_there(&mut self, command: &Command, id: TaskId) -> bool {
        let (Command::Take(Take { tube, .. }) | Command::Peek { tube, .. }) = command else {
            return true;
        };
        let peek = Command::Peek { tube: tube.clone(), ids: vec![id] };
        let seen = self.machine.apply(self.queue.now(), peek);
        matches!(seen, Ok(Reply::Tasks(tasks)) if !tasks.is_empty())
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
                    self.meet(expected, got)?;
                }
                self.compare_tasks(expected, got)
            }
            (Ok(Reply::Tasks(expected)), Ok(Reply::Tasks(got))) => {
                self.compare_tasks(expected, got)
            }
            (Ok(Reply::Finished(expected)), Ok(Reply::Finished(got))) => {
                same(expected.len(), got.len(), "the number of outcomes")?;
                let mut pairs = expected.iter().zip(got);
                pairs.try_for_each(|(expected, got)| self.compare_outcome(expected, got))
            }
            (Ok(Reply::Tubes(expected)), Ok(Reply::Tubes(got))) => {
                same(expected.len(), got.len(), "the number of tubes")?;
                let mut pairs = expected.iter().zip(got);
                pairs.try_for_each(|(expected, got)| {
                    // A store numbers its tubes as it likes.
                    same(expected, &TubeInfo { number: expected.number, ..got }, "a tube")
                })
            }
            (Ok(Reply::Semaphore(expected)), Ok(Reply::Semaphore(got))) => {
                same(unnumbered(expected), unnumbered(&got), "what a semaphore says")
            }
            (Err(expected), Err(got)) => compare_errors(expected, &got),
            (expected, got) => same(expected, &got, "the answer"),
        }
    }

    /// A new delivery: its number must be new in the queue.
    fn meet(
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
        same(expected.as_ref(), &got, "a task")
    }

    /// The task with the machine's number of its delivery.
    fn for_machine(
        &mut self,
        task: Task,
        expected: Option<Lease>,
    ) -> std::result::Result<Task, Difference> {
        let Some(lease) = task.lease else { return Ok(task) };
        if expected.is_some_and(|expected| !self.to_store.contains_key(&expected)) {
            // The take left this task out, because a later command of its batch removed it.
            self.meet(expected, task.lease)?;
        }
        match self.to_machine.get(&lease) {
            Some(known) => Ok(Task { lease: Some(*known), ..task }),
            None => Err(format!("lease {lease} was never issued")),
        }
    }
}

/// Without numbers: a store numbers its events as it likes, and how many grants were given while time passed
/// depends on how its ticks were cut.
fn unnumbered(reply: &SemaphoreReply) -> SemaphoreReply {
    let mut reply = reply.clone();
    match &mut reply {
        SemaphoreReply::Events(events) => {
            events.iter_mut().for_each(|event| (event.id, event.grant) = (EventId(0), Grant(0)));
        }
        SemaphoreReply::Standings(all) => {
            all.iter_mut().for_each(|standing| standing.grant = standing.grant.map(|_| Grant(0)));
        }
        _ => {}
    }
    reply
}

/// Errors are the same when they mean the same; texts may differ.
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
