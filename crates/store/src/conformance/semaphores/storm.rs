//! Many clients at the same time, and what must be true when they are done.

use std::collections::BTreeSet;

use fastrand::Rng;
use taskyard_core::{
    Command, Error, EventId, EventKind, Execute, Grant, GrantFinish, GrantItem, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, Status, TaskId, Wish,
};

use super::ask::key;
use super::audit;

/// The tasks of each semaphore.
const TASKS: u64 = 40;

/// What somebody was told: semaphore, task, grant and kind.
pub type Told = BTreeSet<(SemaphoreKey, TaskId, Grant, EventKind)>;

fn keys(count: usize) -> Vec<SemaphoreKey> {
    (0..count).map(|number| key(&format!("storm {number}"))).collect()
}

async fn ask<E: Execute>(queue: &E, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
    match queue.execute(vec![Command::Semaphore(command)]).await.remove(0)? {
        Reply::Semaphore(reply) => Ok(reply),
        other => panic!("a semaphore answered {other:?}"),
    }
}

/// Makes so many semaphores.
pub async fn prepare<E: Execute>(queue: &E, semaphores: usize) {
    for (number, key) in keys(semaphores).into_iter().enumerate() {
        let active = (number % 5) as i64;
        let change = Box::new(SemaphoreChange::limits(active, active));
        let configure = SemaphoreCommand::Configure { key, change, only_new: false };
        ask(queue, configure).await.expect("it can be made");
    }
}

/// One client: random calls, half of its acknowledgements are lost. A store that fails now and then is asked again.
/// What it was told.
pub async fn play<E: Execute>(queue: &E, seed: u64, semaphores: usize, calls: usize) -> Told {
    let (mut rng, keys) = (Rng::with_seed(seed), keys(semaphores));
    let mut told = Told::new();
    for _ in 0..calls {
        let key = keys[rng.usize(0..keys.len())].clone();
        let task = TaskId(rng.u64(0..TASKS));
        let command = match rng.u8(0..10) {
            0..4 => {
                let wish = |rng: &mut Rng| Wish {
                    task: TaskId(rng.u64(0..TASKS)),
                    priority: f64::from(rng.u8(0..20)),
                };
                let wishes = (0..rng.usize(1..4)).map(|_| wish(&mut rng)).collect();
                SemaphoreCommand::Enqueue { key, wishes }
            }
            4..7 => {
                let finish = if rng.bool() { GrantFinish::Release } else { GrantFinish::Yield };
                let items = vec![GrantItem { task, grant: None, finish }];
                SemaphoreCommand::Finish { key, items }
            }
            _ => {
                let key = rng.bool().then_some(key);
                SemaphoreCommand::Events { key, count: 5, wait: Span::ZERO }
            }
        };
        match ask(queue, command).await {
            Ok(SemaphoreReply::Events(events)) => {
                let heard = |event: &taskyard_core::SemaphoreEvent| {
                    (event.semaphore.clone(), event.task, event.grant, event.kind)
                };
                told.extend(events.iter().map(heard));
                if rng.bool() {
                    let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
                    _ = ask(queue, SemaphoreCommand::Acknowledge { events }).await;
                }
            }
            Ok(_) | Err(Error::Store(_) | Error::StoreAway(_) | Error::OutcomeUnknown(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    told
}

/// Panics unless every semaphore is as the rules want it, and every grant that is held and every request to release
/// one was told to somebody, or is told now. To be called when everything that was told and not acknowledged is due again.
pub async fn judge<E: Execute>(queue: &E, semaphores: usize, mut told: Told) {
    loop {
        let fetch = SemaphoreCommand::Events { key: None, count: 1000, wait: Span::ZERO };
        let Ok(SemaphoreReply::Events(events)) = ask(queue, fetch).await else {
            panic!("events can be fetched");
        };
        if events.is_empty() {
            break;
        }
        let ids = events.iter().map(|event| event.id).collect();
        ask(queue, SemaphoreCommand::Acknowledge { events: ids }).await.expect("they are there");
        let heard = |event: taskyard_core::SemaphoreEvent| {
            (event.semaphore, event.task, event.grant, event.kind)
        };
        told.extend(events.into_iter().map(heard));
    }
    let mut grants = 0;
    for key in keys(semaphores) {
        for holder in audit::check(queue, &key, 0..TASKS).await {
            let grant = holder.grant.expect("a holder has a grant");
            let heard = (key.clone(), holder.task, grant, EventKind::Acquired);
            assert!(told.contains(&heard), "{key}: task {} was never told", holder.task);
            let asked = (key.clone(), holder.task, grant, EventKind::TryRelease);
            let is_asked = holder.status == Status::TryRelease;
            assert!(
                !is_asked || told.contains(&asked),
                "{key}: task {} was never asked",
                holder.task
            );
            grants += 1;
        }
    }
    assert!(grants > 0, "a storm in which nobody holds anything proves nothing");
}
