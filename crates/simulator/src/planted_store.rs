//! Plants known faults between an engine and its store, to show that the judges find them.

use std::sync::{Mutex, PoisonError};

use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Lease, Outcome, Reply, Result, ScheduleCommand,
    SemaphoreCommand, Span, Timestamp,
};
use taskyard_store::{
    BodyKey, Capabilities, Executed, Pending, Store, StoreHealth, StoreTime, Watcher,
};
use taskyard_wire::http::LEADER_TUBE;

use crate::planted::PlantedFault;
use crate::tubes::TubeRole;

/// A store with a planted fault.
pub struct PlantedStore {
    inner: Box<dyn Store>,
    fault: PlantedFault,
    state: Mutex<PlantedState>,
}

#[derive(Default)]
struct PlantedState {
    /// How often the fault could happen so far.
    chances: u32,
    first_lease: Option<Lease>,
}

/// The fault happens at every n-th chance.
const EVERY: u32 = 5;

/// What is to be done with the reply of a command.
#[derive(Clone, Debug, PartialEq)]
enum ReplyChange {
    /// Nothing.
    Keep,
    /// This is the reply.
    Replace(Reply),
    /// The next reply is this one, and the reverse.
    SwapWithNext,
    /// It is not a reply of the engine's commands.
    Remove,
    /// Its deliveries end this much later, as the client sees it.
    Extend(Span),
}

impl PlantedStore {
    /// Plants a fault.
    pub fn new(inner: Box<dyn Store>, fault: PlantedFault) -> Self {
        PlantedStore { inner, fault, state: Mutex::default() }
    }

    /// Whether the fault happens at this chance.
    fn happens(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.chances += 1;
        state.chances.is_multiple_of(EVERY)
    }

    /// Changes the commands of a batch, and says what to do with each reply.
    fn change(&self, commands: Vec<Command>) -> (Vec<Command>, Vec<ReplyChange>) {
        let (mut sent, mut changes) = (Vec::new(), Vec::new());
        for mut command in commands {
            let change = match &mut command {
                Command::Put { .. } => self.change_put(&mut command),
                Command::Finish { .. } => self.change_finish(&mut command),
                Command::Take(take) if self.fault == PlantedFault::ShortenLease => {
                    let half = take.lease.map(|lease| Span::from_micros(lease.as_micros() / 2));
                    take.lease = half;
                    half.map_or(ReplyChange::Keep, ReplyChange::Extend)
                }
                _ => self.change_other(&mut command),
            };
            if self.fault == PlantedFault::RepeatFire
                && let Command::Schedule(schedule) = &command
                && let ScheduleCommand::Fire { puts, .. } = &**schedule
                && self.happens()
            {
                let tube = TubeRole::Scheduled.tube();
                let again = Command::Put { tube, tasks: puts.clone(), wait: Span::ZERO };
                sent.push(again);
                changes.push(ReplyChange::Remove);
            }
            sent.push(command);
            changes.push(change);
        }
        if self.fault == PlantedFault::SwapReplies {
            self.swap(&sent, &mut changes);
        }
        (sent, changes)
    }

    fn swap(&self, sent: &[Command], changes: &mut [ReplyChange]) {
        let is_put =
            |index: usize| matches!(&sent[index], Command::Put { tasks, .. } if tasks.len() == 1);
        for index in 1..sent.len() {
            if is_put(index - 1) && is_put(index) && changes[index - 1] == ReplyChange::Keep {
                changes[index - 1] = ReplyChange::SwapWithNext;
                return;
            }
        }
    }

    fn change_put(&self, command: &mut Command) -> ReplyChange {
        let Command::Put { tube, tasks, .. } = command else { return ReplyChange::Keep };
        if self.fault == PlantedFault::SplitLead && tube.as_str() == LEADER_TUBE {
            tasks.push(tasks[0].clone());
        }
        for task in tasks.iter_mut() {
            match (self.fault, &mut task.key) {
                (PlantedFault::DropKey, key) => *key = None,
                (PlantedFault::ForgetUniqueFor, Some(key)) => key.held.unique_for = Span::ZERO,
                (PlantedFault::SplitSubqueue, _) if task.subqueue.is_some() => {
                    let payload = crate::operations::read_payload(&task.body);
                    task.subqueue = payload.map(|payload| format!("{payload:x}").into());
                }
                (PlantedFault::DropPriority, _) => task.pri = None,
                (PlantedFault::HalveDelay, _) => {
                    let half = |delay: Span| Span::from_micros(delay.as_micros() / 2);
                    task.delay = task.delay.map(half);
                }
                _ => {}
            }
        }
        ReplyChange::Keep
    }

