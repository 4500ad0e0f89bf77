//! Tubes that are gated by a semaphore: random runs with a recount after each step, and undone
//! batches.

use fastrand::Rng;

use super::random::seeds;
use crate::command::Take;
use crate::semaphore::{
    EnqueueItem, GrantFinish, GrantItem, SemaphoreChange, SemaphoreCommand, SemaphoreKey,
};
use crate::*;

fn key(number: u8) -> SemaphoreKey {
    SemaphoreKey::new(&format!("s{number}")).expect("a good key")
}

fn tube(number: u8) -> TubeName {
    TubeName::new(&format!("t{number}")).expect("a good name")
}

/// Two semaphores; two tubes share the first.
fn begin(machine: &mut Machine) {
    for number in 0..2 {
        let change = Box::new(SemaphoreChange::limits(2, 2));
        let command = SemaphoreCommand::Configure { key: key(number), change, only_new: false };
        machine.apply(Timestamp::EPOCH, Command::Semaphore(command)).expect("it can be made");
    }
    for number in 0..3 {
        machine.apply(Timestamp::EPOCH, create(number)).expect("it can be made");
    }
}

fn create(number: u8) -> Command {
    let semaphore = Some(key(number / 2));
    let kind = if number == 1 { Kind::UtubeTtl } else { Kind::FifoTtl };
    let options = TubeOptions { semaphore, temporary: number == 2, ..TubeOptions::new(kind) };
    Command::CreateTube { tube: tube(number), options, if_not_exists: true }
}

fn command(rng: &mut Rng) -> Command {
    let number = rng.u8(..3);
    let tube = tube(number);
    let id = TaskId(rng.u64(..30));
    match rng.u8(..60) {
        0..15 => Command::Put {
            tube,
            tasks: (0..rng.u8(1..3)).map(|_| task(rng)).collect(),
            wait: Span::ZERO,
        },
        15..25 => {
            let session = rng.bool().then_some(SessionId([1; 16]));
            let lease = Some(Span::from_secs(rng.u64(1..20)));
            Command::Take(Take {
                tube,
                count: rng.usize(1..3),
                session,
                lease,
                worker: None,
                wait: Span::ZERO,
            })
        }
        25..37 => {
            let finish = match rng.u8(..6) {
                0 | 1 => Finish::Ack,
                2 => Finish::Release { delay: Span::ZERO, counted: true },
                3 => Finish::Release { delay: Span::from_secs(3), counted: true },
                4 => Finish::Bury,
                _ => Finish::Touch(Span::from_secs(1)),
            };
            let items = vec![FinishItem { id, holder: Holder::Any, finish }];
            Command::Finish { tube, items, show: rng.bool() }
        }
        37 => Command::Kick { tube, count: 3 },
        38 => Command::Delete { tube, ids: vec![id], show: true },
        39 if rng.u8(..4) == 0 => Command::Truncate { tube },
        39 if rng.u8(..4) == 0 => Command::DropTube { tube },
        39 => create(number),
        40 => Command::ReleaseAll { tube },
        41 | 42 => Command::JoinSession { session: SessionId([1; 16]), create: true },
        43 => Command::LeaveSession { session: SessionId([1; 16]) },
        44..50 => Command::Tick { limit: rng.usize(1..20), seed: 0 },
        _ => Command::Semaphore(semaphore_command(rng)),
    }
}

fn task(rng: &mut Rng) -> NewTask {
    let mut task = NewTask::new(Body::new(&[0xc0]));
    task.pri = Some(rng.u64(..4));
    task.subqueue = Some(["a", "b"][rng.usize(..2)].into());
    let own = rng.f64().mul_add(-4.0, 0.5);
    task.semaphore_priority = rng.bool().then(|| Priority::new(own).expect("a number"));
    task.ttl = rng.bool().then(|| Span::from_secs(rng.u64(1..30)));
    task.delay = (rng.u8(..4) == 0).then(|| Span::from_secs(rng.u64(1..5)));
    task.key = rng.bool().then(|| Box::new(key_request(rng)));
    task
}

fn key_request(rng: &mut Rng) -> KeyRequest {
    let key = Key::new(["a", "b", "c"][rng.usize(..3)]).expect("a good key");
    let held = HeldKey { key, unique_for: Span::from_secs(rng.u64(..2) * 5) };
    let on_conflict = if rng.bool() { OnConflict::Replace } else { OnConflict::Keep };
    KeyRequest { held, on_conflict }
}

fn semaphore_command(rng: &mut Rng) -> SemaphoreCommand {
    let key = key(rng.u8(..2));
    let task = TaskId(rng.u64(..4));
    match rng.u8(..5) {
        0 => {
            let priority = -f64::from(rng.u8(..4)) - 0.5;
            SemaphoreCommand::Enqueue { key, entries: vec![EnqueueItem { task, priority }] }
        }
        1 => {
            let items = vec![GrantItem { task, grant: None, finish: GrantFinish::Release }];
            SemaphoreCommand::Finish { key, items }
        }
        2 => SemaphoreCommand::Events { key: None, count: 5, wait: Span::ZERO },
        _ => {
            let change = Box::new(SemaphoreChange {
                active: Some(rng.i64(0..4)),
                cool_down: Some(Span::from_secs(rng.u64(..2) * 5)),
                lease: Some((rng.u8(..3) == 0).then(|| Span::from_secs(7))),
                revoke_grace: Some(Span::from_secs(3)),
                force: Some(rng.bool()),
                shed: Some(rng.bool()),
                drop_expired: Some(rng.u8(..3) == 0),
                ..SemaphoreChange::default()
            });
            SemaphoreCommand::Configure { key, change, only_new: false }
        }
    }
}

