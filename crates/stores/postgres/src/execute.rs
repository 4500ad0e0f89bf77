//! Executes batches: plans the calls, sends them, repeats them where that is safe, and reads the answers.

use std::collections::HashSet;

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{Command, Effects, Error, Reply, Timestamp, TubeName};
use tokio_postgres::Row;

use super::answers::AnswerReader;
use super::codec::{DecodeError, get};
use super::connection::{Connection, Failure, LOCKED};
use super::connections::{self, SplitTakes};
use super::counter_deltas::CounterDeltas;
use super::counters::CounterCalls;
use super::head_hints::HeadHints;
use super::order;
use super::plan::{CallBatch, CallDetail, PlanContext, Step, StepRequest, plan};
use super::schedules;
use super::statements::{self as sql, Call};
use super::{Clock, LocalState, Postgres};
use taskyard_store::Executed;

/// How often a batch is sent again after a conflict with another transaction, or after its connection broke before it
/// took effect.
const RETRIES: usize = 8;

/// How many puts of a batch wait for what an open transaction has locked; those after them are refused at once.
const LOCK_WAITS: usize = 3;

/// Which connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Main,
    Second,
}

impl Postgres {
    /// Runs a batch. Whatever fails, each command is answered.
    pub(crate) async fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Executed {
        let parts = order::parts(commands, &self.known().plain);
        let replies = Vec::new();
        let mut whole = Executed { replies, effects: Effects::default(), unloaded: Vec::new() };
        for commands in parts {
            let part = self.execute_part(now, commands).await;
            whole.replies.extend(part.replies);
            add_effects(&mut whole.effects, part.effects);
        }
        whole
    }

    async fn execute_part(&self, now: Timestamp, commands: Vec<Command>) -> Executed {
        let count = commands.len();
        let (mut main, second) = self.plan(now, commands);
        let Some(second) = second else {
            return self.run(ConnectionRole::Main, now, count, main).await;
        };
        if let Err(failure) = self.reserve(&mut main, &second).await {
            return failure_replies(count, &failure);
        }
        let takes = SplitTakes::of(main.steps.iter().chain(&second.steps));
        let places: Vec<usize> =
            second.steps.iter().flat_map(|step| step.places.iter().copied()).collect();
        let (mut whole, mut part) = tokio::join!(
            self.run(ConnectionRole::Main, now, count, main),
            self.run(ConnectionRole::Second, now, count, second)
        );
        for place in places {
            std::mem::swap(&mut whole.replies[place], &mut part.replies[place]);
        }
        // Either half may have been read first.
        let wakeups = [whole.effects.next_wakeup, part.effects.next_wakeup];
        add_effects(&mut whole.effects, part.effects);
        whole.effects.next_wakeup = wakeups.into_iter().flatten().min();
        takes.distribute(&mut whole.replies);
        whole
    }

    /// Runs the calls of one connection. The result has replies for the whole batch, of which only those of these calls
    /// are valid.
    async fn run(
        &self,
        role: ConnectionRole,
        now: Timestamp,
        count: usize,
        part: CallBatch,
    ) -> Executed {
        let CallBatch { steps, mut calls } = part;
        let counter_calls = match role {
            ConnectionRole::Main => {
                self.known().counters.append_calls(&steps, &mut calls, now.as_micros())
            }
            ConnectionRole::Second => CounterCalls::default(),
        };
        let mut done = self.transact(role, &steps, &calls).await;
        if role == ConnectionRole::Second && matches!(done, Err(Failure::Unreachable(_))) {
            // The database may accept no more connections.
            done = self.transact(ConnectionRole::Main, &steps, &calls).await;
        }
        if done.is_err() {
            self.known().counters.keep_unsent(counter_calls);
        }
        match done {
            Ok(mut rows) => {
                let back =
                    self.known().counters.absorb_answers(counter_calls, &mut rows, now.as_micros());
                if let Err(error) = back {
                    tracing::error!(%error, "cannot decode the counters of the database");
                }
                let whole = self.read(now, count, &steps, rows);
                let whole = self.repeat_locked_puts(now, &steps, whole).await;
                self.repeat_unknown_takes(role, now, CallBatch { steps, calls }, whole).await
            }
            Err(Failure::Refused(text)) if calls.len() > 1 + usize::from(reads_moved(&steps)) => {
                tracing::warn!(%text, "a batch was refused; running its commands in separate transactions");
                self.run_separately(now, count, CallBatch { steps, calls }).await
            }
            Err(failure) => {
                // The tasks that it took are ready again, perhaps before the place where the other half ended.
                self.known().head_hints.forget_all();
                failure_replies(count, &failure)
            }
        }
    }

