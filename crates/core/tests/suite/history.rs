//! The life of every task, step by step: every observed transition is in the table, every
//! transition of the table occurs, and forbidden results are detected.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use taskyard_core::command::TubeInfo;
use taskyard_core::state::TRANSITIONS;
use taskyard_core::*;

use crate::random::Step;
use crate::shrink::{self, PropertyResult};

type Transition = (Option<State>, Event, State);

#[test]
fn tasks_take_every_transition_of_the_table_and_no_other() {
    let seen = RefCell::new(HashSet::new());
    shrink::check(120, 250, |script| {
        let mut history = History::default();
        // A limited rate lets a take pass over tasks.
        for step in script.iter().map(Step::without_rates).flat_map(|step| one_by_one(&step)) {
            history.step(&step)?;
        }
        seen.borrow_mut().extend(history.seen);
        Ok(())
    });
    let mut history = History::default();
    for (second, command) in gated_story().into_iter().enumerate() {
        let now = Timestamp::from_micros(second as i64 * 1_000_000);
        history.step(&Step { now, command }).expect("the scenario follows the table");
    }
    seen.borrow_mut().extend(history.seen);
    let unseen: Vec<_> = TRANSITIONS.iter().filter(|step| !seen.borrow().contains(*step)).collect();
    assert!(unseen.is_empty(), "these steps never happened: {unseen:?}");
}

/// A tube with a semaphore of capacity one: the second task waits and gets the grant, loses it to a
/// better one, and expires while waiting.
fn gated_story() -> Vec<Command> {
    let (key, tube) = (SemaphoreKey::new("one").unwrap(), TubeName::new("gated").unwrap());
    let change = Box::new(SemaphoreChange::limits(1, 1));
    let options = TubeOptions { semaphore: Some(key.clone()), ..TubeOptions::new(Kind::FifoTtl) };
    let put = |pri, ttl| {
        let mut task = NewTask::new(Body::new(&[0xc0]));
        (task.pri, task.ttl) = (Some(pri), Some(Span::from_secs(ttl)));
        Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO }
    };
    vec![
        Command::Semaphore(SemaphoreCommand::Configure { key, change, only_new: false }),
        Command::CreateTube { tube: tube.clone(), options, if_not_exists: false },
        put(5, 100),
        put(5, 6),
        Command::Delete { tube: tube.clone(), ids: vec![TaskId(0)], show: false },
        put(1, 100),
        Command::Peek { tube: tube.clone(), ids: vec![] },
        Command::Peek { tube, ids: vec![] },
        Command::Tick { limit: 10, seed: 0 },
        Command::Tick { limit: 10, seed: 0 },
    ]
}

/// The same without batches, so that each task makes at most one transition at a time.
fn one_by_one(step: &Step) -> Vec<Step> {
    let now = step.now;
    match &step.command {
        Command::Finish { tube, items, show } => {
            let items = items.iter().cloned().map(|item| vec![item]);
            items
                .map(|items| Step {
                    now,
                    command: Command::Finish { tube: tube.clone(), items, show: *show },
                })
                .collect()
        }
        Command::Tick { limit, .. } => {
            vec![Step { now, command: Command::Tick { limit: 1, seed: 0 } }; 2 * limit]
        }
        _ => vec![step.clone()],
    }
}

/// A machine, all its tasks after the latest step, and what is remembered of earlier ones.
#[derive(Default)]
struct History {
    machine: Machine,
    now: Option<Timestamp>,
    tasks: BTreeMap<(TubeName, TaskId), Task>,
    /// Ids issued by a tube since it was created.
    next_ids: BTreeMap<TubeName, u64>,
    lease_max: Option<Lease>,
    seen: HashSet<Transition>,
}

impl History {
    fn step(&mut self, step: &Step) -> PropertyResult {
        let now = self.now.map_or(step.now, |latest| latest.max(step.now));
        self.now = Some(now);
        let answer = self.machine.apply(now, step.command.clone());
        let before = std::mem::take(&mut self.tasks);
        let tubes = self.look(now);
        self.explain(now, &step.command, &before)
            .and_then(|()| self.check_limits(&step.command, &tubes, &before))
            .and_then(|()| self.check_answer(now, &step.command, &answer, &before))
            .map_err(|complaint| format!("{step:?}: {complaint}"))
    }

