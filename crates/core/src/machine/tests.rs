//! Random runs with a recount of everything after each step, and undone batches.

use std::collections::HashMap;

use crate::keys::ENDED_MAX;
use crate::record::Record;
use crate::task::{Body, TaskId};
use crate::{
    Command, Error, HeldKey, Key, KeyRequest, Kind, Machine, NewTask, OnConflict, Reply, SessionId,
    Span, Take, Timestamp, TubeName, TubeOptions,
};

mod gated;
mod positions;
#[expect(dead_code, reason = "the suite of this crate uses all of it")]
#[path = "../../tests/suite/random.rs"]
mod random;

use random::{Step, Steps, seeds};

#[test]
fn every_index_is_correct_after_every_step() {
    for seed in seeds(60) {
        let mut machine = Machine::default();
        for (place, Step { now, command }) in random::script(seed, 250).into_iter().enumerate() {
            println!("seed {seed}, step {place} at {now:?}: {command:?}");
            let _ = machine.apply(now, command);
            machine.audit();
            if place % 7 == 0 {
                machine.take_effects();
                machine.audit();
            }
        }
        machine.restart();
        machine.audit();
    }
}

/// A tube that had more keys of ended tasks than it may remember freed some before their time, and nothing showed that.
#[test]
fn keys_that_are_freed_early_are_counted() {
    let (mut machine, tube) = (Machine::default(), TubeName::new("mail").unwrap());
    let options = TubeOptions::new(Kind::FifoTtl);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    machine.apply(Timestamp::EPOCH, create).unwrap();
    let put = |number: usize, key: usize, machine: &mut Machine| {
        let held =
            HeldKey { key: Key::new(&key.to_string()).unwrap(), unique_for: Span::from_secs(600) };
        let request = KeyRequest { held, on_conflict: OnConflict::Keep };
        let task = NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(&[0xc0])) };
        let put = Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO };
        match machine.apply(Timestamp::from_micros(number as i64), put) {
            Ok(Reply::Put(placed)) => placed[0],
            other => panic!("unexpected reply to a put: {other:?}"),
        }
    };
    for number in 0..ENDED_MAX + 2 {
        let placed = put(number, number, &mut machine);
        let (tube, ids) = (TubeName::new("mail").unwrap(), vec![placed.id]);
        let delete = Command::Delete { tube, ids, show: false };
        machine.apply(Timestamp::from_micros(number as i64), delete).unwrap();
        let freed = machine.take_effects().keys_freed_early;
        assert_eq!(freed, u64::from(number >= ENDED_MAX), "{number}");
    }
    let last = ENDED_MAX + 1;
    assert!(put(last, last, &mut machine).existing);
    assert!(!put(last, 0, &mut machine).existing, "it was freed");
}

/// The wall clock is set from time to time: tasks with a start time move, and nothing else does.
#[test]
fn every_index_is_correct_when_the_wall_clock_is_set() {
    for seed in seeds(20) {
        let mut machine = Machine::default();
        for (place, Step { now, command }) in random::script(seed, 250).into_iter().enumerate() {
            println!("seed {seed}, step {place} at {now:?}: {command:?}");
            let _ = machine.apply(now, command);
            if place % 5 == 0 {
                let before = machine.next_wakeup();
                let ahead = machine.wall_ahead();
                machine.set_wall_ahead((place as i64 % 7 - 3) * 1_000_000);
                machine.audit();
                machine.set_wall_ahead(ahead);
                assert_eq!(machine.next_wakeup(), before, "set forward and back again");
                machine.set_wall_ahead((place as i64 % 11 - 5) * 1_000_000);
            }
            machine.audit();
        }
    }
}

/// Bodies are loaded and removed, as in a store with little memory.
#[test]
fn bodies_in_memory_are_counted() {
    for seed in seeds(20) {
        let mut machine = Machine::default();
        let mut steps = Steps::new(seed);
        for Step { now, command } in random::script(seed, 200) {
            machine.begin();
            let _ = machine.apply(now, command);
            let (number, id) = (steps.rng.u32(..4), TaskId(steps.rng.u64(..40)));
            let body = steps.rng.bool().then(|| Body::new(&vec![0; steps.rng.usize(..9)]));
            let there = machine.tubes.get(number).is_some_and(|tube| {
                tube.tasks.get(id).is_some() || tube.tasks.done().get(id).is_some()
            });
            let is_body_unloaded = there && body.is_none();
            machine.set_body(number, id, body);
            assert_eq!(machine.is_body_unloaded(number, id), is_body_unloaded);
            if steps.rng.u8(..4) == 0 {
                machine.undo();
            }
            machine.audit();
        }
    }
}

#[test]
fn an_undone_batch_has_no_effect() {
    for seed in seeds(60) {
        let mut machine = Machine::default();
        let mut steps = Steps::new(seed);
        for batch in 0..60 {
            let undone = batch % 2 == 1;
            let before = machine.snapshot();
            let lease = machine.next_lease();
            machine.begin();
            for _ in 0..steps.rng.usize(..15) {
                let Step { now, command } = steps.next(machine.next_wakeup());
                println!("seed {seed}, batch {batch} at {now:?}: {command:?}");
                let answer = machine.apply(now, command.clone());
                steps.learn(&command, &answer);
                machine.audit();
            }
            if undone {
                let takeable = machine.takeable();
                machine.take_effects();
                machine.undo();
                machine.check_wakes(&takeable);
                assert_eq!(machine.snapshot(), before, "seed {seed}, batch {batch}");
                assert!(machine.next_lease() >= lease);
            } else {
                machine.keep();
            }
            machine.audit();
        }
    }
}