    /// Repeats puts one by one that shared a call and were refused because an open transaction has locked something that one
    /// of them needs.
    async fn repeat_locked_puts(
        &self,
        now: Timestamp,
        steps: &[Step],
        mut whole: Executed,
    ) -> Executed {
        let is_shared = |step: &&Step| step.commands().len() > 1;
        let puts: Vec<(usize, Command)> = steps
            .iter()
            .filter(is_shared)
            .flat_map(|step| step.places.iter().copied().zip(step.commands()))
            .filter(|(place, _)| is_locked(&whole.replies[*place]))
            .map(|(place, command)| (place, command.clone()))
            .collect();
        let mut waits = 0;
        for (place, command) in puts {
            let part = Box::pin(self.execute_part(now, vec![command])).await;
            add_effects(&mut whole.effects, part.effects);
            for reply in part.replies {
                waits += usize::from(is_locked(&reply));
                whole.replies[place] = reply;
            }
            if waits >= LOCK_WAITS {
                break;
            }
        }
        whole
    }

    /// Repeats the takes of sessions that are connected to this server and unknown to the database: other servers have
    /// declared this one dead, and it has not noticed yet. The repetition first restores the sessions.
    async fn repeat_unknown_takes(
        &self,
        role: ConnectionRole,
        now: Timestamp,
        part: CallBatch,
        mut whole: Executed,
    ) -> Executed {
        let CallBatch { steps, calls } = part;
        let asked = steps.into_iter().filter(Step::has_call);
        let (steps, calls): (Vec<_>, Vec<_>) = {
            let known = self.known();
            let lost = |step: &Step| {
                let mut replies = step.places.iter().map(|place| &whole.replies[*place]);
                matches!(step.command(), Some(Command::Take(_)))
                    && replies.any(|reply| known.sessions.is_unknown_to_database(reply))
            };
            asked.zip(calls).filter(|(step, _)| lost(step)).unzip()
        };
        if steps.is_empty() {
            return whole;
        }
        self.known().sessions.mark_diverged();
        let count = whole.replies.len();
        let mut part = match self.transact(role, &steps, &calls).await {
            Ok(rows) => self.read(now, count, &steps, rows),
            Err(failure) => failure_replies(count, &failure),
        };
        for place in steps.iter().flat_map(|step| &step.places) {
            std::mem::swap(&mut whole.replies[*place], &mut part.replies[*place]);
        }
        add_effects(&mut whole.effects, part.effects);
        whole
    }

    fn plan(&self, now: Timestamp, commands: Vec<Command>) -> (CallBatch, Option<CallBatch>) {
        let mut known = self.known();
        let moment = now.as_micros();
        known.now = moment;
        let now = (self.clock == Clock::Caller).then_some(moment);
        let LocalState { head_hints, timers, row_locations, plain, gated, sessions, .. } = &*known;
        let may_split = sessions.divergence().is_none() && !self.presence.last.is_overdue();
        let server = &self.server;
        let context = PlanContext {
            now,
            server,
            head_hints,
            timers,
            moment,
            row_locations,
            plain,
            gated,
            may_split,
        };
        plan(commands, &context)
    }

    /// Reserves ids for the puts of the first connection, so that those of the second get larger ones.
    async fn reserve(&self, main: &mut CallBatch, second: &CallBatch) -> Result<(), Failure> {
        let (tubes, calls) = connections::reservations(main, second);
        let rows = self.transact(ConnectionRole::Main, &[], &calls).await?;
        for (tube, rows) in tubes.iter().zip(rows) {
            let Some(row) = rows.first() else { continue };
            let unreadable = |error: DecodeError| Failure::Refused(error.to_string());
            let number: Option<i32> = get(row, 0).map_err(unreadable)?;
            let ids: Option<Vec<i64>> = get(row, 1).map_err(unreadable)?;
            if let (Some(number), Some(ids)) = (number, ids) {
                connections::use_ids(main, tube, number, ids);
            }
        }
        Ok(())
    }