    /// Reads every task there is.
    fn look(&mut self, now: Timestamp) -> Vec<TubeInfo> {
        let Ok(Reply::Tubes(tubes)) = self.machine.apply(now, Command::Tubes { tube: None }) else {
            panic!("tubes can always be shown");
        };
        for tube in &tubes {
            let name = tube.name.clone();
            // A put may just have given a few more.
            let next_id = self.next_ids.get(&name).copied().unwrap_or(0) + 10;
            let ids = (0..next_id).map(TaskId).collect();
            let peek = Command::Peek { tube: name.clone(), ids };
            if let Ok(Reply::Tasks(tasks)) = self.machine.apply(now, peek) {
                // Done tasks that are kept have no history any more.
                let tasks = tasks.into_iter().filter(|task| task.state != State::Done);
                self.tasks.extend(tasks.map(|task| ((name.clone(), task.id), task)));
            }
        }
        tubes
    }

    /// Every difference must be a transition of the table, and the command must be a cause of it.
    fn explain(
        &mut self,
        now: Timestamp,
        command: &Command,
        before: &BTreeMap<(TubeName, TaskId), Task>,
    ) -> PropertyResult {
        let mut keys: Vec<_> = before.keys().chain(self.tasks.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let (old, new) = (before.get(key), self.tasks.get(key));
            if !is_moved(old, new) {
                continue;
            }
            let gone_with_all = matches!(command, Command::Truncate { tube } | Command::DropTube { tube } if *tube == key.0);
            if new.is_none() && gone_with_all {
                continue;
            }
            let event = cause(now, command, old, new)
                .ok_or_else(|| format!("nothing explains {old:?} becoming {new:?}"))?;
            let end = new.map_or(State::Done, |task| task.state);
            let transition = (old.map(|task| task.state), event, end);
            if !TRANSITIONS.contains(&transition) {
                return Err(format!("{transition:?} is not in the table"));
            }
            self.seen.insert(transition);
        }
        Ok(())
    }

