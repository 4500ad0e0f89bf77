//! Positions of waiting tasks, compared with a count of all tasks one by one.

use super::random::{self, Step, seeds};
use crate::estimate::{delayed_ahead, delayed_period};
use crate::slots::{Slot, SlotState};
use crate::{
    Body, Command, Kind, Machine, NewTask, Position, Reply, Span, SubqueuePosition, Take, TaskId,
    Timestamp, TubeName, TubeOptions, steps,
};

#[test]
fn positions_are_those_of_a_count() {
    for seed in seeds(40) {
        let mut machine = Machine::default();
        for (place, Step { now, command }) in random::script(seed, 250).into_iter().enumerate() {
            println!("seed {seed}, step {place} at {now:?}: {command:?}");
            let _ = machine.apply(now, command);
            if place % 5 == 0 {
                machine.compare_positions();
            }
        }
    }
}

impl Machine {
    fn compare_positions(&mut self) {
        let now = self.now.expect("a command was run");
        let tubes: Vec<_> =
            self.tubes.iter().map(|(number, tube)| (number, tube.name.clone())).collect();
        for (number, tube) in tubes {
            let slots = self.tubes[number].tasks.all();
            let ids: Vec<_> =
                slots.map(|slot| slot.id).take(crate::limits::POSITIONS_MAX).collect();
            let expected: Vec<_> =
                ids.iter().filter_map(|id| self.counted(number, *id, now)).collect();
            let found = self.apply(now, Command::Positions { tube, ids }).expect("a tube");
            let by = self.wall_ahead();
            let shown = |position: Position| Position {
                due: position.due.map(|due| due.moved(by)),
                ..position
            };
            let expected = expected.into_iter().map(shown).collect();
            assert_eq!(found, Reply::Positions(expected));
        }
    }

    fn counted(&self, number: u32, id: TaskId, now: Timestamp) -> Option<Position> {
        let tasks = &self.tubes[number].tasks;
        let own = tasks.get(id)?;
        let due = |slot: &Slot| match slot.details() {
            SlotState::Delayed(due) | SlotState::Scheduled(due) => Some(due),
            _ => None,
        };
        let is_ready =
            |slot: &Slot| matches!(slot.details(), SlotState::Ready(_)) && slot.expires() > now;
        if !is_ready(own) && due(own).is_none() {
            return None;
        }
        let better: Vec<&Slot> =
            tasks.all().filter(|slot| slot.order_key() < own.order_key()).collect();
        let mut delayed = vec![0; crate::estimate::DELAYED_PERIODS];
        for due in better.iter().filter_map(|slot| due(slot)) {
            if let Some(period) = delayed_period(due.since(now)) {
                delayed[period] += 1;
            }
        }
        let ready: Vec<_> = better.iter().filter(|slot| is_ready(slot)).collect();
        let subqueue = tasks.subqueue_of(own).map(|_| SubqueuePosition {
            ahead: ready.iter().filter(|slot| slot.subqueue == own.subqueue).count() as u64,
            is_busy: tasks
                .all()
                .any(|slot| slot.subqueue == own.subqueue && slot.delivery().is_some()),
        });
        Some(Position {
            id,
            pri: own.pri(),
            due: due(own),
            ahead: ready.len() as u64,
            delayed_ahead: delayed_ahead(delayed),
            subqueue,
            ..Position::behind(0)
        })
    }
}

/// In a tube with more than 16,384 sub-queues only some of them were examined, one by one, and the position was not exact.
#[test]
fn a_position_among_many_sub_queues_is_exact_and_takes_few_steps() {
    const TASKS: u64 = 40_000;
    let mut machine = Machine::default();
    let (now, tube) = (Timestamp::EPOCH, TubeName::new("mail").expect("a good name"));
    let options = TubeOptions::new(Kind::UtubeTtl);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    machine.apply(now, create).expect("it can be made");
    for first in (0..TASKS).step_by(1_000) {
        let task = |id: u64| NewTask {
            subqueue: Some((id % 20_000).to_string().into()),
            pri: Some(id % 3),
            ..NewTask::new(Body::new(&[0xc0]))
        };
        let tasks = (first..first + 1_000).map(task).collect();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        machine.apply(now, put).expect("it is put");
    }
    let (session, lease, worker) = (None, Some(Span::from_secs(60)), None);
    let take = Take { tube: tube.clone(), count: 500, session, lease, worker, wait: Span::ZERO };
    machine.apply(now, Command::Take(take)).expect("they are taken");
    for id in [TASKS - 1, TASKS / 2, 19_000] {
        let expected = machine.counted(0, TaskId(id), now).expect("it waits");
        assert!(expected.ahead > 1_000, "{expected:?}");
        let command = Command::Positions { tube: tube.clone(), ids: vec![TaskId(id)] };
        let (steps, found) = steps::of(|| machine.apply(now, command));
        assert_eq!(found, Ok(Reply::Positions(vec![expected])));
        assert!(steps < 200, "{steps} steps");
    }
}
