//! How the queue of a contract finds its tube: by its permanent number, else by its name.

use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error as Refusal, Execute, Kind, Reply, TubeName, TubeOptions};

use crate::client::unexpected;

use super::inner::Lane;
use super::store::Store;
use super::worker::InitError;

/// How often it looks anew when somebody else was faster.
const TRIES: usize = 3;

/// Sees that a queue has its tube: made, numbered or renamed if need be. Answers the tube's number in the store. Asks about no
/// other tubes than the queue's own, so that who may use only these can run a worker.
pub(super) async fn enrol(store: &Store, lane: &Lane) -> Result<u32, InitError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let own = find(store, &lane.tube).await?;
        if let Some(own) = own.as_ref().filter(|own| own.options.queue_num == Some(lane.num)) {
            let number = check(own)?;
            warn_of_limits(own);
            return Ok(number);
        }
        let mut before = Vec::new();
        for name in &lane.was {
            before.extend(find(store, name).await?);
        }
        let change = change(own.as_ref(), &before, lane)?;
        match store.execute(vec![change]).await.pop() {
            Some(Ok(_)) => {}
            // Another worker of the same contract may begin at the same time: what it did is seen now.
            Some(Err(Refusal::TubeExists(_) | Refusal::TubeNotFound(_))) if tries < TRIES => {}
            Some(Err(Refusal::QueueNumTaken { tube, .. }))
                if tube == lane.tube && tries < TRIES => {}
            Some(Err(Refusal::QueueNumTaken { tube, num })) => {
                return Err(InitError::NumberTaken { num, tube, wanted: lane.tube.clone() });
            }
            Some(Err(refusal)) => return Err(refusal.into()),
            None => return Err(Refusal::ShuttingDown.into()),
        }
    }
}

/// What is to be done before the tube can be used, which is not there or has not the queue's number: the store refuses
/// when another tube has it.
fn change(own: Option<&TubeInfo>, before: &[TubeInfo], lane: &Lane) -> Result<Command, InitError> {
    let queue_num = Some(lane.num);
    let name = |tube: &TubeInfo| Command::NameTube {
        tube: tube.name.clone(),
        name: lane.tube.clone(),
        queue_num,
    };
    if let Some(numbered) = before.iter().find(|tube| tube.options.queue_num == queue_num) {
        if own.is_some() {
            let why = "the tube of its old name is there too, and only one can be the queue; \
                       move the tasks of one of them and drop it";
            return Err(InitError::UnfitTube { tube: lane.tube.clone(), why });
        }
        return Ok(name(numbered));
    }
    if let Some(own) = own {
        if own.options.queue_num.is_some() {
            let why = "it has the number of another queue, and such numbers are permanent";
            return Err(InitError::UnfitTube { tube: own.name.clone(), why });
        }
        check(own)?;
        return Ok(name(own));
    }
    // A tube that was made before tubes had numbers.
    if let Some(old) = before.iter().find(|old| old.options.queue_num.is_none()) {
        return Ok(name(old));
    }
    let options = TubeOptions { queue_num, ..TubeOptions::new(Kind::FifoTtl) };
    Ok(Command::CreateTube { tube: lane.tube.clone(), options, if_not_exists: false })
}

/// Whether tasks of a contract can be in the tube.
fn check(tube: &TubeInfo) -> Result<u32, InitError> {
    let unfit = |why| InitError::UnfitTube { tube: tube.name.clone(), why };
    if !tube.options.kind.has_times() {
        return Err(unfit("its kind has no times, so nothing could be retried later"));
    }
    if tube.options.ttl.is_some() {
        return Err(unfit("its tasks die by their ttl, and typed tasks are never lost"));
    }
    Ok(tube.number)
}

/// Says what the tube does that a handler would not expect: retries are otherwise without limit.
fn warn_of_limits(tube: &TubeInfo) {
    if let Some(attempts_max) = tube.options.attempts_max {
        tracing::warn!(
            queue = %tube.name,
            "the tube has attempts_max: a task whose attempts have failed {attempts_max} times is buried, whatever its \
             handler decides; taskyard tube alter {} --attempts-max none takes the limit away",
            tube.name
        );
    }
}

/// The tube of this name, if there is one.
async fn find(store: &Store, name: &TubeName) -> Result<Option<TubeInfo>, InitError> {
    match store.execute(vec![Command::Tubes { tube: Some(name.clone()) }]).await.pop() {
        Some(Ok(Reply::Tubes(mut tubes))) => Ok(tubes.pop()),
        Some(Err(Refusal::TubeNotFound(_))) => Ok(None),
        Some(Err(refusal)) => Err(refusal.into()),
        _ => Err(unexpected("tubes").into()),
    }
}