    fn check_limits(
        &self,
        command: &Command,
        tubes: &[TubeInfo],
        before: &BTreeMap<(TubeName, TaskId), Task>,
    ) -> PropertyResult {
        for tube in tubes {
            let here = self.tasks.iter().filter(|(key, _)| key.0 == tube.name);
            let total = here.clone().count() as u64;
            let grew = before.keys().filter(|key| key.0 == tube.name).count() < total as usize;
            if grew && tube.options.capacity.is_some_and(|capacity| total > capacity) {
                return Err(format!("{command:?} put {total} tasks into {:?}", tube.options));
            }
            let running = here.filter(|(_, task)| task.state == State::Taken);
            let mut subqueues: Vec<_> =
                running.filter_map(|(_, task)| task.subqueue.clone()).collect();
            subqueues.sort();
            if subqueues.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("two of one sub-queue run: {subqueues:?}"));
            }
        }
        Ok(())
    }

    fn check_answer(
        &mut self,
        now: Timestamp,
        command: &Command,
        answer: &Result<Reply>,
        before: &BTreeMap<(TubeName, TaskId), Task>,
    ) -> PropertyResult {
        match (command, answer) {
            (Command::CreateTube { tube, .. }, Ok(Reply::Created(true))) => {
                self.next_ids.insert(tube.clone(), 0);
            }
            (Command::Put { tube, .. }, Ok(Reply::Put(placed))) => {
                let next_id = self.next_ids.get_mut(tube).ok_or("put into no tube")?;
                for placed in placed.iter().filter(|placed| !placed.existing) {
                    if placed.id.0 < *next_id {
                        return Err(format!("id {} was given twice", placed.id));
                    }
                    *next_id = placed.id.0 + 1;
                }
            }
            (Command::Take(take), Ok(Reply::Taken(tasks))) => {
                self.check_take(now, take, tasks, before)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Leases are new, tasks were free, and no eligible task was skipped.
    fn check_take(
        &mut self,
        now: Timestamp,
        take: &Take,
        tasks: &[Task],
        before: &BTreeMap<(TubeName, TaskId), Task>,
    ) -> PropertyResult {
        for task in tasks {
            if task.lease <= self.lease_max {
                return Err(format!("lease {:?} was issued twice", task.lease));
            }
            self.lease_max = task.lease;
            let old = before.get(&(take.tube.clone(), task.id)).ok_or("took what was not there")?;
            if old.state != State::Ready || old.expires <= now {
                return Err(format!("took {old:?}"));
            }
        }
        let place = |task: &Task| (task.pri, task.id);
        if !tasks.is_sorted_by_key(place) {
            return Err(format!("took out of order: {tasks:?}"));
        }
        let last = tasks.last().map(place);
        let here = self.tasks.iter().filter(|(key, _)| key.0 == take.tube);
        for (_, left) in here.filter(|(_, task)| task.reason == Reason::WaitsForConsumer) {
            let passed_over = last.is_some_and(|last| place(left) < last);
            if passed_over || tasks.len() < take.count {
                return Err(format!("{left:?} was passed over"));
            }
        }
        Ok(())
    }
}

/// Whether a task changed, apart from what its neighbours do to its reason.
fn is_moved(old: Option<&Task>, new: Option<&Task>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => Task { reason: old.reason, ..new.clone() } != *old,
        _ => old.is_some() != new.is_some(),
    }
}

/// The event that the command caused, if it may cause it.
fn cause(
    now: Timestamp,
    command: &Command,
    old: Option<&Task>,
    new: Option<&Task>,
) -> Option<Event> {
    let Some(old) = old else {
        let put = matches!(command, Command::Put { .. } | Command::Schedule(_));
        let delayed = new?.state == State::Delayed;
        return put.then_some(if delayed { Event::PutDelayed } else { Event::Put });
    };
    if let Some(new) = new
        && (new.reason == Reason::Semaphore) != (old.reason == Reason::Semaphore)
    {
        return Some(if old.state == State::Delayed { Event::Admit } else { Event::Gate });
    }
    let given_back = match new {
        Some(new) if new.reason == Reason::AttemptsUsedUp => Event::DeadLetter,
        // An expired task shows another reason, but only a counted delivery adds an attempt.
        Some(new) if new.state == State::Buried && new.attempts > old.attempts => Event::DeadLetter,
        _ => Event::Release,
    };
    match command {
        // A put may meet a holder of its key that is over, or replace it.
        Command::Put { .. } | Command::Schedule(_) => Some(match new.map(|new| new.state) {
            None => Event::Expire,
            Some(State::Delayed) => Event::ReplaceDelayed,
            Some(_) => Event::Replace,
        }),
        Command::Take(_) => Some(Event::Take),
        Command::Finish { items, .. } => finished(now, old, new, given_back, items.first()?),
        Command::Kick { .. } | Command::KickTasks { .. } => Some(Event::Kick),
        Command::Delete { .. } => Some(Event::Delete),
        Command::ReleaseAll { .. } => Some(given_back),
        Command::LeaveSession { session } | Command::JoinSession { session, create: true } => {
            (old.session == Some(*session)).then_some(given_back)
        }
        Command::Tick { .. } => ticked(now, old, new, given_back),
        _ => None,
    }
}

fn finished(
    now: Timestamp,
    old: &Task,
    new: Option<&Task>,
    given_back: Event,
    item: &FinishItem,
) -> Option<Event> {
    let holds = match item.holder {
        Holder::Lease(lease) => old.lease == Some(lease),
        Holder::Session(session) => old.session == Some(session),
        Holder::Any => old.state == State::Taken || buries(&item.finish),
    };
    let in_time = old.lease_until.is_none_or(|until| until > now);
    if item.id != old.id || !holds || !(in_time || item.holder == Holder::Any) {
        return None;
    }
    Some(match &item.finish {
        Finish::Ack | Finish::AckWithResult(_) => Event::Ack,
        finish if buries(finish) => Event::Bury,
        Finish::Touch(_) => Event::Touch,
        _ if given_back == Event::DeadLetter => Event::DeadLetter,
        Finish::Release { delay, .. } if delay.is_zero() => Event::Release,
        // Kinds without times ignore the delay.
        _ if new?.state == State::Ready => Event::Release,
        _ => Event::ReleaseDelayed,
    })
}

fn buries(finish: &Finish) -> bool {
    match finish {
        Finish::Bury => true,
        Finish::Fail(fail) => fail.then == AfterFailure::Bury,
        _ => false,
    }
}

fn ticked(now: Timestamp, old: &Task, new: Option<&Task>, given_back: Event) -> Option<Event> {
    let is_delayed = new.is_some_and(|new| new.state == State::Delayed);
    match old.state {
        State::Delayed if old.due.is_none() => (old.expires <= now).then_some(Event::Expire),
        State::Delayed => (old.due? <= now).then_some(Event::Due),
        State::Taken if given_back == Event::DeadLetter => Some(given_back),
        // The retry policy delays it.
        State::Taken if old.lease_until? <= now && is_delayed => Some(Event::ReleaseDelayed),
        State::Taken if old.lease_until? <= now => Some(Event::LeaseOver),
        State::Taken => old.session.is_some().then_some(given_back),
        _ => (old.expires <= now).then_some(Event::Expire),
    }
}