    /// Runs the calls in one transaction, and repeats it where that is safe and may help. An unknown outcome is noted and
    /// repaired before the next batch.
    pub(crate) async fn transact(
        &self,
        role: ConnectionRole,
        steps: &[Step],
        calls: &[Call],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut place = match role {
            ConnectionRole::Main => self.connection.lock().await,
            ConnectionRole::Second => self.second_connection.lock().await,
        };
        let mut tries = 0;
        loop {
            if place.as_ref().is_none_or(|connection| !connection.is_open()) {
                *place = Some(self.connector.connect().await?);
            }
            let Some(connection) = place.as_mut() else { continue };
            let mut done = self.reconcile(connection).await.map(|()| Vec::new());
            if done.is_ok() {
                done = connection.transact(calls).await;
                if let Err(Failure::Lost(text)) = &done {
                    tracing::warn!(%text, "the connection broke during a batch; its outcome is unknown");
                    let mut known = self.known();
                    known.sessions.lost(connection.backend(), steps);
                    known.head_hints.forget_all();
                }
            }
            let again = match &done {
                Err(Failure::Conflict(_) | Failure::Broken(_)) => true,
                Err(Failure::Lost(_)) => is_repeatable(steps),
                _ => false,
            };
            // A connection without an answer is not used again.
            if matches!(done, Err(Failure::Broken(_) | Failure::Lost(_) | Failure::Unreachable(_)))
            {
                *place = None;
            }
            if !again || tries >= RETRIES {
                return done;
            }
            if let Err(Failure::Conflict(why)) = &done {
                tracing::warn!(why, "a batch conflicted with another transaction; trying again");
            }
            tracing::debug!(?done, "a batch was not done; trying again");
            tries += 1;
        }
    }

    /// Replaces the session rows of this server, if they may differ from the registry.
    async fn reconcile(&self, connection: &mut Connection) -> Result<(), Failure> {
        let (divergence, call) = {
            let mut known = self.known();
            if self.presence.last.is_overdue() {
                known.sessions.mark_diverged();
            }
            let Some(divergence) = known.sessions.divergence() else { return Ok(()) };
            let now = (self.clock == Clock::Caller).then_some(known.now);
            let call = known.sessions.reconcile_call(&self.server, &divergence, now);
            (divergence, call)
        };
        for backend in &divergence.backends {
            if !connection.end(backend).await? {
                let why = "the transaction of a lost connection has not ended yet";
                return Err(Failure::Unreachable(why.into()));
            }
        }
        // It is idempotent, so an unknown outcome does no harm,
        let reconciled = connection.transact(&[call]).await;
        let rows = reconciled.map_err(|failure| match failure {
            Failure::Lost(text) => {
                // but it must have ended before the next repair.
                self.known().sessions.lost(connection.backend(), &[]);
                Failure::Broken(text)
            }
            // Another transaction holds its locks. The batch itself was not sent.
            Failure::Refused(text) => Failure::Unreachable(text),
            other => other,
        })?;
        let mut known = self.known();
        known.sessions.reconciled();
        known.note_ended_sessions(rows.first().map_or(&[], Vec::as_slice));
        drop(known);
        self.presence.recheck_all();
        Ok(())
    }

    /// Runs each call in a transaction of its own, so that only the refused ones fail.
    async fn run_separately(&self, now: Timestamp, count: usize, part: CallBatch) -> Executed {
        let CallBatch { steps, calls } = part;
        let moves = reads_moved(&steps);
        let mut calls = calls.into_iter();
        let replies = undecodable_replies(count);
        let mut whole = Executed { replies, effects: Effects::default(), unloaded: Vec::new() };
        for step in steps {
            let mut call = Vec::new();
            if step.has_call() {
                call.extend(calls.next());
            }
            let Step { places, request } = step;
            // Alone a call takes its own locks in order, and earlier locks do not outlast their transaction.
            if matches!(request, StepRequest::Lock | StepRequest::Moved) {
                continue;
            }
            let count = places.len();
            let mut step = vec![Step { places: (0..count).collect(), request }];
            if moves && !call.is_empty() {
                step.push(Step { places: Vec::new(), request: StepRequest::Moved });
                call.push(Call::new(&sql::MOVED, []));
            }
            let part = match self.transact(ConnectionRole::Main, &step, &call).await {
                Ok(rows) => self.read(now, count, &step, rows),
                Err(failure) => failure_replies(count, &failure),
            };
            for (place, reply) in places.into_iter().zip(part.replies) {
                whole.replies[place] = reply;
            }
            add_effects(&mut whole.effects, part.effects);
        }
        whole
    }