/// Only failures that a caller reports are in a reply.
#[test]
fn failures_that_no_caller_reports_are_effects() {
    let tube = |name| TubeName::new(name).unwrap();
    let (mail, sms, session) = (tube("mail"), tube("sms"), SessionId([7; 16]));
    let at = |seconds: u64| Timestamp::EPOCH + Span::from_secs(seconds);
    let mut machine = Machine::default();
    let options = TubeOptions::new(Kind::FifoTtl);
    for tube in [&mail, &sms] {
        let (tube, options) = (tube.clone(), options.clone());
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        machine.apply(at(0), create).unwrap();
        let tasks = vec![NewTask::new(Body::new(&[0xc0])); 5];
        machine.apply(at(0), Command::Put { tube, tasks, wait: Span::ZERO }).unwrap();
    }
    machine.apply(at(0), Command::JoinSession { session, create: true }).unwrap();
    let take = |tube: &TubeName, count, session: Option<SessionId>| {
        let lease = session.is_none().then_some(Span::from_secs(5));
        let (tube, worker, wait) = (tube.clone(), None, Span::ZERO);
        Command::Take(Take { tube, count, session, lease, worker, wait })
    };
    for (tube, count, holder) in
        [(&mail, 2, None), (&mail, 1, Some(session)), (&sms, 2, Some(session))]
    {
        machine.apply(at(0), take(tube, count, holder)).unwrap();
    }
    assert_eq!(machine.take_effects().failed, []);
    machine.begin();
    machine.apply(at(5), Command::Tick { limit: 100, seed: 0 }).unwrap();
    machine.undo();
    assert_eq!(machine.take_effects().failed, [], "an undone batch has none");
    machine.apply(at(5), Command::Tick { limit: 100, seed: 0 }).unwrap();
    assert_eq!(machine.take_effects().failed, [(mail.clone(), 2)]);
    machine.apply(at(6), Command::LeaveSession { session }).unwrap();
    assert_eq!(machine.take_effects().failed, [(mail.clone(), 1), (sms, 2)]);
    machine.apply(at(6), take(&mail, 3, None)).unwrap();
    machine.apply(at(7), Command::ReleaseAll { tube: mail }).unwrap();
    assert_eq!(machine.take_effects().failed, [], "what an operator releases did not fail");
}

impl Machine {
    /// How many tasks of each tube can be taken.
    fn takeable(&self) -> HashMap<TubeName, u64> {
        let now = self.now.unwrap_or(crate::time::Timestamp::EPOCH);
        self.tubes.iter().map(|(_, tube)| (tube.name.clone(), tube.takeable(now))).collect()
    }

    /// Waiting commands are woken for tubes from which more can be taken than `before`.
    fn check_wakes(&mut self, before: &HashMap<TubeName, u64>) {
        let told = self.take_effects().ready;
        for (name, takeable) in self.takeable() {
            let more = takeable > before.get(&name).copied().unwrap_or(0);
            assert!(!more || told.contains(&(name.clone(), takeable)), "{name}: {told:?}");
        }
    }

    /// Everything observable, except for used-up numbers: the next ids and lease.
    pub(super) fn snapshot(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, tube) in self.tubes.iter() {
            let Ok(Reply::Tubes(mut infos)) = self.show_tubes(Some(&tube.name)) else {
                panic!("every tube can be shown");
            };
            // Expired tasks that a take has met are not takeable any more.
            (infos[0].takeable, infos[0].oldest_ready) = (0, None);
            lines.push(format!("{number}: {infos:?}"));
            let mut tasks: Vec<_> = tube.tasks.parts().0.iter().cloned().collect();
            tasks.sort_by_key(|slot| slot.id);
            for mut slot in tasks {
                let subqueue = tube.tasks.subqueue_of(&slot);
                // The index of its sub-queue and its batch mark are not observable.
                (slot.subqueue, slot.noted) = (0, 0);
                lines.push(format!("{number}: {subqueue:?} {slot:?}"));
            }
        }
        let mut sessions: Vec<_> =
            self.sessions.iter().map(|(id, session)| format!("{id} {session:?}")).collect();
        sessions.sort();
        lines.extend(sessions);
        lines.push(format!("{:?} {:?}", self.session_ttr, self.session_ends));
        lines.push(format!("{:?} {:?}", self.next_wakeup(), self.shared));
        lines
    }
}

/// Two tasks of one page with the same key were accepted, and SQLite could not open its folder any more.
#[test]
fn an_import_with_one_key_twice_is_refused() {
    let name = TubeName::new("mail").expect("a good name");
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube: name.clone(), options, if_not_exists: false };
    let key = Some(Box::new(KeyRequest::new(Key::new("order 17").expect("a good key"))));
    let task = NewTask { key, ..NewTask::new(Body::new(&[1])) };
    let put = Command::Put { tube: name.clone(), tasks: vec![task], wait: Span::ZERO };
    let mut from = Machine::default();
    for command in [create.clone(), put] {
        from.apply(Timestamp::EPOCH, command).expect("it is accepted");
    }
    let mut records = from.export_tasks(0, TaskId(0), 10);
    let again = Record { id: TaskId(1), ..records[0].clone() };
    records.push(again);
    let mut to = Machine::default();
    to.apply(Timestamp::EPOCH, create).expect("it is accepted");
    assert!(matches!(to.import_tasks(&name, records.clone()), Err(Error::Invalid(_))));
    records.pop();
    assert_eq!(to.import_tasks(&name, records), Ok(()));
    to.audit();
}
