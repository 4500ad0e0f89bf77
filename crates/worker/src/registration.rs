//! Registers the queues of a worker: finds, creates, numbers or renames the tube of each queue.
//!
//! The permanent number of a queue identifies its tube; a tube without a number is found by its name.

use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error as Refusal, Execute, Kind, Reply, TubeName, TubeOptions};

use crate::state::WorkerQueue;
use crate::store::{Store, unexpected};
use crate::worker::InitError;

/// How often a registration is tried when another worker changes the tube at the same time.
const TRIES_MAX: usize = 3;

/// Ensures that a queue has its tube, which is created, numbered or renamed if necessary. Returns the tube's number in the
/// store. Reads no other tubes than the queue's own, so that a user with access to these alone can run a worker.
pub(crate) async fn register_queue(
    store: &Store,
    worker_queue: &WorkerQueue,
) -> Result<u32, InitError> {
    if !worker_queue.is_numbered {
        return find_or_create(store, worker_queue).await;
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let own = find(store, &worker_queue.tube).await?;
        if let Some(own) =
            own.as_ref().filter(|own| own.options.queue_num == Some(worker_queue.num))
        {
            let number = check(own)?;
            warn_of_limits(own);
            return Ok(number);
        }
        let mut before = Vec::new();
        for name in &worker_queue.was {
            before.extend(find(store, name).await?);
        }
        let change = change(own.as_ref(), &before, worker_queue)?;
        match store.execute(vec![change]).await.pop() {
            Some(Ok(_)) => {}
            // Another worker of the same contract registers at the same time: the next try sees its change.
            Some(Err(Refusal::TubeExists(_) | Refusal::TubeNotFound(_))) if tries < TRIES_MAX => {}
            Some(Err(Refusal::QueueNumTaken { tube, .. }))
                if tube == worker_queue.tube && tries < TRIES_MAX => {}
            Some(Err(Refusal::QueueNumTaken { tube, num })) => {
                return Err(InitError::QueueNumTaken {
                    num,
                    tube,
                    wanted: worker_queue.tube.clone(),
                });
            }
            Some(Err(refusal)) => return Err(refusal.into()),
            None => return Err(Refusal::ShuttingDown.into()),
        }
    }
}

/// The number of a tube of any kind with delays, which is created if it does not exist.
async fn find_or_create(store: &Store, worker_queue: &WorkerQueue) -> Result<u32, InitError> {
    let tube = &worker_queue.tube;
    if let Some(found) = find(store, tube).await? {
        check_delays(&found)?;
        return Ok(found.number);
    }
    let options = TubeOptions::new(Kind::FifoTtl);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: true };
    if let Some(Err(refusal)) = store.execute(vec![create]).await.pop() {
        return Err(refusal.into());
    }
    let created = find(store, tube).await?;
    let created = created.ok_or_else(|| Refusal::TubeNotFound(tube.clone()))?;
    // Another client may have created it meanwhile.
    check_delays(&created)?;
    Ok(created.number)
}

/// The command that makes the tube usable when it does not exist or does not have the queue's number. The store refuses it
/// when another tube has the number.
fn change(
    own: Option<&TubeInfo>,
    before: &[TubeInfo],
    worker_queue: &WorkerQueue,
) -> Result<Command, InitError> {
    let queue_num = Some(worker_queue.num);
    let rename = |tube: &TubeInfo| Command::NameTube {
        tube: tube.name.clone(),
        name: worker_queue.tube.clone(),
        queue_num,
    };
    if let Some(numbered) = before.iter().find(|tube| tube.options.queue_num == queue_num) {
        if own.is_some() {
            let why = "a tube with its old name exists too, and only one can be the queue; \
                       move the tasks of one of them and drop it";
            return Err(InitError::UnsuitableTube { tube: worker_queue.tube.clone(), why });
        }
        return Ok(rename(numbered));
    }
    if let Some(own) = own {
        if own.options.queue_num.is_some() {
            let why = "it has the number of another queue, and queue numbers are permanent; use another name";
            return Err(InitError::UnsuitableTube { tube: own.name.clone(), why });
        }
        check(own)?;
        return Ok(rename(own));
    }
    // A tube that was created before tubes had numbers.
    if let Some(old) = before.iter().find(|old| old.options.queue_num.is_none()) {
        return Ok(rename(old));
    }
    let options = TubeOptions { queue_num, ..TubeOptions::new(Kind::FifoTtl) };
    Ok(Command::CreateTube { tube: worker_queue.tube.clone(), options, if_not_exists: false })
}

/// Checks that the tube can hold typed tasks; returns its number.
fn check(tube: &TubeInfo) -> Result<u32, InitError> {
    check_delays(tube)?;
    if tube.options.ttl.is_some() {
        let why = "its tasks expire by their ttl, and typed tasks must not be lost; remove the ttl";
        return Err(InitError::UnsuitableTube { tube: tube.name.clone(), why });
    }
    Ok(tube.number)
}

/// Checks that a failed task can be tried again later: at once, it would fail again and again without a pause.
fn check_delays(tube: &TubeInfo) -> Result<(), InitError> {
    if tube.options.kind.has_times() {
        return Ok(());
    }
    let why =
        "its kind has no delays, so no task could be retried later; use a kind such as fifottl";
    Err(InitError::UnsuitableTube { tube: tube.name.clone(), why })
}

/// Warns of an attempts limit of the tube, which handlers do not expect: retries have no limit otherwise.
fn warn_of_limits(tube: &TubeInfo) {
    if let Some(attempts_max) = tube.options.attempts_max {
        tracing::warn!(
            queue = %tube.name,
            "the tube has attempts_max: a task that failed {attempts_max} times is buried, whatever its handler \
             decides; run taskyard tube alter {} --attempts-max none to remove the limit",
            tube.name
        );
    }
}

/// The tube with this name, if it exists.
async fn find(store: &Store, name: &TubeName) -> Result<Option<TubeInfo>, InitError> {
    match store.execute(vec![Command::Tubes { tube: Some(name.clone()) }]).await.pop() {
        Some(Ok(Reply::Tubes(mut tubes))) => Ok(tubes.pop()),
        Some(Err(Refusal::TubeNotFound(_))) => Ok(None),
        Some(Err(refusal)) => Err(refusal.into()),
        _ => Err(unexpected("tubes").into()),
    }
}