    /// Reads the answers to a batch that took effect.
    fn read(&self, now: Timestamp, count: usize, steps: &[Step], rows: Vec<Vec<Row>>) -> Executed {
        let mut rows = rows.into_iter();
        let mut known = self.known();
        let LocalState {
            counters,
            head_hints,
            row_locations,
            sessions,
            timers,
            plain,
            gated,
            limited,
            ended_sessions,
            ..
        } = &mut *known;
        let mut reader = AnswerReader::new(counters, limited);
        reader.deltas = std::mem::take(ended_sessions);
        let mut replies = undecodable_replies(count);
        for step in steps {
            let answer = if step.has_call() { rows.next().unwrap_or_default() } else { Vec::new() };
            let answers = reader.read(&step.request, &answer).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot decode an answer of the database");
                undecodable_replies(step.places.len())
            });
            sessions.note(step, &answers);
            for (place, reply) in step.places.iter().zip(answers) {
                replies[*place] = reply;
            }
            update_head_hints(head_hints, step, &mut reader, now);
            update_tubes(plain, step, reader.plain.take());
            update_tubes(gated, step, reader.gated.take());
            for (lease, id, place) in reader.row_locations.drain(..) {
                row_locations.note(lease, id, place);
            }
            if let (StepRequest::Commands(_, CallDetail::Tick { from }), Some(exact)) =
                (&step.request, reader.deltas.exact)
            {
                let next = exact.deadline.unwrap_or(exact.clock);
                timers.ticked(*from, reader.tick_cost, next, now.as_micros());
            }
        }
        let deltas = reader.deltas;
        known.counters.add(&deltas);
        let next_wakeup = known.note_deadlines(now, &deltas);
        let next_schedule = known.note_schedules(&deltas);
        drop(known);
        self.presence.announce(&deltas);
        let effects = deltas.into_effects(next_wakeup, next_schedule);
        Executed { replies, effects, unloaded: Vec::new() }
    }
}

impl LocalState {
    /// Notes the deadlines that a batch reports. Returns when the next tick is due, by the caller's clock.
    fn note_deadlines(&mut self, now: Timestamp, deltas: &CounterDeltas) -> Option<Timestamp> {
        self.deadline = self.deadline.into_iter().chain(deltas.deadline).min();
        self.timers.set(deltas.deadline);
        if let Some(exact) = deltas.exact {
            // A deadline that the batch set after its tick is not among those of the tick.
            self.deadline = exact.deadline.into_iter().chain(deltas.deadline).min();
            self.ahead = exact.clock.saturating_sub(now.as_micros());
        }
        let next = self.deadline.into_iter().chain(self.limited.first()).min();
        next.map(|at| Timestamp::from_micros(at.saturating_sub(self.ahead)))
    }
}

impl LocalState {
    /// Notes what happened to tasks of sessions that had ended when the rows of this server were repaired.
    fn note_ended_sessions(&mut self, rows: &[Row]) {
        let mut reader = AnswerReader::new(&self.counters, &mut self.limited);
        reader.deltas = std::mem::take(&mut self.ended_sessions);
        if let Err(error) = reader.events(rows, true) {
            tracing::error!(%error, "cannot decode an answer of the database");
        }
        self.ended_sessions = reader.deltas;
    }

    /// Notes when schedules are due. Returns when the first one is, by the caller's clock. Those of other servers are seen by the next
    /// tick.
    fn note_schedules(&mut self, deltas: &CounterDeltas) -> Option<Timestamp> {
        let known = match deltas.exact_schedule {
            Some(first) => first,
            // A tick reports only a schedule that there is.
            None if deltas.exact.is_some() => None,
            None => self.next_schedule,
        };
        self.next_schedule = known.into_iter().chain(deltas.next_schedule).min();
        self.next_schedule.map(|at| Timestamp::from_micros(at.saturating_sub(self.ahead)))
    }
}

/// Whether this is the reply to a put that an open transaction has locked out.
fn is_locked(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Err(Error::StoreUnavailable(why)) if why == LOCKED)
}

/// Adds the effects of a later part of a batch.
fn add_effects(whole: &mut Effects, part: Effects) {
    let Effects { ready, room, failed, events, next_wakeup, next_schedule, keys_freed_early } =
        part;
    whole.ready.extend(ready);
    whole.room.extend(room);
    whole.failed.extend(failed);
    whole.events.add(events);
    (whole.next_wakeup, whole.next_schedule) = (next_wakeup, next_schedule);
    whole.keys_freed_early += keys_freed_early;
}

