//! Random runs with a recount of everything after each step, and batches that never happened.

use std::collections::HashMap;

use crate::task::{Body, TaskId};
use crate::{Machine, Reply, TubeName};

mod gated;
#[path = "../../tests/suite/random.rs"]
mod random;

use random::{Step, Steps};

#[test]
fn every_order_is_right_after_every_step() {
    for seed in 0..60 {
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

/// The wall clock is set now and then: tasks with a start time move, and nothing else does.
#[test]
fn every_order_is_right_when_the_wall_clock_is_set() {
    for seed in 0..20 {
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
                assert_eq!(machine.next_wakeup(), before, "there and back again");
                machine.set_wall_ahead((place as i64 % 11 - 5) * 1_000_000);
            }
            machine.audit();
        }
    }
}

/// Bodies come and go as a store with little memory lets them.
#[test]
fn bodies_are_counted_wherever_they_go() {
    for seed in 0..20 {
        let mut machine = Machine::default();
        let mut steps = Steps::new(seed);
        for Step { now, command } in random::script(seed, 200) {
            machine.begin();
            let _ = machine.apply(now, command);
            let (number, id) = (steps.rng.u32(..4), TaskId(steps.rng.u64(..40)));
            let body = steps.rng.bool().then(|| Body::new(&vec![0; steps.rng.usize(..9)]));
            let there = machine.tubes.get(number).is_some_and(|tube| tube.tasks.get(id).is_some());
            let lacks_body = there && body.is_none();
            machine.set_body(number, id, body);
            assert_eq!(machine.lacks_body(number, id), lacks_body);
            if steps.rng.u8(..4) == 0 {
                machine.undo();
            }
            machine.audit();
        }
    }
}

#[test]
fn an_undone_batch_never_happened() {
    for seed in 0..60 {
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

impl Machine {
    /// How many tasks of each tube can be taken.
    fn takeable(&self) -> HashMap<TubeName, u64> {
        self.tubes.iter().map(|(_, tube)| (tube.name.clone(), tube.takeable())).collect()
    }

    /// Whoever waits hears of tubes from which more can be taken than `before`.
    fn check_wakes(&mut self, before: &HashMap<TubeName, u64>) {
        let told = self.take_effects().ready;
        for (name, takeable) in self.takeable() {
            let more = takeable > before.get(&name).copied().unwrap_or(0);
            assert!(!more || told.contains(&(name.clone(), takeable)), "{name}: {told:?}");
        }
    }

    /// All that anybody could notice, but for the numbers that are used up: the next ids and lease.
    pub(super) fn snapshot(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, tube) in self.tubes.iter() {
            let Ok(Reply::Tubes(mut infos)) = self.show_tubes(Some(&tube.name)) else {
                panic!("every tube can be shown");
            };
            // Expired tasks that a take has met are not among the takeable any more.
            (infos[0].takeable, infos[0].oldest_ready) = (0, None);
            lines.push(format!("{number}: {infos:?}"));
            let mut tasks: Vec<_> = tube.tasks.parts().0.iter().cloned().collect();
            tasks.sort_by_key(|slot| slot.id);
            for mut slot in tasks {
                let subqueue = tube.tasks.subqueue_of(&slot);
                // Where its sub-queue is kept and which batch noted it last is nobody's business.
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
