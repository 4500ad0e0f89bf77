//! A batch on its way to the database and back.

use std::collections::HashSet;

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{Command, Effects, Error, Reply, Timestamp, TubeName};
use tokio_postgres::Row;

use super::answers::Reader;
use super::codec::{Unreadable, get};
use super::connection::{Connection, Failure};
use super::counters::Extras;
use super::heads::Heads;
use super::lanes::{self, Takes};
use super::order;
use super::plan::{Ask, Context, Part, Step, plan};
use super::statements::{self as sql, Call};
use super::tally::Tally;
use super::{Clock, Known, Postgres};
use taskyard_store::Executed;

/// How often a batch is sent again that the database gave up for the sake of another, or that was not
/// done because its connection broke.
const RETRIES: usize = 8;

/// Which connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Main,
    Side,
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
        let (mut main, side) = self.plan(now, commands);
        let Some(side) = side else { return self.run(Lane::Main, now, count, main).await };
        if let Err(failure) = self.reserve(&mut main, &side).await {
            return failed(count, &failure);
        }
        let takes = Takes::of(main.steps.iter().chain(&side.steps));
        let places: Vec<usize> =
            side.steps.iter().flat_map(|step| step.places.iter().copied()).collect();
        let (mut whole, mut part) = tokio::join!(
            self.run(Lane::Main, now, count, main),
            self.run(Lane::Side, now, count, side)
        );
        for place in places {
            std::mem::swap(&mut whole.replies[place], &mut part.replies[place]);
        }
        // Either may have been read first.
        let wakeups = [whole.effects.next_wakeup, part.effects.next_wakeup];
        add_effects(&mut whole.effects, part.effects);
        whole.effects.next_wakeup = wakeups.into_iter().flatten().min();
        takes.deal(&mut whole.replies);
        whole
    }

    /// Runs what goes by one connection; there are replies for the whole batch, but only its own mean something.
    async fn run(&self, lane: Lane, now: Timestamp, count: usize, part: Part) -> Executed {
        let Part { steps, mut calls } = part;
        let extras = match lane {
            Lane::Main => self.known().counters.go_along(&steps, &mut calls, now.as_micros()),
            Lane::Side => Extras::default(),
        };
        let mut done = self.transact(lane, &steps, &calls).await;
        if lane == Lane::Side && matches!(done, Err(Failure::Unreachable(_))) {
            // Perhaps there may be no more connections.
            done = self.transact(Lane::Main, &steps, &calls).await;
        }
        match done {
            Ok(mut rows) => {
                let back = self.known().counters.come_back(extras, &mut rows, now.as_micros());
                if let Err(error) = back {
                    tracing::error!(%error, "the counters of the database could not be read");
                }
                let whole = self.read(now, count, &steps, rows);
                self.take_anew(lane, now, Part { steps, calls }, whole).await
            }
            Err(Failure::Refused(text)) if calls.len() > 1 + usize::from(asks_moved(&steps)) => {
                tracing::warn!(%text, "a batch was refused; trying its commands one by one");
                self.one_by_one(now, count, Part { steps, calls }).await
            }
            Err(failure) => {
                // What it took is there again, before where the other half has ended.
                self.known().heads.forget_all();
                failed(count, &failure)
            }
        }
    }

    /// Repeats the takes of sessions that are connected here and that the database does not know: others took this server
    /// for dead, and it has not heard of it yet. It says how things stand first, which begins those sessions anew.
    async fn take_anew(
        &self,
        lane: Lane,
        now: Timestamp,
        part: Part,
        mut whole: Executed,
    ) -> Executed {
        let Part { steps, calls } = part;
        let asked = steps.into_iter().filter(|step| !matches!(step.ask, Ask::Refused(_)));
        let (steps, calls): (Vec<_>, Vec<_>) = {
            let known = self.known();
            let lost = |step: &Step| {
                let mut replies = step.places.iter().map(|place| &whole.replies[*place]);
                matches!(step.ask, Ask::Take { .. })
                    && replies.any(|reply| known.attendance.has_lost(reply))
            };
            asked.zip(calls).filter(|(step, _)| lost(step)).unzip()
        };
        if steps.is_empty() {
            return whole;
        }
        self.known().attendance.doubt();
        let count = whole.replies.len();
        let mut part = match self.transact(lane, &steps, &calls).await {
            Ok(rows) => self.read(now, count, &steps, rows),
            Err(failure) => failed(count, &failure),
        };
        for place in steps.iter().flat_map(|step| &step.places) {
            std::mem::swap(&mut whole.replies[*place], &mut part.replies[*place]);
        }
        add_effects(&mut whole.effects, part.effects);
        whole
    }

    fn plan(&self, now: Timestamp, commands: Vec<Command>) -> (Part, Option<Part>) {
        let mut known = self.known();
        let moment = now.as_micros();
        known.now = moment;
        let now = (self.clock == Clock::Caller).then_some(moment);
        let Known { heads, timers, places, plain, gated, attendance, .. } = &*known;
        let may_split = attendance.disorder().is_none() && !self.presence.is_overdue();
        let server = &self.server;
        let context =
            Context { now, server, heads, timers, moment, places, plain, gated, may_split };
        plan(commands, &context)
    }

    /// Gets ids for the puts that go by the first connection, so that those of the second come behind them.
    async fn reserve(&self, main: &mut Part, side: &Part) -> Result<(), Failure> {
        let (tubes, calls) = lanes::reservations(main, side);
        let rows = self.transact(Lane::Main, &[], &calls).await?;
        for (tube, rows) in tubes.iter().zip(rows) {
            let Some(row) = rows.first() else { continue };
            let unreadable = |error: Unreadable| Failure::Refused(error.to_string());
            let number: Option<i32> = get(row, 0).map_err(unreadable)?;
            let ids: Option<Vec<i64>> = get(row, 1).map_err(unreadable)?;
            if let (Some(number), Some(ids)) = (number, ids) {
                lanes::use_ids(main, tube, number, ids);
            }
        }
        Ok(())
    }

    /// Runs the calls in one transaction, again as long as that is safe and may help. What is lost on the
    /// way is noted, to be settled before the next batch.
    pub(crate) async fn transact(
        &self,
        lane: Lane,
        steps: &[Step],
        calls: &[Call],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut place = match lane {
            Lane::Main => self.connection.lock().await,
            Lane::Side => self.side.lock().await,
        };
        let mut tries = 0;
        loop {
            if place.as_ref().is_none_or(|connection| !connection.is_open()) {
                *place = Some(self.reach.connect().await?);
            }
            let Some(connection) = place.as_mut() else { continue };
            let mut done = self.settle(connection).await.map(|()| Vec::new());
            if done.is_ok() {
                done = connection.transact(calls).await;
                if let Err(Failure::Lost(text)) = &done {
                    tracing::warn!(%text, "a batch was lost on the way");
                    let mut known = self.known();
                    known.attendance.lost(connection.backend(), steps);
                    known.heads.forget_all();
                }
            }
            let again = match &done {
                Err(Failure::Conflict(_) | Failure::Broken(_)) => true,
                Err(Failure::Lost(_)) => is_repeatable(steps),
                _ => false,
            };
            // One that is silent is as good as gone.
            if matches!(done, Err(Failure::Broken(_) | Failure::Lost(_) | Failure::Unreachable(_)))
            {
                *place = None;
            }
            if !again || tries >= RETRIES {
                return done;
            }
            if let Err(Failure::Conflict(why)) = &done {
                tracing::warn!(why, "a batch gave way to another; trying again");
            }
            tracing::debug!(?done, "a batch was not done; trying again");
            tries += 1;
        }
    }

    /// Tells the database how things stand here, if it may believe something else.
    async fn settle(&self, connection: &mut Connection) -> Result<(), Failure> {
        let (disorder, call) = {
            let mut known = self.known();
            if self.presence.is_overdue() {
                known.attendance.doubt();
            }
            let Some(disorder) = known.attendance.disorder() else { return Ok(()) };
            let now = (self.clock == Clock::Caller).then_some(known.now);
            let call = known.attendance.settle(&self.server, &disorder, now);
            (disorder, call)
        };
        for backend in &disorder.backends {
            if !connection.end(backend).await? {
                let why = "what was under way when the connection was lost has not ended yet";
                return Err(Failure::Unreachable(why.into()));
            }
        }
        // It can be repeated, so that it does not matter whether it was done.
        let settled = connection.transact(&[call]).await;
        settled.map_err(|failure| match failure {
            Failure::Lost(text) => {
                // Though not while the next one settles something else.
                self.known().attendance.lost(connection.backend(), &[]);
                Failure::Broken(text)
            }
            // Somebody holds what it needs; the batch itself was not even tried.
            Failure::Refused(text) => Failure::Unreachable(text),
            other => other,
        })?;
        self.known().attendance.settled();
        self.presence.look_around();
        Ok(())
    }

    /// Each call in a transaction of its own, so that only what cannot be done fails.
    async fn one_by_one(&self, now: Timestamp, count: usize, part: Part) -> Executed {
        let Part { steps, calls } = part;
        let moves = asks_moved(&steps);
        let mut calls = calls.into_iter();
        let replies = unreadable(count);
        let mut whole = Executed { replies, effects: Effects::default(), unloaded: Vec::new() };
        for Step { places, ask } in steps {
            let call: Vec<Call> = match ask {
                Ask::Refused(_) => Vec::new(),
                _ => calls.next().into_iter().collect(),
            };
            // Alone, a call locks in order itself, and what was locked for it would be left behind.
            if matches!(ask, Ask::LockTube | Ask::Moved) {
                continue;
            }
            let count = places.len();
            let mut step = vec![Step { places: (0..count).collect(), ask }];
            let mut call = call;
            if moves && !call.is_empty() {
                step.push(Step { places: Vec::new(), ask: Ask::Moved });
                call.push(Call::new(&sql::MOVED, []));
            }
            let part = match self.transact(Lane::Main, &step, &call).await {
                Ok(rows) => self.read(now, count, &step, rows),
                Err(failure) => failed(count, &failure),
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
        let Known { counters, heads, places: lay, attendance, timers, plain, gated, .. } =
            &mut *known;
        let mut reader = Reader::new(counters);
        let mut replies = unreadable(count);
        for Step { places, ask } in steps {
            let answer = match ask {
                Ask::Refused(_) => Vec::new(),
                _ => rows.next().unwrap_or_default(),
            };
            let answers = reader.read(ask, &answer).unwrap_or_else(|error| {
                tracing::error!(%error, "an answer of the database could not be read");
                unreadable(places.len())
            });
            attendance.note(ask, &answers);
            for (place, reply) in places.iter().zip(answers) {
                replies[*place] = reply;
            }
            follow(heads, ask, &mut reader, now);
            learn(plain, ask, reader.plain.take());
            learn(gated, ask, reader.gated.take());
            for (lease, id, place) in reader.places.drain(..) {
                lay.note(lease, id, place);
            }
            if let (Ask::Tick { from }, Some(exact)) = (ask, reader.tally.exact) {
                let next = exact.deadline.unwrap_or(exact.clock);
                timers.ticked(*from, reader.tick_cost, next, now.as_micros());
            }
        }
        let tally = reader.tally;
        known.counters.add(&tally);
        let next_wakeup = known.learn(now, &tally);
        drop(known);
        self.presence.tell(&tally);
        Executed { replies, effects: tally.into_effects(next_wakeup), unloaded: Vec::new() }
    }
}

impl Known {
    /// Takes in what a batch says about the time. Answers when a tick is wanted, by the caller's clock.
    fn learn(&mut self, now: Timestamp, tally: &Tally) -> Option<Timestamp> {
        self.deadline = self.deadline.into_iter().chain(tally.deadline).min();
        self.timers.set(tally.deadline);
        if let Some(exact) = tally.exact {
            // What the same batch set after its tick the tick did not see.
            self.deadline = exact.deadline.into_iter().chain(tally.deadline).min();
            self.ahead = exact.clock.saturating_sub(now.as_micros());
        }
        self.deadline.map(|at| Timestamp::from_micros(at.saturating_sub(self.ahead)))
    }
}

/// Adds what a later part of a batch says.
fn add_effects(whole: &mut Effects, part: Effects) {
    whole.ready.extend(part.ready);
    whole.room.extend(part.room);
    whole.events.add(part.events);
    whole.next_wakeup = part.next_wakeup;
}

/// Keeps the hints right after one step of a batch.
fn follow(heads: &mut Heads, ask: &Ask, reader: &mut Reader<'_>, now: Timestamp) {
    for tube in reader.tally.back.drain(..) {
        heads.back(&tube);
    }
    match ask {
        Ask::Put { tube, usual, .. } => {
            if let Some(best) = reader.tally.best_put.take() {
                heads.put(tube, best, *usual);
            }
        }
        Ask::Take { tube, start, .. } => {
            heads.took(tube, *start, std::mem::take(&mut reader.found), now.as_micros());
        }
        Ask::Drop { tube } | Ask::Create { tube, .. } | Ask::Alter { tube, .. } => {
            heads.remove(tube);
        }
        Ask::Name { tube, name, .. } => {
            heads.remove(tube);
            heads.remove(name);
        }
        _ => {}
    }
}

/// Keeps in mind which tubes are plain, or have a semaphore.
fn learn(known: &mut HashSet<TubeName>, ask: &Ask, seen: Option<TubeName>) {
    match ask {
        Ask::Drop { tube } | Ask::Create { tube, .. } | Ask::Alter { tube, .. } => {
            known.remove(tube);
        }
        Ask::Name { tube, name, .. } => {
            known.remove(tube);
            known.remove(name);
        }
        _ => {}
    }
    // Those that other servers have dropped stay until there are too many.
    if known.len() > TUBES_MAX {
        known.clear();
    }
    known.extend(seen);
}

/// Whether a batch asks in the end what semaphores did.
fn asks_moved(steps: &[Step]) -> bool {
    steps.last().is_some_and(|step| matches!(step.ask, Ask::Moved))
}

/// Whether commands may run twice without harm.
fn is_repeatable(steps: &[Step]) -> bool {
    steps.iter().all(|step| {
        let ask = &step.ask;
        matches!(
            ask,
            Ask::Refused(_)
                | Ask::Tubes { .. }
                | Ask::Peek { .. }
                | Ask::Deliveries { .. }
                | Ask::Configure
                | Ask::Tick { .. }
                | Ask::Moved
        )
    })
}

/// The answers to a batch that was not done, or of which nobody knows whether it was.
fn failed(count: usize, failure: &Failure) -> Executed {
    let replies: Vec<Result<Reply, Error>> = vec![Err(failure.error()); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

fn unreadable(count: usize) -> Vec<Result<Reply, Error>> {
    let what = "it was done, but the database's answer could not be read; see the log";
    vec![Err(Error::Store(what.into())); count]
}

#[cfg(test)]
mod tests {
    use super::super::tally::Exact;
    use super::*;

    // The answer of a tick replaced what commands after it in the same batch had set: a delay was met a second late.
    #[test]
    fn a_deadline_that_is_set_after_a_tick_counts() {
        let now = Timestamp::from_micros(100);
        let tally = |deadline, ticked| {
            let mut tally = Tally::default();
            tally.deadline = deadline;
            tally.exact = Some(Exact { deadline: ticked, clock: 100 });
            tally
        };
        let mut known = Known::default();
        let at = |micros| Some(Timestamp::from_micros(micros));
        assert_eq!(known.learn(now, &tally(Some(150), Some(900))), at(150));
        assert_eq!(known.learn(now, &tally(None, Some(900))), at(900), "the earlier one is over");
        assert_eq!(known.learn(now, &tally(Some(950), None)), at(950));
    }
}