/// Updates the head hints after one step of a batch.
fn update_head_hints(
    head_hints: &mut HeadHints,
    step: &Step,
    reader: &mut AnswerReader<'_>,
    now: Timestamp,
) {
    for tube in reader.deltas.back.drain(..) {
        head_hints.back(&tube);
    }
    let StepRequest::Commands(commands, detail) = &step.request else { return };
    match (commands.first(), detail) {
        (Some(Command::Put { tube, .. }), CallDetail::Put { usual }) => {
            if let Some(best) = reader.deltas.best_put.take() {
                head_hints.put(tube, best, *usual);
            }
        }
        (Some(Command::Take(take)), CallDetail::Take(start)) => {
            let found = std::mem::take(&mut reader.found);
            head_hints.took(&take.tube, *start, found, now.as_micros());
        }
        (Some(command), _) => {
            tubes_changed(command).into_iter().flatten().for_each(|tube| head_hints.remove(tube))
        }
        _ => {}
    }
}

/// Updates the set of tubes that are plain, or of those that have a semaphore.
fn update_tubes(known: &mut HashSet<TubeName>, step: &Step, seen: Option<TubeName>) {
    if let Some(command) = step.command() {
        for tube in tubes_changed(command).into_iter().flatten() {
            known.remove(tube);
        }
    }
    // Tubes that other servers have dropped stay in the set until it is too large.
    if known.len() > TUBES_MAX {
        known.clear();
    }
    known.extend(seen);
}

/// The tubes whose options a command may change, so that what is known of them is void.
fn tubes_changed(command: &Command) -> [Option<&TubeName>; 2] {
    match command {
        Command::DropTube { tube }
        | Command::CreateTube { tube, .. }
        | Command::AlterTube { tube, .. } => [Some(tube), None],
        Command::NameTube { tube, name, .. } => [Some(tube), Some(name)],
        _ => [None, None],
    }
}

/// Whether the last call of a batch reads what semaphores did.
fn reads_moved(steps: &[Step]) -> bool {
    steps.last().is_some_and(|step| matches!(step.request, StepRequest::Moved))
}

/// Whether commands may run twice without harm.
fn is_repeatable(steps: &[Step]) -> bool {
    steps.iter().all(|step| match &step.request {
        StepRequest::Refused(_) | StepRequest::Moved => true,
        StepRequest::Lock => false,
        StepRequest::Commands(commands, _) => commands.iter().all(|command| {
            matches!(
                command,
                Command::Tubes { .. }
                    | Command::Peek { .. }
                    | Command::Deliveries { .. }
                    | Command::List(_)
                    | Command::Search(_)
                    | Command::Positions { .. }
                    | Command::ConfigureSessions { .. }
                    | Command::Tick { .. }
            ) || matches!(command, Command::Schedule(command) if schedules::only_reads(command))
        }),
    })
}

/// The replies to a batch that was not done, or whose outcome is unknown.
fn failure_replies(count: usize, failure: &Failure) -> Executed {
    let replies: Vec<Result<Reply, Error>> = vec![Err(failure.error()); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

fn undecodable_replies(count: usize) -> Vec<Result<Reply, Error>> {
    let what =
        "the command was done, but the answer of the database could not be decoded; see the log";
    vec![Err(Error::Store(what.into())); count]
}

#[cfg(test)]
mod tests {
    use super::super::counter_deltas::TickTimes;
    use super::*;

    // The deadlines of a tick replaced those that later commands of the same batch had set: a delay ended a second late.
    #[test]
    fn a_deadline_that_is_set_after_a_tick_counts() {
        let now = Timestamp::from_micros(100);
        let deltas = |deadline, ticked| {
            let mut deltas = CounterDeltas::default();
            deltas.deadline = deadline;
            deltas.exact = Some(TickTimes { deadline: ticked, clock: 100 });
            deltas
        };
        let mut known = LocalState::default();
        let at = |micros| Some(Timestamp::from_micros(micros));
        assert_eq!(known.note_deadlines(now, &deltas(Some(150), Some(900))), at(150));
        assert_eq!(
            known.note_deadlines(now, &deltas(None, Some(900))),
            at(900),
            "the earlier one has passed"
        );
        assert_eq!(known.note_deadlines(now, &deltas(Some(950), None)), at(950));
    }
}