/// All but the last line: which events were sent is not undone.
fn seen(machine: &Machine) -> Vec<String> {
    let mut lines = machine.snapshot();
    lines.pop();
    lines
}

#[test]
fn tasks_are_ready_exactly_while_they_hold_a_grant() {
    for seed in seeds(60) {
        let mut rng = Rng::with_seed(seed);
        let mut machine = Machine::default();
        begin(&mut machine);
        let mut now = 0;
        for batch in 0..80 {
            let before = seen(&machine);
            machine.begin();
            for _ in 0..rng.usize(1..5) {
                now += rng.i64(0..4) * 500_000;
                let command = command(&mut rng);
                println!("seed {seed}, batch {batch} at {now}: {command:?}");
                let answer = machine.apply(Timestamp::from_micros(now), command);
                println!("    {answer:?}");
                machine.audit();
            }
            if rng.u8(..4) == 0 {
                machine.undo();
                assert_eq!(seen(&machine), before, "seed {seed}, batch {batch}");
            } else {
                machine.keep();
            }
            machine.audit();
            if rng.u8(..20) == 0 {
                machine.restart();
                machine.audit();
                let tick =
                    machine.apply(Timestamp::from_micros(now), Command::Tick { limit: 0, seed: 0 });
                assert!(tick.is_ok() && machine.to_repair.is_empty());
                machine.audit();
            }
        }
    }
}

/// The entries of a tube's tasks are removed with them: after a drop, truncate or loss no grant
/// stays held.
#[test]
fn removed_tasks_hold_no_grants() {
    let mut machine = Machine::default();
    begin(&mut machine);
    let mut rng = Rng::with_seed(1);
    let put = |rng: &mut Rng| {
        let tasks = (0..4).map(|_| task(rng)).collect();
        Command::Put { tube: tube(0), tasks, wait: Span::ZERO }
    };
    for end in [Command::Truncate { tube: tube(0) }, Command::DropTube { tube: tube(0) }] {
        machine.apply(Timestamp::EPOCH, put(&mut rng)).expect("there is room");
        assert_ne!(machine.semaphores.gated_tasks().count(), 0);
        machine.apply(Timestamp::EPOCH, end).expect("nothing is taken");
        assert_eq!(machine.semaphores.gated_tasks().count(), 0);
        machine.audit();
    }
    // A task whose row was lost with a damaged page leaves its entry behind.
    machine.apply(Timestamp::EPOCH, create(0)).expect("it can be made again");
    machine.apply(Timestamp::EPOCH, put(&mut rng)).expect("there is room");
    let number = machine.tubes.number(&tube(0)).expect("it is there");
    let ids: Vec<TaskId> = machine.tubes[number].tasks.all().map(|slot| slot.id).collect();
    for id in ids {
        machine.tubes.get_mut(number).unwrap().tasks.remove(id, &mut machine.shared);
    }
    machine.update_signals(number);
    machine.restored();
    machine.apply(Timestamp::EPOCH, Command::Tick { limit: 1, seed: 0 }).expect("time can pass");
    assert_eq!(machine.semaphores.gated_tasks().count(), 0);
    machine.audit();
}

// A tube whose semaphore was lost with a damaged page admitted all of its tasks at once.
#[test]
fn a_gate_whose_semaphore_is_lost_stays_closed() {
    let mut machine = Machine::default();
    begin(&mut machine);
    let put = |machine: &mut Machine| {
        let tasks = (0..3).map(|_| NewTask::new(Body::new(&[0xc0]))).collect();
        let put = Command::Put { tube: tube(0), tasks, wait: Span::ZERO };
        machine.apply(Timestamp::EPOCH, put).expect("there is room");
    };
    let take = |machine: &mut Machine| {
        let take = Take {
            tube: tube(0),
            count: 9,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        match machine.apply(Timestamp::EPOCH, Command::Take(take)) {
            Ok(Reply::Taken(tasks)) => tasks.len(),
            other => panic!("{other:?}"),
        }
    };
    put(&mut machine);
    machine.semaphores = Default::default();
    machine.restored();
    assert_eq!(machine.lost_semaphores().into_iter().collect::<Vec<_>>(), [key(0), key(1)]);
    assert_eq!(machine.next_wakeup(), Some(Timestamp::EPOCH), "it is not delayed");
    // Also when the repairing batch is undone.
    machine.begin();
    assert_eq!(take(&mut machine), 0);
    machine.undo();
    machine.audit();
    assert_eq!(take(&mut machine), 0);
    put(&mut machine);
    assert_eq!(take(&mut machine), 0);
    machine.audit();
    let change = Box::new(SemaphoreChange { active: Some(4), ..SemaphoreChange::default() });
    let open = SemaphoreCommand::Configure { key: key(0), change, only_new: false };
    machine.apply(Timestamp::EPOCH, Command::Semaphore(open)).expect("it is there again");
    assert_eq!(take(&mut machine), 4);
    machine.audit();
}

#[test]
fn an_unknown_semaphore_is_refused() {
    let mut machine = Machine::default();
    begin(&mut machine);
    let semaphore = Some(SemaphoreKey::new("nowhere").expect("a good key"));
    let options = TubeOptions { semaphore, ..TubeOptions::new(Kind::Fifo) };
    let create = Command::CreateTube { tube: tube(9), options, if_not_exists: false };
    let answer = machine.apply(Timestamp::EPOCH, create);
    assert!(matches!(answer, Err(Error::SemaphoreNotFound(_))), "{answer:?}");
}
