//! Costs that must not grow: a take examines neither busy sub-queues nor expired tasks twice. With
//! a scan these tests would need ten thousand million steps; they assert no times, they just end.

use std::sync::Arc;

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::*;

const MANY: usize = 100_000;

#[test]
fn busy_subqueues_are_not_examined() {
    let (mut machine, tube) = machine(Kind::Utube);
    let own_subqueue = |task: &mut NewTask, place: usize| {
        task.subqueue = Some(Arc::from(place.to_string()));
    };
    put(&mut machine, &tube, own_subqueue);
    put(&mut machine, &tube, own_subqueue);
    // Every sub-queue runs a task, and another one of each waits.
    while take(&mut machine, 0, &tube, BATCH_TASKS_MAX) > 0 {}
    for id in 0..MANY {
        assert_eq!(take(&mut machine, 0, &tube, 1), 0);
        let ack = FinishItem { id: TaskId(id as u64), holder: Holder::Any, finish: Finish::Ack };
        let ack = Command::Finish { tube: tube.clone(), items: vec![ack], show: true };
        machine.apply(Timestamp::EPOCH, ack).unwrap();
        assert_eq!(take(&mut machine, 0, &tube, 1), 1);
    }
}

#[test]
fn expired_tasks_are_not_examined_twice() {
    let (mut machine, tube) = machine(Kind::FifoTtl);
    put(&mut machine, &tube, |task, _| task.ttl = Some(Span::from_micros(1)));
    put(&mut machine, &tube, |task, _| task.pri = Some(1));
    for _ in 0..MANY {
        assert_eq!(take(&mut machine, 1, &tube, 1), 1);
    }
    assert_eq!(take(&mut machine, 1, &tube, 1), 0);
}

fn machine(kind: Kind) -> (Machine, TubeName) {
    let tube = TubeName::new("many").unwrap();
    let mut machine = Machine::default();
    let options = TubeOptions::new(kind);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    machine.apply(Timestamp::EPOCH, create).unwrap();
    (machine, tube)
}

fn put(machine: &mut Machine, tube: &TubeName, shape: impl Fn(&mut NewTask, usize)) {
    let body = Body::new(b"x");
    for batch in 0..MANY / BATCH_TASKS_MAX {
        let tasks = (0..BATCH_TASKS_MAX).map(|place| {
            let mut task = NewTask::new(body.clone());
            shape(&mut task, batch * BATCH_TASKS_MAX + place);
            task
        });
        let tasks = tasks.collect();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        machine.apply(Timestamp::EPOCH, put).unwrap();
    }
}

/// Takes at `micros`; returns the number of tasks.
fn take(machine: &mut Machine, micros: i64, tube: &TubeName, count: usize) -> usize {
    let tube = tube.clone();
    let take = Take { tube, count, session: None, lease: None, worker: None, wait: Span::ZERO };
    match machine.apply(Timestamp::from_micros(micros), Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks.len(),
        other => panic!("{other:?}"),
    }
}