    fn change_finish(&self, command: &mut Command) -> ReplyChange {
        let Command::Finish { tube, items, .. } = command else { return ReplyChange::Keep };
        let [FinishItem { id, holder, finish }] = items.as_mut_slice() else {
            return ReplyChange::Keep;
        };
        let hit = match (self.fault, &*finish) {
            (PlantedFault::DropResult, Finish::AckWithResult(_)) => {
                *finish = Finish::Ack;
                false
            }
            (PlantedFault::DropAck, Finish::Ack) => self.happens(),
            (PlantedFault::DropTouch, Finish::Touch(_)) => true,
            (PlantedFault::AcceptStaleAck, Finish::Ack) => {
                *holder = Holder::Any;
                false
            }
            (PlantedFault::ForgetAttempt, Finish::Release { delay, counted: true }) => {
                *finish = Finish::Release { delay: *delay, counted: false };
                false
            }
            (PlantedFault::ReleaseBuried, Finish::Bury) => {
                *finish = Finish::Release { delay: Span::ZERO, counted: true };
                false
            }
            _ => false,
        };
        if !hit {
            return ReplyChange::Keep;
        }
        let touched = matches!(finish, Finish::Touch(_));
        let peek = Command::Peek { tube: tube.clone(), ids: vec![*id] };
        *command = peek;
        if touched { ReplyChange::Keep } else { done() }
    }

    fn change_other(&self, command: &mut Command) -> ReplyChange {
        match (self.fault, command) {
            (PlantedFault::ForgetTick, Command::Tick { limit, .. }) => *limit = 0,
            (
                PlantedFault::ExceedSemaphore,
                Command::Semaphore(SemaphoreCommand::Configure { change, .. }),
            ) => change.active = change.active.map(|active| active + 1),
            (PlantedFault::MissFire, Command::Schedule(schedule)) => {
                if let ScheduleCommand::Fire { puts, .. } = &mut **schedule {
                    puts.clear();
                }
            }
            (PlantedFault::SplitLead, Command::CreateTube { tube, options, .. })
                if tube.as_str() == LEADER_TUBE =>
            {
                options.capacity = None;
            }
            (PlantedFault::DropRate, Command::CreateTube { options, .. }) => options.rate = None,
            (PlantedFault::IgnoreCapacity, Command::CreateTube { options, .. }) => {
                options.capacity = None;
            }
            (PlantedFault::ForgetDone, Command::CreateTube { options, .. }) => {
                let half = |keep: Span| Span::from_micros(keep.as_micros() / 2);
                options.keep_done = options.keep_done.map(half);
            }
            (PlantedFault::DropPause, Command::AlterTube { change, .. }) => {
                change.paused = change.paused.filter(|paused| !paused);
            }
            (PlantedFault::ForgetAlter, Command::AlterTube { change, .. }) => {
                change.capacity = None;
            }
            (PlantedFault::IgnoreDaylight, Command::Schedule(schedule)) => {
                if let ScheduleCommand::Set { schedule, .. } = &mut **schedule {
                    schedule.timing = schedule.timing.replace("Europe/Berlin", "Etc/GMT-1").into();
                }
            }
            (_, command) => return self.drop_command(command),
        }
        ReplyChange::Keep
    }

    /// Does not execute a command that is acknowledged.
    fn drop_command(&self, command: &mut Command) -> ReplyChange {
        let (tube, reply) = match (self.fault, &*command) {
            (PlantedFault::DropKick, Command::KickTasks { tube, ids, .. }) => {
                (tube.clone(), Reply::Finished(vec![Outcome::Done(None); ids.len()]))
            }
            (PlantedFault::KeepDroppedTube, Command::DropTube { tube }) => {
                (tube.clone(), Reply::Nothing)
            }
            (PlantedFault::KeepLeftSession, Command::LeaveSession { .. }) => {
                (TubeRole::Plain.tube(), Reply::Nothing)
            }
            _ => return ReplyChange::Keep,
        };
        *command = Command::Peek { tube, ids: Vec::new() };
        ReplyChange::Replace(reply)
    }

    /// Changes what came back.
    fn change_back(
        &self,
        changes: Vec<ReplyChange>,
        mut executed: Executed,
        sent: &[Command],
    ) -> Executed {
        for (index, change) in changes.iter().enumerate() {
            match change {
                ReplyChange::SwapWithNext => executed.replies.swap(index, index + 1),
                ReplyChange::Replace(reply) if executed.replies[index].is_ok() => {
                    executed.replies[index] = Ok(reply.clone());
                }
                ReplyChange::Extend(by) => extend(&mut executed.replies[index], *by),
                _ => {}
            }
        }
        for (command, reply) in sent.iter().zip(&mut executed.replies) {
            self.change_reply(command, reply);
        }
        for index in (0..changes.len()).rev().filter(|index| changes[*index] == ReplyChange::Remove)
        {
            drop(executed.replies.remove(index));
        }
        let is_alter = |command: &Command| matches!(command, Command::AlterTube { .. });
        if self.fault == PlantedFault::LoseWakeup
            || self.fault == PlantedFault::LoseResume && sent.iter().any(is_alter)
        {
            executed.effects.ready.clear();
        }
        executed
    }

