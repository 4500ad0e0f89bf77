//! Bodies that are on disk only: the machine predicts which ones are needed next.

use std::collections::BTreeSet;

use taskyard_core::*;

use crate::random::TUBES;
use crate::shrink::{self, PropertyResult, same};

#[test]
fn the_upcoming_tasks_are_those_that_are_taken() {
    shrink::check(60, 150, |script| {
        let mut machine = Machine::default();
        let mut now = Timestamp::EPOCH;
        for step in script {
            now = now.max(step.now);
            let _ = machine.apply(now, step.command.clone());
        }
        let _ = machine.apply(now, Command::Tick { limit: usize::MAX, seed: 0 });
        TUBES.into_iter().try_for_each(|name| check_tube(&mut machine, now, name))
    });
}

fn check_tube(machine: &mut Machine, now: Timestamp, name: &str) -> PropertyResult {
    let tube = TubeName::new(name).unwrap();
    let Some(number) = machine.tube_number(&tube) else { return Ok(()) };
    let resume = TubeChange { paused: Some(false), ..TubeChange::default() };
    let _ = machine.apply(now, Command::AlterTube { tube: tube.clone(), change: resume });
    let bytes = machine.body_bytes();
    let bodies = bodies(machine, now, &tube);
    for (id, body) in &bodies {
        machine.set_body(number, *id, None);
        same("lacks its body", &machine.is_body_unloaded(number, *id), &true)?;
        machine.set_body(number, *id, body.clone());
        same("has its body", &machine.is_body_unloaded(number, *id), &body.is_none())?;
    }
    same("bytes", &machine.body_bytes(), &bytes)?;
    let upcoming = machine.upcoming(number, 4);
    let take_tube = tube.clone();
    let take = Take { tube, count: 4, session: None, lease: None, worker: None, wait: Span::ZERO };
    let Ok(Reply::Taken(tasks)) = machine.apply(now, Command::Take(take)) else {
        return Err("take failed".into());
    };
    let taken: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    same("taken of the upcoming", &upcoming[..taken.len()].to_vec(), &taken)?;
    same("every one once", &upcoming.iter().collect::<BTreeSet<_>>().len(), &upcoming.len())?;
    let show = Command::Peek { tube: take_tube, ids: upcoming[taken.len()..].to_vec() };
    match machine.apply(now, show) {
        Ok(Reply::Tasks(tasks)) => {
            let waiting = tasks.iter().all(|task| task.state == State::Ready);
            same("the others wait", &waiting, &true)
        }
        other => Err(format!("{other:?}")),
    }
}

fn bodies(machine: &mut Machine, now: Timestamp, tube: &TubeName) -> Vec<(TaskId, Option<Body>)> {
    let ids = (0..1_000).map(TaskId).collect();
    match machine.apply(now, Command::Peek { tube: tube.clone(), ids }) {
        Ok(Reply::Tasks(tasks)) => tasks.into_iter().map(|task| (task.id, task.body)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_behind_a_running_task_are_upcoming() {
    let mut machine = Machine::default();
    let tube = TubeName::new("mail").unwrap();
    let options = TubeOptions::new(Kind::UtubeTtl);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    machine.apply(Timestamp::EPOCH, create).unwrap();
    let task = |number: u64| NewTask {
        subqueue: Some(["a", "b", "c"][number as usize % 3].into()),
        ..NewTask::new(Body::new(&[0xc0]))
    };
    let tasks = (0..30).map(task).collect();
    let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    machine.apply(Timestamp::EPOCH, put).unwrap();
    let take = Take { tube, count: 2, session: None, lease: None, worker: None, wait: Span::ZERO };
    machine.apply(Timestamp::EPOCH, Command::Take(take)).unwrap();
    // The head of `c` can be taken now; 0 and 1 run, behind them are 3 and 4.
    let upcoming = machine.upcoming(0, 8);
    assert_eq!(upcoming, [2, 3, 4, 5, 6, 7, 8, 9].map(TaskId));
}