    fn change_reply(&self, command: &Command, reply: &mut Result<Reply>) {
        match (self.fault, command, reply) {
            (PlantedFault::ReuseLease, Command::Take(_), Ok(Reply::Taken(tasks))) => {
                for task in tasks {
                    let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.chances += 1;
                    let first = *state.first_lease.get_or_insert(task.lease.unwrap_or(Lease(0)));
                    if state.chances.is_multiple_of(4 * EVERY) {
                        task.lease = Some(first);
                    }
                }
            }
            (PlantedFault::HalvePositions, _, Ok(Reply::Positions(positions))) => {
                positions.iter_mut().for_each(|position| position.ahead /= 2);
            }
            (PlantedFault::CutPayload, Command::Take(_), Ok(Reply::Taken(tasks))) => {
                for body in tasks.iter_mut().filter_map(|task| task.body.as_mut()) {
                    if self.happens() {
                        *body = Body::new(&body.payload()[..body.payload().len() / 2]);
                    }
                }
            }
            (PlantedFault::PanicAtTake, Command::Take(_), Ok(Reply::Taken(tasks))) => {
                assert!(tasks.is_empty() || !self.happens(), "a planted panic");
            }
            // A touch that was not executed: the client believes that it was.
            (PlantedFault::DropTouch, Command::Peek { .. }, reply) => {
                if let Ok(Reply::Tasks(tasks)) = reply {
                    let mut task = tasks.pop();
                    if let Some(task) = &mut task {
                        let later = |until: Timestamp| until + Span::from_secs(30);
                        task.lease_until = task.lease_until.map(later);
                    }
                    let outcome = task.map_or(Outcome::Missing, |task| match task.lease {
                        Some(_) => Outcome::Done(Some(Box::new(task))),
                        None => Outcome::Stale,
                    });
                    *reply = Ok(Reply::Finished(vec![outcome]));
                }
            }
            _ => {}
        }
    }
}

/// Multiplies the times in estimates, which the engine adds to what its store knows.
pub fn scale_estimates(reply: &mut Option<Result<Reply>>, factor: f64) {
    let Some(Ok(Reply::Positions(positions))) = reply else { return };
    for estimate in
        positions.iter_mut().filter_map(|position| position.estimate.as_mut()?.as_mut().ok())
    {
        for span in [&mut estimate.p50, &mut estimate.p90] {
            *span = Span::from_micros((span.as_micros() as f64 * factor) as i64);
        }
    }
}

/// The reply to a finish that was executed.
fn done() -> ReplyChange {
    ReplyChange::Replace(Reply::Finished(vec![Outcome::Done(None)]))
}

fn extend(reply: &mut Result<Reply>, by: Span) {
    if let Ok(Reply::Taken(tasks)) = reply {
        for task in tasks {
            task.lease_until = task.lease_until.map(|until| until + by);
        }
    }
}

impl Store for PlantedStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        Box::pin(async move {
            let (sent, changes) = self.change(commands);
            let copy = sent.clone();
            let mut executed = self.inner.execute(now, sent).await;
            if self.fault == PlantedFault::RepeatPut {
                let is_unknown = |reply: &Result<Reply>| {
                    matches!(reply, Err(taskyard_core::Error::OutcomeUnknown(_)))
                };
                let puts_only = copy.iter().all(|command| matches!(command, Command::Put { .. }));
                if puts_only && executed.replies.iter().all(is_unknown) {
                    executed = self.inner.execute(now, copy.clone()).await;
                }
            }
            if self.fault == PlantedFault::DropPut {
                self.drop_put(now, &copy, &executed).await;
            }
            self.change_back(changes, executed, &copy)
        })
    }

    fn batches_max(&self) -> usize {
        self.inner.batches_max()
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>>>> {
        self.inner.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.watch(watcher);
    }

    fn poll_every(&self) -> Option<Span> {
        self.inner.poll_every()
    }

    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth>> {
        self.inner.health(now)
    }

    fn time(&self) -> Option<StoreTime> {
        self.inner.time()
    }

    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<()>> {
        self.inner.set_wall_ahead(now, micros)
    }

    fn close(&self) -> Pending<'_, Result<()>> {
        self.inner.close()
    }
}

impl PlantedStore {
    /// Removes the tasks of a put that is acknowledged.
    async fn drop_put(&self, now: Timestamp, sent: &[Command], executed: &Executed) {
        for (command, reply) in sent.iter().zip(&executed.replies) {
            if let (Command::Put { tube, .. }, Ok(Reply::Put(placed))) = (command, reply)
                && placed.iter().all(|placed| !placed.existing)
                && self.happens()
            {
                let ids = placed.iter().map(|placed| placed.id).collect();
                let delete = Command::Delete { tube: tube.clone(), ids, show: false };
                self.inner.execute(now, vec![delete]).await;
            }
        }
    }
}
